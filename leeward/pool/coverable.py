"""
Can files of this kernel's /proc be covered before it is changed to show processes alone? A process tries it once.

Runs in:   the daemon, and `leeward run`. The process is exec'd, because a daemon has threads, and one of them can't
           enter namespaces alone.
Stands if: the process fails in another way: then the daemon assumes that it works, and the first runner reports errors.
"""

from __future__ import annotations

import functools
import os
import re
import sys

from leeward.dataclass import replace
from leeward.spec.sandbox import SandboxSpec
from leeward.worker.hatch import import_path

#: The last kernel on which it is known to work; up to that one nothing is tried. Linux 7.3 refuses it.
_KNOWN = (6, 18)

#: Seconds for the try, which takes 22 ms; an emulated machine takes a hundred times as long.
_LONG_S = 30.0

#: The exit status where it is refused.
_REFUSED = 3

_TRY = f"""
import sys
sys.path[:0] = {{path!r}}
from leeward.isolation.mounts import is_whole_proc_refused
sys.exit({_REFUSED} if is_whole_proc_refused() else 0)
"""


def with_what_can_be_covered(spec: SandboxSpec) -> SandboxSpec:
    """
    *spec* without its files of /proc, if the kernel refuses them; `free` and `uptime` then find none.
    """
    if is_coverable():
        return spec
    return replace(spec, view=replace(spec.view, proc=(), proc_live=()))


@functools.cache
def is_coverable() -> bool:
    if _version(os.uname().release) <= _KNOWN:
        return True
    import subprocess  # most kernels are known

    try:
        tried = subprocess.run([sys.executable, "-I", "-S", "-c", _TRY.format(path=import_path())], cwd="/", env={},
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               timeout=_LONG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return _REFUSED != tried.returncode


def _version(release: str) -> tuple[int, int]:
    """
    The first two numbers of a kernel's *release*; those of a kernel that nobody knows if it has none.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (1 << 16, 0)

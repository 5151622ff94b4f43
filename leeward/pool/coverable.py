"""
Whether files of this kernel's /proc can be covered before it is changed to show processes alone. A process tries it
once.

Runs in:   the daemon, and `leeward run`. The process is exec'd, because a daemon has threads, and one of them can't
           enter namespaces alone.
Stands if: the process fails in another way: then the daemon assumes that it works, and the first runner reports errors.
"""

from __future__ import annotations

import functools
import os
import re

from leeward.dataclass import replace
from leeward.spec.sandbox import SandboxSpec
from leeward.worker import bare

#: The last kernel on which it is known to work; up to that one nothing is tried. Linux 7.3 refuses it.
_KNOWN = (6, 18)


def with_what_can_be_covered(spec: SandboxSpec) -> SandboxSpec:
    """*spec* without its files of /proc, if the kernel refuses them; `free` and `uptime` then find none."""
    if is_coverable():
        return spec
    return replace(spec, view=replace(spec.view, proc=(), proc_live=()))


@functools.cache
def is_coverable() -> bool:
    if _version(os.uname().release) <= _KNOWN:
        return True
    return not bare.is_refused("leeward.isolation.mounts", "is_whole_proc_refused()")


def _version(release: str) -> tuple[int, int]:
    """The first two numbers of a kernel's *release*; those of a kernel that nobody knows if it has none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (1 << 16, 0)

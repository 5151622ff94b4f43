"""
What this host allows in namespaces, as far as a process has to try it, once.

Runs in:   the daemon, and `leeward run`. The process is exec'd, because a daemon has threads, and one of them can't
           enter namespaces alone.
Stands if: the process fails in another way: then the daemon assumes that it works, and the first keeper or runner
           reports errors.
"""

from __future__ import annotations

import functools
import os
import re
import socket

from leeward.dataclass import replace
from leeward.isolation.egress import route
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
    """Whether files of this kernel's /proc can be covered before it is changed to show processes alone."""
    if _version(os.uname().release) <= _KNOWN:
        return True
    return not bare.is_refused("leeward.isolation.mounts", "is_whole_proc_refused()")


def _version(release: str) -> tuple[int, int]:
    """The first two numbers of a kernel's *release*; those of a kernel that nobody knows if it has none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (1 << 16, 0)


@functools.cache
def is_routed() -> bool:
    """
    Whether every address can be made local to a sandbox on this host; asked once a policy of egress may be.

    Raises:
        Unsupported: pyroute2 isn't installed.
    """
    return not bare.is_refused("leeward.isolation.egress", f"is_refused({route(socket.AF_INET)!r})")

"""
The kernel's bounds on what a sandbox watches by inotify(7), which its keeper sets for its user namespace.

The kernel counts inotify's descriptors and watches for the user of each user namespace, and in each namespace above: all
sandboxes together take from what the daemon's user has. So no sandbox may have more than a fixed part, which
/proc/sys/user of its own namespace bounds (namespaces(7), Linux 4.14), and the supervisor lets so many sandboxes have
their part that half is left to the user's other programs. No job can change the bounds: that takes a capability.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import NamedTuple

from leeward._native import supervisor
from leeward._native.steps import AT_FDCWD, Block, Call, Cell, Step, gives, returns
from leeward.base.dataclass import replace

_FOLDER = "/proc/sys/user"

#: The largest of an event that waits to be read: its head and a name.
_EVENT = 512

_NO_SYSCTL = dict.fromkeys((errno.EROFS, errno.EACCES, errno.ENOENT, errno.EPERM),
                           f"inotify in sandboxes needs a writable {_FOLDER}")


class Watchers(NamedTuple):
    """Of all sandboxes together."""

    most: int = 0   # sandboxes that may watch at once; 0 if none may
    queue: int = 0  # bytes of the events that wait in one descriptor, at most


NOBODY = Watchers()


@functools.cache
def watchers() -> Watchers:
    """What this host has for the sandboxes of a daemon. None may watch where a keeper couldn't bound it."""
    if not supervisor.can_bound_watches(f"{_FOLDER}/max_inotify_watches"):
        return NOBODY
    instances, watches, events = (_number(name) for name in ("max_user_instances", "max_user_watches",
                                                             "max_queued_events"))
    most = min(instances // 2 // supervisor.INSTANCES, watches // 2 // supervisor.WATCHES)
    return Watchers(most, events * _EVENT)


def _number(name: str) -> int:
    with open(f"/proc/sys/fs/inotify/{name}") as file:
        return int(file.read())


def steps(proc: Cell | None = None) -> list[Step]:
    """
    Bound descriptors and watches in this user namespace, by the host's /proc, or better by the detached mount *proc* of one
    that isn't the host's: in that the kernel keeps the files of all user namespaces under one name, and looks through them.
    """
    at, folder = (AT_FDCWD, _FOLDER) if proc is None else (proc, "sys/user")
    made = []
    for name, most in (("instances", supervisor.INSTANCES), ("watches", supervisor.WATCHES)):
        fd, text = Cell(name), str(most).encode()
        made += [
            replace(gives(fd, Call.OPENAT, at, f"{folder}/max_inotify_{name}", os.O_WRONLY | os.O_CLOEXEC, 0),
                    hints=_NO_SYSCTL),
            returns(Call.WRITE, fd, Block(text), len(text), value=len(text)),
            returns(Call.CLOSE, fd),
        ]
    return made

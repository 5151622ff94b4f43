"""
The group that holds all other groups of one daemon: its name, its lock, and the removal of dead daemons' groups.

A home is named leeward-PID-STARTTIME (followed by -N if one process has several), and its daemon holds an flock(2) on
it, in every hierarchy. On a plain host either the name or the lock shows whether the daemon lives. Both are needed
where daemons in two pid namespaces see one cgroup file system, and where a pid is used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import select
import time
from collections.abc import Iterable, Iterator

from leeward.errors import KernelRefusal
from leeward.isolation.cgroup.group import Group, pidfd_of
from leeward.isolation.cgroup.hierarchy import Hierarchy

_NAME = re.compile(r"leeward-(\d+)-(\d+)(?:-\d+)?")

#: The depth to which folders below the mount are searched. Daemons aren't nested deeper, and a large host has thousands
#: of folders.
_DEPTH = 8

#: Seconds that the processes of all dead daemons together have to end after SIGKILL.
_PATIENCE_S = 1.0

#: Processes that are waited for at one time; names of a home that are tried.
_AWAITED, _MOST_TRIED = 64, 1000


def name(pid: int | None = None) -> str:
    """The home's name for the daemon *pid*, by default this process."""
    pid = pid or os.getpid()
    return f"leeward-{pid}-{_starttime(pid)}"


def _starttime(pid: int) -> int:
    """Clock ticks from boot to the start of *pid*; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(b")")[2].split()[19])  # field 22; field 2, a name, may hold spaces, parentheses, any byte


def make(parent: Group) -> Group:
    """
    Make and lock this daemon's home in *parent*. One that isn't locked yet may be taken for a dead daemon's by a sweep in
    another pid namespace, and removed: then another is made.
    """
    numbers = itertools.count()
    while True:
        number = next(numbers)
        try:
            home = parent.make(name() if number == 0 else f"{name()}-{number}")
        except KernelRefusal as refusal:
            if refusal.errno not in (errno.EEXIST, errno.ENOENT) or number >= _MOST_TRIED:
                raise
            continue
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(home.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(home.name, dir_fd=parent.fd), os.fstat(home.fd)):
                return home
        home.close()


def sweep(hierarchies: Iterable[Hierarchy]) -> int:
    """
    Remove the homes of this user's dead daemons; return the number of these daemons. Groups whose processes don't end
    in time are left to the next sweep.
    """
    with contextlib.ExitStack() as held:  # holds the homes' locks, which keep other sweeps away
        homes: list[Group] = []
        for hierarchy in hierarchies:
            for path in _homes(hierarchy.mount):
                with contextlib.suppress(KernelRefusal, OSError):
                    home = Group.at(path)
                    held.callback(home.close)
                    if _deserted(home):
                        homes.append(home)
        destroy([below for home in homes for below, _, _ in os.walk(home.path, topdown=False)])
        return len({home.name for home in homes})


def _homes(mount: str) -> Iterator[str]:
    for folder, names, _ in os.walk(mount):
        for found in [each for each in names if _NAME.fullmatch(each)]:
            names.remove(found)
            yield f"{folder}/{found}"
        if folder.count("/") - mount.count("/") >= _DEPTH:
            names.clear()


def _deserted(home: Group) -> bool:
    """Whether *home* belongs to this user, and its daemon has gone."""
    pid, starttime = map(int, _NAME.fullmatch(home.name).groups())  # type: ignore[union-attr]  # _homes matched it
    if os.fstat(home.fd).st_uid != os.geteuid() or _starttime(pid) == starttime:
        return False
    try:
        fcntl.flock(home.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def destroy(paths: list[str]) -> None:
    """
    Remove the groups *paths*, inner groups first, and kill the processes that still run there. All share one
    _PATIENCE_S: one that can't be killed, frozen or in a call that doesn't end, delays the start no longer.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        pidfds: list[int] = []
        paths = [path for path in paths if not _removed(path, pidfds)]
        left = deadline - time.monotonic()
        if paths or pidfds:
            _await(pidfds, max(0.0, left) if paths else 0.0)
        if not paths or left <= 0:
            return


def _removed(path: str, pidfds: list[int]) -> bool:
    """Remove the group *path*, or kill its processes and add their pidfds to *pidfds*. Returns whether it is done with."""
    try:
        group = Group.at(path)
        try:
            if group.remove():
                return True
            pidfds += [fd for fd in map(pidfd_of, group.processes()[:_AWAITED - len(pidfds)]) if fd >= 0]
            group.kill()
            return False
        finally:
            group.close()
    except (KernelRefusal, OSError):
        return True  # the group has gone, or this process may not remove it


def _await(pidfds: list[int], seconds: float) -> None:
    """
    Wait until one process of *pidfds* has ended, and close *pidfds*. If there is none, wait 5 ms: a group stays busy
    for a moment after its last process has gone.
    """
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    poll.poll(int(min(seconds, 0.005 if not pidfds else seconds) * 1000) + 1)
    for fd in pidfds:
        os.close(fd)

"""
The id maps of a worker's user namespace, which the daemon may write, because it stands outside.

Source: user_namespaces(7), ioctl_ns(2), and systemd's list of what takes which ids (Users, Groups, UIDs and GIDs)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Sequence

from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Table, gives, returns
from leeward.base.closing import OwnedFd
from leeward.base.file_locks import locked
from leeward.errors import KernelRefusal, Unsupported

#: The host id of root's worker 0: above what login.defs, subuid and the containers of distributions use, below 2^31.
WORKER_UID_BASE = 2_000_000_000

_NS_GET_PARENT = 0xB702  # ioctl_ns(2), Linux 4.9

#: The same where root is that of a container, whose user namespace has 65536 ids: above login.defs and
#: systemd-homed, below systemd's dynamic users, which start at 61184.
CONTAINER_UID_BASE = 60_600

#: Ids between the first workers of two daemons of root on one host, so many of which there may be.
STRIDE = 1 << 16
MOST_DAEMONS = ((1 << 31) - WORKER_UID_BASE) // STRIDE


def claim_number(folder: str = "/run/leeward-numbers") -> tuple[int, int]:
    """
    Claim the least number that no other daemon of root has on this host. Returns it, and the descriptor that holds it,
    the caller's; 0 and -1 where root can't write *folder*. Unsupported: all MOST_DAEMONS are taken.
    """
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        for number in range(MOST_DAEMONS):
            with contextlib.suppress(BlockingIOError):  # another daemon has it
                return number, locked(f"{folder}/{number}")
    except OSError:
        return 0, -1
    raise Unsupported("user namespace", have=f"{MOST_DAEMONS} daemons of root", need="ids that none of them gives away",
                      cure="end one of them")


def first_worker_id(maps: Iterable[str], workers: int, number: int = 0) -> int:
    """
    Return the first of *workers* successive host ids that root may give away, by the texts of its id maps. Daemons have
    others by their *number*, but not in a container with 65536 ids.
    """
    spans = [[(int(first), int(first) + int(count)) for first, _, count in map(str.split, text.splitlines())]
             for text in maps]
    for base, end in ((WORKER_UID_BASE + number * STRIDE, 1 << 31), (CONTAINER_UID_BASE, 61_184)):
        last = base + workers
        if last <= end and all(any(start <= base and last <= stop for start, stop in span) for span in spans):
            return base
    raise Unsupported("user namespace", have="one whose root has too few ids to give away",
                      need=f"{workers} from {CONTAINER_UID_BASE} on, for a worker each",
                      cure="map 65536 ids, or start leeward as another user than root")


def write_id_maps(pid: int, inside: tuple[int, int], host_uid: int, host_gid: int) -> None:
    """
    Write id maps with one user and one group: those of *inside* in the user namespace of *pid* are *host_uid* and
    *host_gid* on the host. Only a process in the parent of that namespace may write them: if the zygote has its own user
    namespace, a child of the daemon enters it, and may, because the daemon owns it. KernelRefusal names the file and
    the errno.
    """
    write_maps(pid, f"{inside[0]} {host_uid} 1", f"{inside[1]} {host_gid} 1", setgroups=False)


def write_maps(pid: int, uid_map: str, gid_map: str, *, setgroups: bool) -> None:
    """Write id maps as `write_id_maps` does. *setgroups*: processes in the namespace may call setgroups(2)."""
    rows = (*(() if setgroups else (("setgroups", "deny"),)), ("uid_map", uid_map), ("gid_map", gid_map))
    parent = _parent(pid)
    try:
        if parent is not None:
            _write_from(parent, pid, rows)
            return
        for name, text in rows:
            _write(f"/proc/{pid}/{name}", text)
    finally:
        if parent is not None:
            os.close(parent)


def _parent(pid: int) -> int | None:
    """Return a descriptor, which the caller owns, of the parent of *pid*'s user namespace; None if that is our own."""
    try:
        with OwnedFd(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            parent = fcntl.ioctl(fd, _NS_GET_PARENT)
    except OSError as error:
        raise KernelRefusal("ioctl", f"/proc/{pid}/ns/user, NS_GET_PARENT", error.errno or 0) from error
    os.set_inheritable(parent, False)
    if os.path.samestat(os.fstat(parent), os.stat("/proc/self/ns/user")):
        os.close(parent)
        return None
    return parent


def _write(path: str, text: str) -> None:
    try:
        with OwnedFd(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
            os.write(fd, text.encode())
    except OSError as error:
        raise KernelRefusal("write", f"{path}, {text!r}", error.errno or 0) from error


def _write_from(namespace: int, pid: int, rows: Sequence[tuple[str, str]]) -> None:
    """
    Write the files of *rows* from a child that has entered the user namespace *namespace*. It opens them among our own
    descriptors: a copy of them, of which a daemon with 1,000 sandboxes has 16,000, would be closed one by one.
    """
    steps = [returns(Call.SETNS, namespace, Clone.NEWUSER)]
    files = [Cell(name) for name, _ in rows]
    for fd, (name, text) in zip(files, rows, strict=True):
        data = text.encode()
        steps += [gives(fd, Call.OPENAT, -1, f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC, 0),
                  returns(Call.WRITE, fd, Block(data), len(data), value=len(data))]
    table = Table(steps)
    try:
        table.run_aside(0, len(steps), descriptors=True)
    finally:
        for fd in files:
            if (number := table.value(fd)) > 0:  # else it wasn't opened
                os.close(number)

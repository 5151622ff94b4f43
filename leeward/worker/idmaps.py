"""
The id maps of a worker's user namespace.

Runs in:   the daemon, which stands outside of the namespace and may write them.
Source:    user_namespaces(7), ioctl_ns(2), and systemd's list of what takes which ids (Users, Groups, UIDs and GIDs)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable

from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Table, gives, returns
from leeward.errors import KernelRefusal, Unsupported

#: A daemon run by root gives worker n the host id BASE + n: above all that login.defs,
#: subuid and container ranges of the distributions hand out, below 2^31.
WORKER_UID_BASE = 2_000_000_000

_NS_GET_PARENT = 0xB702  # ioctl_ns(2), Linux 4.9

#: The same where root is that of a container, whose user namespace has 65536 ids: above login.defs and
#: systemd-homed, below systemd's dynamic users, which start at 61184.
CONTAINER_UID_BASE = 60_600


def first_worker_id(maps: Iterable[str], workers: int) -> int:
    """
    The first of *workers* host ids that a daemon run by root gives away.

    Args:
        maps: the texts of its /proc/self/uid_map and gid_map: an id outside of them doesn't exist for it.

    Raises:
        Unsupported: too few ids are mapped here.
    """
    spans = [[(int(first), int(first) + int(count)) for first, _, count in map(str.split, text.splitlines())]
             for text in maps]
    for base, end in ((WORKER_UID_BASE, 1 << 31), (CONTAINER_UID_BASE, 61_184)):
        last = base + workers
        if last <= end and all(any(start <= base and last <= stop for start, stop in span) for span in spans):
            return base
    raise Unsupported("user namespace", have="one whose root has too few ids to give away",
                      need=f"{workers} from {CONTAINER_UID_BASE} on, for a worker each",
                      cure="map 65536 ids, or start leeward as another user than root")


def write_id_maps(pid: int, inside: int, host_uid: int, host_gid: int) -> None:
    """
    One user and one group: *inside* in the user namespace of the process *pid* is the host's. user_namespaces(7)

    Only a process in that namespace's parent may write them. If the zygote has its own user namespace, which then is
    the parent, a child of the daemon enters it for that; the daemon owns that namespace, so its child may.

    Raises:
        KernelRefusal: which file, and the errno.
    """
    write_maps(pid, f"{inside} {host_uid} 1", f"{inside} {host_gid} 1", setgroups=False)


def write_maps(pid: int, uid_map: str, gid_map: str, *, setgroups: bool) -> None:
    """
    As `write_id_maps`, with these texts.
    """
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
    """
    The user namespace in which that of *pid* was made, the caller's descriptor; None if it is our own.
    """
    try:
        fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parent = fcntl.ioctl(fd, _NS_GET_PARENT)
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelRefusal("ioctl", f"/proc/{pid}/ns/user, NS_GET_PARENT", error.errno or 0) from error
    os.set_inheritable(parent, False)
    if os.path.samestat(os.fstat(parent), os.stat("/proc/self/ns/user")):
        os.close(parent)
        return None
    return parent


def _write(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelRefusal("write", f"{path}, {text!r}", error.errno or 0) from error


def _write_from(namespace: int, pid: int, rows: Iterable[tuple[str, str]]) -> None:
    """
    Write them as a process in *namespace*.
    """
    steps = [returns(Call.SETNS, namespace, Clone.NEWUSER)]
    for name, text in rows:
        fd, data = Cell(name), text.encode()
        steps += [gives(fd, Call.OPENAT, -1, f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC, 0),
                  returns(Call.WRITE, fd, Block(data), len(data), value=len(data))]
    Table(steps).run_aside(0, len(steps))

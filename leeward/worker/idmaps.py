"""
The id maps of a worker's user namespace.

Runs in:   the daemon, which stands outside of the namespace and may write them.
Source:    user_namespaces(7), and systemd's list of what takes which ids (Users, Groups, UIDs and GIDs)
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from leeward.errors import KernelRefusal, Unsupported

#: A daemon run by root gives worker n the host id BASE + n: above all that login.defs,
#: subuid and container ranges of the distributions hand out, below 2^31.
WORKER_UID_BASE = 2_000_000_000

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
    One user and one group: *inside* in the namespace is the host's. user_namespaces(7)

    Raises:
        KernelRefusal: which file, and the errno.
    """
    rows = (("setgroups", "deny"), ("uid_map", f"{inside} {host_uid} 1"), ("gid_map", f"{inside} {host_gid} 1"))
    for name, text in rows:
        try:
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise KernelRefusal("write", f"/proc/{pid}/{name}, {text!r}", error.errno or 0) from error

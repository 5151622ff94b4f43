"""
Which process is at the other end of a Unix socket, and in which namespaces.

Runs in:   whoever listens: the daemon, and the service for approvals.
Source:    unix(7), SO_PEERCRED; socket(7), SO_PEERPIDFD, Linux 6.5; pid_namespaces(7); proc_pid_stat(5)
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

from leeward.errors import SHORT

_PEER = struct.Struct("=iII")
#: socket(7); the socket module doesn't have its name.
_SO_PEERPIDFD = 77
#: Processes above another one, at most, that are looked at.
_MOST_ABOVE = 4096


def credentials(connected: Any) -> tuple[int, int, int]:
    """The pid, uid and gid of the process that connected; the pid is 0 for one that this pid namespace doesn't have."""
    pid, uid, gid = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid, gid


def said_of_peer(connected: Any, pid: int, about: Callable[[int], bool]) -> bool:
    """
    What *about* says of *pid*, the peer's; False if that can't be found out, and if the peer has ended: while a process
    lives no other one has its pid, so what was read is about it. OSError with one of SHORT if no descriptor is left to look.
    """
    try:
        process = _process(connected, pid)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return False
    try:
        said = about(pid)
        alive = select.poll()
        alive.register(process, select.POLLIN)
        return said and not alive.poll(0)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in SHORT:
            raise
        return False
    finally:
        os.close(process)


def _process(connected: Any, pid: int) -> int:
    """A pidfd of the process that has connected; before Linux 6.5, of the process that has its pid now."""
    try:
        data = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:  # the process has ended
            raise
        return os.pidfd_open(pid)
    return int(struct.unpack("=i", data)[0])


def shares_namespaces(pid: int, *kinds: str) -> bool:
    """Whether a process is in this process's namespaces of these *kinds*; OSError if they can't be seen from here."""
    return all(_namespace(pid, kind) == _namespace("self", kind) for kind in kinds)


def _namespace(pid: int | str, kind: str) -> tuple[int, int]:
    about = os.stat(f"/proc/{pid}/ns/{kind}")
    return about.st_dev, about.st_ino


def is_outside(pid: int) -> bool:
    """
    Whether a process isn't one of this process's sandboxes: those are below it, in pid namespaces of their own. A client
    in a container has another pid namespace, too, but isn't below.
    """
    try:
        if shares_namespaces(pid, "pid"):
            return True
    except PermissionError:  # a process that can't be dumped, or of another user
        pass
    return not _is_below(pid, os.getpid())


def _is_below(pid: int, above: int) -> bool:
    """Whether *above* is an ancestor of *pid*."""
    for _ in range(_MOST_ABOVE):
        if pid in (above, 0):
            return pid == above
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name, in parentheses, may have any characters.
            pid = int(stat.read().rpartition(b")")[2].split()[1])
    return True

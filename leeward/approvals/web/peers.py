"""
Who is at the other end of the operator's Unix socket: a process of this user's, and of this host, not of a sandbox.

Runs in:   the operator's program that decides.
Trust:     none in a peer. A process in a sandbox can have this user's id, if the user's own daemon runs it; its pid
           namespace and its network namespace are others than those of this process.
Source:    unix(7), SO_PEERCRED; socket(7), SO_PEERPIDFD, Linux 6.5; pid_namespaces(7)
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from typing import Any

_PEER = struct.Struct("=iII")
#: socket(7); the socket module doesn't have its name.
_SO_PEERPIDFD = 77


def is_hosts(connected: Any) -> bool:
    """
    Whether the peer of a Unix socket is a process of this user's in the pid and network namespace of this process. A
    peer about which that can't be found out isn't one: it has ended, or its namespaces can't be seen from here.
    """
    pid, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.geteuid() or pid <= 0:  # 0: of a pid namespace that isn't below this one
        return False
    try:
        process = _process(connected, pid)
    except OSError:
        return False
    try:
        same = all(_namespace(pid, kind) == _namespace("self", kind) for kind in ("pid", "net"))
        # While the process lives no other one has its pid, so what was read is about it.
        alive = select.poll()
        alive.register(process, select.POLLIN)
        return same and not alive.poll(0)
    except OSError:
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


def _namespace(pid: int | str, kind: str) -> tuple[int, int]:
    about = os.stat(f"/proc/{pid}/ns/{kind}")
    return about.st_dev, about.st_ino

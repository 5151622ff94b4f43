"""
Who is at the other end of a connection: of the operator's Unix socket a process of this user's and of this host, not of a
sandbox; of TCP on loopback some user of this host.

Runs in:   the operator's program that decides.
Trust:     none in a peer. A process in a sandbox can have this user's id, if the user's own daemon runs it; its pid
           namespace and its network namespace are others than those of this process.
Source:    sock_diag(7), <linux/inet_diag.h>: one socket is looked up by its addresses, which needs no privilege.

SO_PEERCRED knows Unix sockets alone. The kernel knows the owner of each TCP socket, and the peer's is on this host.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from leeward.spec.peers import credentials, said_of_peer, shares_namespaces


def is_hosts(connected: Any) -> bool:
    """
    Whether the peer of a Unix socket is a process of this user's in the pid and network namespace of this process. A
    peer about which that can't be found out isn't one: it has ended, or its namespaces can't be seen from here.
    """
    pid, uid, _ = credentials(connected)
    return uid == os.geteuid() and pid > 0 and said_of_peer(
        connected, pid, lambda peer: shares_namespaces(peer, "pid", "net"))


#: <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>; the socket module doesn't have these names.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _NO_COOKIE = 4, 20, 1, (0xFFFFFFFF, 0xFFFFFFFF)
#: Of a socket that is being closed the kernel has no owner any more, and answers 0.
_ESTABLISHED = 1

_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
#: Of an answer: family and state; behind its times and queues, the uid.
_STATE, _UID = struct.Struct("=BB"), struct.Struct("=I")
_UID_AT = _HEAD.size + 4 + 48 + 12


def peer_uid(connected: Any) -> int | None:
    """
    The user who has the other end of *connected*, a TCP socket of IPv4 on loopback. None if that isn't known: the peer
    is closing it, or this kernel doesn't tell.
    """
    try:
        (own, own_port), (peer, peer_port) = connected.getsockname(), connected.getpeername()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # the kernel answers before send(2) returns
            asked = (_ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
                     + _ID.pack(peer_port, own_port, socket.inet_aton(peer).ljust(16, b"\0"),
                                socket.inet_aton(own).ljust(16, b"\0"))
                     + _REST.pack(0, *_NO_COOKIE))
            kernel.sendto(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0))
            answer = kernel.recv(4096)
    except (OSError, ValueError):
        return None
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY or len(answer) < _UID_AT + _UID.size:
        return None
    _, state = _STATE.unpack_from(answer, _HEAD.size)
    return int(_UID.unpack_from(answer, _UID_AT)[0]) if state == _ESTABLISHED else None

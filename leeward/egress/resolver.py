"""
The name server that a sandbox sees: UDP and TCP on port 53, of any address. No query leaves the host (`names`).

Bound:     _TURN queries over UDP in one turn of the loop. The kernel drops those that come faster, and clients repeat
           them.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from leeward.egress.names import Messages, framed, parse_query, respond
from leeward.egress.pipes import Pipe
from leeward.egress.tenancy import Tenancy
from leeward.errors import PeerError

#: Queries over UDP that are answered in one turn of the loop.
_TURN = 64

#: Seconds of silence after which a connection ends, and queries on one.
_IDLE_S, _MOST_QUERIES = 10.0, 256

_ROOM = 2048
#: `socket` has no name for it before Python 3.14: <linux/in.h>.
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)
_V4, _V6 = 12, 20  # struct in_pktinfo: ifindex, spec_dst, addr; struct in6_pktinfo: addr, ifindex


def prepare(end: socket.socket) -> None:
    """Let the kernel report the address to which each query was sent, from which the answer has to come."""
    if end.family == socket.AF_INET:
        end.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)


def receive(end: socket.socket) -> list[tuple[bytes, tuple[int, int, bytes], object]]:
    """The queries that wait, at most _TURN: bytes, the control message for the answer's source address, and sender."""
    got: list[tuple[bytes, tuple[int, int, bytes], object]] = []
    while len(got) < _TURN:
        try:
            data, ancillary, _, sender = end.recvmsg(_ROOM, socket.CMSG_SPACE(_V6))
        except BlockingIOError:
            break
        except OSError:
            continue  # an error of an earlier answer, which didn't arrive
        for level, kind, content in ancillary:
            if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(content) >= _V4:
                got.append((data, (level, kind, bytes(4) + content[8:12] + bytes(4)), sender))
            elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO) and len(content) >= _V6:
                got.append((data, (level, kind, content[:16] + bytes(4)), sender))
    return got


def reply(tenancy: Tenancy, end: socket.socket, data: bytes, source: tuple[int, int, bytes], sender: object) -> None:
    """Answer one query. An invalid one isn't answered."""
    with suppress(PeerError, OSError):
        end.sendmsg([respond(parse_query(data), tenancy.names, tenancy.reachable)], [source], 0,
                    sender)  # type: ignore[arg-type]  # as recvmsg gave it


async def serve_queries(tenancy: Tenancy, client: Pipe) -> None:
    messages, left = Messages(), _MOST_QUERIES
    try:
        with suppress(PeerError, OSError, TimeoutError):
            while left > 0:
                async with asyncio.timeout(_IDLE_S):
                    data = await client.receive(_ROOM)
                if not data:
                    return
                for message in messages.feed(data):
                    left -= 1
                    async with asyncio.timeout(_IDLE_S):
                        await client.send(framed(respond(parse_query(message), tenancy.names, tenancy.reachable)))
    finally:
        client.close()

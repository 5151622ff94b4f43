"""
The listeners of one sandbox, and the tenant that has their lease.

Theory of operation. Without a lease nothing is accepted: connections wait in the kernel's queue, which is bounded. At
the end of a lease its connections are reset, and those in the queues are dropped. The daemon ends a lease when no
process of it is left, and begins no other one before the broker has confirmed the end. So connections in the queues at
the beginning of a lease belong to that lease. Connections that were accepted before the broker read the end of a lease
belong to processes that are gone, and are reset.

The name server answers UDP and TCP on port 53 of any address; no query leaves the host (`names`). The kernel drops
queries that come faster than _TURN in a turn of the loop, and clients repeat them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from leeward.egress.dialling import Lookup, SharedLookup
from leeward.egress.dns import Messages, framed, parse_query, respond
from leeward.egress.pipes import Pipe
from leeward.egress.relay import goal_of, relay, serve_proxy
from leeward.egress.tenancy import NotAllowed, Tenancy, refusal
from leeward.errors import PeerError
from leeward.wire.egress_control import DNS, PROXY

#: Connections that are accepted from one listener, and queries over UDP that are answered, in one turn of the loop.
_TURN = 64

#: Seconds until a listener is watched again, after no descriptor was left for a connection.
_PAUSE_S = 0.1

#: Seconds of silence after which a connection to the name server ends, and queries on one.
_IDLE_S, _MOST_QUERIES = 10.0, 256

_ROOM = 2048
#: `socket` has no name for it before Python 3.14: <linux/in.h>.
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)
_V4, _V6 = 12, 20  # struct in_pktinfo: ifindex, spec_dst, addr; struct in6_pktinfo: addr, ifindex


class LeasedListeners:
    """The listeners of one sandbox: *names* for DNS over UDP, and *ports* for TCP; *catch_up* reads the daemon's messages."""

    def __init__(self, names: list[socket.socket], ports: list[tuple[socket.socket, int]], lookup: Lookup,
                 catch_up: Callable[[], None]) -> None:
        self._names, self._ports, self.lookup, self._catch_up = names, ports, SharedLookup(lookup), catch_up
        self._tenancy: Tenancy | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        for end in names:
            _prepare(end)

    def lease(self, tenancy: Tenancy) -> None:
        """Lease the listeners to *tenancy*: the next lease, or the present one under another policy."""
        former, self._tenancy = self._tenancy, tenancy
        if former is not None:
            self._end(former)
            if former.lease == tenancy.lease:
                tenancy.succeed(former)
            else:
                self._drop()
        for end in self._names:
            self._loop.add_reader(end, self._asked, end)
        for end, port in self._ports:
            self._loop.add_reader(end, self._met, end, port)

    def over(self) -> None:
        """End the lease: reset its connections, and drop the queries and connections that wait."""
        tenancy, self._tenancy = self._tenancy, None
        for end in (*self._names, *(end for end, _ in self._ports)):
            self._loop.remove_reader(end)
        if tenancy is not None:
            self._end(tenancy)
        self._drop()

    def _end(self, tenancy: Tenancy) -> None:
        task = self._loop.create_task(tenancy.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _drop(self) -> None:
        for end in self._names:
            while _queries(end):
                pass
        for end, _ in self._ports:
            for client in _accepted(end, 1 << 20):
                Pipe(client).close(reset=True)

    def close(self) -> None:
        """End the lease and close the listeners: the sandbox has ended."""
        self.over()
        for end in (*self._names, *(end for end, _ in self._ports)):
            end.close()

    # --- queries and connections ----------------------------------------------

    def _asked(self, end: socket.socket) -> None:
        before = self._tenancy
        queries = _queries(end)
        self._catch_up()
        tenancy = self._still(before)
        if tenancy is not None:
            for data, source, sender in queries:
                _reply(tenancy, end, data, source, sender)

    def _met(self, end: socket.socket, port: int) -> None:
        before = self._tenancy
        clients = _accepted(end, _TURN)
        if not clients:
            self._pause(end, port)
        self._catch_up()
        tenancy = self._still(before)
        for client in clients:
            if tenancy is None:
                Pipe(client).close(reset=True)
            else:
                self._serve(tenancy, client, port)

    def _still(self, before: Tenancy | None) -> Tenancy | None:
        """The present tenancy, if it is of the same lease as *before*; else None."""
        now = self._tenancy
        return now if before is not None and now is not None and now.lease == before.lease else None

    def _pause(self, end: socket.socket, port: int) -> None:
        """Stop watching a listener for a while: it is readable, but accept(2) fails."""
        self._loop.remove_reader(end)
        self._loop.call_later(_PAUSE_S, self._look_again, self._tenancy, end, port)

    def _look_again(self, tenancy: Tenancy | None, end: socket.socket, port: int) -> None:
        if tenancy is not None and tenancy is self._tenancy:
            self._loop.add_reader(end, self._met, end, port)

    def _serve(self, tenancy: Tenancy, client: socket.socket, port: int) -> None:
        pipe = Pipe(client)
        try:
            address = ip_address(client.getsockname()[0].partition("%")[0])
        except OSError:
            pipe.close(reset=True)
            return
        why = tenancy.full() or ("" if port == DNS else tenancy.over_rate())
        if why:
            tenancy.begin("", address, port).refused(refusal(why))
            pipe.close(reset=True)
            return
        if port == DNS:
            tenancy.start(self._loop.create_task(_serve_queries(tenancy, pipe)), pipe)
        elif port == PROXY:
            tenancy.start(self._loop.create_task(serve_proxy(tenancy, pipe, self.lookup)), pipe)
        else:
            try:
                goal = goal_of(tenancy, address, port)
            except NotAllowed as refused:
                tenancy.begin("", address, port).refused(refused)
                pipe.close(reset=True)
                return
            tenancy.start(self._loop.create_task(relay(tenancy, pipe, goal, self.lookup)), pipe)


def _accepted(end: socket.socket, most: int) -> list[socket.socket]:
    got: list[socket.socket] = []
    with suppress(BlockingIOError):
        while len(got) < most:
            try:
                got.append(end.accept()[0])
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                break  # no descriptor is left: the connection stays in the queue
    return got


def _prepare(end: socket.socket) -> None:
    """Let the kernel report the address to which each query was sent, from which the answer has to come."""
    if end.family == socket.AF_INET:
        end.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)


def _queries(end: socket.socket) -> list[tuple[bytes, tuple[int, int, bytes], object]]:
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


def _reply(tenancy: Tenancy, end: socket.socket, data: bytes, source: tuple[int, int, bytes], sender: object) -> None:
    """Answer one query. An invalid one isn't answered."""
    with suppress(PeerError, OSError):
        end.sendmsg([respond(parse_query(data), tenancy.names, tenancy.reachable)], [source], 0,
                    sender)  # type: ignore[arg-type]  # as recvmsg gave it


async def _serve_queries(tenancy: Tenancy, client: Pipe) -> None:
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

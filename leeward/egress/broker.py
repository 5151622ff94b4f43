"""
The broker: learns of leases from the daemon, and serves the connections of sandboxes.

Runs in:   a process of its own; one thread besides those of the resolver.
Trust:     the daemon's messages. None in bytes from a sandbox or a server.
Ends:      when the daemon's end of the channel closes.
Bound:     _MOST_ROWS rows wait for the daemon; further ones are dropped, and the next row says how many.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import sys
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leeward.egress.asking import Asking, LeaseAsks
from leeward.egress.dialling import Lookup
from leeward.egress.fetch import TEXTS, Fetching, failure
from leeward.egress.listeners import LeasedListeners
from leeward.egress.tenancy import Tenancy
from leeward.errors import PeerError, told_with_place
from leeward.spec.egress_policy import parse_policy
from leeward.wire import egress_control as control

if TYPE_CHECKING:
    from leeward.egress.sealing import PoolSealing

_MOST_ROWS = 4096


class Broker:
    """Carries out the daemon's messages, and sends it the rows of the record. `over` is done when the daemon has gone."""

    def __init__(self, channel: socket.socket, lookup: Lookup) -> None:
        self._channel, self._lookup = channel, lookup
        self._places: dict[int, LeasedListeners] = {}
        self._seals: dict[int, PoolSealing] = {}
        self._fetching: dict[int, Fetching] = {}
        self._rows: deque[control.Message] = deque()
        self._asking = Asking(self._send)
        self._dropped = 0
        self._loop = asyncio.get_running_loop()
        self.over = self._loop.create_future()

    def start(self) -> None:
        self._loop.add_reader(self._channel, self._catch_up)

    # --- the daemon's messages ------------------------------------------------

    def _catch_up(self) -> None:
        while not self.over.done():
            try:
                got = receive(self._channel)
            except BlockingIOError:
                return
            except (PeerError, OSError):
                got = None
            if got is None:
                self._loop.remove_reader(self._channel)
                self.over.set_result(None)
                return
            self._hear(*got)

    def _hear(self, message: control.Message, fds: list[int]) -> None:
        match message:
            case control.Stand(number, ports, families):
                self._stand(number, ports, families, fds)
            case control.Sealed():
                from leeward.egress.sealing import PoolSealing  # imported only here, because it needs cryptography

                self._seals[message.place] = PoolSealing(message, fds)
            case control.Leased(number):
                if number in self._places:
                    self._lease(message, self._places[number])
            case control.FetchOrder(number):
                if number in self._fetching:
                    self._fetching[number].begin(message, fds, self._send)
                else:
                    for fd in fds:
                        os.close(fd)
                    self._send(control.FetchAnswer(message.number, failure("disabled", TEXTS["disabled"])))
            case control.Unfetch(number):
                if number in self._fetching:
                    self._fetching[number].stop(message.number)
            case control.Listening(on):
                self._asking.listen(bool(on))
            case control.AskAnswer():
                self._asking.answered(message)
            case control.Over(number):
                if number in self._places:
                    self._fetching.pop(number, None)
                    self._places[number].over()
                    self._send(control.Cleared(number))
            case control.Gone(number):
                if number in self._places:
                    self._fetching.pop(number, None)
                    self._places.pop(number).close()
                elif number in self._seals:
                    self._seals.pop(number).close()
            case _:
                raise PeerError(f"the daemon says {type(message).__name__}")

    def _lease(self, message: control.Leased, place: LeasedListeners) -> None:
        tenancy = Tenancy(message.lease, parse_policy(message.policy), message.key, self._send_row)
        pool = self._seals.get(message.seal)
        if pool is not None:
            from leeward.egress.sealing import Sealing  # as above

            tenancy.sealing = Sealing(pool, message)
        tenancy.asks = LeaseAsks(self._asking, message.lease)
        place.lease(tenancy)
        self._fetching[message.place] = Fetching(tenancy, message.fetch, place.lookup)

    def _stand(self, number: int, ports: list[int], families: int, fds: list[int]) -> None:
        ends = [socket.socket(fileno=fd) for fd in fds]
        each = len(ports) + 1
        if len(ends) != each * families or number in self._places:  # no descriptors were left for them
            for end in ends:
                end.close()
            return
        names = [ends[at * each] for at in range(families)]
        listeners = [(end, port) for at in range(families)
                     for end, port in zip(ends[at * each + 1:(at + 1) * each], ports, strict=True)]
        self._places[number] = LeasedListeners(names, listeners, self._lookup, self._catch_up)

    # --- the record -----------------------------------------------------------

    def _send_row(self, row: control.Decided) -> None:
        if len(self._rows) >= _MOST_ROWS:
            self._dropped += 1
            return
        if self._dropped:
            lost = f"{row.reason} ({self._dropped} rows before this one are lost)"
            row = replace(row, reason=lost[:control.MAX_TEXT])
            self._dropped = 0
        self._send(row)

    def _send(self, row: control.Message) -> None:
        self._rows.append(row)
        if len(self._rows) == 1:
            self._send_rows()

    def _send_rows(self) -> None:
        while self._rows:
            try:
                self._channel.send(control.encode(self._rows[0]), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._send_rows)
                return
            except OSError:
                self._rows.clear()  # the daemon has gone
                break
            self._rows.popleft()
        self._loop.remove_writer(self._channel)

    def close(self) -> None:
        """Reset all connections, and close all listeners: the daemon has gone."""
        self._loop.remove_writer(self._channel)
        for place in self._places.values():
            place.close()
        self._places.clear()


def receive(channel: socket.socket) -> tuple[control.Message, list[int]] | None:
    """
    The daemon's next message and its descriptors, which the caller owns; None when the daemon is gone.

    Raises BlockingIOError if no message waits; PeerError if the bytes aren't one, and closes the descriptors.
    """
    space = socket.CMSG_SPACE(control.MAX_FDS * array.array("i").itemsize)
    data, ancillary, flags, _ = channel.recvmsg(control.MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
    if not data:
        return None
    try:
        if flags & socket.MSG_TRUNC:
            raise PeerError("a message that was cut")
        return control.decode(data), list(fds)
    except PeerError:
        for fd in fds:
            os.close(fd)
        raise


def _told(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that nobody has caught, without its text and the callback's arguments, which asyncio would show."""
    error = context.get("exception")
    print(f"leeward broker: a bug of the broker's: {'' if error is None else told_with_place(error)}", file=sys.stderr,
          flush=True)


async def serve(channel: socket.socket, lookup: Lookup) -> None:
    channel.setblocking(False)
    broker = Broker(channel, lookup)
    asyncio.get_running_loop().set_exception_handler(_told)
    broker.start()
    try:
        await broker.over
    finally:
        broker.close()

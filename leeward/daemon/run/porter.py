"""
A porter, seen from the daemon: one order to a copy of the keeper in a live sandbox, and its answer.

Owns: its end of the porter's channel until the answer is there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgpack

from leeward._native.passing import receive_whole
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor
from leeward.daemon.run.verdict import bug
from leeward.errors import LeewardError
from leeward.isolation.channel import Channel

_ROOM, _FDS = 1 << 16, 24
#: Called with the answer and its descriptors, which the callee then owns; or with the reason why there is none.
Answered = Callable[[Mapping[str, Any] | LeewardError, list[int]], None]


class PorterRefusal(LeewardError):
    """The porter has failed, and has changed nothing."""


class PorterOrder:
    """
    *order* is sent with *fds*, which stay the caller's; None: `give` sends it, and the porter's process begins
    meanwhile. The answer has *seconds*. This object owns *channel*; *kill* ends the porter's process.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, channel: Channel, order: Mapping[str, Any] | None, fds: Sequence[int],
                 seconds: float, answered: Answered, kill: Callable[[], None]) -> None:
        self._reactor, self._channel, self._kill = reactor, channel, kill
        self._answered: Answered | None = answered
        self._seconds = seconds
        self._timer = NO_TIMER
        if order is not None:
            self._send(order, fds)
        reactor.watch(channel.fileno(), READ, self._hear)

    def give(self, order: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Send the order, unless the porter has failed; LeewardError if it can't be: then *answered* isn't called."""
        if self._answered is None:
            return
        try:
            self._send(order, fds)
        except OSError as error:
            self.cancel()
            raise LeewardError(f"a porter: {error}") from error

    def _send(self, order: Mapping[str, Any], fds: Sequence[int]) -> None:
        # The message waits in the socket until the porter has started.
        socket.send_fds(self._channel.socket, [msgpack.packb(order)], fds)  # type: ignore[arg-type]  # needs sendmsg
        self._timer = self._reactor.after(self._seconds, self._late)

    def _hear(self, _events: int) -> None:
        try:
            data, fds = receive_whole(self._channel.socket, _ROOM, _FDS)
        except BlockingIOError:
            return
        if not data:
            self._finish(LeewardError("the process that was to do it has ended before it was done"), [])
            return
        answer = msgpack.unpackb(data)
        if "error" in answer:
            self._finish(PorterRefusal(answer["error"]), [])
        else:
            self._finish(answer, fds)

    def _late(self) -> None:
        in_any_case(self._kill, partial(self._finish, LeewardError(f"it took longer than {self._seconds:g} s"), []))

    def failed(self, why: str) -> None:
        """Called if the process doesn't exist, or has ended; *why* is the reason."""
        if self._answered is not None:
            self._hear(0)  # the answer may have been sent before
        self._finish(LeewardError(why), [])

    def _finish(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        answered, self._answered = self._answered, None
        self._release()
        if answered is not None:
            answered(what, fds)
            return
        for fd in fds:
            os.close(fd)

    def cancel(self) -> None:
        """End the porter without calling *answered*, because the answer isn't needed any more."""
        self._answered = None
        in_any_case(self._kill, self._release)

    def _release(self) -> None:
        self._timer.cancel()
        if self._channel.fileno() >= 0:
            in_any_case(partial(self._reactor.forget, self._channel.fileno()), self._channel.close)
        self._kill = lambda: None

    def broken(self, error: Exception) -> None:
        self._finish(LeewardError(bug(error)), [])

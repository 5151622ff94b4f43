"""
A request that waits for the next ends of jobs, for the next decisions about egress, or for the shards, as a ticket.

Runs in:   the daemon, on the reactor's one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leeward.loop.reactor import Reactor
from leeward.protocols import Protocol


class UserBook(Protocol):
    """
    `leeward.daemon.telling.events.EventBook`, `leeward.pool.egress_record.EgressRecord`, or
    `leeward.pool.asks.AskBook`.
    """

    def after(self, user: int, number: int) -> Mapping[str, Any]: ...
    def wait(self, user: int, wake: Callable[[], None]) -> Callable[[], None]: ...


class StatusWait:
    """
    A request for the status, which waits for the shards.

    Args:
        ask: asks the shards, calls its argument once, later, and returns what cancels this.
        answer: is called with the whole status; not if the request is cancelled.
        broken: ends the connection.
    """

    costs = "connection"

    def __init__(self, ask: Callable[[Callable[[Mapping[str, Any]], None]], Callable[[], None]],
                 answer: Callable[[Mapping[str, Any]], None], broken: Callable[[Exception], None]) -> None:
        self._answer, self._broken = answer, broken
        self.cancel = ask(self._send)

    def _send(self, status: Mapping[str, Any]) -> None:
        self._answer(status)

    def broken(self, error: Exception) -> None:
        """For the barrier: the status couldn't be sent."""
        self.cancel()
        self._broken(error)


class RecallWait:
    """
    One waiting request.

    Args:
        answer: is called once with the events after *number*, perhaps none, after *seconds* at the latest; not if the
            request is cancelled.
        broken: ends the connection.
    """

    costs = "connection"

    def __init__(self, reactor: Reactor, book: UserBook, user: int, number: int, seconds: float,
                 answer: Callable[[Mapping[str, Any]], None], broken: Callable[[Exception], None]) -> None:
        self._book, self._user, self._number = book, user, number
        self._broken = broken
        self._answer: Callable[[Mapping[str, Any]], None] | None = answer
        self._timer = reactor.after(seconds, self._send_rows)
        # Not at once: the code that records an end hasn't finished, and may record more ends.
        self._take_back = book.wait(user, lambda: reactor.soon(self._send_rows))

    def _send_rows(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._timer.cancel()
            self._take_back()
            answer(self._book.after(self._user, self._number))

    def cancel(self) -> None:
        """Stop waiting: the request was cancelled."""
        if self._answer is not None:
            self._answer = None
            self._timer.cancel()
            self._take_back()

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has failed, and the answer may or may not have been sent."""
        self.cancel()
        self._broken(error)

"""
The functions that jobs of one connection may call: the calls that wait for the client, and the answers that come.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client, none in a job. A call's head was checked by `run/functions.py`, and no body is read here.

Theory of operation. Each job with functions has an exchange, under the number of its request, until the request is
answered. The client asks for calls with one request at a time, which waits until there are calls or the job is over. So
the rule of the wire stays: one request, one reply. The number of calls that a job may have open bounds what waits. An
answer goes to the job that runs at the moment; an answer to no open call is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.pool.sessions import Cancellable
from leeward.protocols import Protocol
from leeward.spec.job import Functions
from leeward.wire.requests import FunctionAnswer, FunctionTake

#: Bytes of calls in one answer, if there is more than one.
_BATCH = 1 << 20

_OVER: Mapping[str, Any] = {"calls": [], "over": True}


class ExchangeOwner(Protocol):
    """The connection, as far as its exchanges use it."""

    def wait(self, request: int, ticket: Cancellable) -> None: ...
    def answer(self, request: int, answer: Mapping[str, Any]) -> None: ...


class JobExchange:
    """The calls of one job, and their answers."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, str, bytes]] = deque()
        self._taker: Callable[[Mapping[str, Any]], None] | None = None
        self._answer: Callable[[int, bool, bytes], bool] | None = None
        self._broken: Callable[[], None] | None = None
        self._over = False

    # --- for the job ------------------------------------------------------------

    def begin(self, answer: Callable[[int, bool, bytes], bool], broken: Callable[[], None]) -> None:
        """
        Called when the job begins.

        Args:
            answer: to be called with the answer to a call: its number, whether it is an exception, and its body.
                Returns whether the call still waits.
            broken: to be called if a call's body is malformed.
        """
        self._answer, self._broken = answer, broken

    def called(self, number: int, name: str, body: bytes) -> None:
        """Called when the job has called the function *name*."""
        self._calls.append((number, name, body))
        self._deliver()

    def withdrawn(self, number: int) -> None:
        """Called when call *number* doesn't wait for an answer any more."""
        self._calls = deque(call for call in self._calls if call[0] != number)

    def ended(self) -> None:
        """Called when the job has ended."""
        self._answer = self._broken = None
        self._calls.clear()

    # --- for the client -----------------------------------------------------------

    @property
    def taking(self) -> bool:
        """Whether a request waits for calls."""
        return self._taker is not None

    def take(self, answer: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any] | None:
        """
        Return the waiting calls of the job. If there are none, return None, and call *answer* once, later.

        Raises:
            BadRequest: another request waits for the calls.
        """
        if self._taker is not None:
            raise BadRequest("another function_take waits for the calls of this job")
        if self._over:
            return _OVER
        if not self._calls:
            self._taker = answer
            return None
        batch = [self._calls.popleft()]
        size = len(batch[0][2])
        while self._calls and size + len(self._calls[0][2]) <= _BATCH:
            size += len(self._calls[0][2])
            batch.append(self._calls.popleft())
        return {"calls": [list(call) for call in batch], "over": False}

    def take_back(self) -> None:
        """Forget the waiting request, which was cancelled."""
        self._taker = None

    def answer(self, answer: FunctionAnswer) -> bool:
        """Pass an answer to the job. Returns whether the call still waited for it."""
        if self._answer is None or self._broken is None:
            return False
        if answer.outcome == "broken":
            self._broken()
            return True
        return self._answer(answer.call, answer.outcome == "raised", answer.value)

    def close(self) -> None:
        """End the exchange: the job's request is about to be answered."""
        self._over = True
        self._calls.clear()
        taker, self._taker = self._taker, None
        if taker is not None:
            taker(_OVER)

    def _deliver(self) -> None:
        taker, self._taker = self._taker, None
        if taker is not None:
            found = self.take(taker)
            if found is not None:
                taker(found)


class _Taking:
    """A request that waits for calls, as a ticket."""

    def __init__(self, exchange: JobExchange) -> None:
        self.cancel = exchange.take_back


class Exchanges:
    """The exchanges of one connection, by the number of the request that asks for the job."""

    def __init__(self, owner: ExchangeOwner) -> None:
        self._owner = owner
        self._held: dict[int, JobExchange] = {}

    @property
    def held(self) -> bool:
        """Whether a job of this connection may call functions."""
        return bool(self._held)

    @property
    def taking(self) -> int:
        """The number of requests that wait for calls: one for each job at most."""
        return sum(exchange.taking for exchange in self._held.values()) if self._held else 0

    def open(self, request: int, asked: Mapping[str, Any] | None, standing: float) -> Functions | None:
        """
        Return the functions of the job of *request*, or None. The caller has to call `close` later.

        Args:
            standing: seconds for which the job's clock may be stopped, if the client asks for that.
        """
        if not asked:
            return None
        exchange = self._held[request] = JobExchange()
        return Functions(asked["names"], exchange, asked["wait"], standing if asked["stop_clock"] else 0.0)

    def close(self, request: int) -> None:
        """Close the exchange of *request*, which is about to be answered, if it has one."""
        exchange = self._held.pop(request, None)
        if exchange is not None:
            exchange.close()

    def take(self, request: FunctionTake) -> Mapping[str, Any] | None:
        """
        Return the answer to *request*, or None if it comes later.

        Raises:
            BadRequest: another request waits for the same job's calls.
        """
        exchange = self._held.get(request.target)
        if exchange is None:
            return _OVER
        found = exchange.take(lambda calls: self._owner.answer(request.id, calls))
        if found is None:
            self._owner.wait(request.id, _Taking(exchange))
        return found

    def answer(self, request: FunctionAnswer) -> Mapping[str, Any]:
        """Return the answer to *request*."""
        exchange = self._held.get(request.target)
        return {"taken": exchange is not None and exchange.answer(request)}

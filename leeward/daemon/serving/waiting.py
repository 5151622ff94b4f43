"""
Requests that wait for what others of the connection do: calls of functions, live output, ends of jobs, the status.

Theory of operation. Each job with functions has an exchange, under the number of its request, until that is answered.
The client asks for calls with one request at a time, which waits until there are calls or the job is over: one request,
one reply. The number of calls that a job may have open bounds what waits. An answer goes to the job that runs at the
moment; one to no open call is dropped. A call's head was checked by `run/calling_job.py`; no body is read here.

For output the client says how much of each stream it has, one request at a time for each job, and gets 64 KiB of a
stream at most, so one that doesn't read holds no more. The result has all output still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.protocols import Protocol
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.output import Output
from leeward.daemon.serving.sandbox_calls import SandboxCall
from leeward.errors import BadRequest
from leeward.spec.job import Functions
from leeward.wire.requests import FunctionAnswer, FunctionTake, OutputTake

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight

#: Bytes of calls in one answer, if there is more than one.
_BATCH = 1 << 20

_OVER: Mapping[str, Any] = {"calls": [], "over": True}


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
        Called when the job begins: *answer* takes a call's number, whether it is an exception, and the body, and
        returns whether the call still waits; *broken* is for a malformed body.
        """
        self._answer, self._broken = answer, broken

    def called(self, number: int, name: str, body: bytes) -> None:
        self._calls.append((number, name, body))
        self._deliver()

    def withdrawn(self, number: int) -> None:
        self._calls = deque(call for call in self._calls if call[0] != number)

    def ended(self) -> None:
        self._answer = self._broken = None
        self._calls.clear()

    # --- for the client -----------------------------------------------------------

    @property
    def taking(self) -> bool:
        """Whether a request waits for calls."""
        return self._taker is not None

    def take(self, answer: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any] | None:
        """Return the waiting calls; None if *answer* gets them later; BadRequest if another request waits."""
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


class Later:
    """A request that is answered later, as a ticket: *cancel* is called if its client doesn't wait any more."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class Exchanges:
    """The exchanges of one connection, by the number of the request that asks for the job."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self.held: dict[int, JobExchange] = {}  # of jobs that may call functions

    @property
    def taking(self) -> int:
        """The number of requests that wait for calls: one for each job at most."""
        return sum(exchange.taking for exchange in self.held.values()) if self.held else 0

    def open(self, request: int, asked: Mapping[str, Any] | None, standing: float) -> Functions | None:
        """Return the functions of *request*'s job, if any, until `close`. Its clock may stand *standing* seconds."""
        if not asked:
            return None
        exchange = self.held[request] = JobExchange()
        return Functions(asked["names"], exchange, asked["wait"], standing if asked["stop_clock"] else 0.0)

    def close(self, request: int) -> None:
        exchange = self.held.pop(request, None)
        if exchange is not None:
            exchange.close()

    def take(self, request: FunctionTake) -> Mapping[str, Any] | None:
        """Return the answer to *request*; None if it comes later; BadRequest if another one waits for these calls."""
        exchange = self.held.get(request.target)
        if exchange is None:
            return _OVER
        found = exchange.take(lambda calls: self._flight.answer(request.id, calls))
        if found is None:
            self._flight.wait(request.id, Later(exchange.take_back))
        return found

    def answer(self, request: FunctionAnswer) -> Mapping[str, Any]:
        exchange = self.held.get(request.target)
        return {"taken": exchange is not None and exchange.answer(request)}


def _output(out: bytes = b"", err: bytes = b"", *, running: bool = False, over: bool = False) -> Mapping[str, Any]:
    return {"stdout": out, "stderr": err, "running": running, "over": over}


class _WaitingTake:
    """A request that waits for output, as a ticket."""

    def __init__(self, request: OutputTake, output: Output, forget: Callable[[int], object]) -> None:
        self.request, self.output, self._forget = request, output, forget

    def cancel(self) -> None:
        self._forget(self.request.target)

    def found(self) -> Mapping[str, Any] | None:
        out = self.output.since(self.output.out, self.request.stdout)
        err = self.output.since(self.output.err, self.request.stderr)
        self.output.seen = self.output.seen or bool(out or err)
        return _output(out, err, running=True) if out or err else None


class LiveOutput:
    """The live output of one connection's jobs, by the number of the request that asks for the job."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._waiting: dict[int, _WaitingTake] = {}

    def take(self, request: OutputTake) -> Mapping[str, Any] | None:
        """Return the answer to *request*; None if it comes later; BadRequest if another one waits for this output."""
        target = request.target
        if target in self._waiting:
            raise BadRequest("another output_take waits for the output of this job")
        if target not in self._flight.tickets:
            return _output(over=True)
        ticket = self._flight.tickets[target]
        execution = ticket.execution if isinstance(ticket, (Ticket, SandboxCall)) else None
        if execution is None or execution.over:
            return _output()
        waiting = _WaitingTake(request, execution.output, self._forget)
        found = waiting.found()
        if found is None:
            self._waiting[target] = waiting
            execution.output.listener = lambda: self._wrote(target)
            self._flight.wait(request.id, waiting)
        return found

    def close(self, target: int) -> None:
        """Answer the waiting request for output of *target*, which is about to be answered itself."""
        waiting = self._forget(target)
        if waiting is not None:
            self._flight.answer(waiting.request.id, _output(over=True))

    def _wrote(self, target: int) -> None:
        waiting = self._waiting.get(target)
        found = None if waiting is None else waiting.found()
        if waiting is not None and found is not None:
            self._forget(target)
            self._flight.answer(waiting.request.id, found)

    def _forget(self, target: int) -> _WaitingTake | None:
        waiting = self._waiting.pop(target, None)
        if waiting is not None:
            waiting.output.listener = None
        return waiting


class UserBook(Protocol):
    """`telling.events.EventBook`, `pool.egress_record.EgressRecord`, or `pool.asks.AskBook`."""

    def after(self, user: int, number: int) -> Mapping[str, Any]: ...
    def wait(self, user: int, wake: Callable[[], None]) -> Callable[[], None]: ...


class RecallWait:
    """A request for the events after *number*: *answer* is called once, perhaps with none, after *seconds* at the latest."""

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
        if self._answer is not None:
            self._answer = None
            self._timer.cancel()
            self._take_back()

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has failed, and the answer may or may not have been sent."""
        self.cancel()
        self._broken(error)

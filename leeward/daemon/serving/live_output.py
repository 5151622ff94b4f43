"""
The output so far of one connection's jobs, for a client that shows it while they run.

Runs in:   the daemon, on the reactor's one thread.
Trust:     none in a client; what a job writes is passed on unread.

Theory of operation. The client asks with one request at a time for each job, and says how much of each stream it has.
The request waits until there is more, or until the job's own request is answered. An answer has 64 KiB of a stream at
most, so a client that doesn't read holds no more than that for each of its jobs. The result has all output still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.errors import BadRequest
from leeward.pool.ticket import Ticket
from leeward.run.output import Output
from leeward.wire.requests import OutputTake

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight


def _answer(out: bytes = b"", err: bytes = b"", *, running: bool = False, over: bool = False) -> Mapping[str, Any]:
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
        return _answer(out, err, running=True) if out or err else None


class LiveOutput:
    """The live output of one connection's jobs, by the number of the request that asks for the job."""

    def __init__(self, owner: Flight) -> None:
        self._owner = owner
        self._waiting: dict[int, _WaitingTake] = {}

    def take(self, request: OutputTake) -> Mapping[str, Any] | None:
        """
        Return the answer to *request*, or None if it comes later.

        Raises:
            BadRequest: another request waits for the same job's output.
        """
        target = request.target
        if target in self._waiting:
            raise BadRequest("another output_take waits for the output of this job")
        if target not in self._owner.tickets:
            return _answer(over=True)
        ticket = self._owner.tickets[target]
        execution = ticket.execution if isinstance(ticket, Ticket) else None
        if execution is None or execution.over:
            return _answer()
        waiting = _WaitingTake(request, execution.output, self._forget)
        found = waiting.found()
        if found is None:
            self._waiting[target] = waiting
            execution.output.listener = lambda: self._wrote(target)
            self._owner.wait(request.id, waiting)
        return found

    def close(self, target: int) -> None:
        """Answer the waiting request for output of *target*, which is about to be answered itself."""
        waiting = self._forget(target)
        if waiting is not None:
            self._owner.answer(waiting.request.id, _answer(over=True))

    def _wrote(self, target: int) -> None:
        waiting = self._waiting.get(target)
        found = None if waiting is None else waiting.found()
        if waiting is not None and found is not None:
            self._forget(target)
            self._owner.answer(waiting.request.id, found)

    def _forget(self, target: int) -> _WaitingTake | None:
        waiting = self._waiting.pop(target, None)
        if waiting is not None:
            waiting.output.listener = None
        return waiting

"""
The kernels that one connection has bound: requests of code alone that reach a kernel by a number, on the fast path.

Theory of operation. The fast path knows a session by its connection and a number. A client binds a kernel to such a
number, and sends it code as to a session; the sandbox is found by id and uid each time. After each of these jobs the
kernel is offered to the fast path, for this connection; any other request to the kernel, from any connection, withdraws
it first (`run/lease.py`). The first job always goes through Python, and brings the variables with which its sandbox was
opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.daemon.serving.intake import NAME
from leeward.daemon.serving.sandbox_calls import SandboxCall
from leeward.dataclass import dataclass
from leeward.errors import BadRequest, Busy, Refused, SessionOver
from leeward.loop.barrier import nothing
from leeward.loop.fast_path import ReplyAddress
from leeward.loop.stream import JobStart, Ran
from leeward.run.report import Report
from leeward.sandboxes.desk import Desk, Held
from leeward.sandboxes.registry import RegistryEntry
from leeward.spec.job import Job
from leeward.wire.requests import Execute
from leeward.wire.sandbox_requests import KernelBind, SandboxExecute

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight

#: The numbers of kernels begin here, and those of sessions stay below.
FIRST_SEAT = 1 << 32
#: Kernels that one connection has bound at once.
MOST_SEATS = 64

#: Answers request *number* with a report, unless the sandbox has gone with it.
AnswerReport = Callable[[int, SandboxCall, RegistryEntry[Held], Report], None]


@dataclass(frozen=True, slots=True)
class KernelSeat:
    """A kernel, by its sandbox's id and its number there."""

    sandbox: str
    kernel: int


class KernelSeats:
    def __init__(self, desk: Desk, owner: Flight, answer: AnswerReport) -> None:
        self._desk, self._owner, self._answer = desk, owner, answer
        self._seats: dict[int, KernelSeat] = {}
        self._last = FIRST_SEAT

    def bind(self, request: KernelBind, entry: RegistryEntry[Held]) -> Mapping[str, Any]:
        """Bind a kernel to a number, and return the answer; SessionOver without such a kernel, Busy if too many are bound."""
        entry.sandbox.sandbox.kernel(request.kernel)
        if len(self._seats) >= MOST_SEATS:
            self._seats = {number: seat for number, seat in self._seats.items() if self._is_there(seat)}
        if len(self._seats) >= MOST_SEATS:
            raise Busy(f"this connection has bound {len(self._seats)} kernels, all that one may")
        number, self._last = self._last, self._last + 1
        self._seats[number] = KernelSeat(request.sandbox, request.kernel)
        return {"session": number}

    def _is_there(self, seat: KernelSeat) -> bool:
        try:
            self._desk.get(seat.sandbox, self._owner.user).sandbox.sandbox.kernel(seat.kernel)
        except Refused:
            return False
        return True

    def _of(self, number: int) -> KernelSeat:
        seat = self._seats.get(number)
        if seat is None:
            raise SessionOver(f"this connection has bound no kernel to {number}")
        return seat

    def by_name(self, request: Execute) -> SandboxExecute:
        """
        Return *request* as a `sandbox_execute`; SessionOver if its number is bound to none, BadRequest if it has more
        than code.
        """
        seat = self._of(request.session)
        if request != Execute(request.id, session=request.session, code=request.code):
            raise BadRequest("a request by the number of a bound kernel has code and nothing else;"
                             " sandbox_execute takes the rest")
        return SandboxExecute(request.id, sandbox=seat.sandbox, code=request.code or b"", kernel=seat.kernel, display=True)

    def offer(self, number: int) -> None:
        """Let the fast path have the next job of this kernel."""
        seat = self._of(number)
        try:
            sandbox = self._desk.get(seat.sandbox, self._owner.user).sandbox.sandbox
            sandbox.kernel(seat.kernel).offer(sandbox.facts.limits, ReplyAddress(self._owner.fd, number))
        except Refused:
            return  # it is over; the next request is refused

    def job_started(self, start: JobStart) -> SandboxCall:
        seat = self._of(start.session)
        entry = self._desk.get(seat.sandbox, self._owner.user)
        sandbox = entry.sandbox.sandbox
        call = SandboxCall(self._desk, entry, nothing)

        def over(report: Report) -> None:
            self._answer(start.request, call, entry, report)
            self.offer(start.session)

        job = Job(code=start.code, name=NAME, limits=sandbox.facts.limits, display=True)
        call.taken_back = partial(sandbox.job_started(seat.kernel, job, over, start).cancel)
        return call

    def ran(self, ran: Ran) -> None:
        seat = self._of(ran.session)
        self._desk.get(seat.sandbox, self._owner.user).sandbox.sandbox.ran(seat.kernel, ran)

"""
The requests of one connection about live sandboxes, and the kernels that it has bound to numbers.

A sandbox is found by its id together with the connection's uid, so an id is worth nothing to another user. It belongs
to the user and outlives the connection. When that ends, a program that it *runs* is killed, one that it has *started*
lives on, and what it has opened or started as `held` ends with it (`holds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.loop.barrier import nothing
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.run.report import Report
from leeward.daemon.run.verdict import Stop
from leeward.daemon.sandboxes.kernel import KernelStage
from leeward.daemon.sandboxes.live_sandboxes import LiveSandboxes, SandboxEntry
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.daemon.sandboxes.program import MOST_WAITING, LiveProgram
from leeward.daemon.sandboxes.registry import Life, State
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.terms import ProgramTerms, SandboxFacts, terms_of
from leeward.daemon.serving import profiles, snapshots
from leeward.daemon.serving import sandbox_calls as calls
from leeward.daemon.serving.intake import NAME
from leeward.daemon.serving.restoring import place_again
from leeward.daemon.serving.waiting import Later
from leeward.errors import BadRequest, Bug, Busy, LeewardError, Refused, SessionOver, ShuttingDown
from leeward.spec.job import Job
from leeward.spec.limits import adjusted, of_sandbox
from leeward.spec.outcome import Outcome
from leeward.spec.pool_key import MAIN_POOL
from leeward.wire import sandbox_requests as wire
from leeward.wire.answers import result_fields
from leeward.wire.file_requests import FileRequest, call_of, weight
from leeward.wire.requests import Execute

if TYPE_CHECKING:
    from leeward.daemon.serving.flight import Flight

#: The numbers of kernels begin here, and those of sessions stay below.
FIRST_SEAT = 1 << 32
#: Kernels that one connection has bound at once.
MOST_SEATS = 64

#: Answers request *number* with a report, unless the sandbox has gone with it.
AnswerReport = Callable[[int, calls.SandboxCall, SandboxEntry, Report], None]


@dataclass(frozen=True, slots=True)
class KernelSeat:
    """A kernel, by its sandbox's id and its number there, and whether its jobs show what their code does."""

    sandbox: str
    kernel: int
    display: bool


class KernelSeats:
    """
    The bound kernels of one connection: requests of code alone that reach a kernel by a number, on the fast path; kernel 0
    is a fresh interpreter for each.

    That knows a session by its connection and a number; a client binds a kernel to such a number, and sends it code as
    to a session. After each of these jobs the kernel is offered to the fast path, for this connection; any other
    request to the kernel, from any connection, withdraws it first (`run/lease.py`). The first job always goes through
    Python, and brings the variables with which its sandbox was opened.
    """

    def __init__(self, desk: LiveSandboxes, flight: Flight, answer: AnswerReport) -> None:
        self._desk, self._flight, self._answer = desk, flight, answer
        self._seats: dict[int, KernelSeat] = {}
        self._last = FIRST_SEAT
        self._ended = False

    def end(self) -> None:
        self._ended = True

    def bind(self, request: wire.KernelBind, entry: SandboxEntry) -> Mapping[str, Any]:
        """Bind a kernel to a number, and return the answer; SessionOver without such a kernel, Busy if too many are bound."""
        if request.kernel:
            entry.sandbox.sandbox.kernel(request.kernel)
        if len(self._seats) >= MOST_SEATS:
            self._seats = {number: seat for number, seat in self._seats.items() if self._is_there(seat)}
        if len(self._seats) >= MOST_SEATS:
            raise Busy(f"this connection has bound {len(self._seats)} kernels, all that one may")
        number, self._last = self._last, self._last + 1
        self._seats[number] = KernelSeat(request.sandbox, request.kernel, request.display)
        return {"session": number}

    def _is_there(self, seat: KernelSeat) -> bool:
        try:
            sandbox = self._desk.get(seat.sandbox, self._flight.user).sandbox.sandbox
            if seat.kernel:
                sandbox.kernel(seat.kernel)
        except Refused:
            return False
        return True

    def _of(self, number: int) -> KernelSeat:
        seat = self._seats.get(number)
        if seat is None:
            raise SessionOver(f"this connection has bound no kernel to {number}")
        return seat

    def by_name(self, request: Execute) -> wire.SandboxExecute:
        """Return *request* as a `sandbox_execute`; SessionOver if its number is unbound, BadRequest with more than code."""
        seat = self._of(request.session)
        if request != Execute(request.id, session=request.session, code=request.code):
            raise BadRequest("a request by the number of a bound kernel has code and nothing else;"
                             " sandbox_execute takes the rest")
        return wire.SandboxExecute(request.id, sandbox=seat.sandbox, code=request.code or b"", kernel=seat.kernel,
                                   display=seat.display)

    def offer(self, number: int) -> None:
        """Let the fast path have the next job of this kernel."""
        seat = self._of(number)
        try:
            sandbox = self._desk.get(seat.sandbox, self._flight.user).sandbox.sandbox
            client = ReplyAddress(self._flight.fd, number)
            if seat.kernel:
                sandbox.kernel(seat.kernel).offer(sandbox.facts.limits, client, seat.display)
            elif not seat.display:
                sandbox.offer(client, lambda: not self._ended)
        except Refused:
            return  # it is over; the next request is refused

    def job_started(self, start: JobStart) -> calls.SandboxCall:
        seat = self._of(start.session)
        entry = self._desk.get(seat.sandbox, self._flight.user)
        sandbox = entry.sandbox.sandbox
        call = calls.SandboxCall(self._desk, entry, nothing)

        def over(report: Report) -> None:
            self._answer(start.request, call, entry, report)
            self.offer(start.session)

        job = Job(code=start.code, name=NAME, limits=sandbox.facts.limits, display=seat.display)
        call.job = (sandbox.job_started(seat.kernel, job, over, start) if seat.kernel else
                    sandbox.execute_started(job, over, start))
        call.taken_back = call.job.cancel
        return call

    def ran(self, ran: Ran) -> None:
        seat = self._of(ran.session)
        self._desk.get(seat.sandbox, self._flight.user).sandbox.sandbox.ran(seat.kernel, ran)


#: Seconds after which a request about a sandbox that wakes is sent again.
_WAKES_S = 0.005
#: Requests that a sandbox may sleep on for.
ASLEEP = (wire.SandboxInfo, wire.SandboxExtend, wire.SandboxKill, wire.SandboxPause)

#: The folder in which programs start by default.
_FOLDER = "/workspace"
#: Rows of one answer to `sandbox_list`, values and bytes of all of them together: below what a frame may have, and some
#: milliseconds. A list of a thousand sandboxes has more values than a frame may have.
MOST_ROWS, MOST_VALUES, MOST_BYTES = 128, 24_000, 4 << 20
#: Rows of a list of processes, at most.
_MOST_ROWS = 1024
#: Arguments of a process that a list shows, and characters of each.
_SHOWN_ARGS, _SHOWN = 16, 200


class Sandboxes:
    def __init__(self, desk: LiveSandboxes, flight: Flight) -> None:
        self._desk, self._flight = desk, flight
        self.holds = calls.Holds()
        self.docks = calls.Docks(flight.own, desk.reactor.closer.close)
        self.seats = KernelSeats(desk, flight, self._answer)

    def find_asleep(self, name: str) -> SandboxEntry:
        """Return the sandbox *name* of this connection's user, which may sleep on; SandboxOver if there is none."""
        return self._desk.get(name, self._flight.user)

    def wakes(self, request: wire.SandboxRequest, entry: SandboxEntry) -> bool:
        """Whether the sandbox sleeps: it wakes, and *request* is refused as Busy when it is awake, to come again at once."""
        sleep, flight = entry.sandbox.sleep, self._flight
        if sleep is None or self._desk.retiring:
            return False

        def tried(why: Refused) -> None:
            if call.end():
                flight.refuse(request.id, why)

        call = calls.SandboxCall(self._desk, entry, partial(sleep.waits_no_longer, tried))
        flight.wait(request.id, call)
        try:
            sleep.wake(tried)
        except BaseException:
            call.end()
            flight.drop(request.id)
            raise
        return True

    def find(self, name: str) -> SandboxEntry:
        """As `find_asleep`, but one that sleeps wakes, and is Busy for the time that takes."""
        entry = self.find_asleep(name)
        if self._desk.retiring:
            raise ShuttingDown("the daemon is shutting down, and puts the sandbox to sleep")
        if entry.sandbox.sleep is not None:
            entry.sandbox.sleep.wake()
            raise Busy("the sandbox was asleep, and wakes", retry_after=_WAKES_S)
        return entry

    def file_call(self, request: FileRequest, entry: SandboxEntry) -> Mapping[str, Any] | None:
        """Answer a call to files in the sandbox; no path is opened here. It goes on when its connection ends, unanswered."""
        at_once: list[Mapping[str, Any] | None] = []
        call: calls.SandboxCall | None = None

        def answered(found: Mapping[str, Any] | None) -> None:
            if call is None:
                at_once.append(found)
            elif call.end():
                if found is None:
                    self._refuse_over(request.id, entry.name)
                else:
                    self._flight.answer(request.id, found)

        order = call_of(request)
        asked = entry.sandbox.sandbox.files.ask(order, weight(order), answered)
        if at_once and at_once[0] is not None:
            return at_once[0]
        call = calls.SandboxCall(self._desk, entry, asked.cancel)
        self._flight.wait(request.id, call)
        if at_once:
            answered(None)
        return None

    # --- sandboxes ------------------------------------------------------------------

    def open(self, request: wire.SandboxOpen) -> None:
        try:
            self._open(request)
        except BaseException:
            self.docks.drop(request.dock)
            raise

    def _open(self, request: wire.SandboxOpen) -> None:
        flight, server, config, desk = self._flight, self._flight.server, self._flight.server.config, self._desk
        host = profiles.check_view(request, flight.user, config)
        key = profiles.sandbox_key(request, flight.user, config)
        narrowed = profiles.narrowed(request, profiles.operators(request, flight.user, config))
        place = None if key == MAIN_POOL else flight.server.place(key)
        profiles.check_mounts(request.mounts, None if place is None else place.spec)
        home = profiles.home_of(request, None if place is None else place.spec, config)
        base = config.limits if place is None else place.settings.limits
        limits = of_sandbox(replace(base, cuts_output=True), config.ceilings, request.limits)
        view = None if place is None else place.spec.view
        idle, lifetime = self._times(request.idle, request.lifetime)

        def opened(what: str | Refused) -> None:
            if isinstance(what, Refused):
                flight.refuse(request.id, what)
            else:
                if request.held:
                    self._hold(desk.get(what, flight.user))
                flight.answer(request.id, {"sandbox": what, "idle": idle, "lifetime": lifetime})

        def proceed(mounts: Mounts | None = None) -> Callable[[], None]:
            # Chosen again, because the pool may have ended while folders were opened, to make room for another one.
            place = None if key == MAIN_POOL else flight.server.place(key)
            profiles.check_mounts(request.mounts, None if place is None else place.spec)
            if host:
                mounts = profiles.hiding(request, mounts, (flight.user, flight.connection.group))
            if home is not None:
                mounts = mounts or Mounts(user=(flight.user, flight.connection.group))
                mounts.home = home
            facts = SandboxFacts(limits, request.env, request.metadata, key,
                                 request.cwd or (place and place.spec.cwd) or _FOLDER, narrowed)
            name = desk.open(flight.user, facts, opened,
                             idle=idle, lifetime=lifetime, most=flight.server.quotas.of(flight.user).sandboxes,
                             patience=config.queue_timeout,
                             mounts=mounts, pool=None if place is None else place.pool,
                             place=partial(place_again, server, flight.user),
                             sleeps=request.sleeps or profiles.sleeps(request.profile, config),
                             terms=None if place is None else terms_of(place.spec, place.confinement.degraded))
            return partial(desk.give_up, name, flight.user)

        if request.mounts:
            flight.wait(request.id, calls.FolderOpening(
                desk, self.docks.take(request.dock), request.mounts, (flight.user, flight.connection.group), proceed,
                partial(flight.refuse, request.id), view, home is not None, "" if home is None else home.path))
        else:
            flight.wait(request.id, Later(proceed()))

    def _hold(self, entry: SandboxEntry) -> None:
        held = entry.sandbox
        held.held = True
        self.holds.add(calls.Hold(lambda: held.held and held.sandbox.state is not State.OVER,
                            partial(self._desk.part, entry.name)))

    def _times(self, idle: float, lifetime: float) -> tuple[float, float]:
        config = self._flight.server.config
        for what, asked, most in (("idle", idle, config.sandbox_idle), ("lifetime", lifetime, config.sandbox_lifetime)):
            if asked > most:
                raise BadRequest(f"{what}={asked:g} is above this daemon's sandbox_{what} {most:g}")
        return idle or config.sandbox_idle, lifetime or config.sandbox_lifetime

    def extend(self, request: wire.SandboxExtend, entry: SandboxEntry) -> Mapping[str, Any]:
        self._times(request.idle, request.lifetime)
        if request.metadata or request.policy:
            key, flight = entry.sandbox.sandbox.facts.key, self._flight
            self._desk.change(entry, request.metadata, None if not request.policy else profiles.narrowed_anew(
                key, request.policy, flight.user, flight.server.config))
        self._desk.extend(entry, request.idle, request.lifetime)
        if request.detach:
            entry.sandbox.held = False
        return self._desk.info(entry)

    def kill(self, request: wire.SandboxKill, entry: SandboxEntry) -> None:
        """Kill a sandbox. The answer comes when no process is left, so that none changes a folder of the host after it."""
        ending = calls.SandboxEnding(self._desk.reactor, partial(self._flight.answer, request.id, {}))
        self._flight.wait(request.id, ending)
        self._desk.kill(entry, ending.gone)

    def pause(self, request: wire.SandboxPause, entry: SandboxEntry) -> None:
        flight = self._flight

        def answered(why: Refused | None) -> None:
            if call.end():
                if why is None:
                    flight.answer(request.id, {})
                else:
                    flight.refuse(request.id, why)

        call = calls.SandboxCall(self._desk, entry, nothing)
        flight.wait(request.id, call)
        try:
            self._desk.pause(entry, answered)
        except BaseException:
            call.end()
            flight.drop(request.id)
            raise

    def copy_files(self, request: wire.SandboxCopyFiles, entry: SandboxEntry) -> None:
        calls.CopyCall(self._desk, self._flight, request, entry, self.find(request.source))

    def fetch(self, request: wire.SandboxFetch, entry: SandboxEntry) -> None:
        calls.FetchCall(self._desk, self._flight, request, entry)

    def connect(self, request: wire.SandboxConnect, entry: SandboxEntry) -> None:
        try:
            calls.ConnectCall(self._desk, self._flight, request, entry)
        except (BadRequest, Refused):
            raise
        except LeewardError as error:
            raise Busy(f"no connection can be made: {error}") from error

    # --- programs -------------------------------------------------------------------

    def _asked(self, request: wire.ProcessRun | wire.ProcessStart, sandbox: LiveSandbox) -> ProgramTerms:
        kept = isinstance(request, wire.ProcessRun)
        bounded = isinstance(request, wire.ProcessRun) or request.bounded
        calls.check_limits(request.limits)
        limits = adjusted(sandbox.facts.limits, self._flight.server.config.ceilings, request.limits)
        argv = request.argv or ("/bin/sh", "-c", "--", request.shell)  # a line may begin with a hyphen
        size = request.terminal if isinstance(request, wire.ProcessStart) else None
        return ProgramTerms(
            argv, request.title or request.shell or argv[0], request.cwd or sandbox.facts.cwd, request.env,
            limits, timed=bounded or "time" in request.limits, bounded=bounded or "output" in request.limits, kept=kept,
            stdin=request.stdin, open=isinstance(request, wire.ProcessStart) and (request.open or size is not None),
            size=size, cpu_time=request.cpu_time or None, clean=request.clean,
            ends_children=request.ends_children,
            warm=isinstance(request, wire.ProcessRun) and request.warm)

    def run(self, request: wire.ProcessRun, entry: SandboxEntry) -> None:
        sandbox = entry.sandbox.sandbox
        asked = self._asked(request, sandbox)
        call = calls.SandboxCall(self._desk, entry, nothing)
        try:
            program = sandbox.start(asked, partial(self._answer, request.id, call, entry))
        except Exception:
            call.end()
            raise
        call.taken_back = partial(program.stop, Stop.CANCELLED)
        self._flight.wait(request.id, call)

    def execute_bound(self, request: Execute) -> None:
        """Run code in a bound kernel that didn't take the fast path; Refused or BadRequest if it can't be done."""
        by_name = self.seats.by_name(request)
        entry = self.find(by_name.sandbox)
        self.execute(by_name, entry, partial(self.seats.offer, request.session))

    def _answer(self, number: int, call: calls.SandboxCall, entry: SandboxEntry, report: Report) -> None:
        """Answer request *number*, which ran code, unless it was answered already."""
        if not call.end():
            report.close()
        elif self._went_with_it(report, entry.sandbox.sandbox):
            report.close()
            self._refuse_over(number, entry.name)
        else:
            self._flight.done(number, report)

    def execute(self, request: wire.SandboxExecute, entry: SandboxEntry,
                 then: Callable[[], None] | None = None) -> None:
        flight, sandbox = self._flight, entry.sandbox.sandbox
        if request.kernel and request.stdin:
            raise BadRequest("a kernel's request is code: it takes no stdin")
        calls.check_limits(request.limits)
        job = Job(code=request.code, name=request.name or NAME, args=request.args, env=request.env, files=request.files,
                  stdin=request.stdin, collect=request.collect, display=request.display,
                  limits=adjusted(sandbox.facts.limits, flight.server.config.ceilings, request.limits))
        job = replace(job, functions=flight.exchanges.open(request.id, request.functions, flight.server.config.ceilings.time))
        call = calls.SandboxCall(self._desk, entry, nothing)

        def over(report: Report) -> None:
            self._answer(request.id, call, entry, report)
            if then is not None:
                then()

        flight.wait(request.id, call)
        try:
            call.job = sandbox.run_in(request.kernel, job, over) if request.kernel else sandbox.execute(job, over)
        except Exception:
            call.end()
            flight.drop(request.id)
            raise
        call.taken_back = call.job.cancel

    def open_kernel(self, request: wire.KernelOpen, entry: SandboxEntry) -> Mapping[str, Any] | None:
        if request.snapshot:
            snapshots.open_kernel(self._desk, self._flight, request, entry,
                                  partial(self._opened_kernel, request, entry.sandbox.sandbox))
            return None
        return self._opened_kernel(request, entry.sandbox.sandbox, entry.sandbox.sandbox.open_kernel())

    def _opened_kernel(self, request: wire.KernelOpen | wire.KernelFork, sandbox: LiveSandbox,
                       number: int) -> Mapping[str, Any]:
        if request.held:
            kernel = sandbox.kernel(number)
            self.holds.add(calls.Hold(lambda: kernel.stage is not KernelStage.CLOSED, partial(sandbox.close_kernel, number)))
        return {"kernel": number}

    def reset_kernel(self, request: wire.KernelReset, entry: SandboxEntry) -> Mapping[str, Any]:
        try:
            entry.sandbox.sandbox.kernel(request.kernel).reset()
        except Refused:
            raise
        except LeewardError as error:
            raise Busy(f"the kernel can't be started: {error}") from error
        return {}

    def fork_kernel(self, request: wire.KernelFork, entry: SandboxEntry) -> Mapping[str, Any]:
        sandbox = entry.sandbox.sandbox
        return self._opened_kernel(request, sandbox, sandbox.fork_kernel(request.kernel))

    def close_kernel(self, request: wire.KernelClose, entry: SandboxEntry) -> Mapping[str, Any]:
        entry.sandbox.sandbox.close_kernel(request.kernel)
        return {}

    @staticmethod
    def _went_with_it(report: Report, sandbox: LiveSandbox) -> bool:
        """Whether the report says only that the sandbox has ended."""
        return sandbox.state is State.OVER and (
            report.result is None or report.result.outcome in (Outcome.INTERNAL, Outcome.SIGNALLED))

    def _refuse_over(self, request: int, name: str) -> None:
        try:
            self._desk.get(name, self._flight.user)
        except Refused as over:
            over.may_have_run = True
            self._flight.refuse(request, over)
        else:
            raise Bug(f"sandbox {name} is over, and can still be found")

    def start(self, request: wire.ProcessStart, entry: SandboxEntry) -> Mapping[str, Any]:
        sandbox = entry.sandbox.sandbox
        asked = self._asked(request, sandbox)
        if asked.size is not None:
            self._desk.admit_terminal(self._flight.user)
        fed = self._desk.hold_input(self._flight.user, len(asked.stdin)) if asked.stdin else lambda _: None
        try:
            program = sandbox.start(asked, Report.close, fed)
        except Exception:
            fed(0)
            raise
        if request.held:
            self.holds.add(calls.Hold(lambda: program.life is not Life.OVER, program.kill))
        return {"process": program.number}

    def list_processes(self, _request: wire.ProcessList, entry: SandboxEntry) -> Mapping[str, Any]:
        now = self._desk.now()
        return {"processes": [self._row(program, now) for program in entry.sandbox.sandbox.programs[-_MOST_ROWS:]]}

    @staticmethod
    def _row(program: LiveProgram, now: float) -> Mapping[str, Any]:
        result = None if program.report is None else program.report.result
        return {
            "process": program.number, "pid": max(0, program.pid), "title": program.order.title[:_SHOWN],
            "argv": [word[:_SHOWN] for word in program.order.argv[:_SHOWN_ARGS]], "age": now - program.started,
            "over": program.life is Life.OVER, "exit_code": None if result is None else result.exit_code,
        }

    # --- one process ----------------------------------------------------------------

    def read(self, request: wire.ProcessRead, entry: SandboxEntry) -> Mapping[str, Any] | None:
        program = entry.sandbox.sandbox.program(request.process)
        program.read(request.reader, request.after)
        if program.more(request.after) or not request.wait:
            return self._chunks(request, program)
        self._wait(request, entry, program, request.after, lambda: self._chunks(request, program))
        return None

    @staticmethod
    def _chunks(request: wire.ProcessRead, program: LiveProgram) -> Mapping[str, Any]:
        chunks = program.read(request.reader, request.after)
        last = chunks[-1].number if chunks else max(request.after, program.chunks.last)
        return {"chunks": [[chunk.number, chunk.stream, chunk.time, chunk.data] for chunk in chunks], "over": False,
                **(Sandboxes._end_of(program) if program.life is Life.OVER and last >= program.chunks.last else {})}

    def wait_for(self, request: wire.ProcessWait, entry: SandboxEntry) -> Mapping[str, Any] | None:
        program = entry.sandbox.sandbox.program(request.process)
        if program.life is Life.OVER or not request.wait:
            return self._end_of(program)
        self._wait(request, entry, program, None, lambda: self._end_of(program))
        return None

    @staticmethod
    def _end_of(program: LiveProgram) -> Mapping[str, Any]:
        result = None if program.report is None else program.report.result
        return {"over": False} if result is None else {"over": True, **result_fields(result)}

    def _wait(self, request: wire.ProcessRead | wire.ProcessWait, entry: SandboxEntry, program: LiveProgram,
              after: int | None, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Answer *request* later, when there is output or an end to report."""
        if len(program.waits) >= MOST_WAITING:
            raise Busy(f"{len(program.waits)} requests wait for process {program.number} already")

        def tell() -> None:
            if not call.end():
                return
            if entry.sandbox.sandbox.state is State.OVER:
                self._refuse_over(request.id, entry.name)
            else:
                self._flight.answer(request.id, answer())

        call = calls.SandboxCall(self._desk, entry, program.wait(after, request.wait, tell))
        self._flight.wait(request.id, call)

    def write(self, request: wire.ProcessWrite, entry: SandboxEntry) -> Mapping[str, Any] | None:
        program = entry.sandbox.sandbox.program(request.process)
        if request.end and program.order.terminal:
            raise BadRequest(f"process {program.number} is on a terminal, whose input has no end: write \\x04 (Ctrl-D)")
        feed = program.feed
        if feed is None:
            return {"written": 0}
        told: list[int] = []
        call: calls.SandboxCall | None = None

        def taken(count: int) -> None:
            if call is None:
                told.append(count)
            elif call.end():
                self._flight.answer(request.id, {"written": count})

        feed.write(request.data, taken, end=request.end)
        if told:
            return {"written": told[0]}
        call = calls.SandboxCall(self._desk, entry, nothing)
        self._flight.wait(request.id, call)
        return None

    def resize(self, request: wire.ProcessResize, entry: SandboxEntry) -> Mapping[str, Any]:
        program = entry.sandbox.sandbox.program(request.process)
        if not program.order.terminal:
            raise BadRequest(f"process {program.number} is on no terminal")
        return {"resized": program.resize(request.rows, request.columns)}

    def kill_process(self, request: wire.ProcessKill, entry: SandboxEntry) -> Mapping[str, Any]:
        entry.sandbox.sandbox.program(request.process).kill()
        return {}

    def read_overlay(self, request: wire.OverlayDiff | wire.OverlayRead, entry: SandboxEntry) -> None:
        calls.OverlayCall(self._desk, self._flight, request, entry)


def page(desk: LiveSandboxes, user: int, after: int) -> Mapping[str, Any]:
    """Return the answer to a `sandbox_list`: as many as fit of the sandboxes that were opened after number *after*."""
    rows: list[Mapping[str, Any]] = []
    values = size = 0
    last = after
    for entry in desk.of(user):
        if entry.serial <= after:
            continue
        if len(rows) >= MOST_ROWS:
            return {"sandboxes": rows, "more": True, "last": last}
        row = desk.info(entry)
        values, size = values + _values(row), size + len(msgpack.packb(row))
        if rows and (values > MOST_VALUES or size > MOST_BYTES):
            return {"sandboxes": rows, "more": True, "last": last}
        rows.append(row)
        last = entry.serial
    return {"sandboxes": rows, "more": False}


def _values(what: object) -> int:
    if isinstance(what, Mapping):
        return 1 + len(what) + sum(map(_values, what.values()))
    return 1 + sum(map(_values, what)) if isinstance(what, list) else 1


#: What serves a request that names a sandbox, given that; by its kind, or one that it is based on.
IN_SANDBOX: Mapping[type[wire.SandboxRequest], Callable[..., Mapping[str, Any] | None]] = {
    wire.SandboxInfo: lambda of, _, entry: of._desk.info(entry),
    wire.SandboxExtend: Sandboxes.extend,
    wire.SandboxKill: Sandboxes.kill,
    wire.SandboxPause: Sandboxes.pause,
    wire.SandboxCopyFiles: Sandboxes.copy_files,
    wire.SandboxExecute: Sandboxes.execute,
    wire.SandboxFetch: Sandboxes.fetch,
    wire.SandboxConnect: Sandboxes.connect,
    wire.SandboxHide: lambda of, request, entry: calls.change_overlay(of._desk, of._flight, request, entry),
    wire.KernelOpen: Sandboxes.open_kernel,
    wire.KernelInterrupt: lambda of, request, entry: {
        "interrupted": entry.sandbox.sandbox.kernel(request.kernel).interrupt()},
    wire.KernelReset: Sandboxes.reset_kernel,
    wire.KernelFork: Sandboxes.fork_kernel,
    wire.KernelSnapshot: lambda of, request, entry: snapshots.take(of._desk, of._flight, request, entry),
    wire.KernelRollback: lambda of, request, entry: snapshots.roll_back(of._desk, of._flight, request, entry),
    wire.KernelBind: lambda of, request, entry: of.seats.bind(request, entry),
    wire.KernelClose: Sandboxes.close_kernel,
    wire.ProcessRun: Sandboxes.run,
    wire.ProcessStart: Sandboxes.start,
    wire.ProcessList: Sandboxes.list_processes,
    wire.ProcessRead: Sandboxes.read,
    wire.ProcessWrite: Sandboxes.write,
    wire.ProcessResize: Sandboxes.resize,
    wire.ProcessSignal: lambda of, request, entry: {
        "sent": entry.sandbox.sandbox.program(request.process).signal(request.signal)},
    wire.ProcessKill: Sandboxes.kill_process,
    wire.ProcessWait: Sandboxes.wait_for,
    wire.OverlayDiff: Sandboxes.read_overlay,
    wire.OverlayRead: Sandboxes.read_overlay,
    wire.OverlayRequest: lambda of, request, entry: calls.change_overlay(of._desk, of._flight, request, entry),
    FileRequest: Sandboxes.file_call,
}

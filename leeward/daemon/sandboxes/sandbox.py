"""
One live sandbox: its runner, once the pool has provided one, and its processes.

Theory of operation. A sandbox is OPENING until the pool has a worker for it, OPEN while its runner lives, and OVER once
it was ended or its runner was lost. Then every request about its processes is answered, and its seat in the pool is
given back. No two processes of a sandbox have the same number. The newest of those that have ended are remembered, so
that whoever started one can still ask for its last output and its result.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import names, replace
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Ran, Reactor
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.live_runner import MOST_PROCESSES
from leeward.daemon.run.report import SHORT_OUTPUT, Report
from leeward.daemon.run.runner_states import after
from leeward.daemon.sandboxes.file_process import LiveFiles
from leeward.daemon.sandboxes.kernel import KernelProcess, KernelRequest, LiveKernel, Start
from leeward.daemon.sandboxes.program import LiveProgram, Order
from leeward.daemon.sandboxes.registry import SANDBOX, Event, Life, Reason, State
from leeward.daemon.sandboxes.terms import ProgramTerms, SandboxFacts, SandboxTerms, environment_of
from leeward.daemon.sandboxes.warm import ROOM_INTERPRETER, WaitingProgram, has_room
from leeward.errors import BadRequest, Bug, Busy, LeewardError, ProcessOver, Refused, RequestRejected, SessionOver
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.spec.pool_key import PoolKey

if TYPE_CHECKING:
    from leeward.daemon.pool.sessions import Cancellable
    from leeward.daemon.run.beside import Interpreter
    from leeward.daemon.run.branches import KernelBranch
    from leeward.daemon.run.dumping import Dump, KernelState
    from leeward.daemon.run.launch import Exit
    from leeward.daemon.run.lease import Lease
    from leeward.daemon.run.live_process import LiveProcess
    from leeward.daemon.run.live_runner import LiveRunner

#: Kernels of a sandbox at once, including those without a process.
MOST_KERNELS = 64

#: Characters of the variables that one may have that sleeps: they stay in the daemon, and are counted for nobody.
MOST_ENV_ASLEEP = 64 << 10

#: Connections to servers in a sandbox that are being made at once: each takes a process for some milliseconds.
MOST_CONNECTING = 16

#: Seconds between two requests to run code in a fresh interpreter, after which one waits for the third.
AGAIN_S = 2.0
#: Seconds after the request for a branch until the next one is forked ahead, and for which that waits.
QUIET_S, AHEAD_S = 0.002, 1.0
#: Seconds that a walk of what it has written to its root may take.
WEIGH_S = 60.0

#: Names of refused system calls that are reported of a sandbox, at most.
MOST_NAMES = 64

#: Processes of a sandbox that are remembered after their end, at most.
REMEMBERED = 64

#: Why a sandbox is over, by what its runner reports when it ends by itself.
_REASONS = {"it ran out of memory": Reason.MEMORY, "its first process has ended": Reason.EXITED}


class LiveSandbox:
    """
    *gone* is called once, with reason and detail, if the sandbox ends because its runner was lost. While it is `held`
    no process may be started. `on_program_end` gets number (0: an interpreter), title and result of each process that
    ends.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, facts: SandboxFacts, terms: SandboxTerms,
                 gone: Callable[[Reason, str], None]) -> None:
        self._reactor, self.facts, self.terms = reactor, facts, terms
        self._gone: Callable[[Reason, str], None] | None = gone
        self.state = State.OPENING
        self.opened = reactor.now()
        self._place: LiveRunner | None = None
        self._programs: dict[int, LiveProgram] = {}
        self._last = self._last_kernel = self._connecting = 0
        self._kernels: dict[int, LiveKernel] = {}
        self._fresh: set[FreshJob] = set()
        self._executed = -math.inf  # the time of the last `execute`
        self._used = Usage()
        self._denied: Counter[str] = Counter()
        self._held = False
        self._next: Callable[[], None] = nothing
        self.on_program_end: Callable[[int, str, Result], None] = nothing
        self._warm = WaitingProgram(reactor)
        self.files = LiveFiles(reactor, lambda *how: self._here().calls(*how))

    def _happen(self, event: Event) -> None:
        self.state = after("sandbox", SANDBOX, self.state, event)

    def begin(self, place: LiveRunner) -> None:
        self._place = place
        self._happen(Event.OPENED)

    @property
    def lease(self) -> int:
        """The number of its runner, by which the broker knows it; Bug or Busy as `_here`."""
        return self._here().number

    # --- processes ----------------------------------------------------------------

    def start(self, asked: ProgramTerms, over: Callable[[Report], None],
              fed: Callable[[int], None] | None = None) -> LiveProgram:
        """
        Start a program; *over* is called once with its report, later; *fed* when it has read its input or never will,
        not if this raises or without input. BadRequest if execve(2) can't take it, Busy at the limit on processes,
        Refused.
        """
        here = self._here()
        self._check_room()
        number = self._last + 1
        order = Order(asked.argv, asked.title, asked.cwd, asked.limits.time if asked.timed else None,
                      asked.limits.output if asked.bounded else None, asked.limits.cuts_output, asked.kept,
                      asked.size is not None,
                      asked.cpu_time, self.facts.limits.cpu / 100)
        env = environment_of(self.terms, self.facts, here.variables, asked)
        held = None
        if asked.warm and has_room(self.facts.limits):
            what = (asked.argv, asked.cwd, tuple(sorted(env.items())))
            held = self._warm.take(what)
            over = self._warm.follow(what, partial(self._launch, replace(asked, stdin=b""), env), over)
        program = LiveProgram(self._reactor, number, order, self.usage, here.killed_unseen_from_now(),
                              partial(self._over, number, over), self.terms.degraded)
        tells = program.output, partial(self._exited, program)
        try:
            child, spent = (self._launch(asked, env, *tells), 0.0) if held is None else held.give(*tells)
        except (BadRequest, Refused):
            program.drop()
            raise
        except LeewardError as error:
            program.drop()
            raise Busy(f"the process can't be started: {error}") from error
        child.ends_children = asked.ends_children
        self._last = number
        self._programs[number] = program
        program.begin(child, spent)
        feed = program.feed
        if (asked.stdin or asked.warm) and feed is not None:
            feed.write(asked.stdin, fed or nothing, end=not asked.open)
        return program

    def _launch(self, asked: ProgramTerms, env: Mapping[str, str], output: Callable[[int, bytes], None],
                exited: Callable[[Exit], None]) -> LiveProcess:
        child: LiveProcess = self.terms.launch.start(
            self._here(), asked, {name.encode(): value.encode() for name, value in env.items()}, on_output=output,
            on_exit=exited)
        return child

    def _exited(self, program: LiveProgram, how: Exit) -> None:
        if how.refused:
            program.complain(how)
        program.exited(how)

    def _over(self, number: int, over: Callable[[Report], None], report: Report) -> None:
        title = self._programs[number].order.title if number in self._programs else ""
        in_any_case(partial(over, report), self._forget_old, partial(self._report_end, number, title, report))

    def _forget_old(self) -> None:
        ended = [each for each, program in self._programs.items() if program.life is Life.OVER]
        for each in ended[:-REMEMBERED]:
            self._programs.pop(each).drop()

    def _stir(self) -> None:
        if self._place is not None:
            self._place.stir()  # it keeps files of its control groups open, until it has been idle

    def _report_end(self, number: int, title: str, report: Report) -> None:
        self._stir()
        if report.result is not None:
            self._denied.update(report.result.denied)
        if report.result is not None and self.state is State.OPEN:
            self.on_program_end(number, title, report.result)

    def _reported(self, done: Callable[[Report], None]) -> Callable[[Report], None]:
        """The callback for an interpreter's report, which also records its end."""
        return lambda report: in_any_case(partial(done, report), partial(self._report_end, 0, "", report))

    # --- Python -------------------------------------------------------------------

    def _here(self) -> LiveRunner:
        if self._place is None:
            raise Bug(f"a process was asked of a sandbox that is {self.state.value}")
        self.check_unheld()
        return self._place

    def _check_room(self) -> None:
        """Check that one more process may run; Busy if not. The fast path, which can't, gets none meanwhile."""
        self._withdraw()
        running = self.running
        if running >= self.facts.limits.processes:
            raise Busy(f"{running} processes run in the sandbox, as many as its limit on processes allows")

    def execute(self, job: Job, done: Callable[[Report], None]) -> FreshJob:
        """Run *job* in a fresh interpreter; *done* is called once. Busy at the limit on processes, or if it can't start."""
        self._check_room()
        fresh = self._fresh_job(done)
        try:
            fresh.process = self._here().execute(self._with_env(job), fresh.answer, fresh.moved)
        except LeewardError as error:
            self._fresh.discard(fresh)
            raise Busy(f"the interpreter can't be started: {error}") from error
        return fresh

    def execute_started(self, job: Job, done: Callable[[Report], None], start: JobStart) -> FreshJob:
        """As `execute`, for a job that the fast path has given to the interpreter that waited."""
        fresh = self._fresh_job(done)
        fresh.process = self._here().job_started(job, fresh.answer, fresh.moved, start)
        return fresh

    def _fresh_job(self, done: Callable[[Report], None]) -> FreshJob:
        again, self._executed = self._reactor.now() - self._executed < AGAIN_S, self._reactor.now()
        reported = self._reported(done)

        def answered(report: Report) -> None:
            in_any_case(partial(reported, report), *([partial(self._reactor.soon, self._prepare)] if again else []))

        return FreshJob(answered, self._fresh)

    def _prepare(self) -> None:
        """Have an interpreter wait for the next `execute`: there were two shortly one after the other."""
        if self._place is not None and not self.held and self.state is State.OPEN and has_room(
                self.facts.limits, *ROOM_INTERPRETER):
            self._place.prepare(lambda: self._next())

    def offer(self, client: ReplyAddress, lasts: Callable[[], bool]) -> None:
        """
        Let the fast path have the next `execute`, if it is of *client* and code alone: now or when an interpreter waits for
        it, while *client* *lasts*; not once another process was asked for.
        """
        def give() -> None:
            if (lasts() and self._place is not None and not self.held and self.state is State.OPEN and not self.facts.env
                    and self.facts.limits.output >= SHORT_OUTPUT and self.running < self.facts.limits.processes):
                self._place.offer(client, self.facts.limits)

        self._next = give
        give()

    def _withdraw(self) -> None:
        self._next = nothing
        if self._place is not None:
            self._place.withdraw()

    @property
    def held(self) -> bool:
        return self._held

    @held.setter
    def held(self, held: bool) -> None:
        self._withdraw()
        self._held = held

    def check_unheld(self) -> None:
        """Check that no overlay is being changed: who looks at one, or changes its mounts, would find two states; Busy."""
        if self.held:
            raise Busy("an overlay of the sandbox is being changed")

    def _with_env(self, job: Job) -> Job:
        return replace(job, env={**self.facts.env, **job.env}) if self.facts.env else job

    def run_in(self, number: int, job: Job, done: Callable[[Report], None]) -> KernelRequest:
        """Run *job* in the kernel *number*; SessionOver or Busy as `LiveKernel.run`."""
        self._stir()
        return self.kernel(number).run(self._with_env(job), self._reported(done))

    def job_started(self, number: int, job: Job, done: Callable[[Report], None], start: JobStart) -> KernelRequest:
        """Record that the fast path has sent *job* to the kernel *number*."""
        self._stir()
        return self.kernel(number).job_started(job, self._reported(done), start)

    def ran(self, number: int, ran: Ran) -> None:
        """Record that the fast path has sent a job to the kernel *number*, and answered it."""
        self.kernel(number).ran_fast(ran)
        result = Result(b"", b"", 0, Outcome.FINISHED, duration=ran.ended - ran.started, cpu_time=ran.cpu_time,
                        memory_peak=ran.memory_peak)
        self._report_end(0, "", Report(result=result, answered=True))

    def open_kernel(self, state: KernelState | None = None, told: Callable[[str], None] = nothing, *,
                    same: bool = False) -> int:
        """
        Open a kernel, and return its number; Busy at the limit on processes, or if it can't be started. It begins as the
        copy of *state*, if that is given, with the *same* random numbers or others; *told* is called with "" when it is
        there, or with the reason why it isn't.
        """
        states = iter([state])  # a reset gives it a fresh process

        def start(opened: Callable[[Lease], None], lost: Callable[[str], None]) -> KernelProcess:
            return self._here().kernel(self.facts.limits, opened, lost, next(states, None), same=same)

        return self._add_kernel(start, told)

    def record(self) -> Mapping[str, Any]:
        """What a later daemon has to know of it, beside its kernels' states and its files."""
        facts, used = self.facts, self.usage()
        return {"limits": {name: getattr(facts.limits, name) for name in names(Limits)}, "env": dict(facts.env),
                "metadata": dict(facts.metadata), "key": {name: getattr(facts.key, name) for name in names(PoolKey)},
                "cwd": facts.cwd, "egress": facts.egress, "kernels": [[number, kernel.why_lost or "it slept"]
                                                                    for number, kernel in self._kernels.items()],
                "last": [self._last, self._last_kernel], "denied": self.denied(),
                "used": {name: getattr(used, name) for name in names(Usage)}}

    def restore(self, record: Mapping[str, Any], age: float) -> None:
        """Be as an earlier daemon's, which slept; without a process, and *age* seconds old."""
        def fresh(opened: Callable[[Lease], None], lost: Callable[[str], None]) -> KernelProcess:
            return self._here().kernel(self.facts.limits, opened, lost)

        self.opened = self._reactor.now() - age
        self._last, self._last_kernel = record["last"]
        self._denied.update(record["denied"])
        self._used = Usage(**record["used"])
        self._kernels = {number: LiveKernel(fresh, lost=why) for number, why in record["kernels"]}
        self._happen(Event.OPENED)

    @property
    def kernels(self) -> Mapping[int, LiveKernel]:
        """By number."""
        return self._kernels

    def check_rests(self) -> None:
        """Check that it could sleep: RequestRejected names what runs in it; Busy while something is being done."""
        self._here()
        if sum(len(name) + len(value) for name, value in self.facts.env.items()) > MOST_ENV_ASLEEP:
            raise RequestRejected(f"it can't sleep: its variables have more than {MOST_ENV_ASLEEP} characters")
        running = [f"process {number} ({program.order.title:.80})" for number, program in self._programs.items()
                   if program.life is not Life.OVER]
        if running or self._fresh:
            raise RequestRejected(f"it can't sleep: {', '.join(running[:8]) or 'code runs in it'}")
        if self.files.calls or self._connecting or not all(kernel.rests for kernel in self._kernels.values()):
            raise Busy("something is being done in the sandbox")

    def leave(self) -> None:
        """Its processes are to end, and it sleeps: kernels get others by `wake_kernel`."""
        self.usage()
        self._place = None
        in_any_case(self._warm.drop, *(kernel.sleep for kernel in self._kernels.values()))

    def place(self, place: LiveRunner) -> None:
        """It has a runner again."""
        self._place = place

    def wake_kernel(self, number: int, state: KernelState, told: Callable[[str], None]) -> None:
        """Give the kernel *number* a process with *state*; *told* and errors as `LiveKernel.wake`."""
        self.kernel(number).wake(lambda opened, lost: self._here().kernel(self.facts.limits, opened, lost, state, same=True),
                                 told)

    def snapshot(self, number: int, dump: Dump) -> None:
        """Have *dump* take the state of the kernel *number*; SessionOver or Busy as `LiveKernel.run`."""
        self._here()
        self.kernel(number).snapshot(Job(code=b"", limits=self.facts.limits), dump)

    def roll_back(self, number: int, state: Callable[[], KernelState], told: Callable[[str], None], *,
                  same: bool) -> None:
        """Give the kernel *number* what *state* returns then; *told* and errors as `LiveKernel.roll_back`."""
        limits = self.facts.limits
        self.kernel(number).roll_back(
            Job(code=b"", limits=limits),
            lambda opened, lost: self._here().kernel(limits, opened, lost, state(), same=same), told)

    def fork_kernel(self, number: int) -> int:
        """
        Open a kernel, and return its number. It begins with the state of the kernel *number* after all requests that
        this one has got so far; a reset gives it a fresh process, as any other. SessionOver, or Busy as `open_kernel`
        and `LiveKernel.run`.
        """
        of, limits = self.kernel(number), self.facts.limits
        begun = False

        def start(opened: Callable[[Lease], None], lost: Callable[[str], None]) -> KernelProcess:
            nonlocal begun
            if begun:
                return self._here().kernel(limits, opened, lost)
            begun = True
            return of.fork(Job(code=b"", limits=limits), fork, opened, lost, then)

        def fork(process: Any, *how: Any) -> KernelBranch:
            return self._here().branch(process, limits, *how)

        def may() -> bool:
            return (self._place is not None and not self.held and self.state is State.OPEN
                    and 2 * self.present < MOST_PROCESSES)

        def then() -> None:
            if of.repeats and has_room(limits, *ROOM_INTERPRETER):
                self._reactor.after(QUIET_S, partial(of.fork_ahead, Job(code=b"", limits=limits), fork,
                                                     partial(self._reactor.after, AHEAD_S), may))

        return self._add_kernel(start)

    def _add_kernel(self, start: Start, told: Callable[[str], None] = nothing) -> int:
        self._check_room()
        if len(self._kernels) >= MOST_KERNELS:
            raise Busy(f"the sandbox has {len(self._kernels)} kernels, all that it may have: close one")
        try:
            kernel = LiveKernel(start, told)
        except Refused:
            raise
        except LeewardError as error:
            raise Busy(f"the kernel can't be started: {error}") from error
        self._last_kernel += 1
        self._kernels[self._last_kernel] = kernel
        return self._last_kernel

    def kernel(self, number: int) -> LiveKernel:
        """The kernel *number*; SessionOver if there is none."""
        kernel = self._kernels.get(number)
        if kernel is None:
            raise SessionOver(f"the sandbox has no kernel {number}: it never had, or it was closed")
        return kernel

    def forget_kernel(self, number: int) -> None:
        """Close the kernel *number*, if it is there: it has not become what it was opened for."""
        if number in self._kernels:
            self.close_kernel(number)

    def close_kernel(self, number: int) -> None:
        self.kernel(number).close()
        del self._kernels[number]

    def program(self, number: int) -> LiveProgram:
        """The process *number*; ProcessOver if there is none, or it isn't remembered any more."""
        program = self._programs.get(number)
        if program is None:
            raise ProcessOver(f"the sandbox has no process {number}: it never had, or it ended a while ago")
        return program

    @property
    def running(self) -> int:
        """How many processes that clients started haven't ended."""
        return len(self._fresh) + sum(kernel.lives for kernel in self._kernels.values()) + sum(
            program.life is not Life.OVER for program in self._programs.values())

    @property
    def terminals(self) -> int:
        """How many terminals there are on which a process may still be."""
        return 0 if self._place is None else sum(child.terminal for child in self._place.processes.values())

    @property
    def programs(self) -> list[LiveProgram]:
        """The processes that run or are remembered, the oldest first."""
        return list(self._programs.values())

    def carry(self, order: Mapping[str, Any], fds: Sequence[int],
              answered: Callable[[Mapping[str, Any] | LeewardError, list[int]], None], seconds: float) -> Cancellable:
        """Have a porter do *order*; see run/live_runner.py. LeewardError if it can't be started."""
        if self._place is None:
            raise LeewardError("the sandbox is over")
        return self._place.carry(order, fds, answered, seconds)

    @property
    def layers(self) -> int:
        """A detached copy of the layers of its image's root, its runner's; LeewardError if it is over."""
        if self._place is None:
            raise LeewardError("the sandbox is over")
        return self._place.runner.layers

    @layers.setter
    def layers(self, fd: int) -> None:
        """Give it another one, in place of the one that was used up."""
        old = fd
        if self._place is not None:
            old, self._place.runner.layers = self._place.runner.layers, fd
        os.close(old)

    def weigh(self, weighed: Callable[[int | LeewardError], None]) -> None:
        """Tell what the sandbox has written to its root on a disk, in bytes. Busy as `check_unheld`, else as `carry`."""
        def carried(what: Mapping[str, Any] | LeewardError, _fds: list[int]) -> None:
            if self._place is not None:
                weighed(what if isinstance(what, LeewardError) else what["bytes"])

        self._here().carry({"order": "weigh"}, [], carried, WEIGH_S)

    def connect(self, port: int, answered: Callable[[Mapping[str, Any] | LeewardError, list[int]], None]) -> Cancellable:
        """Connect a socket to a server in the sandbox. Raises as LiveRunner.connect; Busy at the bound."""
        if self._connecting >= MOST_CONNECTING:
            raise Busy(f"{self._connecting} connections to the sandbox are being made already")

        def over(what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
            self._connecting -= 1
            answered(what, fds)

        made = self._here().connect(port, over)
        self._connecting += 1
        return made

    # --- a sandbox without processes, for changes of overlays ---------------------

    @property
    def present(self) -> int:
        """How many processes the sandbox has beside its first, whoever started them."""
        return 0 if self._place is None else len(self._place.processes)

    @property
    def porters(self) -> int:
        """How many of these are porters."""
        return 0 if self._place is None else sum(process.is_porter for process in self._place.processes.values())

    def hold(self) -> None:
        """
        Refuse to start processes until `release`, and end those that commands left in the background, or the sandbox
        started itself. Busy if it is held already, or does file calls.
        """
        self.check_unheld()
        if self.files.calls:
            raise Busy("file calls are done in the sandbox")
        self.held = True
        in_any_case(self.files.rest, self.end_processes)

    def end_processes(self) -> None:
        """End all but porters: who has asked one waits for its answer, and without that a root on a disk is ended."""
        there = [] if self._place is None else [*self._place.processes.values()]
        in_any_case(self._warm.drop, *(process.kill for process in there if not process.is_porter))

    def release(self) -> None:
        self.held = False

    @property
    def memory(self) -> int:
        """Bytes of memory that the whole sandbox uses now; 0 if the number isn't known."""
        return self._place.memory() if self._place is not None and self.state is State.OPEN else 0

    def denied(self) -> Mapping[str, int]:
        """How often each system call was refused so far, by its name: to programs, and in Python requests that are over."""
        found = sum((Counter(one.denied()) for one in self._programs.values()), self._denied)
        return dict(found.most_common(MOST_NAMES))

    def usage(self) -> Usage:
        """What the whole sandbox has used, so far or up to its end."""
        if self._place is not None and self.state is State.OPEN:
            self._used = self._place.usage()
        return self._used

    # --- its end --------------------------------------------------------------------

    def lost(self, why: str) -> None:
        """End the sandbox: its runner has ended by itself, and reported *why*."""
        if self.state is State.OVER:
            return
        self._place = None
        gone, self._gone = self._gone, None
        reason = _REASONS.get(why, Reason.LOST)
        # First the registry, which stores the reason: the processes' clients get it.
        in_any_case(*([partial(gone, reason, why)] if gone is not None else []), partial(self.end, reason, why))

    def end(self, reason: Reason, detail: str = "") -> None:
        """End the sandbox, and answer every request about its processes. The caller has to end the runner."""
        if self.state is State.OVER:
            return
        self.usage()
        self._happen(Event.ENDED)
        self._gone = None
        outcome = Outcome.OUT_OF_MEMORY if reason is Reason.MEMORY else Outcome.INTERNAL
        why = f"its sandbox is over: {reason}{f' ({detail})' if detail else ''}"
        in_any_case(*(partial(program.lost, outcome, why) for program in self._programs.values()),
                    *(program.drop for program in self._programs.values()), self._programs.clear,
                    *(kernel.close for kernel in self._kernels.values()), self._kernels.clear,
                    *(partial(fresh.lost, why) for fresh in list(self._fresh)), self._warm.close, self.files.close)

    def broken(self, error: Exception) -> None:
        self.lost(f"a bug of the daemon's: {error}")


class FreshJob:
    """
    A job in a fresh interpreter of a live sandbox, *among* its others until it is answered. *done* is called once with
    the report, unless whoever sent it ends it by `cancel`.
    """

    def __init__(self, done: Callable[[Report], None], among: set[FreshJob]) -> None:
        self._done: Callable[[Report], None] | None = done
        self._among = among
        self.process: Interpreter | None = None
        among.add(self)

    @property
    def execution(self) -> Execution | None:
        """The run of the job; None while its interpreter starts."""
        tenant = None if self.process is None else self.process.tenant
        return tenant if isinstance(tenant, Execution) else None

    def answer(self, report: Report) -> None:
        self._among.discard(self)
        done, self._done = self._done, None
        if done is not None:
            done(report)
        else:
            report.close()

    def lost(self, why: str) -> None:
        """The sandbox is over: report that the job failed."""
        self.answer(Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL,
                                         error=JobError("SandboxOver", why, ""))))

    def moved(self, process: Interpreter) -> None:
        """The job gets another interpreter, since the one that had waited for it was lost before."""
        self.process = process
        if self._done is None:
            process.kill()

    def cancel(self) -> None:
        self._done = None
        if self.process is not None:
            self.process.kill()

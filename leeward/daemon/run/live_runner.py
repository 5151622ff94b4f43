"""
A runner that is kept open: its keeper puts more processes beside the runner's first process.

Theory of operation. The runner's first process never gets a job. It waits to be killed, and gives up its memory when the
sandbox rests, which takes as long as its end would: a short-lived sandbox needn't pay for it twice. The sandbox's init lives
as long as this process does, and so does the sandbox. Each further process is the keeper's child,
in the same namespaces and in a group of its own below the runner's leaf, and goes through the same locks
(crossing/beside.py). No process relies on another one. However the runner ends, the worker at last calls `emptied`,
which reports the ends of processes that haven't been reported, and calls *over* and *lost*, once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward._native.memfd import memory_file
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.fast_path import FastPath, ReplyAddress
from leeward.daemon.loop.reactor import NO_TIMER, JobStart, Reactor
from leeward.daemon.run.beside import Beside, Interpreter, SharedLeaf
from leeward.daemon.run.branches import KernelBranch, lay_out
from leeward.daemon.run.called_process import CallProcess
from leeward.daemon.run.calling_job import execution_of
from leeward.daemon.run.launch import Command, Exit, Stdio, Streams, block
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_process import LiveProcess
from leeward.daemon.run.loading import Loading
from leeward.daemon.run.porter import Answered, PorterOrder
from leeward.daemon.run.report import Report, internal
from leeward.daemon.run.runner import Runner
from leeward.daemon.run.runner_states import RunnerState
from leeward.daemon.run.verdict import Stop, bug, why_ended, why_killed
from leeward.errors import BadRequest, Bug, LeewardError
from leeward.isolation import rlimits
from leeward.isolation.cgroup import descent
from leeward.isolation.cgroup.entry import Entry, Usage
from leeward.isolation.namespaces import ENTERED
from leeward.isolation.terminals import MOST_TERMINALS
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit
from leeward.wire import control
from leeward.wire import job_frames as wire

if TYPE_CHECKING:
    from leeward.daemon.run.dumping import KernelState
    from leeward.daemon.worker.keeper import Keeper
    from leeward.daemon.worker.terms import WorkerSettings
    from leeward.isolation.cgroup.nest import GroupNest


QUIET_S = 2.0


class Awake:
    """
    Which live sandboxes hold all their descriptors: those used in the last seconds, *most* of them (0: no bound).

    An open sandbox holds some forty descriptors, and needs eleven of them while it has no request. After QUIET_S, or
    displaced by others, it rests: its worker gives up its other runners and what only jobs need, and closes the files
    of the sandbox's groups. The next request opens these files again, which takes some 100 us.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._until: dict[LiveRunner, float] = {}  # those used longest ago first
        self._timer = NO_TIMER

    def stir(self, reactor: Reactor, sandbox: LiveRunner) -> None:
        """Note that *sandbox* has got a request. While more than `most` are awake, the one used longest ago has to rest."""
        self._until.pop(sandbox, None)
        self._until[sandbox] = reactor.now() + QUIET_S
        while 0 < self._most < len(self._until):
            self._rest()
        if not self._timer.is_set:
            self._look_later(reactor)

    def forget(self, sandbox: LiveRunner) -> None:
        self._until.pop(sandbox, None)

    def _rest(self) -> None:
        sandbox = next(iter(self._until))
        del self._until[sandbox]
        sandbox.rest()

    def _look_later(self, reactor: Reactor) -> None:
        due = next(iter(self._until.values()))
        self._timer = reactor.after(max(0.0, due - reactor.now()), partial(self._look, reactor))

    def broken(self, _error: Exception) -> None:
        """For the barrier: a check has failed. The next request to a sandbox schedules another one."""
        self._timer.cancel()

    def _look(self, reactor: Reactor) -> None:
        try:
            while self._until and next(iter(self._until.values())) <= reactor.now():
                self._rest()
        finally:
            if self._until:
                self._look_later(reactor)


#: Processes of a runner at once, including ended ones whose descendants live on.
MOST_PROCESSES = 128
#: So many interpreters in a row must have waited for their request before the next one takes the time to rehearse.
UNHURRIED = 8
#: The first number of a process, so that the supervisor and the log can tell processes' numbers from runners'.
_FIRST = 1 << 48
_numbers = itertools.count(_FIRST)

#: Seconds that a server may take to accept a connection by either address, and its porter besides.
CONNECT_S, ANSWER_S = 2.0, 8.0
#: Seconds between two searches for children of a dead keeper that the keeper hadn't reported.
_ORPHANS_S = 0.1


#: Returns the fast path, if there is one and it takes new jobs.
FastPathNow = Callable[[], FastPath | None]


class LiveCaller:
    """The caller of a job that runs in an interpreter of its own."""

    client = None

    def __init__(self, job: Job, done: Callable[[Report], None]) -> None:
        self.job, self._done = job, done
        self.again: Callable[[], None] | None = None  # called in place of a failure if nothing of the job has run

    def finished(self, report: Report) -> None:
        self._answer(report)

    def lost(self) -> None:
        again, self.again = self.again, None
        if again is None:
            self.failed("", "its process was lost before it had read the job")
        else:
            again()

    def failed(self, layer: str, text: str) -> None:
        self._answer(internal("WorkerLost", f"{layer}: {text}" if layer else text))

    def _answer(self, report: Report) -> None:
        done, self._done, self.again = self._done, Report.close, None  # each refers to this, and to the job
        done(report)


class Full(LeewardError):
    """There is no room for one more process."""


#: The entry of a process that joins no group.
_NO_ENTRY = Entry()


class LiveRunner:
    """
    *keeper* makes the processes; *owner* is its uid and gid on the host, to whom pipes have to belong. Callbacks:
    *over* once, when the runner is given back; *killed* when it was killed, and `emptied` has to follow; *lost* once,
    after *over*, with the reason; *collect* reaps processes of dead keepers that were never reported; *rested* when the
    sandbox had no request for a while, or too many others are awake. *fast_path* returns the one for jobs of kernels,
    which reads files of the groups. *runner* is the sandbox's first process, and its init; each process has *variables*
    beside those of all sandboxes.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, runner: Runner, terms: WorkerSettings, owner: tuple[int, int], keeper: Keeper,
                 *, over: Callable[[], None], killed: Callable[[], None], lost: Callable[[str], None],
                 collect: Callable[[], object], rested: Callable[[], None], fast_path: FastPathNow) -> None:
        self._reactor, self.runner, self.owner, self._keeper = reactor, runner, owner, keeper
        self._terms, self._denials, self._fast_path, self.variables = terms, terms.denials, fast_path, runner.variables
        self._over: Callable[[], None] | None = over
        self._killed, self._lost, self._collect, self._rested = killed, lost, collect, rested
        self.processes: dict[int, LiveProcess] = {}  # by number, until nothing of them is left
        self._interpreters: dict[int, Interpreter] = {}
        self._ending, self._files = "", 0  # bytes of its tmpfs, if they aren't what it was made with
        self._ticks = NO_TIMER
        self._spare: Interpreter | None = None  # waits for the next `execute`
        self._in_time = 0  # how many of them in a row waited before their request came

    @property
    def number(self) -> int:
        return self.runner.number

    @property
    def runs(self) -> bool:
        """Whether a process runs beside the first one, which does nothing; it may be one that no `LiveProcess` knows."""
        return bool(self.processes) or self._ticks.is_set

    @property
    def over(self) -> bool:
        """Whether the runner takes no more processes; *lost* was called, or will be."""
        return self._over is None or bool(self._ending)

    def open(self, limits: Limits) -> None:
        """Set *limits* on the runner; LeewardError if it is gone, or one can't be set."""
        if not self.runner.entrances:
            raise LeewardError("this daemon's runners are not made to be kept open")
        self.runner.limit(limits)
        self._files = limits.files if limits.files != self._terms.limits.files else 0
        self.runner.leaf.share()
        self._terms.awake.stir(self._reactor, self)

    # --- processes ------------------------------------------------------------

    def start(self, what: Command, *, on_exit: Callable[[Exit], None], stdin: int | Stdio = Stdio.NULL,
              stdout: int | Stdio = Stdio.PIPE, stderr: int | Stdio = Stdio.PIPE,
              on_output: Callable[[int, bytes], None] | None = None) -> LiveProcess:
        """
        Order the keeper to start a program. *on_exit* is called once, when it has ended and its output was taken, or
        can't be started. The streams are descriptors, which stay the caller's, or what `Stdio` says; all three are
        ignored if the command has a size: then they are a terminal, which the process keeps. *on_output* gets 1 or 2 (1
        for a terminal), and a chunk of at most 64 KiB of a stream that is a PIPE.

        Raises BadRequest if execve(2) can't take the command; Full at MOST_PROCESSES, or without terminals;
        LeewardError if the runner is over, or the daemon lacks descriptors.
        """
        data = block(what)
        self._check_room()
        number = next(_numbers)
        with Streams.opened(self.owner, f"a process of runner {self.number}") as streams:
            try:
                ends = (streams.open(stdin, stdout, stderr) if what.size is None
                        else streams.terminal(self._keeper.ptmx, *what.size))
            except OSError as error:
                if what.size is None or error.errno != errno.ENOSPC:
                    raise
                raise Full(f"{MOST_TERMINALS} terminals are open in this sandbox, or all that the host has") from error
            memory = memory_file("leeward_command")
            streams.given.callback(os.close, memory)
            os.write(memory, data)
            birth, far = streams.birth_channel()
            on_terminal = what.terminal or what.size is not None
            nest = self._order(number, control.Kind.TERMINAL if on_terminal else control.Kind.PROGRAM,
                               [far, *streams.theirs, memory])
        return self._add(LiveProcess(
            self._reactor, number, self, self.runner, nest, self._denials, birth, ends, on_output=on_output,
            on_exit=on_exit, terminal=what.size is not None))

    def _add(self, process: LiveProcess) -> LiveProcess:
        self.processes[process.number] = process
        if self._reactor.rouse is not None:
            self._reactor.rouse()
        return process

    def _order(self, number: int, kind: control.Kind, five: list[int], *, apart: bool = False,
               hurried: bool = True) -> GroupNest | None:
        """Have the keeper make a process in a new group, which is returned; None if *apart*, in the keeper's own."""
        runner, leaf = self.runner, self.runner.leaf
        entrances, held = runner.entrances, runner.held()
        if not self._ticks.is_set and leaf.needs_ticks:
            self._tick_later()
        nest = None if apart else leaf.nest(f"p{number - _FIRST}")
        entry: Entry = _NO_ENTRY if apart else leaf.entry if nest is None else nest.entry
        data = 0 if kind is control.Kind.PORTER else held.get(resource.RLIMIT_DATA, 0)
        message = control.Start(number, kind, len(entrances) > len(ENTERED), entry.into >= 0, len(entry.attach),
                                leaf.cpu(), hurried=hurried, reaper=nest is None and not apart,
                                tasks=held.get(resource.RLIMIT_NPROC, 0),
                                data=data, descriptors=rlimits.reachable(runner.descriptors), files=self._files,
                                most_data=rlimits.most_data(data), sandbox=self.number)
        try:
            self._keeper.send(message, [*entrances, *five, *([entry.into] if entry.into >= 0 else []), *entry.attach])
        except BaseException:
            if nest is not None:
                nest.remove()
            raise
        return nest

    def interpreter(self, ready: Callable[[Runner], None] | None, failed: Callable[[str, str], None], *,
                    keeps_door: bool = False, cold: bool = False, hurried: bool = True) -> Interpreter:
        """
        Start an interpreter that has all locks and waits for a job: a runner for an Execution or a Lease, which the
        caller sets as its `tenant`. *ready* is called once with the runner, or *failed*, with the lock that couldn't be
        set or "", and the reason; None: the caller gives both later. *keeps_door*: it may have branches. *cold*: without
        the state of its environment; unless *hurried* it rehearses. Raises as `start`.
        """
        self._check_room()
        number = next(_numbers)
        with Streams.opened(self.owner, f"an interpreter of runner {self.number}") as streams:
            job, reply, out, err = (streams.pipe(write=write) for write in (False, True, True, True))
            birth, far = streams.birth_channel()
            warmth = self._terms.warmth
            memory = None if warmth is None else warmth.tell(birth, cold=cold)
            nest = self._order(number, control.Kind.INTERPRETER, [far, *streams.theirs], hurried=hurried)
        leaf = SharedLeaf(self.runner.leaf, nest)
        runner = Beside(number, leaf, birth, self._denials, self.runner.number, self._terms.limits.descriptors,
                        keeps_door=keeps_door)
        runner.job, runner.reply, runner.out, runner.err, runner.variables = job, reply, out, err, self.variables
        runner.memory = None if self.runner.layers >= 0 else memory or self._keeper.memory  # an image's has none of it
        made = self._interpreters[number] = Interpreter(self._reactor, runner, leaf, self._terms, ready, failed)
        made.is_process(self._add(LiveProcess(
            self._reactor, number, self, self.runner, nest, self._denials, None, (-1, -1, -1), on_output=None,
            on_exit=made.exited)))
        return made

    def execute(self, job: Job, done: Callable[[Report], None],
                moved: Callable[[Interpreter], None] = nothing) -> Interpreter:
        """
        Run *job* in a fresh interpreter with the sandbox's files, one that waits if there is one; its time begins when
        that is ready. *done* gets the report. `kill` of the interpreter ends the job, which is then reported as killed
        by SIGKILL. *moved* is called with another interpreter, if the one that waited was lost. Raises as `start`.
        """
        caller = LiveCaller(job, done)
        spare, self._spare = self._spare, None
        self._in_time = self._in_time + 1 if spare is not None and spare.runner.state is RunnerState.ARMED else 0
        if spare is not None and spare.waits():
            self._check_room()
            caller.again = partial(self._execute_again, caller, moved)
            spare.give(partial(self._begin, caller, spare), lambda _layer, _text: caller.lost())
            return spare
        if spare is not None:
            spare.kill()
        return self._execute(caller)

    def _execute(self, caller: LiveCaller) -> Interpreter:
        made = self.interpreter(lambda runner: self._begin(caller, made, runner), caller.failed)
        return made

    def _execute_again(self, caller: LiveCaller, moved: Callable[[Interpreter], None]) -> None:
        try:
            made = self._execute(caller)
        except (LeewardError, OSError) as error:
            caller.failed("", str(error))
        else:
            moved(made)

    def _begin(self, caller: LiveCaller, made: Interpreter, runner: Runner) -> None:
        execution = execution_of(caller.job)(self._reactor, runner, made, caller)
        made.tenant = execution
        execution.start()

    def prepare(self, armed: Callable[[], None] = nothing) -> None:
        """
        Start the interpreter of the next `execute`, which waits until the sandbox rests; it calls *armed* when it does. It
        rehearses if the ones before it had the time for that: the next job then finds its pages. In an image it becomes the
        image's, which takes a tenth of a second.
        """
        if self._spare is None and not self.over and 2 * len(self.processes) < MOST_PROCESSES:
            with contextlib.suppress(LeewardError, OSError):  # the next one then starts its own
                in_image = self.runner.layers >= 0
                self._spare = self.interpreter(None, lambda _layer, _text: None,
                                               hurried=in_image or self._in_time < UNHURRIED)
                self._spare.armed = armed
                if in_image:
                    os.write(self._spare.runner.job, wire.AHEAD_FRAME)  # into an empty pipe

    def offer(self, client: ReplyAddress, limits: Limits) -> None:
        """Let the fast path have the interpreter that waits, if one does, for the next job of *client*, with *limits*."""
        fast_path = self._fast_path()
        if self._spare is not None and fast_path is not None and not self.over:
            self._spare.offer(fast_path, client, limits)

    def withdraw(self) -> None:
        """Take back what `offer` has given."""
        if self._spare is not None:
            self._spare.take_back()

    def job_started(self, job: Job, done: Callable[[Report], None], moved: Callable[[Interpreter], None],
                    start: JobStart) -> Interpreter:
        """As `execute`, for a job that the fast path has given to the interpreter that waited."""
        spare, self._spare = self._spare, None
        if spare is None or spare.number != start.runner:
            raise Bug(f"interpreter {start.runner} has a job, and isn't what sandbox {self.number} had on offer")
        self._in_time += 1
        caller = LiveCaller(job, done)
        caller.again = partial(self._execute_again, caller, moved)
        self._terms.awake.stir(self._reactor, self)
        spare.job_started(caller, self._fast_path(), start)
        return spare

    def kernel(self, limits: Limits, opened: Callable[[Lease], None], lost: Callable[[str], None],
               state: KernelState | None = None, *, same: bool = False, cold: bool = False,
               loads: bool = False) -> Interpreter:
        """
        Start a kernel: an interpreter with state, for one job after the other. *opened* is called once with its lease,
        unless it is over first; then, or later, *lost* once with the reason. It begins as the copy of *state*, if that
        is given, with the *same* random numbers or others. Raises as `start`; *cold* as for `interpreter`, *loads* as for
        `Lease.open`.
        """
        if state is not None:
            loading = Loading(state, limits, opened, lost, same=same)
            try:
                return self.kernel(limits, loading.begin, loading.lose, cold=True, loads=True)
            except BaseException:
                loading.let_go()
                raise

        def ready(runner: Runner) -> None:
            self._lease(made, runner, limits, opened, lost, loads=loads)

        made = self.interpreter(ready, lambda layer, text: lost(f"{layer or 'interpreter'}: {text}"), keeps_door=True,
                                cold=cold)
        return made

    def _lease(self, made: Interpreter, runner: Runner, limits: Limits, opened: Callable[[Lease], None],
               lost: Callable[[str], None], *, loads: bool = False) -> None:
        lease = Lease(self._reactor, runner, made, lost=lost, fast_path=self._fast_path())
        made.tenant, made.take_back = lease, lease.take_back
        try:
            lease.open(limits, loads=loads)
        except LeewardError as error:  # its process may have been killed at once
            lease.end(str(error))
        else:
            opened(lease)

    def branch(self, of: Interpreter, limits: Limits, opened: Callable[[Lease], None],
               lost: Callable[[str], None]) -> KernelBranch:
        """As `kernel`, for a branch of the kernel *of*, whose answer the caller has to give to `KernelBranch.forked`."""
        def ready(runner: Runner) -> None:
            self._lease(made, runner, limits, opened, lost)

        def note(branch: KernelBranch, process: LiveProcess) -> None:
            self._interpreters[number] = branch
            self._add(process)

        self._check_room()
        number = next(_numbers)
        made = lay_out(self._reactor, number, self, of, self._terms, ready, lambda _, text: lost(text), note)
        return made

    def calls(self, begins: bytes, most: int, opened: Callable[[CallProcess], None],
              lost: Callable[[str], None]) -> Interpreter:
        """Start a process that does calls: run/called_process.py; otherwise as `kernel`."""
        def ready(runner: Runner) -> None:
            try:
                process = CallProcess(self._reactor, runner, made, begins, most, lost)
            except LeewardError as error:
                in_any_case(made.kill, partial(lost, str(error)))
                return
            made.tenant = process
            opened(process)

        made = self.interpreter(ready, lambda layer, text: lost(f"{layer or 'interpreter'}: {text}"), cold=True)
        return made

    def carry(self, order: Mapping[str, Any] | None, fds: Sequence[int], answered: Answered, seconds: float, *,
              apart: bool = False) -> PorterOrder:
        """
        Have a porter carry out *order* (crossing/porter.py); None begins its process, for `give`. *apart*: leave it in
        the keeper's group, because joining a group of version 1 takes ten milliseconds. Raises as `start`.
        """
        self._check_room()
        number = next(_numbers)
        with Streams.opened(self.owner, "a porter") as streams:
            channel, far = streams.birth_channel()
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            streams.given.callback(os.close, null)
            nest = self._order(number, control.Kind.PORTER, [far, null, null, null, null], apart=apart)
        made: PorterOrder | None = None
        process = self._add(LiveProcess(
            self._reactor, number, self, self.runner, nest, self._denials, None, (-1, -1, -1), on_output=None,
            on_exit=lambda end: None if made is None else made.failed(end.reason or "it ended before its answer")))
        process.is_porter = True
        try:
            made = PorterOrder(self._reactor, channel, order, fds, seconds, answered, process.kill)
        except OSError as error:
            channel.close()  # the porter reads end of file, and ends
            raise LeewardError(f"a porter: {error}") from error
        return made

    def connect(self, port: int, answered: Answered) -> PorterOrder:
        """
        Have a porter connect a socket to *port* in the runner's network; *answered* gets the socket, or none if nobody
        listens. No further job has this network. BadRequest for a port of the broker's; else raises as `start`.
        """
        if port in self._terms.ways_out.ports:
            raise BadRequest(f"port {port} of this sandbox is its way out by its policy of egress, and no server's")
        self._keeper.lent = True
        return self.carry({"order": "connect", "port": port, "seconds": CONNECT_S}, [], answered, CONNECT_S + ANSWER_S)

    def _check_room(self) -> None:
        if self.over:
            raise LeewardError(self._ending or "the runner is over")
        if len(self.processes) >= MOST_PROCESSES:
            raise Full(f"{MOST_PROCESSES} processes are in this sandbox, which is all that it may have")
        self._terms.awake.stir(self._reactor, self)

    def rest(self) -> None:
        if not self.over:
            spare, self._spare = self._spare, None
            in_any_case(*(made.take_back for made in self.interpreters), *([] if spare is None else [spare.kill]),
                        self.runner.rest, self._rested)

    def heard(self, message: control.Started | control.Unstarted | control.Exited, fds: list[int]) -> None:
        process = self.processes.get(message.process)
        pidfd = fds[0] if len(fds) == 1 else -1
        if process is None or pidfd < 0 or not isinstance(message, control.Started):
            for fd in fds:
                os.close(fd)
        if process is None:
            return
        made = self._interpreters.get(message.process)
        match message:
            case control.Started():
                process.started(message, pidfd)
                if made is not None:
                    made.started(message.pid, pidfd)
            case control.Unstarted():
                process.unstarted(message)
            case control.Exited():
                process.exited(message)

    def process_gone(self, process: LiveProcess) -> None:
        """For *process*: neither it nor a descendant is left."""
        self.processes.pop(process.number, None)
        made = self._interpreters.pop(process.number, None)
        if made is not None:
            self._spare = None if made is self._spare else self._spare
            made.emptied()

    def escaped(self, process: LiveProcess) -> None:
        self.end("a process that was to be killed forked faster than it could be, or was continued again and again")

    @property
    def interpreters(self) -> list[Interpreter]:
        return list(self._interpreters.values())

    @property
    def all_processes(self) -> list[LiveProcess]:
        return list(self.processes.values())

    def usage(self) -> Usage:
        self.stir()
        return self.runner.leaf.usage()

    def killed_unseen_from_now(self) -> Callable[[int], bool | None]:
        """As `killed_unseen` of its leaf, for a process that begins."""
        leaf = self.runner.leaf
        return partial(leaf.killed_unseen, since=leaf.unseen_kills())

    def memory(self) -> int:
        self.stir()
        return self.runner.leaf.memory()

    def stir(self) -> None:
        if not self.over:
            self._terms.awake.stir(self._reactor, self)

    # --- the end --------------------------------------------------------------

    def end(self, why: str) -> None:
        """End every process. The processes' ends are reported, and then *lost* is called."""
        if self._over is None or self._ending:
            return
        self._ending = why
        in_any_case(self.runner.kill, self._killed)

    def orphaned(self) -> None:
        """For the worker: the keeper is dead, so the daemon has to reap its children, before the init can end."""
        in_any_case(*(process.orphaned for process in self.processes.values()), self._collect_strays)

    def _collect_strays(self) -> None:
        """Reap processes that the keeper had made but not reported."""
        self._collect()
        if self._over is not None:
            self._reactor.after(_ORPHANS_S, self._collect_strays)

    def emptied(self, status: int | None, reason: str) -> None:
        """For the worker: no process of the runner is left."""
        if not self._ending:
            leaf = self.runner.leaf
            killed = why_killed(status, Usage(), leaf.usage(), partial(leaf.killed_unseen, self.runner.largest))
            reason = reason if status is None else "its first process has ended"
            self._ending = reason if killed is None else why_ended(killed)
        self._release()

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. Ends the sandbox."""
        self.end(bug(error))

    def abandon(self) -> None:
        """End the runner without calling *lost*, because it couldn't be opened."""
        self._lost = lambda _why: None
        self._release()

    def _release(self) -> None:
        over, self._over = self._over, None
        if over is None:
            return
        self._terms.awake.forget(self)
        in_any_case(self._ticks.cancel, *(partial(process.lost, self._ending) for process in
                                        tuple(self.processes.values())), over, partial(self._lost, self._ending))

    def _tick_later(self) -> None:
        self._ticks = self._reactor.after(self.runner.leaf.tick_interval, self._tick)

    def _tick(self) -> None:
        if self._over is not None and self.runner.tick() == Limit.MEMORY:
            self.end(why_ended(Stop.MEMORY))
        elif self._over is not None and (self.processes or descent.has_strays(self.runner.pid)):
            self._tick_later()

"""
A runner, seen from the daemon: its birth, its descriptors, its state, its cgroup leaf.

Owns: the init's pidfd, the daemon's ends of four pipes, the birth channel until the runner is ready, and the leaf.
`dispose` gives all of it back. Trust: a runner in birth has no code of a job yet, but a message out of turn ends the
birth, and no descriptor that comes with it stays open.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from leeward._native.loop import Glance, Offer
from leeward.base.dataclass import replace
from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.run.runner_states import RUNNER, RunnerEvent, RunnerState, after
from leeward.daemon.run.verdict import Stop, bug
from leeward.errors import LeewardError, PeerError
from leeward.isolation import rlimits
from leeward.isolation.cgroup.entry import Leaf
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit
from leeward.wire import control, job_frames

if TYPE_CHECKING:
    from leeward.daemon.worker.terms import Lent
    from leeward.daemon.worker.zygote_memory import ZygoteMemory


class Denials(Protocol):
    """The supervisor, as far as a runner uses it."""

    def add(self, listener: int, job: int, *, checking: bool = False, of: int = 0) -> None: ...
    def end_check(self, job: int) -> None: ...
    def counts(self, job: int) -> dict[str, int]: ...
    def total(self, job: int) -> int: ...
    def place(self, job: int) -> tuple[object, int]: ...
    def grant(self, job: int, limit: int, files: int) -> None: ...
    def share(self, job: int, of: int) -> None: ...
    def charged(self, job: int) -> int: ...
    def remove(self, job: int) -> dict[str, int]: ...


class Runner:
    """
    One armed or running process of a worker. *sockets* returns the number of sockets in its network namespace;
    *descriptors* are those that its processes may have, as armed or set since; *show* shows the job its limits;
    *more_tasks* are those that the kernel counts against its RLIMIT_NPROC for spares of which the leaf doesn't know.
    *proves* tells the keeper that a runner of its passed the whole self-check; *sockstat* is where C counts the sockets.
    *variables* are the environment beside that of all jobs. By *entrances*, its namespaces and
    ruleset, more processes join the first.
    """

    def __init__(self, number: int, leaf: Leaf, birth: Channel | None, denials: Denials,
                 sockets: Callable[[], int], descriptors: int, show: Callable[[Limits], None] = lambda _: None,
                 more_tasks: int = 0) -> None:
        self.number = number  # unique in this daemon's life; the supervisor and the log use it
        self.leaf = leaf
        self.birth = birth
        self.state = RunnerState.ARMING
        self.pid = -1  # the init's, or the parent's in kept namespaces, by the daemon's numbers; for logs and watching only
        self.pidfd = -1  # the init's, in kept namespaces the job's
        self.holder = 0  # the connection for whose jobs alone its namespaces are kept; 0: they end with it
        self.job = self.reply = self.out = self.err = -1
        self.locked = False
        self.checked = False
        self.listening = False
        self.cut = False  # descriptors that the runner sent were lost, because the daemon had no room for them
        self.entrances: tuple[int, ...] = ()
        self.layers = -1  # of an image's root; a porter that has mounted them gives others
        self.proves: Callable[[], None] = lambda: None
        self.sockstat: Callable[[], tuple[int, int]] = lambda: (-1, 0)
        self.ended_by_watchdog: Stop | None = None
        self._ticking = Lock()
        self._charged = 0
        self._glance: Glance | None = None  # where no controller counts, and its limits are those in force
        self.report: dict[str, str] = {}
        self.denied_before: dict[str, int] = {}  # refused calls of the session's jobs before this one, by name
        self._denied_total = 0
        self.cpu_before = 0.0  # processor seconds that arming took
        self.largest = 0  # bytes that one of its processes had at once, by the kernel; known at its end, else 0
        self.denials = denials
        self._job_pid = -1
        self._more_tasks = more_tasks
        self.descriptors = descriptors
        self._sockets, self._show = sockets, show
        self.scratch = -1
        self.variables: Mapping[str, str] = {}
        self._trust: Callable[[], None] = lambda: None
        self.door: Channel | None = None  # of a kernel's: takes descriptors for branches and snapshots
        self.memory: ZygoteMemory | None = None  # of a kernel's: the memory file that it maps
        self.adopted: set[int] = set()  # branches that are children of its process, by their numbers in the sandbox
        self.dumped: Callable[[], None] = nothing  # a process that has written its state may be a child of another's

    def lend(self, lent: Lent, trust: Callable[[bytes], None]) -> None:
        """Note that the runner is leased, and what it was lent; `limit` calls *trust* with its certificate."""
        self.variables = lent.variables
        if lent.certificate:
            self._trust = partial(trust, lent.certificate)

    def happen(self, event: RunnerEvent) -> None:
        self.state = after("runner", RUNNER, self.state, event)

    def take(self, pid: int, fds: list[int]) -> None:
        """Take over the keeper's descriptors: the init's pidfd, and the daemon's ends of the pipes, which don't block."""
        self.pid = pid
        self.pidfd, self.job, self.reply, self.out, self.err = fds

    def listen(self, listener: int, scratch: int = -1, entrances: tuple[int, ...] = (), layers: int = -1) -> None:
        """
        Hand the seccomp listener to the supervisor; keep the others. *scratch* is of the job's tmpfs, *layers* a detached
        copy of an image's, or -1.
        """
        self.scratch = scratch
        self.entrances, self.layers = entrances, layers
        self.denials.add(listener, self.number, checking=True)
        self.listening = True
        self.locked = True

    def ready(self) -> bool:
        """Whether the runner is ready: both channels have reported."""
        return self.checked and self.pidfd >= 0

    def record_baseline(self, memory: int = 0) -> None:
        """
        Record the usage of arming, so that a job isn't charged for it; and grant the next one *memory*, the limit that
        most jobs have, where no controller counts it.
        """
        self.leaf.armed()
        self.denials.end_check(self.number)
        if self.leaf.needs_ticks:
            self.tick()
        self.cpu_before = self.leaf.cpu_time()
        if self.scratch >= 0 and memory:
            self.denials.grant(self.number, memory, self.scratch)
        if self.leaf.rlimits():
            self._job_pid = self.leaf.only or self._job()
            self._check_there()  # otherwise the pid may have been another process's, and so its child

    def limit(self, limits: Limits) -> None:
        """Set *limits* and certificates of the next job, before it has code; LeewardError if that isn't possible."""
        self._glance = None
        try:
            self.leaf.apply(limits)
            self._show(limits)
            self._trust()
            if self.scratch >= 0:
                self.denials.grant(self.number, limits.memory, self.scratch)
            held = dict(self.held())
            if limits.descriptors != self.descriptors:
                self.descriptors = limits.descriptors
                held[resource.RLIMIT_NOFILE] = rlimits.reachable(limits.descriptors)
            cpu = self.leaf.cpu()
            if held:
                if self._job_pid < 0:
                    self._job_pid = self._job()
                self._check_there()
                if cpu is not None:
                    os.sched_setaffinity(self._job_pid, {cpu})
            for number, value in held.items():
                most = rlimits.most_data(value) if number == resource.RLIMIT_DATA else value
                resource.prlimit(self._job_pid, number, (value, most))
        except OSError as error:
            raise LeewardError(f"limits of runner {self.number}: {error}") from error

    def held(self) -> Mapping[int, int]:
        """The rlimits that each process of the runner has where no controller limits the resource, by RLIMIT_*."""
        return {number: value + (self._more_tasks if number == resource.RLIMIT_NPROC else 0)
                for number, value in self.leaf.rlimits().items()}

    def offer(self, out: int, err: int) -> Offer | None:
        """Describe the runner for the fast path, None if it can't be taken; the execution may own *out* and *err*."""
        gauges = self.leaf.gauges()
        if gauges is None or not self.listening:
            return None
        before, watch = gauges.before, gauges.watch
        if watch is not None:
            sockets, keepers = self.sockstat()
            if min(sockets, self.scratch) < 0:
                return None
            held = self.held()
            tasks, data = held[resource.RLIMIT_NPROC], held[resource.RLIMIT_DATA]
            watch = replace(watch, pidfd=self.pidfd, files=self.scratch, sockets=sockets,
                            free_sockets=watch.free_sockets + keepers, tasks=(tasks, tasks),
                            data=(data, rlimits.most_data(data)))
            self._glance = Glance(watch)
        supervisor, slot = self.denials.place(self.number)
        return Offer(
            self.number, self.job, self.reply, out, err, gauges.time, gauges.peak, gauges.oom, gauges.forks,
            gauges.time_unit, before.cpu_time + self.cpu_before, before.oom_kills, before.forks_refused,
            supervisor, slot, self._denied_total, watch=watch)

    def _job(self) -> int:
        """The pid of the job's process, which is certain after `_check_there`."""
        return job_of(self.pid)

    def _check_there(self) -> None:
        """
        Check that the init lives; LeewardError if not. Then the pid is still the job's, dead or alive: only the init
        reaps it.

        prlimit(2) takes a pid; no kernel takes a pidfd for it. For the pid to be another process's at the call, the job
        would have to die, be reaped, and all other free pids be used, within these microseconds: the kernel gives pids
        in turn (32,768 at least; pid_max), at some 50 us each, and only root in the daemon's namespace may choose a
        pid.
        """
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if poll.poll(0):
            raise LeewardError(f"init {self.pid} has gone")

    def denied(self) -> dict[str, int]:
        """The number of calls refused since the runner was armed, or since the last `mark`, by name."""
        if self.denials.total(self.number) == self._denied_total:
            return {}
        counts = self.denials.counts(self.number)
        return {name: count - self.denied_before.get(name, 0) for name, count in counts.items()
                if count > self.denied_before.get(name, 0)}

    def mark(self) -> None:
        """Start counting denied calls for the next job."""
        total = self.denials.total(self.number)
        if total != self._denied_total:
            self._denied_total = total
            self.denied_before = self.denials.counts(self.number)

    def tick(self) -> Limit | None:
        """Check the limits that the kernel doesn't enforce. Returns the limit that the job has exceeded, or None."""
        with self._ticking:
            self._charged = self.denials.charged(self.number) if self.scratch >= 0 else 0
            seen = None if self._glance is None else self._glance.look(self._charged)
            if seen is not None and self.leaf.glanced(seen):
                return None
            return self.leaf.tick(self.pid, self.scratch, self._sockets, self._charged)

    def tick_beside(self, scratch: int) -> Limit | None:
        """
        As `tick`, for the watchdog's thread, with its own descriptor *scratch*; nothing while the loop is in `tick`.
        Sockets aren't counted, because their descriptor belongs to the loop, and charges aren't updated.
        """
        if not self._ticking.acquire(blocking=False):
            return None
        try:
            return self.leaf.tick(self.pid, scratch, charged=self._charged)
        finally:
            self._ticking.release()

    def runnable(self) -> bool:
        """Whether the job's first task runs now, or waits for a processor; LeewardError, OSError if it has gone."""
        if self._job_pid < 0:
            self._job_pid = self._job()
        return is_runnable(self._job_pid)

    def signal(self, number: int) -> bool:
        """Send a signal to the job's process. Returns False if it was gone."""
        try:
            pidfd = os.pidfd_open(job_of(self.pid))
        except (OSError, LeewardError):
            return False
        try:
            self._check_there()  # otherwise the pid may have been another process's
            signal.pidfd_send_signal(pidfd, number)
        except (OSError, LeewardError):
            return False
        finally:
            os.close(pidfd)
        return True

    def lower_priority(self) -> None:
        """Give the runner only idle processor time, because its end isn't urgent."""
        with contextlib.suppress(LeewardError):  # its priority is then as before
            self.leaf.lower_priority()

    def restore_priority(self) -> None:
        """Give the runner a full share of processor time again."""
        with contextlib.suppress(LeewardError):  # the runner is ending
            self.leaf.armed()

    def kill(self) -> None:
        """
        Kill every process of the runner: with its init the kernel kills the whole pid namespace. In kept ones the keeper
        does, when the job has gone.
        """
        self._close_entrances()
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # gone already
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def job_pidfd(self) -> int:
        """A new pidfd of the job's process, the caller's; LeewardError, OSError."""
        # So far the init has no other child. Only the init reaps it, so while the init lives the pid is the child's.
        return os.pidfd_open(job_of(self.pid))

    def has_ended(self) -> bool:
        """Whether its init has ended, or the job's process with all its threads; False if that can't be said."""
        fds = [self.pidfd]
        try:
            with contextlib.suppress(OSError, LeewardError):
                fds.append(self.job_pidfd())
            poll = select.poll()
            for fd in fds:
                poll.register(fd, select.POLLIN)
            return bool(poll.poll(0))
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def rest(self) -> None:
        """
        For a live sandbox: let the first process, which gets no job, give up its memory, and close its pipes, and the leaf's
        files for now. May be called again.
        """
        ends = [fd for fd in (self.reply, self.out, self.err, self.job) if fd >= 0]
        job, self.reply, self.out, self.err, self.job = self.job, -1, -1, -1, -1
        self._glance = None
        in_any_case(*([partial(_park, job)] if job >= 0 else []), *(partial(os.close, fd) for fd in ends), self.leaf.rest)

    def close_birth(self) -> None:
        if self.birth is not None:
            self.birth.close()
            self.birth = None

    def give_output(self) -> tuple[int, int]:
        """Give the read ends of stdout and stderr to the caller."""
        ends = self.out, self.err
        self.out = self.err = -1
        return ends

    def dispose(self) -> None:
        """Close every descriptor. The leaf's holder has to remove the leaf."""
        fds = self.pidfd, self.job, self.reply, self.out, self.err, self.scratch
        self.pidfd = self.job = self.reply = self.out = self.err = self.scratch = -1
        self._glance = None
        listening, self.listening = self.listening, False
        # The supervisor first, because it opens files by the descriptor of the tmpfs.
        in_any_case(*([partial(self.denials.remove, self.number)] if listening else []),
                    self.close_birth, self._close_entrances, *(partial(os.close, fd) for fd in fds if fd >= 0))

    def _close_entrances(self) -> None:
        """Close the entrances, while processes live: the last one to close unmounts all, for half a millisecond."""
        entrances, self.entrances, layers, self.layers = self.entrances, (), self.layers, -1
        for fd in (*entrances, *([layers] if layers >= 0 else [])):
            os.close(fd)


def _park(job: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its init tells
        os.write(job, job_frames.PARK)  # to an empty pipe


def job_of(init: int) -> int:
    """The pid of the job's process, the only child that an armed runner's init has; LeewardError if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{init}/task/{init}/children") as file:
        return int(file.read().split()[0])
    raise LeewardError(f"init {init} has no child")


def is_runnable(task: int) -> bool:
    """Whether *task*, in the daemon's pid namespace, runs or waits for a processor; OSError if it has gone."""
    return state_of(task) == b"R"


def state_of(task: int) -> bytes:
    """The letter of the state of *task*, in the daemon's pid namespace; OSError if it has gone. proc(5)."""
    fd = os.open(f"/proc/{task}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 256).rpartition(b")")[2][1:2]  # the name in front of it has 64 bytes at most
    finally:
        os.close(fd)


#: Called with the runner, the layer (or ""), and the reason.
Failed = Callable[[int, str, str], None]


def attend(reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
    """Listen to the birth channel of *runner* until the runner is ready or has failed, or until `stop_listening`."""
    assert runner.birth is not None
    reactor.watch(runner.birth.fileno(), READ, BirthListener(reactor, runner, born, failed).hear)


def stop_listening(reactor: Reactor, runner: Runner) -> None:
    """Stop listening to the birth channel of *runner*. May be called repeatedly."""
    if runner.birth is not None:
        reactor.forget(runner.birth.fileno())
        runner.close_birth()


class BirthListener:
    costs = "worker"

    def __init__(self, reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
        self._reactor, self._runner, self._born, self._failed = reactor, runner, born, failed

    def broken(self, error: Exception) -> None:
        in_any_case(partial(stop_listening, self._reactor, self._runner),
                    partial(self._failed, self._runner.number, "", bug(error)))

    def hear(self, _events: int) -> None:
        runner = self._runner
        if runner.birth is None:
            return
        try:
            received = runner.birth.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        if received is None:
            stop_listening(self._reactor, runner)
            if not runner.checked:
                self._failed(runner.number, "", "the runner went before it was ready")
            return
        message, fds = received
        if isinstance(message, control.Locked) and len(fds) - 1 - message.entrances in (0, 1):
            try:
                listener, *more = fds
                scratch = more.pop() if len(more) > message.entrances else -1
                layers = more.pop() if message.layers and more else -1
                runner.listen(listener, scratch, tuple(more), layers)
            except (LeewardError, OSError) as error:
                stop_listening(self._reactor, runner)
                self._failed(runner.number, "seccomp", str(error))
            return
        stop_listening(self._reactor, runner)
        if isinstance(message, control.Locked) and not fds:
            runner.cut = True
            self._failed(runner.number, "seccomp", "its listener did not arrive: no descriptor was left")
            return
        for fd in fds:
            os.close(fd)
        match message:
            case control.Ready(report) if runner.locked:
                runner.checked = True
                runner.report = report
                self._born(runner)
            case control.Failed(_, layer, text):
                self._failed(runner.number, layer, text)
            case _:
                self._failed(runner.number, "", f"the runner says {type(message).__name__}")

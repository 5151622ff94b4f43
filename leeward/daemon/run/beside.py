"""
An interpreter in a live sandbox: a process beside the sandbox's first one that is used as a runner.

Theory of operation. The process is a copy of the keeper, as a runner's first process is. It sends Locked and Ready on a
birth channel of its own, and then waits on its job pipe. An Execution or a Lease uses it like any other runner, but it
has no init of its own, its limits are the sandbox's, and all its descendants end with it. Its tenant's `emptied` is
called when the direct child has ended and its descendants were killed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward._native.loop import CLOCK, Gauge, JobSeen
from leeward.base.dataclass import replace
from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.fast_path import FastPath, ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Reactor
from leeward.daemon.run.execution import Caller, Execution
from leeward.daemon.run.launch import Exit
from leeward.daemon.run.live_process import LiveProcess
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import Denials, Runner, attend, state_of, stop_listening
from leeward.daemon.run.runner_states import RunnerEvent, RunnerState
from leeward.errors import LeewardError
from leeward.isolation.cgroup.entry import Entry, Gauges, Leaf, Sockets, Usage, no_sockets
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.daemon.run.branches import Family
    from leeward.daemon.worker.terms import WorkerSettings
    from leeward.isolation.cgroup.nest import GroupNest

#: <linux/posix-timers_types.h>: of a clock id made of a pid, the time that the scheduler gave to all of its threads.
_CPUCLOCK_SCHED = 2


class Tenant(Protocol):
    """The object that has the runner: an Execution or a Lease."""

    def emptied(self, status: int | None, reason: str) -> None: ...


class SharedLeaf:
    """A leaf that also has other processes: its limits are set already, and don't change."""

    needs_ticks = False
    only = 0
    shared = True
    tick_interval = 1.0
    entry = Entry()

    def __init__(self, leaf: Leaf, nest: GroupNest | None) -> None:
        self._leaf, self._nest, self.memory, self.unseen_kills = leaf, nest, leaf.memory, leaf.unseen_kills
        self.begin()
        self.pid = -1
        self._time = self._base = 0.0
        self._alone = True  # in its group

    def begin(self) -> None:
        """Count from now on what others of the sandbox meet, too: a job begins."""
        self._before, self._kills_before = self._leaf.usage(), self.unseen_kills()

    def killed_unseen(self, most: int, since: int = -1) -> bool | None:
        return self._leaf.killed_unseen(most, since if since >= 0 else self._kills_before)

    def usage(self) -> Usage:
        """The process's processor time, the sandbox's peak of memory, and its refusals since the process began."""
        now, before = self._leaf.usage(), self._before
        return replace(now, cpu_time=self.cpu_time(), oom_kills=now.oom_kills - before.oom_kills,
                       forks_refused=now.forks_refused - before.forks_refused, limit_hits=now.limit_hits - before.limit_hits)

    def cpu_time(self) -> float:
        try:
            if self._nest is not None:
                self._time = max(self._time, self._nest.time())
            elif self.pid > 0:
                self._time = max(self._time, self._base + self._own())
        except (OSError, LeewardError):
            pass  # the process has ended; the last values hold
        return self._time

    def _own(self) -> float:
        return time.clock_gettime(self._clock)

    @property
    def _clock(self) -> int:
        return ~self.pid << 3 | _CPUCLOCK_SCHED

    def leave_group(self) -> None:
        """Count only the process itself from now on, because other processes join its group."""
        spent = self.cpu_time()
        self._nest, self._alone = None, False
        try:
            self._base = spent - self._own()
        except OSError:
            pass  # the process is gone

    def count_end(self, spent: float) -> None:
        """Note that the direct child has ended after *spent* seconds of processor time. The time can't be read later."""
        self._time = max(self.cpu_time(), self._base + spent)
        self.pid = -1

    def rlimits(self) -> Mapping[int, int]:
        return {}

    def cpu(self) -> int | None:
        return None

    def gauges(self) -> Gauges | None:
        """The files for the fast path; None if other processes are in the group, or the process has ended."""
        gauges = self._leaf.gauges()
        if gauges is None or not self._alone:
            return None
        now, stood = self._leaf.usage(), gauges.before
        before = replace(stood, cpu_time=0.0, oom_kills=now.oom_kills + stood.oom_kills,
                         forks_refused=now.forks_refused + stood.forks_refused)
        if self._nest is not None:
            return replace(gauges, time=self._nest.gauge(), time_unit=1e-6, before=before)
        if self.pid < 0:
            return None
        return replace(gauges, time=Gauge(self._clock, CLOCK), time_unit=1e-9,
                       before=replace(before, cpu_time=-self._base))

    def nest(self, name: str) -> GroupNest | None:
        return None

    def is_there(self) -> bool:
        return True

    def remove(self) -> bool:
        return True

    def saw(self, memory_peak: int) -> None:
        """Note what the fast path has seen of the sandbox."""
        self._leaf.saw(memory_peak)

    def apply(self, limits: Limits) -> None: ...
    def tick(self, init_pid: int, files_fd: int = -1, sockets: Sockets = no_sockets, charged: int = 0) -> None: ...
    def glanced(self, seen: JobSeen) -> bool: return False
    def armed(self) -> None: ...
    def lower_priority(self) -> None: ...
    def ended(self, spent: float) -> None: ...
    def rest(self) -> None: ...
    def share(self) -> None: ...
    def joined(self, pid: int) -> None: ...
    def parted(self, pid: int, spent: float) -> None: ...
    def kill(self) -> None: ...


class Beside(Runner):
    """
    An interpreter as a runner. *birth* is None for a kernel's branch: run/branches.py. *first* is the number of the
    sandbox's first runner. *keeps_door*: the birth channel stays open, as `door`, which a kernel's branches need.
    """

    def __init__(self, number: int, leaf: SharedLeaf, birth: Channel | None, denials: Denials, first: int,
                 descriptors: int, *, keeps_door: bool = False) -> None:
        super().__init__(number, leaf, birth, denials, no_sockets, descriptors)
        self.process: LiveProcess | None = None
        self._first, self._keeps_door = first, keeps_door

    def listen(self, listener: int, scratch: int = -1, entrances: tuple[int, ...] = (), layers: int = -1) -> None:
        """Register the listener. Grants count for the sandbox, whose first process has already sent *scratch*."""
        if scratch >= 0:
            os.close(scratch)
        super().listen(listener, -1, entrances, layers)
        self.denials.share(self.number, self._first)

    def share(self, denials: Denials) -> None:
        """Use *denials* from now on, because other processes use the listener, too."""
        self.denials = denials
        self.listening = self.locked = self.checked = True

    def close_birth(self) -> None:
        """Close the birth channel, unless it is kept as the door: then the daemon only sends on it."""
        birth = self.birth
        if birth is None or not self._keeps_door or not self.locked:
            super().close_birth()
            return
        self.birth = None
        birth.socket.shutdown(socket.SHUT_RD)
        self.door = birth

    def dispose(self) -> None:
        door, self.door = self.door, None
        in_any_case(*([door.close] if door is not None else []), super().dispose)

    def kill(self) -> None:
        """End the process and all its descendants; the sandbox lives on."""
        if self.process is not None:
            self.process.kill()

    def job_pidfd(self) -> int:
        return os.dup(self.pidfd)

    def _job(self) -> int:
        return self.pid


class Interpreter:
    """
    The process as the lender of its runner: the holder of an Execution, or the lender of a Lease's. *ready* is
    called once with the runner, which is leased already and can get a job, or *failed*, with a layer or "", and the
    reason; without *ready* it waits for `give`. *tenant*, set by the code that gives `runner` one, is told of the end.
    *family* shares its group and listener, once it has branches or if it is a branch. *take_back* withdraws the runner,
    and its job, from the fast path. *armed* is called when it waits for a job, before *ready*.
    """

    costs = "job"
    crowded = False

    def __init__(self, reactor: Reactor, runner: Beside, leaf: SharedLeaf, terms: WorkerSettings,
                 ready: Callable[[Runner], None] | None, failed: Callable[[str, str], None]) -> None:
        self.runner = runner
        self.terms = terms
        self.tenant: Tenant | None = None
        self.process: LiveProcess | None = None
        self.family: Family | None = None
        self.take_back: Callable[[], None] = nothing
        self.armed: Callable[[], None] = nothing
        self._reactor, self._leaf = reactor, leaf
        self._ready, self._failed = ready, failed
        self._end: Exit | None = None
        if runner.birth is not None:
            attend(reactor, runner, self._check_ready, self._birth_failed)

    @property
    def number(self) -> int:
        return self.runner.number

    def is_process(self, process: LiveProcess) -> None:
        """For the live runner: set the LiveProcess of this interpreter to *process*."""
        self.process = self.runner.process = process

    def kill(self) -> None:
        """End the process. The tenant's `emptied` is called then; `ready` and `failed` aren't called any more."""
        if self.process is not None:
            self.process.kill()

    def leave_group(self) -> GroupNest | None:
        """Give the process's group to the caller, because branches use the group, too, from now on."""
        self.take_back()  # the fast path reads the group's counters
        self._leaf.leave_group()
        return None if self.process is None else self.process.leave_group()

    # --- for its tenant -------------------------------------------------------

    def killed(self, runner: Runner) -> None:
        """Do nothing: the end of the process is reported by `exited`, and then by `emptied`."""

    def conclude(self, execution: Execution, report: Report) -> None:
        """Give *report* to the caller, and end the interpreter, whose only job is over."""
        in_any_case(partial(execution.caller.finished, report), self.kill)

    def gone(self, execution: Execution) -> None:
        """Tell the caller that the job was lost with the interpreter."""
        in_any_case(self.kill, execution.caller.lost)

    def give_back(self, runner: Runner) -> None:
        """End the interpreter, because its lease is over."""
        self.kill()

    # --- for the live runner --------------------------------------------------

    def started(self, pid: int, pidfd: int) -> None:
        """For the live runner: the process exists; *pidfd* stays the caller's."""
        self._leaf.pid = pid
        if pidfd >= 0:
            job, reply, out, err = self.runner.job, self.runner.reply, self.runner.out, self.runner.err
            self.runner.take(pid, [os.dup(pidfd), job, reply, out, err])
        self._check_ready()

    def _check_ready(self, _runner: Runner | None = None) -> None:
        runner = self.runner
        if runner.state is RunnerState.ARMING and runner.ready():
            runner.record_baseline()
            runner.happen(RunnerEvent.READY)
            self.armed()
        if runner.state is RunnerState.ARMED and self._ready is not None:
            ready, self._ready = self._ready, None
            runner.happen(RunnerEvent.LEASED)
            ready(runner)

    def waits(self) -> bool:
        """Whether it is ready, or will be: another process of the sandbox may have stopped or ended it."""
        try:
            return self._end is None and (self.runner.state is RunnerState.ARMING or
                                          state_of(self.runner.pid) not in (b"T", b"t", b"Z", b"X"))
        except OSError:
            return False

    def give(self, ready: Callable[[Runner], None], failed: Callable[[str, str], None]) -> None:
        """Set the callbacks of one that was made without."""
        self._ready, self._failed = ready, failed
        self.take_back()
        self._leaf.begin()
        self._check_ready()

    def offer(self, fast_path: FastPath, client: ReplyAddress, limits: Limits) -> None:
        """
        Let the fast path have one that was made without callbacks, for the next job of *client*, which has *limits*; see
        `Lease.offer`. They are set now, as by `Execution.start` for other jobs.
        """
        runner = self.runner
        if runner.state is not RunnerState.ARMED or runner.variables or not self.waits():
            return
        try:
            runner.limit(limits)
            self._leaf.begin()
            offer = runner.offer(runner.out, runner.err)
        except (LeewardError, OSError):  # it is gone, or a file of its group can't be opened
            return
        if offer is not None and fast_path.offer(replace(offer, session=client.request, stream=client.fd, once=True), self):
            self.take_back = partial(fast_path.withdraw, self.number)

    def job_started(self, caller: Caller, fast_path: FastPath | None, start: JobStart) -> None:
        """The fast path has given it the job of *caller*. One that was stopped before it has read it gets none."""
        self.runner.happen(RunnerEvent.LEASED)
        execution = Execution(self._reactor, self.runner, self, caller, fast_path=fast_path)
        self.tenant, self.take_back = execution, execution.take_back
        execution.begin(start)
        if not execution.taken and not self.waits():
            in_any_case(self.take_back, self.kill)

    def _birth_failed(self, _number: int, layer: str, text: str) -> None:
        self._fail(layer, text)
        self.kill()

    def _fail(self, layer: str, text: str) -> None:
        if self._ready is not None:
            self._ready = None
            self._failed(layer, text)

    def exited(self, end: Exit) -> None:
        """
        For the LiveProcess: the direct child has ended; its descendants are killed. One that is stuck is only said to
        have ended, and may keep its group for long: its tenant doesn't wait for that.
        """
        self._end = end
        self._leaf.count_end(end.cpu_time)
        in_any_case(self.take_back, self.kill, *([self._tell_tenant] if end.stuck else []))

    def emptied(self) -> None:
        """For the live runner: neither the process nor a descendant is left."""
        steps = [partial(self.family.left, self.process)] if self.family is not None and self.process is not None else []
        in_any_case(self.take_back, partial(stop_listening, self._reactor, self.runner), *steps, self._tell_tenant,
                    self.runner.dispose)

    def _tell_tenant(self) -> None:
        """Tell whoever waits for the runner, or has it, that the process has ended. May be called repeatedly."""
        end = self._end or Exit(None, reason="its process was lost")
        tenant, self.tenant = self.tenant, None
        in_any_case(partial(self._fail, end.layer, end.reason or "it ended before it was ready"),
                    *([partial(tenant.emptied, end.status, end.reason)] if tenant is not None else []))

    def broken(self, error: Exception) -> None:
        self.kill()

"""A kernel's requests: in order, one answer each, whatever becomes of its process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.run.lease import AheadTurn, BranchTurn, TakeTurn, Turn
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes.kernel import MOST_WAITING, KernelRequest, KernelStage, LiveKernel
from leeward.errors import Bug, Busy, LeewardError, SessionOver
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

GOOD = Report(result=Result(b"", b"", 0, Outcome.FINISHED))
LATE = Report(result=Result(b"", b"", 124, Outcome.TIMED_OUT))


class Lease:
    def __init__(self) -> None:
        self.jobs: list[tuple[Job, Callable[[Report], None]]] = []
        self.ended = ""
        self.ending = False
        self.counted: list[Ran] = []
        self.offers: list[tuple[ReplyAddress, bool]] = []
        self.kept = 0
        self.asked: list[type[Turn]] = []
        self.held = SimpleNamespace(door="door")

    def run(self, caller: KernelRequest) -> None:
        self.jobs.append((caller.job, caller.finished))

    def ask(self, caller: KernelRequest, kind: type[Turn]) -> None:
        self.asked.append(kind)
        self.jobs.append((caller.job, caller.finished))

    def withdraw(self) -> None:
        self.kept += 1

    def job_started(self, caller: KernelRequest, start: JobStart) -> None:
        self.jobs.append((caller.job, caller.finished))

    def ran(self, ran: Ran) -> None:
        self.counted.append(ran)

    def offer(self, limits: Limits, client: ReplyAddress, *, shows: bool = False) -> None:
        self.offers.append((client, shows))

    def keep(self) -> None:
        self.kept += 1

    def interrupt(self) -> bool:
        return True

    def end(self, why: str) -> None:
        self.ended = why


class Process:
    """What starts kernels, and the last one that it started."""

    def __init__(self) -> None:
        self.fails = self.stopped = False
        self.family = None
        self.killed = 0
        self.refusals: list[str] = []

    def __call__(self, opened: Callable[[Lease], None], lost: Callable[[str], None]) -> Process:
        if self.fails:
            raise LeewardError("no room")
        self.opened, self.lost = opened, lost
        return self

    def kill(self) -> None:
        self.killed += 1

    def waits(self) -> bool:
        return not self.stopped

    def forked(self, refused: str) -> None:
        self.refusals.append(refused)


class Clock:
    """Makes timers, and is each of them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.cancelled = 0

    def after(self, call: Callable[[], None]) -> Clock:
        self.calls.append(call)
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def answers(kernel: LiveKernel, count: int) -> list[list[Report]]:
    """What each of so many requests was told."""
    told: list[list[Report]] = [[] for _ in range(count)]
    for number in range(count):
        kernel.run(Job(code=str(number).encode()), told[number].append)
    return told


def test_requests_wait_for_the_process_and_for_each_other() -> None:
    """In order."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    told = answers(kernel, 3)
    assert not lease.jobs
    process.opened(lease)
    for number in range(3):
        assert [str(number).encode()] == [lease.jobs[-1][0].code]
        lease.jobs[-1][1](GOOD)

    assert [[GOOD]] * 3 == told


@pytest.mark.parametrize("when", ["starting", "running", "closed", "reset"])
def test_every_request_has_one_answer_when_the_process_ends(when: str) -> None:
    """And later ones are told why, until a reset."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    told = answers(kernel, 3)
    if when != "starting":
        process.opened(lease)
    lost = process.lost
    {"starting": lambda: lost("it broke"), "running": lambda: lost("it broke"), "closed": kernel.close,
     "reset": kernel.reset}[when]()
    if lease.jobs:
        lease.jobs[0][1](LATE)  # the lease's own word comes late
    lost("again")

    assert [1, 1, 1] == [len(each) for each in told]
    assert all(isinstance(each[0].refusal, SessionOver) for each in told)
    if when == "reset":
        assert KernelStage.STARTING is kernel.stage
        process.opened(Lease())
        assert KernelStage.READY is kernel.stage
    else:
        with pytest.raises(SessionOver):
            kernel.run(Job(code=b""), lambda report: None)


def test_after_a_limit_no_request_is_sent_to_the_process() -> None:
    """It is ending; waiting requests are refused when it has ended."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    told = answers(kernel, 2)
    lease.ending = True
    lease.jobs[0][1](LATE)
    assert 1 == len(lease.jobs)
    process.lost("a job was ended at its time limit")

    assert [LATE] == told[0]
    assert isinstance(told[1][0].refusal, SessionOver)


def test_a_request_that_is_taken_back_isnt_answered() -> None:
    """One that waits leaves the queue; one that runs takes the state along."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    told: list[Report] = []
    running = kernel.run(Job(code=b"0"), told.append)
    waiting = kernel.run(Job(code=b"1"), told.append)
    waiting.cancel()
    assert not lease.ended
    running.cancel()
    assert lease.ended
    lease.jobs[0][1](LATE)
    process.lost(lease.ended)

    assert [] == told
    assert 1 == len(lease.jobs)


def test_messages_of_a_process_that_was_given_up_are_ignored() -> None:
    """Neither its start nor its loss is reported."""
    process = Process()
    kernel = LiveKernel(process)
    opened, lost = process.opened, process.lost
    kernel.reset()
    late = Lease()
    opened(late)
    lost("long ago")

    assert late.ended
    assert KernelStage.STARTING is kernel.stage
    assert 1 == process.killed


def test_a_reset_that_cannot_start_leaves_it_lost() -> None:
    """The next one may."""
    process = Process()
    kernel = LiveKernel(process)
    process.fails = True
    with pytest.raises(LeewardError):
        kernel.reset()
    assert KernelStage.LOST is kernel.stage
    process.fails = False
    kernel.reset()
    assert KernelStage.STARTING is kernel.stage


def test_the_queue_has_a_bound() -> None:
    """So that a client can't fill the daemon."""
    kernel = LiveKernel(Process())
    answers(kernel, MOST_WAITING)
    with pytest.raises(Busy):
        kernel.run(Job(code=b""), lambda report: None)


def test_a_branch_is_asked_for_in_its_turn() -> None:
    """Of the process that the kernel has then; what waits behind it goes on."""
    process, lease, branch = Process(), Lease(), Process()
    kernel = LiveKernel(process)
    answers(kernel, 1)
    asked: list[object] = []

    def fork(of: object, opened: Callable[[Lease], None], lost: Callable[[str], None]) -> Process:
        asked.append(of)
        return branch(opened, lost)

    kernel.fork(Job(code=b""), fork, lambda _: None, asked.append)
    told = answers(kernel, 1)
    process.opened(lease)
    assert not asked
    lease.jobs[-1][1](GOOD)
    assert [process] == asked
    lease.jobs[-1][1](GOOD)
    assert [""] == branch.refusals
    lease.jobs[-1][1](GOOD)
    assert [[GOOD]] == told
    assert [process] == asked  # it wasn't lost


@pytest.mark.parametrize("how", ["lost", "no room", "late", "closed"])
def test_a_branch_that_cannot_be_forked_is_reported_once(how: str) -> None:
    """Whether its kernel went before its turn, nothing could be made, or the kernel says that it couldn't fork."""
    process, lease, branch = Process(), Lease(), Process()
    kernel = LiveKernel(process)
    why: list[str] = []
    branch.fails = "no room" == how
    kernel.fork(Job(code=b""), lambda _, opened, lost: branch(opened, lost), lambda _: None, why.append)
    if "lost" == how:
        process.lost("it broke")
    elif "closed" == how:
        kernel.close()
    else:
        process.opened(lease)
        if "late" == how:
            lease.jobs[-1][1](LATE)
            (refusal,) = branch.refusals
            branch.lost(refusal)
            branch.lost("again")
    assert 1 == len(why)
    if how in ("no room", "late"):
        assert KernelStage.READY is kernel.stage


def test_a_branch_given_up_leaves_its_kernel_alone() -> None:
    """Before its turn and in it."""
    process, lease, branch = Process(), Lease(), Process()
    kernel = LiveKernel(process)
    why: list[str] = []
    first, second = (kernel.fork(Job(code=b""), lambda _, *how: branch(*how), lambda _: None, why.append)
                     for _ in range(2))
    second.kill()
    process.opened(lease)
    first.kill()
    assert (1, "", 1) == (branch.killed, lease.ended, len(lease.jobs))
    lease.jobs[-1][1](GOOD)
    assert not why
    assert KernelStage.READY is kernel.stage


@pytest.mark.parametrize("how", ["given", "job", "snapshot", "fast path", "refused", "stopped", "time", "closed", "busy"])
def test_the_branch_after_two_is_forked_ahead(how: str) -> None:
    """It is given to the next request if the kernel had no other meanwhile, and ended otherwise."""
    process, lease, branch, timer = Process(), Lease(), Process(), Clock()
    kernel = LiveKernel(process)
    process.opened(lease)
    opened: list[Lease] = []
    why: list[str] = []

    def fork() -> object:
        return kernel.fork(Job(code=b""), lambda _, *how: branch(*how), opened.append, why.append)

    def ahead() -> None:
        kernel.fork_ahead(Job(code=b""), lambda _, *how: branch(*how), timer.after, lambda: True)

    for _ in range(2):
        ahead()
        fork()
        lease.jobs[-1][1](GOOD)
    ahead()
    ahead()
    assert [BranchTurn, BranchTurn, AheadTurn] == lease.asked
    assert (kernel.rests, kernel.interrupt(), len(timer.calls)) == (True, False, 1)
    if "busy" == how:
        fork()
        assert (1, 1) == (branch.killed, timer.cancelled)
        lease.jobs[2][1](GOOD)
        assert 4 == len(lease.asked)
        return
    lease.jobs[-1][1](LATE if "refused" == how else GOOD)
    if "refused" == how:
        branch.lost(branch.refusals[-1])
        ahead()
        assert 3 == len(lease.asked)
        return
    waiting = Lease()
    branch.opened(waiting)
    kernel.offer(Limits(), ADDRESS, True)
    assert not lease.offers
    branch.stopped = "stopped" == how
    if how in ("given", "stopped"):
        fork()
        assert ([waiting] == opened, branch.stopped, 1) == ("given" == how, branch.killed == 1, timer.cancelled)
        branch.lost("it was ended")
        assert ["it was ended"] == why
        return
    {"job": lambda: answers(kernel, 1), "snapshot": lambda: kernel.snapshot(Job(code=b""), Dump()), "closed": kernel.close,
     "fast path": lambda: kernel.job_started(Job(code=b""), lambda _: None, START), "time": lambda: timer.calls[-1]()}[how]()
    assert 1 == branch.killed
    ahead()
    assert 3 == len(lease.asked) - ("snapshot" == how) - ("time" == how)


START = JobStart(7, b"x", 1, 5, 0.0, 0)
ADDRESS = ReplyAddress(3, 5)


def test_an_idle_kernel_is_offered_to_the_fast_path() -> None:
    """Not while it starts, runs or has waiting requests, nor when it is lost."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    kernel.offer(Limits(), ADDRESS, True)
    process.opened(lease)
    answers(kernel, 2)
    kernel.offer(Limits(), ADDRESS, True)
    for _ in range(2):
        lease.jobs[-1][1](GOOD)
    assert not lease.offers
    kernel.offer(Limits(), ADDRESS, True)
    process.lost("it broke")
    kernel.offer(Limits(), ADDRESS, True)

    assert [(ADDRESS, True)] == lease.offers


def test_a_job_of_the_fast_path_is_in_front_of_those_that_come_meanwhile() -> None:
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    first: list[Report] = []
    kernel.job_started(Job(code=b"fast"), first.append, START)
    told = answers(kernel, 1)
    assert ([b"fast"], 1) == ([job.code for job, _ in lease.jobs], lease.kept)  # whose end the fast path doesn't take
    lease.jobs[0][1](GOOD)
    lease.jobs[1][1](LATE)

    assert ([GOOD], [[LATE]]) == (first, told)


def test_a_job_that_is_over_already_is_counted() -> None:
    """And one that can't have been sent is a bug, which costs whoever tells of it."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    ran = Ran(7, 1, 5, 0.0, 1.0, 0.5, 4096)
    for call in (lambda: kernel.ran_fast(ran), lambda: kernel.job_started(Job(code=b"x"), lambda report: None, START)):
        with pytest.raises(Bug):
            call()
    process.opened(lease)
    kernel.ran_fast(ran)

    assert [ran] == lease.counted


class Dump:
    """What a snapshot is taken by."""

    def __init__(self) -> None:
        self.doors: list[object] = []
        self.answers: list[str] = []

    def begin(self, runner: SimpleNamespace) -> None:
        self.doors.append(runner.door)

    def answered(self, why: str) -> None:
        self.answers.append(why)


def test_a_snapshot_is_taken_in_its_turn() -> None:
    """Behind what was asked before; the kernel goes on, also when it was refused."""
    process, lease = Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    told, dump = answers(kernel, 1), Dump()
    kernel.snapshot(Job(code=b""), dump)
    assert not dump.doors
    lease.jobs[0][1](GOOD)
    assert ["door"] == dump.doors
    assert [TakeTurn] == lease.asked
    lease.jobs[1][1](Report(refusal=Busy("no")))
    assert ["no"] == dump.answers
    assert [GOOD] == told[0]
    more = answers(kernel, 1)
    lease.jobs[2][1](GOOD)
    assert [[GOOD]] == more


def test_a_rollback_exchanges_the_process() -> None:
    """When the new one is there; until then the old one lives, and requests wait."""
    process, lease, other, later = Process(), Lease(), Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    told: list[str] = []
    kernel.roll_back(Job(code=b""), other, told.append)
    waiting = answers(kernel, 1)
    assert not lease.jobs
    assert not lease.ended
    other.opened(later)
    assert [""] == told
    assert "rolled back" in lease.ended
    process.lost("the old one's end is nothing new")
    later.jobs[0][1](GOOD)
    assert [[GOOD]] == waiting
    other.lost("it exited")
    assert KernelStage.LOST is kernel.stage


def test_a_rollback_that_fails_leaves_the_kernel() -> None:
    """As it was; one of a lost kernel gives it a process again."""
    process, lease, other = Process(), Lease(), Process()
    kernel = LiveKernel(process)
    process.opened(lease)
    told: list[str] = []
    kernel.roll_back(Job(code=b""), other, told.append)
    other.lost("no such file")
    assert ["no such file"] == told
    assert not lease.ended
    answers(kernel, 1)
    assert 1 == len(lease.jobs)
    lease.jobs[0][1](GOOD)
    other.fails = True
    kernel.roll_back(Job(code=b""), other, told.append)
    assert "no room" in told[1]
    process.lost("killed")
    other.fails = False
    kernel.roll_back(Job(code=b""), other, told.append)
    assert KernelStage.STARTING is kernel.stage
    other.opened(lease)
    assert "" == told[2]


@pytest.mark.parametrize("ends", ["close", "reset", "lost"])
def test_a_kernel_that_ends_ends_its_rollback(ends: str) -> None:
    """And the process that was to be its new one."""
    process, lease, other, later = Process(), Lease(), Process(), Lease()
    kernel = LiveKernel(process)
    process.opened(lease)
    told: list[str] = []
    kernel.roll_back(Job(code=b""), other, told.append)
    if "lost" == ends:
        process.lost("killed")
    else:
        getattr(kernel, ends)()
    assert 1 == other.killed
    assert 1 == len(told)
    assert "state is gone" in told[0]
    other.opened(later)
    assert later.ended
    other.lost("and then it is gone")
    assert 1 == len(told)


def test_whoever_opens_a_kernel_is_told_once() -> None:
    """That its process is there, or why not: also if it is closed first, and not when the process ends later."""
    process, told = Process(), list[str]()
    kernel = LiveKernel(process, told.append)
    process.opened(Lease())
    process.lost("later")
    assert [""] == told
    assert KernelStage.LOST is kernel.stage
    process = Process()
    kernel = LiveKernel(process, told.append)
    process.lost("no such file")
    kernel = LiveKernel(process, told.append)
    kernel.close()
    process.lost("killed")
    assert ["", "no such file", "it was closed"] == told

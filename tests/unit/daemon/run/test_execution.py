"""One job on a runner that is four pipes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import ClassVar

import pytest

from kit.callers import JobCaller, RunnerHolder
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.verdict import Stop
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome


class Runner:
    """The daemon's ends, and the job's: `far_reply` is the one that it answers by."""

    number, cpu_before, largest = 7, 0.0, 0
    variables: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.far_job, self.job = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.reply, self.far_reply = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._outputs = [os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(2)]
        self.leaf = SimpleNamespace(tick_interval=1.0, needs_ticks=False, usage=Usage,
                                    killed_unseen=lambda _most: None)
        self.kills = 0

    def give_output(self) -> tuple[int, int]:
        return os.dup(self._outputs[0][0]), os.dup(self._outputs[1][0])

    def limit(self, _limits: object) -> None:
        return

    def denied(self) -> dict[str, int]:
        return {}

    def kill(self) -> None:
        self.kills += 1

    def close(self) -> None:
        for fd in (self.far_job, self.job, self.reply, self.far_reply, *self._outputs[0], *self._outputs[1]):
            os.close(fd)


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


def test_a_reply_that_is_too_large_wakes_the_daemon_once(reactor: Reactor, runner: Runner) -> None:
    """Its runner was killed; until its end is told, which takes as long as its keeper takes, nobody reads that pipe."""
    caller = JobCaller(Job(code=b"1"))
    execution = Execution(reactor, runner, RunnerHolder(), caller)  # type: ignore[arg-type]  # as far as it is used
    execution.start()
    os.write(runner.far_reply, b"\x7f\xff\xff\xff and more")
    woken = 0
    on_reply = execution._read_reply

    def counted(most: int) -> bool:
        nonlocal woken
        woken += 1
        return on_reply(most)

    execution._read_reply = counted  # type: ignore[method-assign]  # to count
    for _ in range(10):
        reactor.turn(0.001)
    assert (1, 1, []) == (runner.kills, woken, caller.reports)
    execution.emptied(9, "killed")

    assert [Outcome.INTERNAL] == [report.result.outcome for report in caller.reports if report.result is not None]


def test_what_earlier_jobs_met_is_kept_by_one_on_the_fast_path(reactor: Reactor, runner: Runner) -> None:
    """Else the job after it would have met that: its own limit, where the host's memory ran out."""
    execution = Execution(reactor, runner, RunnerHolder(), JobCaller(Job(code=b"1")))  # type: ignore[arg-type]  # as far as it is used
    execution.start()
    execution.before = Usage(1.0, 3, 2, 4, 5)
    execution.completed(0.0, 0.5, 7)

    assert Usage(1.5, 3, 2, 4, 5) == execution.used


def test_a_long_job_keeps_no_timer_of_a_tick_that_is_over(reactor: Reactor, runner: Runner) -> None:
    """However often it ticks, it has a timer for its time limit and one for the next tick."""
    ticks: list[None] = []
    runner.leaf.tick_interval = 0.0
    runner.tick = lambda: ticks.append(None)  # type: ignore[attr-defined]
    execution = Execution(reactor, runner, RunnerHolder(), JobCaller(Job(code=b"1")))  # type: ignore[arg-type]  # as far as it is used
    execution.start()
    reactor.run(lambda: len(ticks) >= 100)

    assert {"time", "tick"} == set(execution._timers)
    assert execution._output_watch is not None

    execution.stop(Stop.CANCELLED)
    execution.emptied(9, "killed")
    before = len(ticks)
    for _ in range(3):
        reactor.turn(0.001)

    assert before == len(ticks)

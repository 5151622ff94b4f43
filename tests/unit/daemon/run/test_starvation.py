"""How long a job was starved, by what the kernel tells of its tasks."""

from __future__ import annotations

import os

import pytest

from leeward.daemon.run import starvation
from leeward.daemon.run.starvation import Starvation, TaskTimes, active_and_starved


def tasks(*times: tuple[float, float]) -> dict[int, TaskTimes]:
    return {number: TaskTimes(ran, waited, runnable=True) for number, (ran, waited) in enumerate(times)}


@pytest.mark.parametrize(("before", "after", "spent", "processors", "starved"), [
    (tasks((5, 5)), tasks((6, 5)), 1.0, 1, 0.0),                          # it has run all the time
    (tasks((5, 5)), tasks((5, 5)), 0.0, 1, 0.0),                          # it has waited by itself
    (tasks((5, 5)), tasks((5.25, 5.75)), 0.25, 1, 0.75),
    (tasks((5, 5)), tasks((5.25, 5.25)), 0.25, 1, 0.25),                  # and has slept for half of the time
    (tasks((0, 0), (0, 0)), tasks((0.5, 0.5), (0.5, 0.5)), 1.0, 1, 0.0),  # its tasks wait for one another
    (tasks((0, 0), (0, 0)), tasks((0.5, 0.5), (0.5, 0.5)), 1.0, 2, 0.5),  # it might have had two processors
    (tasks((0, 0), (0, 0)), tasks((0.1, 0.9), (0.1, 0.9)), 0.2, 1, 0.8),
    (tasks((0, 0)), tasks((0, 0), (0.25, 0.75)), 0.25, 1, 0.75),          # a new one
    (tasks((0, 0)), tasks((0.1, 0.3)), 0.2, 1, 0.6),                      # one that was born and has ended meanwhile
    (tasks((0, 0)), tasks((0, 0)), 0.5, 1, 0.0),
    (tasks((0, 9)), tasks((0.1, 5)), 0.1, 1, 0.0),                        # another task has its number now
])
def test_what_it_lacked_of_its_share(before: dict[int, TaskTimes], after: dict[int, TaskTimes], spent: float,
                                     processors: float, starved: float) -> None:
    """In one second."""
    assert starved == pytest.approx(active_and_starved(before, after, spent, 1.0, processors)[1])


class Kernel:
    """What is read of one task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (0.0, 0.0, False)
        monkeypatch.setattr(starvation, "_children", lambda process, task: [7] if process == 1 else [])
        monkeypatch.setattr(starvation, "_tasks", lambda process: [process])
        monkeypatch.setattr(starvation, "_times", lambda process, task: TaskTimes(*self.now))


def test_waiting_that_the_kernel_tells_later_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runnable task that doesn't run waits; when it has run, the kernel's own figure has all of it."""
    kernel = Kernel(monkeypatch)
    found = Starvation(1, 1.0, 10.0, 0.0)
    kernel.now = (0.1, 0.0, True)
    found.look(10.1, 0.1)
    assert (0.0, False) == (found.seconds, found.settled)
    found.look(10.6, 0.1)
    assert 0.5 == pytest.approx(found.seconds)
    kernel.now = (0.11, 0.52, True)
    found.look(10.63, 0.11)
    assert found.seconds == pytest.approx(0.52)
    assert found.settled


def test_a_wait_that_began_before_the_last_look_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran, and waited on; the next window is shorter than the wait."""
    kernel = Kernel(monkeypatch)
    found = Starvation(1, 1.0, 10.0, 0.0)
    kernel.now = (0.1, 0.0, True)
    found.look(11.0, 0.1)
    kernel.now = (0.101, 0.9, True)
    found.look(11.01, 0.101)
    assert 0.9 == pytest.approx(found.seconds, abs=0.02)


def test_a_job_that_sleeps_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch)
    found = Starvation(1, 1.0, 10.0, 0.0)
    found.look(15.0, 0.0)
    assert (0.0, True) == (found.seconds, found.settled)
    found.look(15.0, 0.0)  # no time has passed


def test_the_tasks_of_this_process_are_read() -> None:
    """Below its parent; what is ending is left out."""
    found = dict(Starvation(os.getppid(), 1.0, 0.0, 0.0)._read())
    assert found[os.getpid()].ran > 0
    assert found[os.getpid()].runnable
    assert [] == list(starvation._children(-1, -1)) == starvation._tasks(-1)


def test_a_job_with_a_processor_is_settled_whichever_task_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other tasks wait for that one."""
    kernel = Kernel(monkeypatch)
    found = Starvation(1, 1.0, 10.0, 0.0)
    kernel.now = (0.0, 0.0, True)
    found.look(10.005, 0.004)
    assert found.settled
    found.look(10.01, 0.005)
    assert not found.settled

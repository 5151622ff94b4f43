"""A worker's states, and its runners' groups that the kernel doesn't let go of: tried again, and given up in the end."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from leeward.daemon.run.runner_states import after
from leeward.daemon.worker.worker import WORKER, Removal, WorkerEvent, WorkerState
from leeward.errors import Bug, KernelRefusal


@dataclass
class Clock:
    """Keeps what is to be called later."""

    calls: list[Callable[[], None]] = field(default_factory=list)

    def after(self, _seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def step(self) -> None:
        self.calls.pop(0)()


@dataclass
class Group:
    """Is busy so many times, or refused with an error for ever."""

    busy: int = 0
    error: int = 0
    tries: int = 0

    def remove(self) -> bool:
        self.tries += 1
        if self.error:
            raise KernelRefusal("rmdir", "w0.1", self.error)
        return self.tries > self.busy


def removal() -> tuple[Removal, Clock, Mock, Mock]:
    clock, emptied, failed = Clock(), Mock(), Mock()
    return Removal(clock, emptied, failed, Mock()), clock, emptied, failed  # type: ignore[arg-type]


def runner(group: Group) -> Mock:
    return Mock(pidfd=-1, leaf=group)


def test_a_group_that_is_empty_is_removed_at_once():
    groups, clock, _, _ = removal()
    groups.dispose(runner(Group()))

    assert (False, []) == (bool(groups), clock.calls)


def test_a_busy_group_is_tried_until_it_goes_and_then_the_worker_hears():
    groups, clock, emptied, failed = removal()
    group = Group(busy=2)
    groups.dispose(runner(group))
    assert groups
    clock.step()
    assert groups
    clock.step()

    assert (3, False, []) == (group.tries, bool(groups), clock.calls)
    emptied.assert_called_with()
    failed.assert_not_called()


def test_a_group_that_cannot_be_removed_is_given_up_and_reported_once():
    groups, clock, _, failed = removal()
    group = Group(error=errno.EPERM)
    groups.dispose(runner(group))
    while clock.calls:
        clock.step()

    assert 100 == group.tries
    assert not groups
    failed.assert_called_once()
    assert "a group stays" in failed.call_args.args[0]


def test_a_runner_whose_descriptors_cannot_be_closed_is_not_forgotten():
    groups, clock, _, _ = removal()
    one = runner(Group())
    one.dispose.side_effect = OSError(errno.EBADF, "no")
    try:
        groups.dispose(one)
    except OSError:
        assert groups  # its group is still there to be removed
    clock.step()

    assert not groups


@pytest.mark.parametrize("pair", [pair for pair in itertools.product(WorkerState, WorkerEvent) if pair not in WORKER],
                         ids=str)
def test_any_other_pair_of_a_worker_is_a_bug(pair: tuple[WorkerState, WorkerEvent]):
    with pytest.raises(Bug, match=f"worker: {pair[1].value} in state {pair[0].value}"):
        after("worker", WORKER, *pair)

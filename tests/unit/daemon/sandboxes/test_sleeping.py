"""A sandbox that sleeps: what is taken of it and in which order, what becomes of failures, and that nothing is left open."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from leeward._native.memfd import memory_file
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.sandboxes import sleeping
from leeward.daemon.sandboxes.sleeping import Sleep, SleepStage
from leeward.errors import Busy, LeewardError, Refused, RequestRejected, SnapshotFailed


class Place:
    """A sandbox with two kernels and its desk, whose answers the test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Refused | None] = []
        self.dumps: list[Callable[[Any], None]] = []
        self.reads: list[Callable[[int], None]] = []
        self.reactor, self.bed = Mock(), Mock(put=Mock(return_value=False))
        self.reactor.watch = lambda _fd, _kind, call: self.reads.append(call)
        self.sandbox = Mock(held=False, kernels={1: Mock(lives=True), 2: Mock(lives=True), 3: Mock(lives=False)})
        self.sandbox.facts.limits.files = 1 << 20
        self.sandbox.carry = self.carry
        self.orders: list[tuple[str, Callable[[Any, list[int]], None], int]] = []
        monkeypatch.setattr(sleeping, "Dump", self.dump)
        self.before = set(os.listdir("/proc/self/fd"))

    def dump(self, _reactor: object, admit: Callable[[int], None], done: Callable[[Any], None]) -> Mock:
        admit(4096)
        self.dumps.append(done)
        return Mock()

    def carry(self, order: dict[str, str], fds: list[int], answered: Callable[[Any, list[int]], None], _s: float) -> Mock:
        self.orders.append((order["order"], answered, os.dup(fds[0])))
        return Mock()

    def begin(self) -> Sleep:
        self.sleep = Sleep(self.reactor, self.sandbox, self.bed, self.said.append)
        return self.sleep

    def taken(self) -> None:
        self.dumps[-1](KernelState(memory_file("state"), 4096, "3", {}, ()))

    def files(self, data: bytes = b"rows") -> None:
        _, answered, pipe = self.orders[-1]
        os.write(pipe, data)
        os.close(pipe)
        answered({"ok": True}, [])
        self.reads[-1](0)
        self.reads[-1](0)

    def left(self) -> set[str]:
        return set(os.listdir("/proc/self/fd")) - self.before


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def asleep(place: Place) -> Sleep:
    made = place.begin()
    place.taken()
    place.taken()
    place.files()
    return made


def test_it_sleeps_when_all_is_taken_and_wakes_with_that(place: Place) -> None:
    """Kernels one after the other, then files; then they are given back, and nothing is open."""
    made = place.begin()
    assert (SleepStage.FALLING, True, 1) == (made.stage, place.sandbox.held, len(place.dumps))
    place.taken()
    assert (2, []) == (len(place.dumps), place.orders)
    place.taken()
    place.files()
    assert (SleepStage.ASLEEP, [None]) == (made.stage, place.said)
    place.bed.leave.assert_called_once()
    made.wake()
    made.wake()
    place.bed.enter.assert_called_once()
    place.bed.enter.call_args.args[0](runner := Mock())
    place.sandbox.place.assert_called_once_with(runner)
    order, answered, files = place.orders[-1]
    assert ("take", b"rows") == (order, os.read(files, 99))
    os.close(files)
    answered({"made": 1}, [])
    assert [1, 2] == [call.args[0] for call in place.sandbox.wake_kernel.call_args_list]
    place.bed.woken.assert_not_called()
    for call in place.sandbox.wake_kernel.call_args_list:
        call.args[2]("")
    place.bed.woken.assert_called_once()
    place.bed.give_back.assert_called_once_with(2 * 4096 + 4)
    assert (SleepStage.OVER, False, set()) == (made.stage, place.sandbox.held, place.left())


@pytest.mark.parametrize("fails", ["kernel", "files", "room", "size"])
def test_what_fails_leaves_it_as_it_was(place: Place, fails: str) -> None:
    place.begin()
    if fails == "kernel":
        place.taken()
        place.dumps[-1](SnapshotFailed("threads run"))
    else:
        place.taken()
        place.taken()
        if fails == "files":
            place.orders[-1][1](LeewardError("no"), [])
        else:
            place.bed.admit.side_effect = Busy("too much") if fails == "room" else None
            place.sandbox.facts.limits.files = -sleeping._BESIDE
            os.write(place.orders[-1][2], b"rows")
            place.reads[-1](0)
        os.close(place.orders[-1][2])
    assert (1, False, set()) == (len(place.said), place.sandbox.held, place.left())
    assert place.said[0] is not None
    place.bed.woken.assert_called_once()
    place.bed.leave.assert_not_called()


def test_what_cannot_sleep_is_refused_at_once(place: Place) -> None:
    place.sandbox.check_rests.side_effect = RequestRejected("programs run")
    with pytest.raises(RequestRejected):
        place.begin()
    place.sandbox.check_rests.side_effect = None
    place.sandbox.kernels[1].snapshot.side_effect = Busy("64 requests wait")
    with pytest.raises(Busy):
        place.begin()
    assert (False, [], set()) == (place.sandbox.held, place.said, place.left())
    place.bed.woken.assert_not_called()


def test_without_a_worker_it_sleeps_on(place: Place) -> None:
    made = asleep(place)
    place.bed.enter.side_effect = Busy("no room")
    with pytest.raises(Busy):
        made.wake()
    place.bed.enter.side_effect = None
    made.wake()
    place.bed.enter.call_args.args[0](Busy("nobody is free"))
    assert SleepStage.ASLEEP is made.stage
    made.close()
    assert set() == place.left()


@pytest.mark.parametrize("kernels", [True, False])
def test_a_kernel_may_be_lost_but_not_the_files(place: Place, kernels: bool) -> None:
    made = asleep(place)
    made.wake()
    place.bed.enter.call_args.args[0](Mock())
    os.close(place.orders[-1][2])
    if kernels:
        place.sandbox.wake_kernel.side_effect = LeewardError("no process")
        place.orders[-1][1]({"made": 1}, [])
        place.bed.woken.assert_called_once()
        place.sandbox.lost.assert_not_called()
    else:
        place.orders[-1][1](LeewardError("they don't fit"), [])
        place.sandbox.lost.assert_called_once()
        made.close()
    assert set() == place.left()


def test_on_disk_it_takes_no_memory(place: Place) -> None:
    """What is read comes before or after the worker; what is read for a try that failed is closed."""
    place.bed.put.return_value = True
    made = asleep(place)
    (what, written), = (call.args for call in place.bed.put.call_args_list)
    assert (2, 4, []) == (len(what.states), what.size, place.said)
    written(None)
    assert (True, [None], set()) == (made.on_disk, place.said, place.left())
    refusals: list[Refused] = []
    made.wake(refusals.append)
    place.bed.enter.call_args.args[0](Busy("nobody is free"))
    assert (["nobody is free"], SleepStage.ASLEEP) == ([str(each) for each in refusals], made.stage)
    early = place.bed.get.call_args.args[0]
    made.wake(refusals.append)
    late = place.bed.get.call_args.args[0]
    for done in (early, late):
        done(sleeping.Asleep({1: KernelState(memory_file("state"), 4096, "3", {}, ())}, memory_file("files"), 4))
    place.bed.enter.call_args.args[0](Mock())
    os.close(place.orders[-1][2])
    place.orders[-1][1]({"made": 1}, [])
    place.sandbox.wake_kernel.call_args.args[2]("")
    place.bed.remove.assert_called_once()
    assert (0.0, SleepStage.OVER, set()) == (refusals[-1].retry_after, made.stage, place.left())


@pytest.mark.parametrize("fails", ["at once", "later"])
def test_what_cannot_be_written_sleeps_in_memory(place: Place, fails: str) -> None:
    place.bed.put.return_value = True
    place.bed.put.side_effect = Busy("sleep_size") if fails == "at once" else None
    made = asleep(place)
    if fails == "later":
        place.bed.put.call_args.args[1](OSError(28, "no space"))
    place.bed.warn.assert_called_once()
    assert (False, [None], SleepStage.ASLEEP) == (made.on_disk, place.said, made.stage)
    made.close()
    assert set() == place.left()


def test_a_request_while_it_falls_asleep_wakes_it(place: Place) -> None:
    """One that comes while it is written finds it in memory, and nothing is left on disk."""
    place.bed.put.return_value = True
    refusals: list[Refused] = []
    made = place.begin()
    made.wake(refusals.append)
    place.taken()
    place.taken()
    place.files()
    made.wake(refusals.append)
    assert (SleepStage.WAKING, []) == (made.stage, refusals)
    place.bed.put.call_args.args[1](None)
    place.bed.remove.assert_called_once()
    place.bed.get.assert_not_called()
    made.close(kept=True)
    assert (2, set()) == (len(refusals), place.left())

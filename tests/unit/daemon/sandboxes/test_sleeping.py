"""A sandbox that sleeps: what is taken of it and in which order, what becomes of failures, and that nothing is left open."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY, Mock

import pytest

from kit.reference_reactor import ReferenceReactor
from kit.sandbox_stand import HostPool
from leeward._native.memfd import memory_file
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.run.dumping import KernelState
from leeward.daemon.run.porter import PorterRefusal
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes import sleeping
from leeward.daemon.sandboxes.live_sandboxes import Held, LiveSandboxes, SandboxEntry
from leeward.daemon.sandboxes.registry import RegistryEntry
from leeward.daemon.sandboxes.sandbox import MOST_ENV_ASLEEP, LiveSandbox
from leeward.daemon.sandboxes.sleep_folder import Asleep
from leeward.daemon.sandboxes.sleeping import Sleep, SleepStage
from leeward.daemon.sandboxes.terms import SandboxFacts
from leeward.errors import BadRequest, Busy, LeewardError, Refused, RequestRejected, SandboxOver, SnapshotFailed
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.limits import Limits
from leeward.spec.pool_key import MAIN_POOL


def new_file(_size: int) -> int:
    return memory_file("state")


class Place:
    """A sandbox with two kernels and its desk, whose answers the test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Refused | None] = []
        self.dumps: list[Callable[[Any], None]] = []
        self.reads: list[Callable[[int], None]] = []
        self.reactor = Mock()
        self.bed = Mock(put=Mock(return_value=False), enter_turn=Mock(return_value=True), new_file=new_file)
        self.reactor.watch = lambda _fd, _kind, call: self.reads.append(call)
        self.sandbox = Mock(held=False, kernels={1: Mock(lives=True), 2: Mock(lives=True), 3: Mock(lives=False)})
        self.sandbox.facts.limits.files = 1 << 20
        self.sandbox.carry = self.carry
        self.orders: list[tuple[str, Callable[[Any, list[int]], None], int]] = []
        monkeypatch.setattr(sleeping, "Dump", self.dump)
        self.before = set(os.listdir("/proc/self/fd"))

    def dump(self, _reactor: object, new_file: Callable[[int], int], done: Callable[[Any], None]) -> Mock:
        os.close(new_file(4096))
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
    place.bed.resize.assert_called_once_with(ANY, 4)
    place.bed.leave_turn.assert_called_once()
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
            place.bed.resize.side_effect = Busy("too much") if fails == "room" else None
            place.sandbox.facts.limits.files = -sleeping._BESIDE
            os.write(place.orders[-1][2], b"rows")
            place.reads[-1](0)
        os.close(place.orders[-1][2])
    assert (1, False, set()) == (len(place.said), place.sandbox.held, place.left())
    assert place.said[0] is not None
    place.bed.woken.assert_called_once()
    place.bed.leave.assert_not_called()


def test_it_waits_for_its_turn(place: Place) -> None:
    """Nothing is taken before, and what goes wrong then is told as later."""
    place.bed.enter_turn.return_value = False
    made = place.begin()
    later, = place.bed.enter_turn.call_args.args
    assert ([], True) == (place.dumps, place.sandbox.held)
    place.sandbox.kernels[1].snapshot.side_effect = Busy("64 requests wait")
    later()
    assert ["64 requests wait"] == [str(each) for each in place.said]
    assert (SleepStage.OVER, False) == (made.stage, place.sandbox.held)
    place.bed.leave_turn.assert_called_once_with(later)
    later()
    assert 1 == len(place.dumps)


def test_one_that_takes_long_keeps_no_other_one_waiting(place: Place) -> None:
    """Code in it may see to it that it is never taken: its turn is over, and it goes on."""
    made = place.begin()
    (seconds, over), = (call.args for call in place.reactor.after.call_args_list)
    assert (sleeping._TURN_S, []) == (seconds, place.bed.leave_turn.mock_calls)
    over()
    place.bed.leave_turn.assert_called_once()
    place.taken()
    place.taken()
    place.files()
    assert (SleepStage.ASLEEP, [None]) == (made.stage, place.said)
    place.bed.leave_turn.assert_called_once()


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
    """A fault costs the request alone, too."""
    made = asleep(place)
    for error in (Busy("no room"), TypeError()):
        place.bed.enter.side_effect = error
        with pytest.raises(type(error)):
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
    """It is read once there is a worker, so that those that wait for one have nothing open; too late it is closed."""
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
    made.wake(refusals.append)
    place.bed.get.assert_not_called()
    place.bed.enter.call_args.args[0](Mock())
    got = place.bed.get.call_args.args[0]
    got(read())
    os.close(place.orders[-1][2])
    place.orders[-1][1]({"made": 1}, [])
    place.sandbox.wake_kernel.call_args.args[2]("")
    place.bed.remove.assert_called_once()
    got(read())
    assert (0.0, SleepStage.OVER, set()) == (refusals[-1].retry_after, made.stage, place.left())


def read() -> Asleep:
    return Asleep({1: KernelState(memory_file("state"), 4096, "3", {}, ())}, memory_file("files"), 4)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EROFS, errno.ENOENT])
def test_what_cannot_be_read_now_sleeps_on(place: Place, number: int) -> None:
    """It is lost only if it isn't there."""
    place.bed.put.return_value = True
    made, refusals = asleep(place), list[Refused]()
    place.bed.put.call_args.args[1](None)
    place.bed.leave.reset_mock()
    made.wake(refusals.append)
    place.bed.enter.call_args.args[0](Mock())
    place.bed.get.call_args.args[0](OSError(number, os.strerror(number)))
    if number == errno.ENOENT:
        place.sandbox.lost.assert_called_once()
        return
    place.bed.leave.assert_called_once()
    place.sandbox.lost.assert_not_called()
    assert (SleepStage.ASLEEP, True, [Busy]) == (made.stage, made.on_disk, [type(each) for each in refusals])
    made.wake()
    place.bed.enter.call_args.args[0](Mock())
    assert 2 == place.bed.get.call_count
    place.bed.get.call_args.args[0](read())
    assert place.sandbox.place.called
    os.close(place.orders[-1][2])
    made.close()
    assert set() == place.left()


def test_what_cannot_be_counted_sleeps_on(place: Place) -> None:
    """Its pages would be counted for nobody."""
    made = asleep(place)
    place.bed.count.side_effect = Busy("the host has no watch")
    made.wake(tried := Mock())
    place.bed.enter.call_args.args[0](Mock())
    tried.assert_called_once()
    place.sandbox.place.assert_not_called()
    assert SleepStage.ASLEEP is made.stage
    made.close()


@pytest.mark.parametrize("on_disk", [True, False])
def test_without_a_porter_it_sleeps_on(place: Place, on_disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives its worker back; what was taken off the disk is in memory, until it wakes."""
    place.bed.put.return_value = on_disk
    made, refusals = asleep(place), list[Refused]()
    if on_disk:
        place.bed.put.call_args.args[1](None)
    place.bed.leave.reset_mock()
    carry = place.sandbox.carry
    for error in (OSError(errno.EMFILE, "too many"), LeewardError("128 processes are in this sandbox")):
        place.sandbox.carry = Mock(side_effect=error)
        made.wake(refusals.append)
        place.bed.enter.call_args.args[0](Mock())
        if on_disk and len(refusals) == 0:
            place.bed.get.call_args.args[0](read())
        place.sandbox.lost.assert_not_called()
        assert (SleepStage.ASLEEP, False, not on_disk) == (made.stage, made.on_disk, not made._is_put)
    assert (2, [Busy] * 2) == (place.bed.leave.call_count, [type(each) for each in refusals])
    place.sandbox.carry = carry
    made.wake()
    place.bed.enter.call_args.args[0](Mock())
    assert b"rows" * (not on_disk) == os.read(place.orders[-1][2], 99)
    os.close(place.orders[-1][2])
    made.close(kept=True)
    assert (int(on_disk), set()) == (place.bed.remove.call_count, place.left())


def restored(reactor: Reactor, pool: HostPool) -> tuple[LiveSandboxes, SandboxEntry]:
    """A sandbox that an earlier daemon has left on disk."""
    desk = LiveSandboxes(reactor, Mock(), Mock())
    desk.sleepers = Mock()
    facts = SandboxFacts(Limits(), {}, {}, MAIN_POOL, "/", None)
    record = {"user": 7, "opened": 0.0, "until": 1e12, "idle": 60.0, "sleeps": False, "kernels": [],
              "last": [0, 0], "denied": {}, "used": {}}
    desk.restore("a" * 26, record, facts, Mock(return_value=pool), 1.0)
    return desk, desk.get("a" * 26, 7)


@pytest.mark.parametrize("killed", [True, False])
def test_a_daemon_that_ends_however_leaves_what_sleeps_on_disk(killed: bool) -> None:
    """Its start can have failed."""
    reactor = ReferenceReactor()
    desk, entry = restored(reactor, HostPool(reactor))
    if killed:
        desk.kill(entry, Mock())
    desk.close()
    assert killed == desk.sleepers.remove.called  # type: ignore[union-attr]
    reactor.close()


def test_a_refused_try_to_wake_gives_its_seat_back() -> None:
    """Else nobody could open a sandbox after some of them."""
    reactor = ReferenceReactor()
    pool = HostPool(reactor)
    desk, entry = restored(reactor, pool)
    assert entry.sandbox.sleep is not None
    for _ in range(3):
        pool.held = True
        entry.sandbox.sleep.wake(refused := Mock())
        seat, = pool.seats
        seat._refused(Report(refusal=Busy("nobody is free")))
        refused.assert_called_once()
        assert (SleepStage.ASLEEP, set(), None) == (entry.sandbox.sleep.stage, pool.seats, entry.sandbox.seat)
    pool.await_worker = lambda *how: how[3](Report(refusal=Busy("at once")))  # type: ignore[method-assign]
    entry.sandbox.sleep.wake(refused := Mock())
    refused.assert_called_once()
    assert (set(), None) == (pool.seats, entry.sandbox.seat)
    desk.close()
    reactor.close()


def test_what_wakes_while_it_is_written_is_removed_before_it_is_written_again(place: Place) -> None:
    """Else the removal would hit what comes after."""
    place.bed.put.return_value = True
    first = asleep(place)
    first.wake()
    place.bed.enter.call_args.args[0](Mock())
    os.close(place.orders[-1][2])
    place.orders[-1][1]({"made": 1}, [])
    for call in place.sandbox.wake_kernel.call_args_list:
        call.args[2]("")
    place.bed.woken.assert_called_once()
    place.bed.remove.assert_called_once()
    written = place.bed.put.call_args.args[1]
    second = asleep(place)
    written(None)
    place.bed.put.call_args.args[1](None)
    place.bed.remove.assert_called_once()
    assert (False, True) == (first.on_disk, second.on_disk)
    second.close(kept=True)
    place.bed.remove.assert_called_once()
    assert set() == place.left()


def test_what_was_written_while_it_could_not_wake_takes_no_memory(place: Place) -> None:
    place.bed.put.return_value = True
    made = asleep(place)
    made.wake()
    place.bed.put.call_args.args[1](None)
    assert not made.on_disk
    place.bed.enter.call_args.args[0](Busy("nobody is free"))
    assert (True, SleepStage.ASLEEP, set()) == (made.on_disk, made.stage, place.left())


def test_requests_that_were_taken_back_are_not_remembered(place: Place) -> None:
    made = place.begin()
    for _ in range(100):
        made.wake()
        made.wake(tried := Mock())
        made.waits_no_longer(tried)
    assert [] == made._awaited
    made.close()
    tried.assert_not_called()


def test_a_kernel_that_is_closed_meanwhile_is_not_taken(place: Place) -> None:
    made = place.begin()
    del place.sandbox.kernels[2]
    place.taken()
    place.files()
    assert (SleepStage.ASLEEP, [None], [1]) == (made.stage, place.said, list(made._states))
    made.close()
    assert set() == place.left()


@pytest.mark.parametrize("error", [Busy("no room"), BadRequest("no such environment")])
def test_a_request_is_answered_if_it_cannot_wake_when_it_sleeps(place: Place, error: LeewardError) -> None:
    made, refusals = place.begin(), list[Refused]()
    made.wake(refusals.append)
    made.wake(lambda why: refusals.append(why))
    place.bed.enter.side_effect = error
    place.taken()
    place.taken()
    place.files()
    assert [str(error)] * 2 == [str(each) for each in refusals]
    made.close()


def test_without_descriptors_it_is_busy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sandbox.kernels = {}
    monkeypatch.setattr(os, "pipe2", Mock(side_effect=OSError(errno.EMFILE, "too many")))
    with pytest.raises(Busy):
        place.begin()
    assert (False, [], set()) == (place.sandbox.held, place.said, place.left())


def test_the_record_has_no_text_of_a_kernel() -> None:
    """Its user is told that, who may have written it."""
    reactor, book = ReferenceReactor(), Mock()
    desk = LiveSandboxes(reactor, Mock(), Mock(), book=book)
    facts = SandboxFacts(Limits(), {}, {}, MAIN_POOL, "/", None)
    name = desk.open(7, facts, Mock(), idle=60.0, lifetime=60.0, most=1, patience=1.0)
    entry = desk._registry.get(name, 7)
    entry.sandbox.sandbox.begin(Mock(usage=Usage, processes={}))
    desk.cannot_sleep(entry, "kernel 1: a text of its own")
    assert "it couldn't sleep" == book.sandbox.call_args.args[3]
    with pytest.raises(SandboxOver, match="a text of its own"):
        desk.get(name, 7)
    desk.close()
    reactor.close()


def test_what_has_many_variables_cannot_sleep() -> None:
    reactor = ReferenceReactor()
    for count, fits in ((MOST_ENV_ASLEEP - 1, True), (MOST_ENV_ASLEEP, False)):
        facts = SandboxFacts(Limits(), {"A": "x" * count}, {}, MAIN_POOL, "/", None)
        sandbox = LiveSandbox(reactor, facts, Mock(), Mock())
        sandbox.begin(Mock(usage=Usage, processes={}))
        if fits:
            sandbox.check_rests()
        else:
            with pytest.raises(RequestRejected, match="variables"):
                sandbox.check_rests()
    reactor.close()


def test_files_that_cannot_be_made_are_not_quoted(place: Place) -> None:
    made = asleep(place)
    made.wake()
    place.bed.enter.call_args.args[0](Mock())
    os.close(place.orders[-1][2])
    place.orders[-1][1](PorterRefusal("[Errno 17] File exists: 'a name'"), [])
    place.sandbox.lost.assert_called_once_with("it couldn't wake: its files can't be made again")
    made.close()


def test_what_fails_at_once_leaves_it_awake() -> None:
    """A kernel can have closed the socket by which it would be asked."""
    reactor, said = ReferenceReactor(), list[Refused | None]()
    desk = LiveSandboxes(reactor, Mock(), Mock())
    sandbox = Mock(held=False)
    sandbox.facts.key.image = ""
    sandbox.kernels = {1: Mock(lives=True, snapshot=lambda _job, dump: dump.answered("it takes no descriptors"))}
    entry = RegistryEntry("a", 7, Held(sandbox), 60.0, reactor.now() + 60.0, reactor.now())
    desk.pause(entry, said.append)
    assert (["kernel 1: it takes no descriptors"], False, None, 0) == (
        [str(each) for each in said], sandbox.held, entry.sandbox.sleep, entry.calls)
    desk.close()
    reactor.close()


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
    place.bed.get.assert_not_called()
    made.close(kept=True)
    place.bed.remove.assert_called_once()
    assert (2, set()) == (len(refusals), place.left())

"""Branches: their slots, what is remembered of a failure, and quotas that hold for all pools together."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from kit.clock import Clock
from leeward.base.dataclass import replace
from leeward.daemon.pool import branches
from leeward.daemon.pool.begin import Settings
from leeward.daemon.pool.branches import Branches
from leeward.daemon.pool.quotas import Book, Ledger, Quota, Quotas
from leeward.errors import BadRequest, Busy, PoolFailed, Refused, ShuttingDown
from leeward.spec.egress_policy import Policy
from leeward.spec.pool_key import PoolKey, is_name

FIRST, SLOTS = 10, 12


class Branch:
    """One that is made at once, and whose processes end when a test says so."""

    made: ClassVar[list[Branch]] = []

    def __init__(self, _reactor: object, _engine: object, settings: Settings, _spec: object, _confinement: object, *,
                 first: int, troubled: Any, **_more: object) -> None:
        self.settings, self.first, self.troubled = settings, first, troubled
        self.patience = SimpleNamespace(start=20.0)
        self.stood, self.warms, self.busy, self.problem, self.refused = True, False, False, None, None
        self.workers: list[object] = [object()]
        self.pool = SimpleNamespace(
            drain=self._drain, ledger=SimpleNamespace(close=lambda: None),
            workforce=SimpleNamespace(retire_all=lambda: None, workers=self.workers))
        self.zygotes = SimpleNamespace(retire=lambda _seconds, left: left())
        Branch.made.append(self)

    def _drain(self, _seconds: float, _done: object, why: Refused) -> None:
        self.refused = why

    def begin(self, *_: object) -> None:
        return

    def stop(self) -> None:
        return

    def blame(self, layer: str, message: str) -> None:
        self.problem = layer, message
        self.troubled()


class StartedZygote:
    def __init__(self, _plan: object) -> None:
        return

    def end(self) -> None:
        return


def planned(key: PoolKey) -> Settings:
    if key.environment.startswith("no"):
        raise BadRequest("unknown")
    size, room = {"wide": (99, 0), "roomy": (2, 97)}.get(key.environment, (2, 1))
    return replace(Settings(), pool_size=size, room=room)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(branches, "Branch", Branch)
    monkeypatch.setattr(branches, "StartedZygote", StartedZygote)
    monkeypatch.setattr(branches, "prepare", lambda *_: (None, None))
    monkeypatch.setattr(branches, "confine", lambda *_: None)
    Branch.made = []
    return Clock(100.0)


def table(clock: Clock, idle: float = 30.0) -> Branches:
    log = SimpleNamespace(info=lambda *_, **__: None, warning=lambda *_, **__: None)
    return Branches(clock, SimpleNamespace(log=log, driver=None), Book(), planned, first=FIRST, first_id=-1,  # type: ignore[arg-type]  # as far as branches need them
                    workers=SLOTS, surplus=1, idle=idle)


def key(name: str) -> PoolKey:
    return PoolKey(environment=name)


def test_every_branch_has_slots_of_its_own(clock: Clock) -> None:
    """Four each: two workers, one for sessions and one in advance. The third environment fills the place."""
    ours = table(clock)
    made = [ours.of(key(name)) for name in "abc"]

    assert [FIRST, FIRST + 4, FIRST + 8] == [branch.first for branch in Branch.made]
    assert made[1] is ours.of(key("b"))
    assert 3 == len(Branch.made)


def test_the_one_that_was_idle_for_longest_makes_room(clock: Clock) -> None:
    """Not one that is in use; and its slots are another's when its last process is gone."""
    ours = table(clock)
    for name in "abc":
        ours.of(key(name))
        clock.time += 0.1
    Branch.made[0].busy = True
    with pytest.raises(Busy):
        ours.of(key("d"))
    assert isinstance(Branch.made[1].refused, Busy)
    clock.pass_time(1.0)
    with pytest.raises(Busy):  # its worker is still there
        ours.of(key("d"))
    assert Branch.made[2].refused is None
    Branch.made[1].workers.clear()
    clock.pass_time(1.0)
    ours.of(key("d"))

    assert FIRST + 4 == Branch.made[3].first


def test_an_unused_branch_ends(clock: Clock) -> None:
    ours = table(clock, idle=30.0)
    ours.of(key("a"))
    ours.of(key("b"))
    Branch.made[0].busy = True
    clock.pass_time(31.0)

    assert Branch.made[0].refused is None
    assert Branch.made[1].refused is not None
    assert 2 == len(ours.all)  # its processes are still there
    Branch.made[1].workers.clear()
    clock.pass_time(2.0)
    assert 1 == len(ours.all)


def test_a_failure_is_reported_and_remembered(clock: Clock) -> None:
    """To what waits, and for some seconds to whoever asks."""
    ours = table(clock)
    ours.of(key("a"))
    Branch.made[0].stood = False
    Branch.made[0].blame("preload", "no numpy")
    assert isinstance(Branch.made[0].refused, PoolFailed)
    with pytest.raises(PoolFailed, match="preload: no numpy"):
        ours.of(key("a"))
    clock.pass_time(6.0)
    Branch.made[0].workers.clear()
    ours.of(key("a"))

    assert 2 == len(Branch.made)


def test_waiters_of_a_failed_branch_are_not_kept(clock: Clock) -> None:
    """The remembered failure has no reference to the requests that waited, which would keep them in memory."""
    class Request:
        pass

    def ask(request: Request) -> weakref.ref[Request]:
        try:
            ours.of(key("a"))
        except PoolFailed:
            return weakref.ref(request)
        raise AssertionError

    ours = table(clock)
    ours.of(key("a"))
    Branch.made[0].stood = False
    Branch.made[0].blame("preload", "no numpy")
    assert [None] * 3 == [ask(Request())() for _ in range(3)]


def test_a_branch_that_never_stands_ends(clock: Clock) -> None:
    """Not while the code of its environment runs."""
    ours = table(clock)
    ours.of(key("a"))
    Branch.made[0].stood, Branch.made[0].warms = False, True
    clock.pass_time(21.5)
    assert Branch.made[0].refused is None
    Branch.made[0].warms = False
    clock.pass_time(1.5)

    assert "no worker was ready" in str(Branch.made[0].refused)


def test_an_unknown_or_too_large_branch_is_refused(clock: Clock) -> None:
    ours = table(clock)
    with pytest.raises(BadRequest):
        ours.of(key("nothing"))
    with pytest.raises(PoolFailed, match="needs 100 workers"):
        ours.of(key("wide"))
    ours.stop()
    with pytest.raises(ShuttingDown):
        ours.of(key("a"))
    assert [] == Branch.made


def test_a_branch_has_no_more_workers_than_there_are_slots(clock: Clock) -> None:
    """Its number is "at most"; those that always stand have to fit."""
    table(clock).of(key("roomy"))
    made, = Branch.made

    assert SLOTS == made.settings.pool_size + made.settings.room + 1


def test_quotas_hold_for_all_pools_together() -> None:
    """Jobs, memory and the rate; and an end in one pool wakes the others."""
    woken: list[int] = []
    book = Book()
    quotas = Quotas(Quota(jobs=2, memory=100, rate=2.0))
    first, second = Ledger(quotas, book=book), Ledger(quotas, book=book)
    book.freed = lambda: woken.append(1)
    first.start(5, 40)
    may = [second.may_start(5, 60), second.may_start(5, 61)]
    second.start(5, 40)
    may += [first.may_start(5, 1), first.may_start(6, 100)]
    second.end(5, 40)
    may += [first.may_start(5, 60)]

    assert [True, False, False, True, True] == may
    assert [1] == woken
    first.admit(5, 1, 10.0)
    second.admit(5, 1, 10.0)
    with pytest.raises(Busy):
        second.admit(5, 1, 10.0)
    second.close()
    first.end(5, 40)
    assert [1] == woken  # there is no other pool any more


def test_a_guests_share_is_of_each_pool() -> None:
    """A guest who has all of one pool that he may have can use another."""
    book, quotas = Book(), Quotas(reserve=1)
    first, second = (Ledger(quotas, lambda _more: 3, book) for _ in range(2))
    first.start(5, 1)

    assert not first.may_start(5, 1)
    assert second.may_start(5, 1)


@pytest.mark.parametrize(("text", "good"), [
    ("data", True), ("py3.12-x_y", True), ("a" * 64, True), ("", False), ("a" * 65, False), ("1a", False),
    ("a/b", False), ("..", False), ("a\n", False), ("dätä", False),
])
def test_names_of_branches(text: str, good: bool) -> None:
    assert good == is_name(text)


@pytest.mark.parametrize(("settings", "seen"), [
    (Settings(), False), (Settings(show=("/srv",)), True), (Settings(egress=Policy("open")), True)])
def test_jobs_may_be_seen_outside_by_a_policy_and_by_sockets_in_what_is_shown(settings: Settings, seen: bool) -> None:
    branch = object.__new__(branches.Branch)
    branch.settings = settings
    assert seen == branch.reaches_out

"""Whose the descriptors are, by how many there are."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from leeward.daemon import descriptors
from leeward.daemon.config import Config
from leeward.daemon.descriptors import ARENAS, METRICS, RESULTS, in_force, owners, shares
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.main import has_terminal
from leeward.daemon.worker.keeper import Keeper
from leeward.errors import Unsupported
from leeward.isolation.cgroup.none import NoneDriver
from leeward.isolation.cgroup.v1 import V1Driver
from leeward.isolation.cgroup.v2 import V2Driver
from leeward.spec.limits import Limits
from leeward.spec.machine import SIZED

DRIVERS = (V1Driver, V2Driver, NoneDriver)
DEFAULT = Config()


def divided(limit: int, driver=V1Driver, *, workers=DEFAULT.pool_size, spares=DEFAULT.spares,
            asked=DEFAULT.max_connections, metrics=False):
    return shares(limit, driver, workers=workers, spares=spares, asked=asked, metrics=metrics)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("limit", [300, 512, 1024, 4096, 65536])
def test_all_that_may_be_open_at_once_fits(driver, limit: int):
    got = divided(limit, driver)

    assert got.pool + got.connections + got.results + got.arenas + descriptors.OWN + descriptors.PASSING <= limit
    assert got.connections <= DEFAULT.max_connections
    assert got.results <= RESULTS
    assert got.arenas <= ARENAS


def test_plenty_of_descriptors_are_divided_by_the_configuration():
    got = divided(65536)

    assert (DEFAULT.max_connections, RESULTS, ARENAS) == (got.connections, got.results, got.arenas)
    assert 0 == got.leaves  # as many groups are kept as is quickest


def test_groups_that_are_kept_are_given_up_first():
    """What is kept to save time has no descriptors that a connection could have."""
    got = divided(1024)

    assert (DEFAULT.spares + 2, 0) == (got.leaves, got.surplus)
    assert got.connections > 500


@pytest.mark.parametrize("limit", [1024, 4096, 65536])
def test_listeners_of_workers_with_egress_are_counted(limit: int):
    """22 sockets and two files more for each, of which fewer are made where they wouldn't fit."""
    def asked(further: int, listeners: int = 0):
        return shares(limit, NoneDriver, workers=1, spares=1, asked=64, metrics=False, further=further,
                      listeners=listeners)

    each = asked(1).pool - asked(0).pool
    got = asked(200, 22)

    assert 0 < got.further <= asked(200).further
    assert asked(0).pool + got.further * (each + 22 + 2) == got.pool
    assert got.pool + got.connections + got.results + got.arenas + descriptors.OWN + descriptors.PASSING <= limit


def test_descriptors_of_a_keeper_are_counted(tmp_path: Path):
    """All that it may be sent; of listeners two."""
    (tmp_path / "file").touch()
    before = len(os.listdir("/proc/self/fd"))
    keeper = Keeper(MagicMock(spec=Reactor), Limits())  # its channel's two ends
    sent = [os.open(tmp_path / "file", os.O_RDWR) for _ in ("ptmx", *SIZED, "certificates", "Java's", *("listener",) * 2)]
    assert keeper.ready(sent, listeners=2, certificates=b"x")
    further = 2  # its pidfd and sockstat
    held = len(os.listdir("/proc/self/fd")) - before + further
    keeper.close()
    keeper._close_rest()

    assert descriptors.WORKER + descriptors.PTMX + descriptors.CERTIFICATES + 2 == held
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_worker_in_advance_is_given_up_last():
    """But before a connection is."""
    got = [divided(limit) for limit in range(1024, 3000)]

    assert [(3, 0), (3, 1), (0, 1)] == list(dict.fromkeys((each.leaves, each.surplus) for each in got))
    assert all(each.connections == DEFAULT.max_connections for each in got if each.surplus)


def test_sessions_get_the_remaining_descriptors():
    """Workers for them are made where all others have as many as they may have."""
    def room(limit: int) -> int:
        return shares(limit, V1Driver, workers=4, spares=1, asked=1024, metrics=False, room=100).room

    assert [0, 0, 100] == [room(1024), room(1400), room(65536)]
    got = shares(4096, V1Driver, workers=4, spares=1, asked=1024, metrics=False, room=200)
    assert 70 < got.room < 200
    assert got.pool + got.connections + got.results + got.arenas + descriptors.OWN + descriptors.PASSING <= 4096


def test_metrics_have_descriptors_of_their_own():
    with_metrics = divided(1024, metrics=True)

    assert METRICS == divided(1024).connections - with_metrics.connections


@pytest.mark.parametrize(("limit", "workers", "spares"), [(64, 4, 1), (256, 64, 1), (300, 4, 16)])
def test_too_few_descriptors_are_refused_with_value_bound_and_cure(limit: int, workers: int, spares: int):
    with pytest.raises(Unsupported) as refused:
        divided(limit, workers=workers, spares=spares)

    for word in (f"{limit} (RLIMIT_NOFILE)", f"{workers} workers", f"{spares} spares", "ulimit -Hn", "pool_size"):
        assert word in str(refused.value)
    needed = int(str(refused.value).partition("about ")[2].partition(",")[0])
    assert divided(needed, workers=workers, spares=spares).connections >= descriptors.LEAST  # what it names will do


def test_a_small_max_connections_needs_few_descriptors():
    assert 1 == divided(300, asked=1).connections


def test_the_owner_has_the_last_places():
    assert [0, 0, 1, 3, 8, 8] == [owners(places) for places in (1, 3, 4, 14, 32, 1024)]


@pytest.mark.parametrize(("most", "words"), [
    (65536, "1024 on this host, as asked for"),
    (300, "5 or more on this host: a limit of 300 descriptors (RLIMIT_NOFILE), of which 4 workers may need 240"),
    (64, "none may be left on this host: descriptors: have a hard limit of 64"),
])
def test_the_division_in_force_is_reported(most: int, words: str):
    assert in_force(most, workers=4, spares=1, asked=1024, metrics=False).startswith(words)


@pytest.mark.parametrize(("hard", "most"), [(300, 300), (1 << 20, descriptors.MOST), (-1, descriptors.MOST)])
def test_the_limit_is_the_hard_one_within_reason(hard: int, most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(descriptors, "resource", SimpleNamespace(
        RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda _: (256, hard)))

    assert most == descriptors.limit()


@pytest.mark.parametrize(("error", "there"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ENXIO, False)])
def test_a_failed_check_does_not_count_as_a_lost_terminal(error: int, there: bool, monkeypatch: pytest.MonkeyPatch):
    """Or a SIGHUP that means to reload would end a daemon that has no descriptor left for a moment."""
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("leeward.daemon.main.os.open", refuse)

    assert there is has_terminal()


@pytest.mark.parametrize(("limit", "sandboxes"), [(300, False), (1024, True), (65536, True)])
def test_scarce_descriptors_leave_none_for_sandboxes(limit: int, sandboxes: bool) -> None:
    """Jobs go on there as they did."""
    assert sandboxes is divided(limit).sandboxes


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("limit", "room"), [(4096, 200), (20_000, 150), (20_000, 256), (20_000, 999), (65536, 1024)])
def test_sandboxes_that_rest_make_room_for_others(driver, limit: int, room: int) -> None:
    """However many are awake, left over, or sessions: all of them fit."""
    def pool(more: int):
        return shares(limit, driver, workers=2, spares=1, asked=1024, metrics=False, room=more)

    got = pool(room)
    plain, each = pool(0).pool, pool(1).pool - pool(0).pool
    bounds = got.bounds
    assert got.pool + got.connections + got.results + got.arenas + descriptors.OWN + descriptors.PASSING <= limit
    if not bounds.awake:
        assert (room, plain + room * each) == (got.room, got.pool)
        return
    resting = (got.pool - plain - 2 * bounds.awake * each) // got.room
    assert resting < each
    assert bounds.seats >= got.room
    assert plain + 2 * bounds.awake * each + bounds.seats * resting <= limit - 1024
    assert bounds.price * resting >= each


def test_a_thousand_sandboxes_have_room_in_twenty_thousand_descriptors() -> None:
    got = shares(20_000, V1Driver, workers=2, spares=1, asked=1024, metrics=False, room=999)

    assert 999 == got.room
    assert got.bounds.seats >= 999


@pytest.mark.parametrize(("hard", "may", "raised"), [(20_000, True, True), (20_000, False, False),
                                                     (descriptors.MOST, True, False), (-1, True, False)])
def test_the_hard_limit_is_raised_where_that_is_allowed(hard: int, may: bool, raised: bool,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """And never lowered."""
    asked = []

    def setrlimit(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        if not may:
            raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors, "resource", SimpleNamespace(
        RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda _: (hard, hard), setrlimit=setrlimit))
    assert raised is descriptors.raise_limit()
    assert [(descriptors.MOST,) * 2] * (20_000 == hard) == asked


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("limit", "room"), [(1024, 0), (4096, 60), (20_000, 60), (65536, 200)])
def test_workers_for_jobs_have_what_is_for_sessions_and_half_of_the_rest(driver, limit: int, room: int) -> None:
    def divide(jobs: int):
        return shares(limit, driver, workers=4, spares=1, asked=512, metrics=False, room=room, jobs=jobs)

    without, got = divide(0), divide(10_000)
    beyond, more = got.beyond, got.pool - without.pool
    of_sessions = got.room * beyond.session if got.bounds == descriptors.NO_BOUNDS else 0
    assert 0 == without.beyond.jobs
    assert got.pool + got.connections + got.results + got.arenas + descriptors.OWN + descriptors.PASSING <= limit
    assert beyond.jobs * beyond.job <= beyond.descriptors == more + of_sessions
    assert beyond.jobs >= beyond.left(got.room)
    assert beyond.left(got.room) * beyond.job + of_sessions <= beyond.descriptors or not of_sessions
    assert beyond.job < beyond.session or not beyond.jobs


def test_workers_for_jobs_with_the_usual_limits() -> None:
    def jobs(limit: int) -> int:
        return shares(limit, V1Driver, workers=4, spares=1, asked=1024, metrics=False, room=92, further=64,
                      jobs=256).beyond.jobs

    assert [0, 256] == [jobs(1024), jobs(65536)]
    assert 150 < jobs(20_000) < 256

"""What a daemon does first: signals wait, and an engine is told what the configuration says."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.base.dataclass import names
from leeward.daemon import descriptors, early
from leeward.daemon.config import Config, quotas
from leeward.daemon.pool.begin import Settings
from leeward.errors import BadRequest, Unsupported
from leeward.spec.limits import Limits


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Of this process, what `start` changes."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.enable()


def blocked() -> set[int]:
    return set(early.ENDING) & signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_every_key_of_the_configuration_reaches_the_engine() -> None:
    """Each value is another than it would be unsaid."""
    config = Config(pool_size=7, spares=3, recycle_after=5, layout_jobs=7, layout_time=8.0, fresh_layout=True, reuse="user",
                    queue_size=9, queue_delay=0.5, limits=Limits(time=1.5), ceilings=Limits(time=2.5),
                    python_env="/env", preload=("json",), allow_degraded=("landlock",), rehearse=False,
                    results="inline", max_sessions=2, session_grace=0.5, loopback=True, terminal=True, pinned=True,
                    users={5: {"jobs": 3}})
    told, unsaid = early.settings(config), Settings()

    others = {"cgroup", "warm", "quotas", "patience", "sandboxes"}
    of_further_pools = {"egress", "host", "room", "profile", "with_home", "home", "show", "variables", "bound", "image",
                        "warming"}
    for name in set(names(Settings)) - others - of_further_pools:
        assert getattr(config, name) == getattr(told, name) != getattr(unsaid, name), name
    assert quotas(config, os.geteuid()) == told.quotas != unsaid.quotas


def test_signals_that_end_the_daemon_wait_during_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the first step on, and afterwards; the garbage collector, too."""
    seen: list[object] = []

    def begin(settings: Settings) -> Any:
        seen.extend((settings, blocked(), gc.isenabled(), rooms))
        return "bootstrap"

    rooms: list[int] = []
    monkeypatch.setattr(early, "begin", begin)
    monkeypatch.setattr(early, "room_for_descriptors", lambda: rooms.append(1))
    settings = Settings()

    assert "bootstrap" == early.start(settings)
    assert [settings, set(early.ENDING), False, [1]] == seen
    assert set(early.ENDING) == blocked()


def test_a_signal_is_heard_after_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else would let it through."""
    def begin(_settings: Settings) -> Any:
        raise BadRequest("no such interpreter")

    monkeypatch.setattr(early, "begin", begin)
    monkeypatch.setattr(early, "room_for_descriptors", lambda: None)
    with pytest.raises(BadRequest):
        early.start(Settings())

    assert not blocked()


@pytest.mark.parametrize(("hard", "most"), [(1024, 1024), (1 << 20, descriptors.MOST),
                                            (resource.RLIM_INFINITY, descriptors.MOST)])
def test_room_for_descriptors(hard: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as we want, or as the host allows; what it allows stays."""
    limits: list[object] = []
    for module in (early, descriptors):
        monkeypatch.setattr(module, "resource", SimpleNamespace(**vars(resource) | {
            "getrlimit": lambda _: (256, hard), "setrlimit": lambda *limit: limits.append(limit)}))
    early.room_for_descriptors()

    assert [(resource.RLIMIT_NOFILE, (most, hard))] == limits


def test_too_few_descriptors_for_any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the limit and the cure, where a system call with a number of ours was named."""
    for module in (early, descriptors):
        monkeypatch.setattr(module, "resource", SimpleNamespace(**vars(resource) | {"getrlimit": lambda _: (64, 64)}))
    with pytest.raises(Unsupported, match=r"a hard limit of 64 \(RLIMIT_NOFILE\).*ulimit -Hn"):
        early.room_for_descriptors()

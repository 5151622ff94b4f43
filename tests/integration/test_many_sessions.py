"""More sessions than half of the workers: workers are made for them, jobs keep theirs, and all go again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kit.box import Box
from kit.reference_reactor import ReferenceReactor
from kit.sessions import Wire
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.pool import workforce

SIZE, ROOM = 2, 3


@pytest.fixture(params=["reference", "native"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    reactor = NativeReactor("auto", fast_path=True) if "native" == request.param else ReferenceReactor()
    made = Box(pool_size=SIZE, spares=0, max_sessions=-1, reactor=reactor)
    made.engine.room = ROOM
    with made:
        yield made


def test_sessions_are_opened_up_to_the_bound(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workforce, "_LINGER_S", 0.05)
    with Wire(box) as wire:
        pool = box.engine.main.pool
        peers = [wire.peer() for _ in range(SIZE // 2 + ROOM)]
        for number, peer in enumerate(peers):
            assert 1 == peer.open()
            peer.run(1, f"x = {number}")
        refused = wire.peer().ask("session_open")
        assert ("busy", True) == (refused["kind"], "max_sessions" in refused["message"])
        wire.until(lambda: SIZE + ROOM == len(pool.workforce.workers) and pool.any_free)

        assert b"1\n" == wire.peer().ask("execute", code=b"print(1)")["stdout"]
        assert [f"{number}\n".encode() for number in range(len(peers))] == [
            peer.run(1, "print(x)")["stdout"] for peer in peers]
        assert SIZE + ROOM == len({worker.ids for worker in pool.workforce.workers}) or os.geteuid()  # a host id for each
        assert 1 == pool._backlog.workers

        for peer in peers:
            assert {} == peer.ask("session_close", session=1)
        wire.until(lambda: SIZE == len(pool.workforce.workers) and pool.any_free)
        assert (SIZE, 0) == (pool._backlog.workers, pool.workforce.held)
        assert b"1\n" == wire.peer().ask("execute", code=b"print(1)")["stdout"]


def test_a_few_sessions_make_no_extra_workers(box: Box) -> None:
    """However often they are opened and closed."""
    with Wire(box) as wire:
        before = box.engine.main.pool.workforce.workers
        for _ in range(10):
            peer = wire.peer()
            peer.open()
            peer.run(1, "x = 1")
            peer.ask("session_close", session=1)
        assert before == box.engine.main.pool.workforce.workers


def test_one_worker_and_sessions() -> None:
    """A pool of one had none before."""
    box = Box(pool_size=1, max_sessions=-1)
    box.engine.room = 1
    with box, Wire(box) as wire:
        peer = wire.peer()
        peer.open()
        assert b"1\n" == wire.peer().ask("execute", code=b"print(1)")["stdout"]
        assert b"2\n" == peer.run(1, "print(2)")["stdout"]

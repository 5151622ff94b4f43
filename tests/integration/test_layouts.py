"""A new zygote now and then: jobs of before and after have different address layouts, and nobody waits for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from kit.box import Box
from kit.sessions import Wire
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.worker.worker import Worker

#: Addresses of the program, of a library and of the heap; and what depends on the hash seed.
LOOK = """
maps = [line.split() for line in open('/proc/self/maps')]
print(next(m[0] for m in maps if 'python' in m[-1]), next(m[0] for m in maps if 'libc' in m[-1]), id(object()),
      hash('leeward'))
"""


def renewed(box: Box, old: tuple[Worker, ...]) -> bool:
    """Is none of the *old* workers left, and the old zygote neither?"""
    workers = box.engine.main.pool.workforce.workers
    assert box.engine.main.zygotes.succession is not None
    return not set(old) & set(workers) and len(workers) == box.engine.main.pool.workforce.size and all(
        worker.free for worker in workers) and not box.engine.main.zygotes.succession._leaving


@pytest.fixture(params=["reference", "native"])
def make(request: pytest.FixtureRequest) -> Callable[..., Box]:
    made = {"reactor": NativeReactor("auto", fast_path=True)} if "native" == request.param else {}
    return partial(Box, **made)


@pytest.mark.parametrize("size", [1, 2])
def test_after_so_many_jobs_the_layout_is_another_and_a_worker_is_free_all_the_time(
        make: Callable[..., Box], size: int) -> None:
    with make(pool_size=size, layout_jobs=6) as box:
        box.settle()
        old, zygote = box.engine.main.pool.workforce.workers, box.engine.main.zygotes.current
        assert zygote is not None
        before = [box.run(LOOK).stdout_text.split() for _ in range(3)]
        box.settle()
        for _ in range(3):
            box.run("pass")
        box.settle()
        while not renewed(box, old):
            assert box.engine.main.pool.any_free  # whoever came now would not wait
            box.reactor.turn(0.05)
        after = [box.run(LOOK).stdout_text.split() for _ in range(2)]

        assert zygote.process.returncode is not None  # it is gone, and was waited for
        assert box.engine.main.zygotes.current is not zygote

    assert 1 == len(set(map(tuple, ([*row[:2], row[3]] for row in before))))
    for old_value, new_value in zip(before[0], after[0], strict=True):
        # An interpreter that isn't position-independent, as Debian's, is always there; all else moves.
        assert old_value != new_value or old_value.startswith("00400000-")
    assert after[0][:2] == after[1][:2]


def test_after_a_time_the_layout_is_another_if_there_were_jobs() -> None:
    with Box(pool_size=1, layout_time=0.2) as box:
        box.settle()
        old = box.engine.main.pool.workforce.workers
        assert box.engine.main.zygotes.succession is not None
        box.reactor.run(lambda: box.engine.main.zygotes.succession._late)  # type: ignore[union-attr]  # it is there
        assert old == box.engine.main.pool.workforce.workers  # nobody had seen this layout
        box.run("pass")
        box.reactor.run(lambda: renewed(box, old))
        box.run("pass")


def test_jobs_that_come_all_the_time_are_all_run() -> None:
    """By as many clients as there are workers; each worker is renewed between two jobs."""
    with Box(pool_size=2, layout_jobs=20) as box:
        box.settle()
        old, layouts = box.engine.main.pool.workforce.workers, set()
        while set(old) & set(box.engine.main.pool.workforce.workers):
            layouts.add(box.run("print(hash('leeward'))").stdout)
        layouts.add(box.run("print(hash('leeward'))").stdout)

    assert 2 <= len(layouts)


def test_without_descriptors_for_a_worker_more_each_goes_first() -> None:
    with Box(pool_size=2, layout_jobs=1) as box:
        box.engine.main.pool.workforce.surplus = 0
        old = box.engine.main.pool.workforce.workers
        box.run("pass")
        most = 0
        while not renewed(box, old):
            box.reactor.turn(0.05)
            most = max(most, len(box.engine.main.pool.workforce.workers))
        assert 2 == most
        assert b"1\n" == box.run("print(1)").stdout


def test_a_session_keeps_its_process_and_then_its_worker_goes() -> None:
    with Box(pool_size=2, max_sessions=1, layout_jobs=4) as box, Wire(box) as wire:
        peer = wire.peer()
        peer.open()
        peer.run(1, "x = 'lives'")
        old = box.engine.main.pool.workforce.workers
        for _ in range(3):
            assert b"1\n" == peer.ask("execute", code=b"print(1)")["stdout"]
        wire.until(lambda: 1 == len(set(old) & set(box.engine.main.pool.workforce.workers)))
        assert b"lives\n" == peer.run(1, "print(x)")["stdout"]
        assert {} == peer.ask("session_close", session=1)
        wire.until(lambda: renewed(box, old))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_new_zygote_that_ends_or_hangs_does_not_disturb_the_daemon(number: int) -> None:
    """The old one goes on, and another is started later."""
    with Box(pool_size=1, layout_jobs=1) as box:
        succession = box.engine.main.zygotes.succession
        assert succession is not None
        patience, succession._patience = succession._patience, 1.0
        old = box.engine.main.pool.workforce.workers
        box.run("pass")
        box.reactor.run(lambda: succession._successor is not None)
        assert succession._successor is not None
        os.kill(succession._successor.pid, number)
        box.reactor.run(lambda: succession._failures == 1)
        succession._patience = patience
        assert [b"1\n"] * 3 == [box.run("print(1)").stdout for _ in range(3)]
        box.reactor.run(lambda: renewed(box, old))

    assert 1 == len(box.log.of("no new zygote: the old one goes on"))


def test_a_daemon_that_ends_while_a_new_zygote_starts_leaves_no_process() -> None:
    with Box(pool_size=1, layout_jobs=1) as box:
        succession = box.engine.main.zygotes.succession
        assert succession is not None
        box.run("pass")
        box.reactor.run(lambda: succession._successor is not None)
        assert succession._successor is not None
        process = succession._successor.process

    assert process.returncode is not None

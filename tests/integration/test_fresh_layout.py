"""`fresh_layout`: each job, session and sandbox has an address layout and a hash seed that no other has."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from kit.box import PATIENCE_S, Box
from kit.sessions import Wire
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.pool.zygotes import FreshZygotes
from leeward.daemon.run.report import Report
from leeward.spec.job import Job

#: Where a library and an object lie; and what follows from the hash seed.
LOOK = """
print(next(line.split('-')[0] for line in open('/proc/self/maps') if 'libc' in line), id(object), hash('x'))
"""
JOBS = 3


@pytest.fixture(params=["reference", "native"])
def make(request: pytest.FixtureRequest) -> Callable[..., Box]:
    def made(**settings: Any) -> Box:
        if "native" == request.param:
            settings["reactor"] = NativeReactor("auto", fast_path=True)
        return Box(**settings)

    return made


def submitted(box: Box) -> Callable[[], tuple[str, ...]]:
    """Send a job; what is returned waits for it, and says what it saw."""
    reports: list[Report] = []
    box.engine.main.pool.submit(Job(code=LOOK.encode()), reports.append, PATIENCE_S)

    def seen() -> tuple[str, ...]:
        box.reactor.run(lambda: bool(reports))
        assert reports[0].result is not None, reports[0].refusal
        return tuple(reports[0].result.stdout_text.split())

    return seen


def zygotes(box: Box) -> FreshZygotes:
    found = box.engine.main.zygotes
    assert isinstance(found, FreshZygotes)
    return found


def look(box: Box) -> tuple[str, ...]:
    return tuple(box.run(LOOK).stdout_text.split())


def distinct(seen: list[tuple[str, ...]]) -> tuple[int, int]:
    """How many libraries' addresses there are, and how many hashes."""
    return len({row[0] for row in seen}), len({row[2] for row in seen})


def test_every_job_has_a_layout_of_its_own(make: Callable[..., Box]) -> None:
    with make(pool_size=2) as box:  # without it all have the same
        assert (1, 1) == distinct([look(box) for _ in range(JOBS)])
        assert box.engine.status()["fresh_layout"] is False
    with make(pool_size=2, fresh_layout=True, spares=2, recycle_after=100) as box:
        seen = [look(box) for _ in range(JOBS)]
        assert box.engine.status()["fresh_layout"] is True
        box.settle()
        assert all(worker.armed == 1 and not worker.jobs for worker in box.engine.main.pool.workforce.workers)
    assert (JOBS, JOBS) == distinct(seen)


def test_jobs_that_come_together_wait_for_zygotes_of_their_own() -> None:
    with Box(pool_size=2, fresh_layout=True, queue_delay=0.0) as box:
        waiting = [submitted(box) for _ in range(JOBS)]
        seen = [wait() for wait in waiting]
    assert (JOBS, JOBS) == distinct(seen)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_zygotes_that_end_or_hang_delay_jobs_and_no_job_gets_a_layout_of_before(number: int) -> None:
    with Box(pool_size=1, fresh_layout=True) as box:
        seen = [look(box)]
        wait = submitted(box)
        for _ in range(2):  # the second one is started at once, the third after a pause
            box.reactor.run(lambda: any(not each.ready for each in zygotes(box)._there))
            (single,) = (each for each in zygotes(box)._there if not each.ready)
            os.kill(single.zygote.pid, number)
            if signal.SIGSTOP == number:
                zygotes(box)._expect(single, 0.01)  # as if its time were nearly up
            box.reactor.run(lambda single=single: single not in zygotes(box)._there)  # type: ignore[misc]
        seen.append(wait())

    assert (2, 2) == distinct(seen)
    assert 2 == len(box.log.of("zygote is gone"))


def test_processes_of_one_session_or_sandbox_share_its_layout() -> None:
    with Box(pool_size=1, max_sessions=1, fresh_layout=True) as box, Wire(box) as wire:
        peer = wire.peer()
        seen = [peer.ask("execute", code=LOOK.encode())["stdout"].split()]
        peer.open()
        twice = [peer.run(1, LOOK)["stdout"].split() for _ in range(2)]
        peer.ask("session_close", session=1)
        sandbox = peer.box()
        inside = [peer.ask("sandbox_execute", sandbox=sandbox, code=LOOK.encode())["stdout"].split() for _ in range(2)]
        peer.ask("sandbox_close", sandbox=sandbox)

    assert twice[0] == twice[1]
    assert inside[0] == inside[1]
    assert (3, 3) == distinct([tuple(row) for row in (*seen, twice[0], inside[0])])


def test_the_end_while_zygotes_start_leaves_none() -> None:
    with Box(pool_size=2, fresh_layout=True) as box:
        box.run("pass")
        box.reactor.run(lambda: bool(zygotes(box)._there))
        processes = [single.zygote.process for single in zygotes(box)._there]

    assert processes
    assert all(process.poll() is not None for process in processes)
    assert not zygotes(box)._there
    assert not zygotes(box)._leaving

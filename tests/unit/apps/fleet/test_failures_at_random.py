"""Servers end and come back at random moments while jobs run: each job has one answer, and runs as often as it may."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.carried import Way
from kit.fake_daemon import FakeDaemon, finished
from leeward.apps.fleet import aio_fleet
from leeward.apps.fleet.aio_fleet import AsyncFleet, Member
from leeward.apps.fleet.carrier import Carrier
from leeward.apps.fleet.errors import NodeLost
from leeward.apps.fleet.far_client import FarClient
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.fleet.placement import Node
from leeward.daemon.run.report import Report
from leeward.spec.job import Job
from leeward.spec.outcome import Result

NODES, JOBS = 4, 400
#: The share of jobs that hang until their server ends.
HANG = 0.1
STATUS = {"workers": {"busy": 0}, "queued": 0, "sandboxes": 0, "sessions": 0, "max_sessions": 9}


class Chaos:
    """The servers. `ran` counts how often each job was begun."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ran: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._folder = folder
        self.daemons = [self.started(number) for number in range(NODES)]

    def started(self, number: int) -> FakeDaemon:
        daemon = FakeDaemon(self._folder / f"n{number}", self.answer, pool_size=2, connection_requests=1000)
        daemon.status = STATUS
        return daemon.__enter__()

    def answer(self, job: Job) -> Report | None:
        with self._lock:
            code = bytes(job.code or b"")
            self.ran[code] += 1
            return None if self.chance.random() < HANG else finished(code)

    def go_on(self, over: threading.Event) -> None:
        while not over.wait(0.02):
            number = self.chance.randrange(NODES)
            self.daemons[number].__exit__(None, None, None)
            self.daemons[number] = self.started(number)

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.__exit__(None, None, None)


async def answers(chaos: Chaos, idempotent: bool, far: bool) -> list[tuple[int, Any]]:
    """*far*: the servers are reached through carriers."""
    async def reach(path: str) -> Way:
        return Way(Carrier(path))

    async with AsyncFleet([]) as fleet:
        await fleet.status()
        for path in [daemon.path for daemon in chaos.daemons]:
            await fleet.join(Member(Node(path), FarClient(path, partial(reach, path)) if far else NodeClient(path)))
        over = threading.Event()
        going = asyncio.create_task(asyncio.to_thread(chaos.go_on, over))
        try:
            return [each async for each in fleet.execute_many((f"{number}" for number in range(JOBS)), idempotent=idempotent,
                                                              deadline=60.0)]
        finally:
            over.set()
            await going


@pytest.mark.thorough
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_job_has_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, far: bool, idempotent: bool):
    monkeypatch.setattr(aio_fleet, "PROBE_S", 0.01)
    chaos = Chaos(tmp_path, seed)
    try:
        found = asyncio.run(answers(chaos, idempotent, far))
    finally:
        chaos.end()

    assert list(range(JOBS)) == sorted(number for number, _ in found)
    right = [number for number, answer in found if isinstance(answer, Result) and f"{number}" == answer.text]
    lost = {number: answer for number, answer in found if isinstance(answer, NodeLost)}
    others = [answer for number, answer in found if number not in lost and not isinstance(answer, Result)]
    assert JOBS == len(right) + len(lost) + len(others)
    assert {"NoNodeFits"} >= {type(answer).__name__ for answer in others}  # all of them were away
    assert max(chaos.ran.values()) <= 1 + idempotent
    assert all(chaos.ran[b"%d" % number] for number in right)
    assert all(answer.may_have_run or not chaos.ran[b"%d" % number] for number, answer in lost.items())
    assert len(right) >= JOBS / 2
    assert chaos.ran.total() > JOBS if idempotent else lost  # the control: nodes were lost with jobs on them

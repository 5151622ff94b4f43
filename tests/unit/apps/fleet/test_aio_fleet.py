"""A fleet of servers with a test in the place of their pools: who gets a job, and what its caller gets."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kit.fake_daemon import FakeDaemon, HeldTicket, echo
from leeward.apps.fleet import aio_fleet
from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.errors import NodeLost, NoNodeFits
from leeward.apps.fleet.placement import DEPTH
from leeward.daemon.run.report import Report
from leeward.errors import Busy, NoAnswer, RequestRejected, Unsupported
from leeward.spec.job import Job

T = TypeVar("T")

#: Of each server.
WORKERS = 2
STATUS = {"workers": {"busy": 0}, "queued": 0, "sandboxes": 0, "sessions": 0, "max_sessions": 9}


class FullDaemon(FakeDaemon):
    """One that has no room, as long as `full`."""

    full = True
    refused = 0

    def submit(self, job: Job, done: Callable[[Report], None], *more: Any, **named: Any) -> Any:
        if not self.full:
            return super().submit(job, done, *more, **named)
        self.refused += 1
        done(Report(refusal=Busy("the queue is full", 0.01)))
        return HeldTicket(self, job)


class DyingDaemon(FakeDaemon):
    """One that ends with its first job."""

    def submit(self, job: Job, done: Callable[[Report], None], *more: Any, **named: Any) -> Any:
        held = super().submit(job, lambda report: None, *more, **named)
        self._end_write.send(b"x")
        return held


@contextlib.contextmanager
def fleet(tmp_path: Path, *kinds: type[FakeDaemon],
          answer: Callable[[Job], Report | None] = echo) -> Iterator[list[FakeDaemon]]:
    """A server of each kind, called n0, n1, ..."""
    with contextlib.ExitStack() as stack:
        daemons = [kind(tmp_path / f"n{number}", answer, pool_size=WORKERS, connection_requests=1000)
                   for number, kind in enumerate(kinds)]
        for daemon in daemons:
            daemon.status = STATUS
            stack.enter_context(daemon)
        yield daemons


def on(daemons: list[FakeDaemon], main: Callable[[AsyncFleet], Awaitable[T]]) -> T:
    async def run() -> T:
        nodes = [{"address": f"unix:{daemon.path}", "name": Path(daemon.path).name} for daemon in daemons]
        async with AsyncFleet(nodes) as found:
            return await main(found)

    return asyncio.run(run())


def test_a_busy_node_is_passed_by(tmp_path: Path):
    async def main(found: AsyncFleet) -> set[bytes]:
        return {(await found.execute(b"%d" % number)).stdout for number in range(20)}

    with fleet(tmp_path, FullDaemon, FakeDaemon) as daemons:
        assert {b"%d" % number for number in range(20)} == on(daemons, main)
        assert isinstance(daemons[0], FullDaemon)
        assert daemons[0].refused


def test_a_job_that_all_refuse_waits_for_the_first_with_room(tmp_path: Path):
    async def main(found: AsyncFleet) -> bytes:
        job = asyncio.create_task(found.execute(b"1"))
        while not all(daemon.refused for daemon in full):
            await asyncio.sleep(0.001)  # nothing tells of a refusal that the fleet has dealt with
        full[1].full = False
        return (await job).stdout

    with fleet(tmp_path, FullDaemon, FullDaemon) as daemons:
        full = [daemon for daemon in daemons if isinstance(daemon, FullDaemon)]
        assert b"1" == on(daemons, main)


def test_a_deadline_ends_the_wait_with_the_reasons(tmp_path: Path):
    async def main(found: AsyncFleet) -> NoNodeFits:
        for deadline in (0.2, 2.0, 20.0):  # on a busy machine the first may pass while a node has the job
            try:
                await found.execute(b"1", deadline=deadline)
            except NoNodeFits as nothing:
                return nothing
            except NoAnswer:
                continue
        raise AssertionError("no attempt was refused")

    with fleet(tmp_path, FullDaemon, FullDaemon) as daemons:
        error = on(daemons, main)

    assert {"n0": "has just refused it", "n1": "has just refused it"} == error.reasons
    assert not error.may_have_run


def test_another_refusal_is_the_callers(tmp_path: Path):
    async def main(found: AsyncFleet) -> None:
        with pytest.raises(RequestRejected):
            await found.execute(b"1", timeout=-1)

    with fleet(tmp_path, FakeDaemon, FakeDaemon) as daemons:
        on(daemons, main)
        assert all(daemon.jobs.empty() for daemon in daemons)


def test_a_process_that_stands_still_loses_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def main(found: AsyncFleet) -> list[int]:
        await found.status()
        monkeypatch.setattr(aio_fleet, "LOST_S", 1.0)
        probes = asyncio.gather(*map(found._probe, found._members.values()))
        await asyncio.sleep(0)  # they have been asked
        time.sleep(1.2)
        await probes
        return [member.losses for member in found._members.values()]

    with fleet(tmp_path, FakeDaemon, FakeDaemon) as daemons:
        assert [0, 0] == on(daemons, main)


def test_a_node_that_answers_jobs_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def main(found: AsyncFleet) -> tuple[int, int]:
        await found.status()
        member = found._members["n0"]
        monkeypatch.setattr(aio_fleet, "LOST_S", 0.5)
        monkeypatch.setattr(member.client, "state", lambda seconds: asyncio.Future())
        probe, until = asyncio.ensure_future(found._probe(member)), time.monotonic() + 1.0
        while time.monotonic() < until:
            await found.execute(b"1")
        before = member.losses
        await probe
        return before, member.losses

    with fleet(tmp_path, FakeDaemon) as daemons:
        assert (0, 1) == on(daemons, main)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_job_on_a_node_that_ends(tmp_path: Path, idempotent: bool):
    """It is run again only by leave."""
    async def main(found: AsyncFleet) -> tuple[Any, dict[str, str]]:
        await found.status()
        found._placement.nodes["n1"].others = WORKERS  # so that n0 has it first
        answer = (await asyncio.gather(found.execute(b"1", idempotent=idempotent), return_exceptions=True))[0]
        return answer, {row["name"]: row["standing"] for row in (await found.status())["nodes"]}

    with fleet(tmp_path, DyingDaemon, FakeDaemon) as daemons:
        answer, standing = on(daemons, main)
        assert 1 == daemons[0].jobs.qsize()
        assert int(idempotent) == daemons[1].jobs.qsize()

    assert {"n0": "lost", "n1": "up"} == standing
    if idempotent:
        assert b"1" == answer.stdout
    else:
        assert isinstance(answer, NodeLost)
        assert ("n0", True) == (answer.node, answer.may_have_run)


def test_a_job_ends_no_more_than_two_nodes(tmp_path: Path):
    async def main(found: AsyncFleet) -> None:
        with pytest.raises(NodeLost):
            await found.execute(b"1", idempotent=True)

    with fleet(tmp_path, DyingDaemon, DyingDaemon, DyingDaemon) as daemons:
        on(daemons, main)
        assert 2 == sum(daemon.jobs.qsize() for daemon in daemons)


def test_more_jobs_than_there_is_room_for_wait_here(tmp_path: Path):
    """And go on as others end."""
    async def main(found: AsyncFleet) -> int:
        jobs = [asyncio.create_task(found.execute(b"1")) for _ in range(3 * DEPTH * WORKERS)]
        began = [await asyncio.to_thread(daemons[0].jobs.get, True, 10) for _ in range(DEPTH * WORKERS)]
        waiting = (await found.status())["waiting"]
        assert daemons[0].jobs.empty()
        for job in jobs[:5]:
            job.cancel()
        for _ in range(5):
            await asyncio.to_thread(daemons[0].jobs.get, True, 10)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        assert len(began) == DEPTH * WORKERS
        assert {0} == {member.node.waiting for member in found._members.values()}
        return int(waiting)

    with fleet(tmp_path, FakeDaemon, answer=lambda job: None) as daemons:
        assert 3 * DEPTH * WORKERS == on(daemons, main)


def test_who_waits_for_the_last_node_learns_of_its_end(tmp_path: Path):
    """At once, not when its patience ends."""
    async def main(found: AsyncFleet) -> list[str]:
        jobs = [asyncio.create_task(found.execute(b"1")) for _ in range(3 * DEPTH * WORKERS)]
        for _ in range(DEPTH * WORKERS):
            await asyncio.to_thread(daemons[0].jobs.get, True, 10)
        daemons[0]._end_write.send(b"x")
        async with asyncio.timeout(5):
            return [type(each).__name__ for each in await asyncio.gather(*jobs, return_exceptions=True)]

    with fleet(tmp_path, FakeDaemon, answer=lambda job: None) as daemons:
        assert {"NodeLost": DEPTH * WORKERS, "NoNodeFits": 2 * DEPTH * WORKERS} == Counter(on(daemons, main))


def test_a_fleet_without_nodes_says_so(tmp_path: Path):
    async def main() -> dict[str, str]:
        async with AsyncFleet([f"unix:{tmp_path}/none"]) as found:
            with pytest.raises(NoNodeFits) as nothing:
                await found.execute("1")
            assert "no daemon answers" in (await found.status())["nodes"][0]["why"]
            return nothing.value.reasons

    assert {f"{tmp_path}/none": "doesn't answer"} == asyncio.run(main())


def test_what_is_no_cluster_is_refused():
    async def main() -> None:
        async with AsyncFleet("nowhere") as found:
            await found.status()

    with pytest.raises(RequestRejected, match="is no cluster"):
        asyncio.run(main())


def test_a_fleet_that_was_closed_is_over(tmp_path: Path):
    async def main(found: AsyncFleet) -> None:
        await found.execute(b"1")
        await found.close()
        with pytest.raises(RequestRejected, match="closed"):
            await found.execute(b"1")

    with fleet(tmp_path, FakeDaemon) as daemons:
        on(daemons, main)


def test_a_cluster_needs_the_extra(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        async with AsyncFleet("auto") as found:
            await found.status()

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "leeward.apps.fleet.ray_nodes", raising=False)
    with pytest.raises(Unsupported, match=r"pip install 'leeward\[ray\]'"):
        asyncio.run(main())


@pytest.mark.parametrize("drains", ["x", {}, [1.0], True, -1, float("nan"), float("inf")])
def test_a_node_that_says_nonsense_is_one_that_does_not_answer(tmp_path: Path, drains: Any):
    """It is another machine's, and its bytes end no call to the others."""
    async def main(found: AsyncFleet) -> tuple[bytes, list[str]]:
        answer = (await found.execute(b"1")).stdout
        return answer, [row["standing"] for row in (await found.status())["nodes"]]

    with fleet(tmp_path, FakeDaemon, FakeDaemon) as daemons:
        daemons[0].status = {**STATUS, "drains": drains}
        assert (b"1", ["lost", "up"]) == on(daemons, main)


@pytest.mark.parametrize("again", [False, True])
def test_a_drain_that_is_taken_back_ends_nothing(tmp_path: Path, again: bool):
    async def main(found: AsyncFleet) -> str:
        await found.status()
        member = found._members["n0"]
        opened, state, before = found.adopt(member), {**STATUS, "capacity": WORKERS}, set(found._tasks)
        await found._told(member, {**state, "drains": 0.05})
        (ends,) = found._tasks - before
        await found._told(member, state)
        if again:
            await found._told(member, {**state, "drains": 600.0})
        await ends
        return opened.over

    with fleet(tmp_path, FakeDaemon) as daemons:
        assert "" == on(daemons, main)


@pytest.mark.parametrize(("told", "starting", "expected"), [(3, 2, 1), (3, 0, 3), (1, 2, 0)])
def test_a_sandbox_that_is_starting_counts_once(tmp_path: Path, told: int, starting: int, expected: int):
    async def main(found: AsyncFleet) -> int:
        await found.status()
        member = found._members["n0"]
        member.node.starting = starting
        await found._told(member, {**STATUS, "capacity": WORKERS, "sandboxes": told})
        return member.node.open

    with fleet(tmp_path, FakeDaemon) as daemons:
        assert expected == on(daemons, main)

"""Calls that travel in batches to the daemon of another node, here in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from kit.carried import Way
from kit.fake_daemon import FakeDaemon, finished
from leeward.apps.fleet import carrier
from leeward.apps.fleet.carrier import Carrier
from leeward.apps.fleet.far_client import FarClient
from leeward.apps.fleet.node_client import NodeClient
from leeward.errors import BadReply, Busy, DaemonAway, NoAnswer, SandboxOver
from leeward.spec.job import Job

T = TypeVar("T")


def with_client(daemon: FakeDaemon, main: Callable[[FarClient, Way], Awaitable[T]]) -> T:
    async def run() -> T:
        held = Carrier(daemon.path)
        way = Way(held)

        async def reach() -> Way:
            return way

        client = FarClient("far", reach)
        try:
            return await main(client, way)
        finally:
            await client.close()
            await held.close("me")  # as it would when nobody fetches any more

    return asyncio.run(run())


def test_many_calls_are_few_messages(tmp_path: Path) -> None:
    """And each has its own answer."""
    async def main(client: FarClient, way: Way) -> tuple[list[bytes], int]:
        results = await asyncio.gather(*(client.execute(f"{number}") for number in range(200)))
        return [result.stdout for result in results], len(way.batches)

    with FakeDaemon(tmp_path / "d", queue_size=1000, connection_requests=1000) as daemon:
        outputs, messages = with_client(daemon, main)

    assert [b"%d" % number for number in range(200)] == outputs
    assert messages <= 3


def test_a_large_result_arrives(tmp_path: Path) -> None:
    """Without the memory file that it came in."""
    async def main(client: FarClient, way: Way) -> bytes:
        return (await client.execute("1")).stdout

    with FakeDaemon(tmp_path / "d", lambda job: finished(b"x" * (3 << 20))) as daemon:
        assert b"x" * (3 << 20) == with_client(daemon, main)


def test_a_refusal_keeps_its_kind(tmp_path: Path) -> None:
    async def main(client: FarClient, way: Way) -> tuple[BaseException, BaseException]:
        first, second = await asyncio.gather(client.ask("sandbox_open", {}),
                                             client.ask("sandbox_info", {"sandbox": "a" * 26}), return_exceptions=True)
        assert isinstance(first, BaseException)
        assert isinstance(second, BaseException)
        return first, second

    with FakeDaemon(tmp_path / "d") as daemon:
        busy, over = with_client(daemon, main)

    assert isinstance(busy, Busy)
    assert not busy.may_have_run
    assert isinstance(over, SandboxOver)
    assert "restart" == over.reason  # the daemon has no such sandbox, by its id


def test_what_was_sent_may_have_run_when_the_way_ends(tmp_path: Path) -> None:
    """What wasn't hasn't."""
    async def main(client: FarClient, way: Way) -> list[bool]:
        sent = asyncio.create_task(client.execute("1"))
        while not way.batches:
            await asyncio.sleep(0)
        way.slow.clear()
        on_its_way = asyncio.create_task(client.execute("2"))
        await asyncio.sleep(0)
        while not client._pending[2].sent:
            await asyncio.sleep(0)
        kept = asyncio.create_task(client.execute("3"))
        await asyncio.sleep(0)
        way.broken = True
        errors = await asyncio.gather(sent, on_its_way, kept, return_exceptions=True)
        assert all(isinstance(error, DaemonAway) for error in errors), errors
        return [error.may_have_run for error in errors if isinstance(error, DaemonAway)]

    with FakeDaemon(tmp_path / "d", lambda job: None) as daemon:
        assert [True, True, False] == with_client(daemon, main)


def test_it_connects_again_after_a_loss(tmp_path: Path) -> None:
    async def main(client: FarClient, way: Way) -> bytes:
        await client.execute("1")
        way.broken = True
        with pytest.raises(DaemonAway):
            await client.execute("2")
        way.broken = False
        return (await client.execute("3")).stdout

    with FakeDaemon(tmp_path / "d") as daemon:
        assert b"3" == with_client(daemon, main)


def test_a_call_that_is_cancelled_ends_its_job(tmp_path: Path) -> None:
    async def main(client: FarClient, way: Way) -> Job:
        job = asyncio.create_task(client.execute("1"))
        begun = await asyncio.to_thread(daemon.jobs.get, True, 10)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert begun is await asyncio.to_thread(daemon.cancelled.get, True, 10)
        with pytest.raises(NoAnswer):
            await client.execute("2", deadline=0.1)
        await asyncio.to_thread(daemon.jobs.get, True, 10)
        return await asyncio.to_thread(daemon.cancelled.get, True, 10)

    with FakeDaemon(tmp_path / "d", lambda job: None) as daemon:
        assert b"2" == with_client(daemon, main).code


def test_the_state_has_the_capacity_and_the_drain(tmp_path: Path) -> None:
    async def main(client: FarClient, way: Way) -> list[Any]:
        states = [await client.state(5)]
        await client.drain(100.0)
        states.append(await client.state(5))
        await client.drain(0.0)
        states.append(await client.state(5))
        return [(state["capacity"], state.get("drains", 0.0) > 90) for state in states]

    with FakeDaemon(tmp_path / "d", pool_size=7) as daemon:
        daemon.status = {"workers": {"busy": 1}, "queued": 0, "sandboxes": 0, "sessions": 0, "max_sessions": 9}
        assert [(7, False), (7, True), (7, False)] == with_client(daemon, main)


def test_a_daemon_of_another_version_says_so(tmp_path: Path) -> None:
    """One whose status lacks what is counted."""
    async def main(client: FarClient, way: Way) -> str:
        with pytest.raises(BadReply) as wrong:
            await client.state(5)
        return str(wrong.value)

    with FakeDaemon(tmp_path / "d") as daemon:
        assert "another version" in with_client(daemon, main)


@pytest.mark.parametrize(("workers", "together"), [(2, 5), (3, 1)])
def test_answers_wait_for_half_of_the_others_where_jobs_crowd(monkeypatch: pytest.MonkeyPatch, workers: int,
                                                              together: int) -> None:
    """With four jobs for each worker; with fewer they wait MORE_S, here none."""
    monkeypatch.setattr(carrier, "MORE_S", 0.0)
    monkeypatch.setattr(carrier, "CROWDED_S", 60.0)

    async def main() -> int:
        ends = [asyncio.Event() for _ in range(9)]

        async def make(_: object, call: carrier.Call) -> tuple[Any, list[int]]:
            await ends[call[0]].wait()
            return {}, []

        caller = carrier._Caller(cast("NodeClient", None))
        caller.workers = workers
        for number in range(9):
            caller.begin((number, "call", "execute", {}, None, {}), make)
        ends[0].set()
        fetched = asyncio.ensure_future(caller.fetch())
        for end in ends[1:5]:
            for _ in range(10):  # turns of the loop: what doesn't wait has ended
                await asyncio.sleep(0)
            end.set()
        answers = await fetched
        for end in ends:
            end.set()
        return len(answers)

    assert together == asyncio.run(main())

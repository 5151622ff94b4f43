"""Jobs beyond the pool's own workers: as many as memory and processors carry, and none that computes at others' cost."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leeward
from kit.guests import GUESTS, WireClient, guest_house
from kit.live_daemon import PATIENCE, LiveDaemon

#: Jobs at once, how many of those that sleep, and what each of these does.
MANY, SLEEPERS, SLEEP = 100, 40, "import time; began = time.monotonic(); time.sleep(1); print(began, time.monotonic())"
#: Runs until it is ended.
LOOP = "while True: pass"


def together(daemon: LiveDaemon, count: int) -> int:
    """How many of so many sleeping jobs of one connection ran at the same time."""
    async def main() -> list[str]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            return [result.stdout_text for result in await asyncio.gather(*(client.execute(SLEEP) for _ in range(count)))]

    spans = [tuple(map(float, said.split())) for said in asyncio.run(main())]
    return max(sum(began <= start < ended for began, ended in spans) for start, _ in spans)


@pytest.mark.smoke
def test_jobs_that_sleep_run_at_the_same_time(daemon: LiveDaemon) -> None:
    """And the workers that were made for them end when nobody needs them."""
    assert together(daemon, SLEEPERS) >= 8
    daemon.until(lambda status: 4 == status["workers"]["total"] == status["workers"]["idle"])


def test_max_jobs_bounds_them(tmp_path: Path) -> None:
    """The control: with the pool's own workers alone each takes its turn."""
    with LiveDaemon(tmp_path, "--max-jobs", "4") as daemon:
        assert 4 == together(daemon, 16)
        with daemon.client() as client:
            assert 4 == client.status()["workers"]["total"]


def test_loops_of_one_connection_leave_processors_to_others(daemon: LiveDaemon) -> None:
    """A few of them run, and another connection's job has a worker at once."""
    async def loops() -> list[str]:
        async with leeward.AsyncClient(str(daemon.socket)) as client:
            calls = [asyncio.create_task(client.execute(LOOP, timeout=60)) for _ in range(MANY)]
            await asyncio.to_thread(daemon.until, lambda status: status["queued"] > MANY // 2
                                    and status["workers"]["total"] > status["workers"]["busy"])
            async with leeward.AsyncClient(str(daemon.socket)) as other:
                texts = [(await other.execute("print('hello')", deadline=PATIENCE)).stdout_text for _ in range(5)]
            with daemon.client() as client:
                busy = client.status()["workers"]["busy"]
            assert busy <= max(4, 4 * len(os.sched_getaffinity(0))), busy
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            return texts

    assert ["hello\n"] * 5 == asyncio.run(loops())
    daemon.idle()


@pytest.mark.needs("root")
def test_a_guests_loops_leave_processors_to_other_guests_and_the_owner(tmp_path: Path) -> None:
    with guest_house("") as (folder, path), LiveDaemon(folder, "--config", str(path)) as daemon, \
            WireClient(daemon.socket, GUESTS[0]) as hog, WireClient(daemon.socket, GUESTS[1]) as other, \
            WireClient(daemon.socket) as root:
        for _ in range(40):
            hog.send("execute", code=LOOP.encode(), limits={"time": 60.0})
        daemon.until(lambda status: 2 <= status["workers"]["busy"] and status["queued"] > 20)
        for client in (other, root):
            assert "finished" == client.ask("execute", code=b"print(1)")["ok"]["outcome"]


def test_a_burst_of_threads_is_served(daemon: LiveDaemon) -> None:
    """Each has a connection of its own."""
    def one(number: int) -> str:
        with leeward.Client(str(daemon.socket)) as client:
            return client.execute(f"import time; time.sleep(0.5); print({number})", deadline=PATIENCE).stdout_text

    with ThreadPoolExecutor(30) as threads:
        assert [f"{number}\n" for number in range(30)] == list(threads.map(one, range(30)))

"""
Measures what a fleet adds to a job: on the local client, a fleet of one daemon by its socket, and one node of Ray's.

    .venv/bin/python -m bench.fleet SOCKET [--jobs N] [--rounds N]
    PYTHONPATH=.:cli .venv-framework-ray/bin/python -m bench.fleet SOCKET     # with Ray, which .venv hasn't

SOCKET is that of a daemon that runs. They take turns in each round; the first round isn't counted. `bare` is the floor of
what Ray costs: an asynchronous actor with no daemon behind it, to which as many calls are sent, and from which as many
answers are fetched, in as many messages as the fleet on Ray needed in that round: these are counted, and shown. Shown are
medians and the least: milliseconds by the clock for each of many jobs, as many at once as the fleet has under way;
milliseconds of this process's processor time for each; and by the clock for one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from typing import Any

import leeward
from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.placement import DEPTH
from leeward.wire.replies import Reply

CODE, EXPECTED = "print(1)", "1\n"
#: An answer's fields, as large as a job's.
ANSWER = {"outcome": "finished", "stdout": EXPECTED.encode(), "stderr": b"", "exit_code": 0, "duration": 0.001,
          "cpu_time": 0.001, "memory": 1 << 20, "results": [], "denied": [], "files": []}
#: Jobs one at a time.
_SINGLE = 100

Many = Callable[[int], Awaitable[None]]
One = Callable[[str], Awaitable[leeward.Result]]


@contextlib.asynccontextmanager
async def sides(socket: str) -> AsyncIterator[dict[str, tuple[Many, One]]]:
    """Each way to run many jobs, and one."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(leeward.AsyncClient(socket))
        fleets = {"fleet": await stack.enter_async_context(AsyncFleet([f"unix:{socket}"]))}
        if cluster(socket, stack):
            fleets["ray"] = await stack.enter_async_context(AsyncFleet("auto"))
            bare = _bare(_counted())
        room = asyncio.Semaphore(DEPTH * (await fleets["fleet"].status())["workers"])

        async def local(count: int) -> None:
            async def one() -> None:
                async with room:
                    assert (await client.execute(CODE)).text == EXPECTED

            await asyncio.gather(*(one() for _ in range(count)))

        def on(fleet: AsyncFleet) -> Many:
            async def many(count: int) -> None:
                async for _, answer in fleet.execute_many([CODE] * count):
                    assert isinstance(answer, leeward.Result)
                    assert answer.text == EXPECTED

            return many

        yield {"client": (local, client.execute), **{name: (on(fleet), fleet.execute) for name, fleet in fleets.items()},
               **({"bare": bare} if "ray" in fleets else {})}


def _counted() -> Counter[str]:
    """Have the fleet's messages over Ray counted; returns the counts, by kind."""
    from leeward.apps.fleet.ray_nodes import ReachedCarrier  # needs Ray

    counts = Counter[str]()
    for kind in ("submit", "fetch"):
        def counting(call: Any, kind: str = kind) -> Any:
            async def counted(self: ReachedCarrier, *given: Any) -> Any:
                counts[kind] += 1
                return await call(self, *given)

            return counted

        setattr(ReachedCarrier, kind, counting(getattr(ReachedCarrier, kind)))
    return counts


def _bare(counts: Counter[str]) -> tuple[Many, One]:
    """
    As many messages with calls to an actor, and with answers from it, as the fleet has needed for as many jobs since the
    last turn; and one of each.
    """
    import ray  # an extra

    class Bare:
        async def submit(self, caller: str, calls: list[object]) -> None: ...

        async def fetch(self, count: int) -> list[object]:
            return [(number, Reply(number, ANSWER, "", "", []), []) for number in range(count)]

    actor = ray.remote(Bare).options(num_cpus=0, max_concurrency=1000).remote()

    async def submitted(count: int) -> None:
        await actor.submit.remote("bare", [(number, "call", "execute", {"code": CODE}, None, {}) for number in range(count)])

    async def many(count: int) -> None:
        messages = {kind: min(count, counts[kind]) for kind in ("submit", "fetch")}
        counts.clear()
        print(f"    ray     {count} jobs in {messages['submit']} messages, answers in {messages['fetch']}")
        for size in _shares(count, messages["submit"]):
            await submitted(size)
        for size in _shares(count, messages["fetch"]):
            assert size == len(await actor.fetch.remote(size))

    async def one(_: str) -> Any:
        await submitted(1)
        await actor.fetch.remote(1)

    return many, one


def _shares(count: int, parts: int) -> list[int]:
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]


def cluster(socket: str, stack: contextlib.AsyncExitStack) -> bool:
    """Start Ray with one node for the daemon on *socket*; False where it isn't installed."""
    try:
        import ray  # an extra
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        return False
    made = Cluster()
    stack.callback(made.shutdown)
    made.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, env_vars={"LEEWARD_SOCKET": socket})
    ray.init(address=made.address, namespace="leeward", log_to_driver=False)
    stack.callback(ray.shutdown)
    return True


async def main(socket: str, jobs: int, rounds: int) -> None:
    async with sides(socket) as found:
        clock, spent, single = ({name: list[float]() for name in found} for _ in range(3))
        for number in range(rounds + 1):
            for name, (many, _) in found.items():
                start, used = time.perf_counter(), time.process_time()
                await many(jobs)
                if number:
                    clock[name].append((time.perf_counter() - start) / jobs * 1e3)
                    spent[name].append((time.process_time() - used) / jobs * 1e3)
        for _ in range(_SINGLE):
            for name, (_, one) in found.items():
                start = time.perf_counter()
                await one(CODE)
                single[name].append((time.perf_counter() - start) * 1e3)
    for name in found:
        print(f"{name:7}", *(f"{what} {median(rows[name]):7.3f} ms, least {min(rows[name]):7.3f};" for what, rows in (
            ("many", clock), ("processor", spent), ("one", single))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.socket, arguments.jobs, arguments.rounds))

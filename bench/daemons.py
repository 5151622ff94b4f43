"""
What is worth more to fresh jobs: one daemon, one with `shards`, or as many daemons of a part of the workers each; in turn.

    .venv/bin/python -m bench.daemons [--parts N] [--rounds R] [--jobs N] [--callers C] [--workers W]

All three have the same workers and callers; of several daemons each has its part of both, as a fleet gives them. Two
figures come out: jobs a second by the clock, which the processors of this machine bound; and the jobs that the busiest
process of a daemon's could serve in a second of its own processor time, which bounds a machine of many processors. Ratios
are medians of the rounds' ratios to one daemon, with the least and the most.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from bench.sandboxes import memory
from leeward.client.blocking import Client
from leeward_cli.bench.ours import armed, daemon, daemon_pid, rate


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """Jobs a second by the clock and by the busiest process, and the processor milliseconds of all for each job."""

    by_clock: float
    by_busiest: float
    spent_ms: float


def clocks(paths: list[str]) -> dict[int, float]:
    """Processor seconds of each process of the daemons."""
    found = {}
    for path in paths:
        with Client(path) as client:
            status = client.status()
        for pid in (status["pid"], *(shard["pid"] for shard in status.get("shards", ()))):
            found[pid] = time.clock_gettime(~pid << 3 | 2)
    return found


def turn(paths: list[str], callers: int, jobs: int, workers: int) -> MeasuredTurn:
    before, parts = clocks(paths), len(paths)
    start = time.perf_counter()
    with ThreadPoolExecutor(parts) as threads:
        list(threads.map(lambda path: rate(path, callers // parts, jobs // parts), paths))
    seconds = time.perf_counter() - start
    for path in paths:
        armed(path, workers // parts)
    spent = [now - before.get(pid, 0.0) for pid, now in clocks(paths).items()]
    return MeasuredTurn(jobs / seconds, jobs / max(spent), 1e3 * sum(spent) / jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("parts", 2), ("rounds", 12), ("jobs", 400), ("callers", 8), ("workers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        def start(workers: int, shards: int) -> str:
            return stack.enter_context(daemon(None, f"--pool-size={workers}", f"--shards={shards}"))

        sides = {"one": [start(given.workers, 1)], "shards": [start(given.workers, given.parts)],
                 "daemons": [start(given.workers // given.parts, 1) for _ in range(given.parts)]}
        with Client(sides["shards"][0]) as client:
            while sum(shard["state"] == "serving" for shard in client.status().get("shards", ())) < given.parts - 1:
                time.sleep(0.02)  # no event tells of it
        turns: dict[str, list[MeasuredTurn]] = {name: [] for name in sides}
        for number in range(-1, given.rounds):  # the first one warms up
            for name in sorted(sides, key=lambda name: hash((name, number))):
                measured = turn(sides[name], given.callers, given.jobs, given.workers)
                if number >= 0:
                    turns[name].append(measured)
        for name, paths in sides.items():
            print(f"{name:8} {sum(memory(daemon_pid(path)) for path in paths)} MiB, of which several processes share a part")
    for figure in ("by_clock", "by_busiest", "spent_ms"):
        for name, found in turns.items():
            values = [getattr(each, figure) for each in found]
            ratios = [value / getattr(one, figure) for value, one in zip(values, turns["one"], strict=True)]
            print(f"{figure:11} {name:8} {median(values):9.3f}  {median(ratios):.2f} x,"
                  f" {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()

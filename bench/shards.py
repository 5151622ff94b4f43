"""
What shards are worth: fresh jobs of 8 callers, by a daemon of one process and by one of several, in turn.

    .venv/bin/python bench/shards.py [--shards N] [--rounds R] [--jobs N] [--callers C] [--json]

Both daemons have the same number of workers. For each turn the processor time of every process of the daemon is read,
so two figures come out: jobs a second by the clock, which the processors of this machine bound, and the jobs that the
busiest process could serve in a second of its own processor time, which bounds a machine of many processors
(docs/decisions/0139). The ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from leeward.client.blocking import Client
from leeward_cli.bench.ours import armed, daemon, rate


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """
    Jobs a second: by the clock, and by the processor time of the process that used most of it; and the processor
    microseconds of all processes for each job.
    """

    by_clock: float
    by_busiest: float
    spent_us: float


def clocks(path: str) -> dict[int, float]:
    """Processor seconds of each process of the daemon."""
    with Client(path) as client:
        status = client.status()
    pids = [status["pid"], *(shard["pid"] for shard in status.get("shards", ()))]
    return {pid: time.clock_gettime(~pid << 3 | 2) for pid in pids}


def turn(path: str, callers: int, jobs: int, workers: int) -> MeasuredTurn:
    before = clocks(path)
    start = time.perf_counter()
    rate(path, callers, jobs)
    seconds = time.perf_counter() - start
    armed(path, workers)
    after = clocks(path)
    spent = [after[pid] - before.get(pid, 0.0) for pid in after]
    return MeasuredTurn(jobs / seconds, jobs / max(spent), 1e6 * sum(spent) / jobs)


def ready(path: str, shards: int) -> None:
    """Wait until all shards serve."""
    with Client(path) as client:
        while sum(shard["state"] == "serving" for shard in client.status().get("shards", ())) < shards - 1:
            time.sleep(0.02)  # no event tells of it


def measure(shards: int, rounds: int, jobs: int, callers: int, workers: int) -> list[tuple[MeasuredTurn, MeasuredTurn]]:
    """A turn of each daemon in each round, the first one first in even rounds."""
    pairs = []
    with contextlib.ExitStack() as stack:
        one, several = (stack.enter_context(daemon(None, f"--pool-size={workers}", f"--shards={count}"))
                        for count in (1, shards))
        ready(several, shards)
        for path in (one, several):
            turn(path, callers, 200, workers)
        for number in range(rounds):
            if number % 2 == 0:
                first = turn(one, callers, jobs, workers)
                pairs.append((first, turn(several, callers, jobs, workers)))
            else:
                second = turn(several, callers, jobs, workers)
                pairs.append((turn(one, callers, jobs, workers), second))
    return pairs


def rows(pairs: Sequence[tuple[MeasuredTurn, MeasuredTurn]]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name in ("by_clock", "by_busiest", "spent_us"):
        some = [(getattr(one, name), getattr(several, name)) for one, several in pairs]
        ratios = [several / one for one, several in some]
        found.append({"figure": name, "one": round(statistics.median(one for one, _ in some)),
                      "several": round(statistics.median(several for _, several in some)),
                      "ratio": round(statistics.median(ratios), 3), "least": round(min(ratios), 3),
                      "most": round(max(ratios), 3), "rounds": len(some)})
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = rows(measure(given.shards, given.rounds, given.jobs, given.callers, given.workers))
    if given.json:
        print(json.dumps(found))
        return 0
    about = {"by_clock": "jobs a second by the clock", "by_busiest": "jobs a second of the busiest process's own time",
             "spent_us": "processor us of all processes for a job"}
    for row in found:
        print(f"{about[str(row['figure'])]:50} one {row['one']:6}  several {row['several']:6}  {row['ratio']} x"
              f"  [{row['least']}, {row['most']}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())

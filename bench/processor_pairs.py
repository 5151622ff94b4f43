"""
The processor time of a fresh job in two trees, measured in pairs: what a change costs or gains.

    .venv/bin/python bench/processor_pairs.py TREE [OTHER] [--rounds R] [--jobs N] [--callers C] [--options O] [--json]

TREE and OTHER (this tree unless told) are folders with a `.venv` of their own, made by `./dev setup`; an older commit is
one by `git worktree add FOLDER COMMIT`. A daemon of each runs all the time, with a client of its own tree, whose time
isn't counted. In a round both have their turn of so many jobs, the first one first in even rounds. A turn ends when as
many runners are armed as before, so arming counts. leeward_cli/bench/spent.py says where the times come from; that of
keepers and runners is missing where no group counts it.

The result is the median of the rounds' ratios, OTHER over TREE, and the interval that holds the true median with
95 % probability, by the rounds' order alone. Other load slows both turns of a round alike; where it changes between
them the round's ratio is off, and the interval grows. Identical trees give 1 within the interval.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from leeward_cli.bench.spent import Spent, spent

#: Run by each tree's own interpreter: the daemon's pid on standard output, then a line for each turn.
_DRIVER = """
import sys
from leeward_cli.bench.ours import armed, daemon, daemon_pid, rate
callers, workers = int(sys.argv[1]), int(sys.argv[2])
with daemon(None, f"--pool-size={workers}", *sys.argv[3:]) as path:
    rate(path, callers, 200)
    armed(path, workers)
    print(daemon_pid(path), flush=True)
    for line in sys.stdin:
        rate(path, callers, int(line))
        armed(path, workers)
        print("done", flush=True)
"""

_WORKERS = 4

_PARTS = ("daemon", "workers", "both")


class Side:
    """One daemon of a tree with a `.venv`, and the client that gives it work."""

    def __init__(self, tree: str, callers: int, options: Sequence[str]) -> None:
        python = Path(tree, ".venv/bin/python").absolute()
        self._client = subprocess.Popen([python, "-P", "-c", _DRIVER, str(callers), str(_WORKERS), *options],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = int(self._answer())

    def _answer(self) -> str:
        assert self._client.stdout is not None
        line = self._client.stdout.readline()
        if not line:
            raise ChildProcessError("a daemon or its client has ended; it has said why")
        return line

    def work(self, jobs: int) -> None:
        assert self._client.stdin is not None
        self._client.stdin.write(f"{jobs}\n")
        self._client.stdin.flush()
        self._answer()

    def turn(self, jobs: int) -> Spent:
        """Run *jobs* jobs, and return the processor seconds of all."""
        before = spent(self.pid)
        self.work(jobs)
        after = spent(self.pid)
        if before is None or after is None:
            raise ChildProcessError(f"/proc doesn't tell the time of daemon {self.pid}")
        return after.since(before)

    def close(self) -> None:
        self._client.communicate()


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval between two of *values* that contains the true median with 95 % probability; None if there are too few."""
    count, below, ordered = len(values), 0.0, sorted(values)
    for rank in range(count):  # so many of `count` tosses of a coin are heads, or fewer
        below += math.comb(count, rank) / 2 ** count
        if below > 0.025:
            return (ordered[rank - 1], ordered[count - rank]) if rank else None
    return None


def compared(pairs: Sequence[tuple[Spent, Spent]], jobs: int) -> Iterator[dict[str, object]]:
    """For the daemon, the workers and both: the median microseconds of either side, and their ratio with its interval."""
    for part in _PARTS:
        some = [(first, second) for a, b in pairs
                if (first := getattr(a, part)) is not None and (second := getattr(b, part)) is not None]
        if not some:
            continue
        ratios = [second / first for first, second in some]
        first, second = (round(1e6 * statistics.median(side) / jobs) for side in zip(*some, strict=True))
        yield {"part": part, "tree_us": first, "other_us": second, "ratio": round(statistics.median(ratios), 3),
               "interval": [round(end, 3) for end in interval(ratios) or ()], "rounds": len(some)}


def turns(one: Side, other: Side, rounds: int, jobs: int) -> list[tuple[Spent, Spent]]:
    pairs = []
    for number in range(rounds):
        if number % 2 == 0:
            first = one.turn(jobs)
            pairs.append((first, other.turn(jobs)))
        else:
            second = other.turn(jobs)
            pairs.append((one.turn(jobs), second))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tree")
    parser.add_argument("other", nargs="?", default=str(Path(__file__).resolve().parent.parent))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200, help="of a turn")
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--options", default="", help="of both daemons, in one word")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        sides = []
        for tree in (options.tree, options.other):
            sides.append(Side(tree, options.callers, options.options.split()))
            stack.callback(sides[-1].close)
        rows = list(compared(turns(sides[0], sides[1], options.rounds, options.jobs), options.jobs))
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print("{part:8} {tree_us:6} us {other_us:6} us  ratio {ratio:.3f}  {interval}".format_map(row))
    if len(rows) < len(_PARTS):
        print("workers: no group counts their time alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())

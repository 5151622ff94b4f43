"""
The same programs on an idle machine and beside ten times its processors' load: how many verdicts differ.

    python bench/verdicts.py               # 2,000 programs, about an hour on two processors
    python bench/verdicts.py --count 40    # the short form

Each kind of program has one right verdict, by what it does: its own processor time and its sleeping, its memory, its
processes, its output. Load is a program for each processor, LOAD times over, that never stops. Every job has a limit of
processor time and a time limit that starvation stretches (`cpu_time`, `timeout`, `wall`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import leeward
from leeward_cli.bench.ours import daemon

#: Seconds of time limit and of processor time of each program, and by the wall's clock at most.
LIMIT_S, WALL_S = 1.0, 300.0
#: Programs of load for each processor.
LOAD = 10
#: Programs that run at once.
AT_ONCE = 8
#: The part of verdicts that has to be the same.
BAR = 0.999

_SPIN = "import time\nwhile time.process_time() < {}: pass\n"
_SLEEP = "import time\ntime.sleep({})\n"
_TWO = "import os\nchild = os.fork()\n"

#: Programs by kind, each with its outcome and the limit that it reaches, if any.
KINDS: Mapping[str, tuple[str, str, str | None]] = {
    "right": ("print(sum(range(1000)))", "finished", None),
    "wrong": ("raise SystemExit(3)", "finished", None),
    "raises": ("{}['x']", "raised", None),
    "slow, 0.9 of its limit": (_SPIN.format(0.9 * LIMIT_S), "finished", None),
    "slow, 1.5 of its limit": (_SPIN.format(1.5 * LIMIT_S), "timed_out", "cpu or time"),
    "sleeps 0.9 of its limit": (_SLEEP.format(0.9 * LIMIT_S), "finished", None),
    "sleeps 1.5 of its limit": (_SLEEP.format(1.5 * LIMIT_S), "timed_out", "time"),
    # Without controllers a limit on what it may reserve comes first, which raises MemoryError.
    "out of memory": ("held = []\nwhile True: held.append(b'x' * (1 << 20))", "out_of_memory or raised", "memory or "),
    "forks, 0.8 together": (_TWO + _SPIN.format(0.4 * LIMIT_S) + "child and os.waitpid(child, 0)", "finished", None),
    "prints much": ("print('x' * (11 << 20))", "output_limit", "output"),
    "killed by itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "signalled", None),
}


@dataclass
class VerdictTally:
    """Verdicts of one run: of all programs, and those that are no right ones, with what was measured."""

    count: int = 0
    seconds: float = 0.0
    wrong: list[tuple[str, str]] = field(default_factory=list)

    @property
    def part(self) -> float:
        return 1.0 - len(self.wrong) / max(1, self.count)


def told(result: leeward.Result | None, error: object) -> tuple[str, str | None]:
    return ("refused", str(error)) if result is None else (result.outcome.value, result.limit and result.limit.value)


def run(client: leeward.Client, count: int) -> VerdictTally:
    """Run *count* programs, the kinds in turn, and compare each verdict with that of its kind."""
    names = [list(KINDS)[number % len(KINDS)] for number in range(count)]
    tally, started = VerdictTally(), time.monotonic()
    for one in client.map([KINDS[name][0] for name in names], at_once=AT_ONCE, timeout=LIMIT_S, wall=WALL_S,
                          cpu_time=1.2 * LIMIT_S):
        outcome, limit = told(one.result, one.error)
        _, right, reached = KINDS[names[one.number]]
        tally.count += 1
        if outcome not in right.split(" or ") or (limit or "") not in (reached or "").split(" or "):
            tally.wrong.append((names[one.number], f"{outcome}, {limit}: {_figures(one.result)}"))
    tally.seconds = time.monotonic() - started
    return tally


def _figures(result: leeward.Result | None) -> str:
    return "" if result is None else (f"{result.duration:.2f} s, starved {result.starved or 0:.2f} s, processor"
                                      f" {result.cpu_time:.2f} s, {result.error and result.error.message}")


@contextlib.contextmanager
def loaded(times: int) -> Iterator[None]:
    """*times* programs for each processor that never stop."""
    programs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
                for _ in range(times * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Verdicts on an idle machine and beside load.")
    parser.add_argument("--count", type=int, default=2000, help="programs of each run")
    parser.add_argument("--load", type=int, default=LOAD, help="programs of load for each processor")
    asked = parser.parse_args(argv)
    met = True
    with daemon(None) as path, leeward.Client(path) as client:
        for load in (0, asked.load):
            with loaded(load):
                tally = run(client, asked.count)
            met = met and tally.part >= BAR
            print(f"load {load:2} for each processor: {tally.count} programs in {tally.seconds:.0f} s, {len(tally.wrong)}"
                  f" wrong verdicts, {tally.part:.2%} right", flush=True)
            for (name, what), times in Counter(tally.wrong).most_common(20):
                print(f"    {name}: {what}" + (f" ({times} times)" if times > 1 else ""))
    print(f"the bar, {BAR:.1%}, is {'met' if met else 'missed'}")
    return 0 if met else 1



if __name__ == "__main__":
    sys.exit(main())

"""Jobs per second of eight callers, beside other ways to run each job in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from bench.figures.row import FigureSettings, Row, missing, quotient
from leeward.errors import LeewardError
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.figures import rate as as_rate
from leeward_cli.bench.floors import CODE, CONFINED, FORK, PRINTED
from leeward_cli.bench.ours import OURS, daemon, rate
from leeward_cli.bench.rounds import CALLERS, timed

_WORDS = "fresh jobs per second, 8 callers, over "

#: Clones of a process that runs the code in each; in a process of its own, for it is about to fork.
_CLONES = """
import json, sys, time
from sandlock import Sandbox
folders, code, count = json.loads(sys.argv[1])
run = compile(code, "<string>", "exec")
box = Sandbox(fs_readable=folders, fs_writable=["/tmp"], init_fn=lambda: exec(run, {}),
              work_fn=lambda number: exec(compile(code, "<string>", "exec"), {"__name__": "__main__"}))
start = time.perf_counter()
clones = box.fork(count)
printed = box.reduce(["/bin/cat"], clones).stdout
print(json.dumps([time.perf_counter() - start, printed.decode()]))
"""


def measure(settings: FigureSettings) -> Sequence[Row]:
    why: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        fork, confined = stack.enter_context(floors.fork()), stack.enter_context(floors.confined())
        bursts: dict[str, tuple[int, Callable[[], float]]] = {
            OURS: (200, lambda: timed(lambda: rate(path, CALLERS, 200))),
            FORK: (200, lambda: timed(lambda: fork.rate(CALLERS, 200))),
        }
        try:
            confined.call()
            bursts[CONFINED] = 200, lambda: timed(lambda: confined.rate(CALLERS, 200))
        except LeewardError as reason:  # no namespaces for this user, say
            why[CONFINED] = str(reason)
        try:
            bwrap = stack.enter_context(alternatives.bubblewrap())
            bursts["bwrap"] = 24, lambda: timed(lambda: bwrap.rate(CALLERS, 24))
        except alternatives.Missing as reason:
            why["bwrap"] = str(reason)
        try:
            clones(8)
            bursts["sandlock"] = 100, lambda: clones(100)
        except alternatives.Missing as reason:
            why["sandlock"] = str(reason)
        rates: dict[str, list[float]] = {name: [] for name in bursts}
        for _ in range(settings.some(12)):
            for name, (jobs, seconds) in bursts.items():
                rates[name].append(jobs / seconds())

    def row(words: str, under: str, target: float | None, note: str = "", over: str = OURS) -> Row:
        words = _WORDS + words if over == OURS else f"{over} over {words}"
        if under in why or over in why:
            return missing(words, target, why.get(under) or why[over], at_most=False)
        measured: list[dict[str, Any]] = [
            {"unit": "jobs/s", **asdict(as_rate(name, CALLERS, bursts[name][0], rates[name]))}
            for name in (over, under)]
        return Row(words, quotient(rates[over], rates[under]), "x", target, False, measured, note)

    return [
        row("a fork on request without isolation", FORK, 0.6),
        row("a fork on request into namespaces, behind a filter", CONFINED, None),
        row("one without isolation", FORK, None, over=CONFINED),
        row("bubblewrap + python3 -I -S -c", "bwrap", 6),
        row("sandlock's fork()", "sandlock", 1.5, "100 clones by one call, and their output read; no namespaces"),
    ]


def clones(count: int) -> float:
    """The seconds that *count* of sandlock's clones take; alternatives.Missing if it doesn't work here."""
    given = json.dumps([alternatives.readable(), CODE, count])
    got = subprocess.run([sys.executable, "-c", _CLONES, given], capture_output=True, text=True, check=False,
                         stdin=subprocess.DEVNULL)
    if got.returncode:
        raise alternatives.Missing("sandlock: " + (got.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    seconds, printed = json.loads(got.stdout.splitlines()[-1])
    if printed != PRINTED.decode() * count:
        raise LeewardError(f"bench: {count} clones of sandlock printed {printed[:80]!r}")
    return float(seconds)

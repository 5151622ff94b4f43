"""
Throughput of fresh jobs: one caller without pauses, the bound by the daemon's one thread, and page faults, which need
root, perf(1) with tracepoints and a C compiler.

`rates` has jobs per second beside the floors, `fresh` calls with pauses, `memory` what a worker takes.
bench/processor_pairs.py compares the processor time of a job with that of an older commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import counts
from bench.figures.row import FigureSettings, Row, absolute, missing, spread
from leeward.client.blocking import Client
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE
from leeward_cli.bench.ours import armed, daemon, daemon_pid, fresh, good, rate
from leeward_cli.bench.rounds import CALLERS, no_collections
from leeward_cli.bench.rounds import row as calls_of
from leeward_cli.bench.spent import spent

_FAULTS = "page faults of a fresh job, arming included, 8 callers"

#: Jobs of a turn, and the daemon's workers.
_JOBS, _WORKERS = 200, 4


def measure(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None, f"--pool-size={_WORKERS}") as path:
        with Client(path) as client:
            def opened() -> None:
                with client.session() as session:
                    good(session.execute(CODE))

            rows = [_p50("p50 of a fresh job, one caller without a pause", fresh(client).call, settings),
                    _p50("opening a session and one job in it, one caller without a pause", opened, settings)]
        rows.append(_carried(path, settings))
    return [*rows, _faults()]


def _p50(words: str, call: Callable[[], None], settings: FigureSettings) -> Row:
    for _ in range(50):
        call()
    with no_collections():
        found = [calls_of(call, 50, 0.0) for _ in range(settings.rounds)]
    return absolute(words, found, "ms", 1.5, "")


def _carried(path: str, settings: FigureSettings) -> Row:
    """Compute the rate from the daemon's own processor time, because on two processors the workers are the bottleneck."""
    words, rates, pid = "fresh jobs per second that the daemon's thread can carry", list[float](), daemon_pid(path)
    for _ in range(settings.some(10)):
        armed(path, _WORKERS)
        before = spent(pid)
        rate(path, CALLERS, 5 * _JOBS)
        armed(path, _WORKERS)
        after = spent(pid)
        if before is None or after is None or after.daemon == before.daemon:
            return missing(words, 2000, "/proc doesn't tell the daemon's time", at_most=False)
        rates.append(5 * _JOBS / after.since(before).daemon)
    return Row(words, round(percentile(rates, 50)), "/s", 2000, at_most=False,
               measured=[spread("daemon", "jobs/s", rates, 0, at_most=False)],
               note="by the processor time of all its threads, with the bookkeeping of a job's end and arming")


def _faults() -> Row:
    if os.geteuid() or not shutil.which("perf") or not shutil.which("cc"):
        return missing(_FAULTS, 60, "needs root, perf and a C compiler")
    try:
        found = counts.of_tree(str(Path(__file__).resolve().parents[2]), _JOBS)
    except OSError as error:
        return missing(_FAULTS, 60, f"perf: {error}")
    return Row(_FAULTS, found["faults"].get("runner"), "faults", 60, note="of its process, from clone to end")

"""The start of a daemon: the time to its first answer, its processor time, and the time until a large pool is armed."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures.row import FigureSettings, Row, quotient, times
from leeward.client.blocking import Client
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import Spawn, interpreter
from leeward_cli.bench.ours import armed, daemon, daemon_pid, fresh
from leeward_cli.bench.rounds import timed

#: Workers of the large pool.
_MANY = 100


def measure(settings: FigureSettings) -> Sequence[Row]:
    nothing = Spawn("python3 -c pass", [interpreter(), "-c", "pass"], printed=b"")
    # The daemon's own environment: what others have installed for an interpreter may run at each of its starts.
    same = Spawn("python3 -c pass, in the daemon's environment", [sys.executable, "-c", "pass"], printed=b"")
    answers, passes, pools, starts, idle = [], [], [], [], []
    timed(nothing.call)
    for _ in range(settings.some(10)):
        passes.append(percentile([timed(nothing.call) for _ in range(5)], 50))
        answers.append(_answer())
        before = _of_children()
        for _ in range(5):
            same.call()
        idle.append((_of_children() - before) / 5)
        starts.append(_processor_time())
    for _ in range(settings.some(3)):
        start = time.perf_counter()
        with daemon(None, f"--pool-size={_MANY}", "--spares=0") as path:
            pools.append(armed(path, _MANY) - start)
    return [
        Row("daemon start to first answer over python3 -c pass", quotient(answers, passes), "x", 8,
            measured=[times("start to answer", [answers]), times(nothing.name, [passes])]),
        Row("processor time of a daemon until it is ready over python3 -c pass there", quotient(starts, idle), "x", 8,
            measured=[times("a daemon without its zygote", [starts]), times(same.name, [idle])]),
        Row(f"start of a daemon to a pool of {_MANY} armed", round(percentile(pools, 50), 2), "s", 1,
            measured=[times("start to armed", [pools])]),
    ]


def _answer() -> float:
    start = time.perf_counter()
    with daemon(None) as path, Client(path) as client:
        fresh(client).call()
        return time.perf_counter() - start


def _processor_time() -> float:
    """Seconds of all threads of a daemon that has just become ready."""
    with daemon(None) as path:
        threads = Path(f"/proc/{daemon_pid(path)}/task")
        return sum(int((threads / name / "schedstat").read_text().split()[0]) for name in os.listdir(threads)) / 1e9


def _of_children() -> float:
    """Seconds of processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

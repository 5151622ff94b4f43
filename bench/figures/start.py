"""
The start of a daemon: the time to its first answer, its processor time, and the time until a large pool is armed.

Runs in:   a developer's shell.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures.row import FigureSettings, Row, times
from bench.figures.turns import quotient
from leeward.client.blocking import Client
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import Spawn, interpreter
from leeward_cli.bench.ours import LeewardSubject, armed, daemon_pid, started
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
        with started(f"--pool-size={_MANY}", "--spares=0") as (path, start):
            pools.append(armed(path, _MANY) - start)
    return [
        Row("daemon start to first answer over python3 -c pass", quotient(answers, passes), "x", 8,
            measured=[times("start to answer", 0, [answers]), times(nothing.name, 0, [passes])]),
        Row("processor time of a daemon until it is ready over python3 -c pass there", quotient(starts, idle), "x", 8,
            measured=[times("a daemon without its zygote", 0, [starts]), times(same.name, 0, [idle])]),
        Row(f"start of a daemon to a pool of {_MANY} armed", round(percentile(pools, 50), 2), "s", 1,
            measured=[times("start to armed", 0, [pools])]),
    ]


def _answer() -> float:
    with started() as (path, start), Client(path) as client:
        LeewardSubject(client).call()
        return time.perf_counter() - start


def _processor_time() -> float:
    """Seconds of all threads of a daemon that has just become ready."""
    with started() as (path, _):
        threads = Path(f"/proc/{daemon_pid(path)}/task")
        return sum(int((threads / name / "schedstat").read_text().split()[0]) for name in os.listdir(threads)) / 1e9


def _of_children() -> float:
    """Seconds of processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

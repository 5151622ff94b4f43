"""
How soon a daemon answers, and a large pool is armed.

Runs in:   a developer's shell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.figures.row import Ground, Row, times
from bench.figures.turns import quotient
from leeward.client.blocking import Client
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import Spawn, interpreter
from leeward_cli.bench.ours import LeewardSubject, armed, started
from leeward_cli.bench.rounds import timed

#: Workers of the large pool.
_MANY = 100


def measure(ground: Ground) -> Sequence[Row]:
    nothing = Spawn("python3 -c pass", [interpreter(), "-c", "pass"], printed=b"")
    answers, passes, pools = [], [], []
    timed(nothing.call)
    for _ in range(ground.some(10)):
        passes.append(percentile([timed(nothing.call) for _ in range(5)], 50))
        answers.append(_answer())
    for _ in range(ground.some(3)):
        with started(f"--pool-size={_MANY}", "--spares=0") as (path, start):
            pools.append(armed(path, _MANY) - start)
    return [
        Row("daemon start to first answer over python3 -c pass", quotient(answers, passes), "x", 8,
            measured=[times("start to answer", 0, [answers]), times(nothing.name, 0, [passes])]),
        Row(f"start of a daemon to a pool of {_MANY} armed", round(percentile(pools, 50), 2), "s", 1,
            measured=[times("start to armed", 0, [pools])]),
    ]


def _answer() -> float:
    with started() as (path, start), Client(path) as client:
        LeewardSubject(client).call()
        return time.perf_counter() - start

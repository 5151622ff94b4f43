"""
Jobs of a session, which keeps its state between them.

Runs in:   the CLI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from leeward_cli.bench import alternatives
from leeward_cli.bench.figures import rate
from leeward_cli.bench.rounds import timed
from leeward_cli.bench.table.row import Ground, Row, missing

_MONTY = "jobs per second in one session of monty"

#: Jobs of a turn.
_JOBS = 500


def measure(ground: Ground) -> Sequence[Row]:
    return [_monty(ground)]


def _monty(ground: Ground) -> Row:
    """
    What sessions of ours are to be a multiple of. A session of monty has one caller.
    """
    try:
        with alternatives.monty_session() as monty:
            def burst() -> None:
                for _ in range(_JOBS):
                    monty.call()

            rates = [_JOBS / timed(burst) for _ in range(ground.some(10))]
    except alternatives.Missing as why:
        return missing(_MONTY, None, str(why))
    row = rate(monty.name, 1, _JOBS, rates)
    return Row(_MONTY, row.p50, "jobs/s", None, measured=[{"unit": "jobs/s", **asdict(row)}])

"""Jobs of a session, which keeps its state between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bench.figures.row import FigureSettings, Row, compared, in_turn, missing, quotient, times
from leeward.client.blocking import Client
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.figures import percentile, rate
from leeward_cli.bench.floors import THROUGH, Subject
from leeward_cli.bench.ours import burst, daemon, in_session, sessions
from leeward_cli.bench.rounds import CALLERS, GAP_S, timed

_MANY = "jobs per second in sessions, 8 callers, over one session of monty"

#: Jobs of a turn.
_JOBS = 500

#: The target for a job in a session: so many times the floor, and seconds for the code itself.
_TIMES, _OWN_S = 1.3, 15e-6


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [*_one(settings), _many(settings)]


def _one(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        client = stack.enter_context(Client(path))
        ours = in_session(stack.enter_context(client.session()))
        hops = stack.enter_context(floors.hops("four", settings.program))
        subjects: list[Subject] = [ours, hops]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.through(settings.program)))
        found = in_turn(subjects, settings.rounds, 20)
    allowed = [_TIMES * percentile(some, 50) + _OWN_S for some in found[hops.name]]
    return [
        Row(f"p50 in a session, over {_TIMES:g} x four hops and {_OWN_S * 1e6:g} us",
            quotient([percentile(some, 50) for some in found[ours.name]], allowed), "x", 1,
            measured=[times(each.name, found[each.name], GAP_S) for each in (ours, hops)]),
        *(compared(f"p50 in a session over {THROUGH}", found, ours.name, THROUGH, None) for _ in subjects[2:]),
    ]


def _many(settings: FigureSettings) -> Row:
    """A session of monty has one caller; eight of ours are eight processes."""
    with contextlib.ExitStack() as stack:
        try:
            monty = stack.enter_context(alternatives.monty_session())
        except alternatives.Missing as why:
            return missing(_MANY, 4, str(why), at_most=False)
        path = stack.enter_context(daemon(None, f"--pool-size={2 * CALLERS}", "--spares=0"))
        talks = stack.enter_context(sessions(path, CALLERS))

        def calls() -> None:
            for _ in range(_JOBS):
                monty.call()

        bursts: dict[str, Callable[[], None]] = {"leeward, 8 sessions": lambda: burst(talks, _JOBS), monty.name: calls}
        rates: dict[str, list[float]] = {name: [] for name in bursts}
        for _ in range(settings.some(10)):
            for name, call in bursts.items():
                rates[name].append(_JOBS / timed(call))
    ours, theirs = rates
    return Row(_MANY, quotient(rates[ours], rates[theirs]), "x", 4, at_most=False,
               measured=[{"unit": "jobs/s", **asdict(rate(name, 1 if name == theirs else CALLERS, _JOBS, some))}
                         for name, some in rates.items()])

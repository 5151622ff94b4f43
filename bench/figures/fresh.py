"""
A fresh job over one connection, with idle time between calls.

Runs in:   a developer's shell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, missing, times
from bench.figures.turns import beside, in_turn
from leeward.client.blocking import Client
from leeward_cli.bench import alternatives, floors, native
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import Subject
from leeward_cli.bench.ours import LeewardSubject, daemon
from leeward_cli.bench.rounds import GAP_S

_MONTY = "p50 of a fresh job over that of a new session of monty"


def measure(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        hops = stack.enter_context(floors.Hops("four", settings.program))
        subjects: list[Subject] = [LeewardSubject(stack.enter_context(Client(path))), hops]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.Through(settings.program)))
        from_c = stack.enter_context(native.connected(path))
        subjects += [] if from_c is None else [from_c]
        try:
            monty: Subject | None = stack.enter_context(alternatives.monty())
            why = ""
        except alternatives.Missing as reason:
            monty, why = None, str(reason)
        subjects += [] if monty is None else [monty]
        found = in_turn(subjects, settings.rounds, 20, GAP_S)

    def row(subject: str) -> dict[str, object]:
        return times(subject, GAP_S, found[subject])

    rows = [Row("p50 of a fresh job, 5 ms idle between calls, over four hops",
                beside(found, LeewardSubject.name, hops.name), "x", 1.5,
                measured=[row(LeewardSubject.name), row(hops.name)],
                note="called from Python")]
    if from_c is not None:
        rows.append(Row("the same, called from C", beside(found, from_c.name, hops.name), "x", 1.5,
                        measured=[row(from_c.name), row(hops.name)]))
    if settings.program is not None:
        warm = floors.Through.name
        rows += [Row(f"p50 of a fresh job over {warm}", beside(found, LeewardSubject.name, warm), "x", None,
                     measured=[row(LeewardSubject.name), row(warm)]),
                 Row("that floor over four hops", beside(found, warm, hops.name), "x", None,
                     measured=[row(warm), row(hops.name)])]
    rows.append(missing(_MONTY, 0.5, why) if monty is None else
                Row(_MONTY, beside(found, LeewardSubject.name, monty.name), "x", 0.5,
                    measured=[row(LeewardSubject.name), row(monty.name)]))
    calls = [each for some in found[LeewardSubject.name] for each in some]
    rows.append(Row("p99 of a fresh job over its p50", round(percentile(calls, 99) / percentile(calls, 50), 2), "x", 4,
                    measured=[row(LeewardSubject.name), row(hops.name)],
                    note="the floor's own is "
                         f"{times('', 0, found[hops.name])['p99'] / times('', 0, found[hops.name])['p50']:.1f} x"))
    return rows

"""A fresh job over one connection, with idle time between calls."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, compared, in_turn, missing, times
from leeward.client.blocking import Client
from leeward_cli.bench import alternatives, floors, ours
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import FOUR_HOPS, THROUGH, Subject
from leeward_cli.bench.ours import OURS
from leeward_cli.bench.rounds import GAP_S

_MONTY = "p50 of a fresh job over that of a new session of monty"


def measure(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(ours.daemon(None))
        subjects: list[Subject] = [ours.fresh(stack.enter_context(Client(path))),
                                   stack.enter_context(floors.hops("four", settings.program))]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.through(settings.program)))
        native = stack.enter_context(ours.from_c(path))
        try:
            monty: Subject | None = stack.enter_context(alternatives.monty())
            why = ""
        except alternatives.Missing as reason:
            monty, why = None, str(reason)
        subjects += [each for each in (native, monty) if each is not None]
        found = in_turn(subjects, settings.rounds, 20)

    rows = [compared("p50 of a fresh job, 5 ms idle between calls, over four hops", found, OURS, FOUR_HOPS, 1.5,
                     note="called from Python")]
    if native is not None:
        rows.append(compared("the same, called from C", found, native.name, FOUR_HOPS, 1.5))
    if settings.program is not None:
        rows += [compared(f"p50 of a fresh job over {THROUGH}", found, OURS, THROUGH, None),
                 compared("that floor over four hops", found, THROUGH, FOUR_HOPS, None)]
    rows.append(missing(_MONTY, 0.5, why) if monty is None else compared(_MONTY, found, OURS, monty.name, 0.5))
    calls = [each for some in found[OURS] for each in some]
    own, floor = times(OURS, found[OURS], GAP_S), times(FOUR_HOPS, found[FOUR_HOPS], GAP_S)
    rows.append(Row("p99 of a fresh job over its p50", round(percentile(calls, 99) / percentile(calls, 50), 2), "x", 4,
                    measured=[own, floor], note=f"the floor's own is {floor['p99'] / floor['p50']:.1f} x"))
    return rows

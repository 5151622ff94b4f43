"""
`leeward exec` and `leeward run` as whole processes.

Runs in:   a developer's shell.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, missing, times
from bench.figures.turns import beside, in_turn
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.floors import CODE, Spawn
from leeward_cli.bench.ours import daemon, program
from leeward_cli.bench.rounds import GAP_S

_COLD = "leeward run (cold, everything) over bubblewrap + python3 -I -S -c"

#: The imports of the part of `leeward run` that serves as its daemon. The other part, a zygote, starts at the same
#: time.
_IMPORTS = "import leeward_cli.main, leeward_cli.cold, leeward_cli.once"


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [*_exec(settings), *_run(settings)]


def _environment(**more: str) -> dict[str, str]:
    return {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ} | more


def _exec(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path:
        ours = Spawn("leeward exec", [program(), "exec", CODE], _environment(LEEWARD_SOCKET=path))
        echo = floors.echo()
        with alternatives.plain_python() as python:
            found = in_turn([ours, echo, python], settings.some(20), 5, GAP_S)
    rows = {name: times(name, GAP_S, found[name]) for name in (ours.name, echo.name, python.name)}
    return [
        Row("leeward exec as a process over /bin/echo", beside(found, ours.name, echo.name), "x", 2.5,
            measured=[rows[ours.name], rows[echo.name]]),
        Row("python3 -c over leeward exec", beside(found, python.name, ours.name), "x", 2, at_most=False,
            measured=[rows[python.name], rows[ours.name]], note="several times faster was asked for: twice at least"),
    ]


def _run(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        try:
            bwrap = stack.enter_context(alternatives.bubblewrap())
        except alternatives.Missing as why:
            return [missing(_COLD, 1.3, str(why))]
        ours = Spawn("leeward run", [program(), "run", CODE], _environment())
        imports = Spawn("its imports, and the code", [sys.executable, "-P", "-c", f"{_IMPORTS}\n{CODE}"],
                        _environment())
        found = in_turn([ours, bwrap, imports], settings.some(10), 2, GAP_S)

    def row(words: str, under: str, target: float | None) -> Row:
        return Row(words, beside(found, ours.name, under), "x", target,
                   measured=[times(name, GAP_S, found[name]) for name in (ours.name, under)])

    return [row(_COLD, bwrap.name, 1.3),
            row("leeward run over an interpreter that imports what it needs, and runs the code", imports.name, None)]

"""`leeward exec` and `leeward run` as whole processes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, compared, in_turn, missing
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.floors import CODE, Spawn
from leeward_cli.bench.ours import daemon, program

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
            found = in_turn([ours, echo, python], settings.some(20), 5)
    return [
        compared("leeward exec as a process over /bin/echo", found, ours.name, echo.name, 2.5),
        compared("python3 -c over leeward exec", found, python.name, ours.name, 2, at_most=False,
                 note="several times faster was asked for: twice at least"),
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
        found = in_turn([ours, bwrap, imports], settings.some(10), 2)
    return [compared(_COLD, found, ours.name, bwrap.name, 1.3),
            compared("leeward run over an interpreter that imports what it needs, and runs the code", found, ours.name,
                     imports.name, None)]

"""
`leeward bench`: the cost of a job on this machine, compared with lower bounds and alternatives.

Runs in:   the CLI, which is the client that is measured.

    figures       percentiles, ratios, noise; pure
    machine       a description of the machine, and the load of other processes meanwhile
    floors        ping-pong and process starts without leeward, each a `Subject`
    floors.c      the hops in C, and a bare supervisor; compiled.py compiles it
    peers         the processes at the other end of the floors
    alternatives  other ways to run code, if they are installed
    ours          leeward itself: a daemon for the bench, one connection, 8 callers
    native        leeward called from C
    spent         the processor time of leeward's processes
    rounds        the interleaved run
    report, plot  the findings as text, and as a picture
    table         the figures to reach, one module for each group
"""

from __future__ import annotations

import contextlib
import json
import math
import sys

from leeward_cli.bench.ours import daemon
from leeward_cli.bench.plot import svg
from leeward_cli.bench.report import findings, text
from leeward_cli.bench.rounds import measure

#: Without --rounds: on a quiet machine there are 800 calls of leeward, 8 of them at or above the p99. No round
#: starts after SECONDS, so that the bench takes less than two minutes.
ROUNDS, SECONDS = 40, 75.0


#: Options that switch optimisations of the daemon off, to measure the gain of each.
LEVELS = (("--io=socket",), ("--no-fast-path",), ("--no-rehearse",), ("--spares=0",),
          ("--io=socket", "--no-fast-path", "--no-rehearse", "--spares=0"))


def run(socket: str | None, rounds: int | None, as_json: bool, levels: bool = False, plot: str | None = None) -> None:
    """
    Measure, and print the findings.

    Args:
        socket: the socket of a running daemon; None to start one for the bench.
        rounds: the number of rounds; None for ROUNDS, or as many as SECONDS allow.
        levels: also measure daemons with the options of LEVELS.
        plot: the path of a file to which a picture is written, as SVG.

    Raises:
        OSError: the picture can't be written.
        LeewardError: there is no daemon, or a subject gives a wrong answer.
    """
    shown = not as_json and sys.stderr.isatty()

    def progress(done: int) -> None:
        if shown:
            print(f"\rround {done}", end="", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        picture = None if plot is None else stack.enter_context(open(plot, "w", encoding="utf-8"))
        path = stack.enter_context(daemon(socket))
        others = {" ".join(options): stack.enter_context(daemon(None, *options)) for options in LEVELS if levels}
        found = findings(measure(path, rounds or ROUNDS, math.inf if rounds else SECONDS, progress, others))
        if picture is not None:
            picture.write(svg(found))
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(json.dumps(found) if as_json else text(found), end="\n" if as_json else "", flush=True)

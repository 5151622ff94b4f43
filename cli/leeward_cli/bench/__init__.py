"""
`leeward bench`: what a job costs on this machine, beside lower bounds and alternatives.

Runs in:   the CLI, which is the client that is measured.

    figures       percentiles, ratios, noise; pure
    machine       what it is, and what others did to it meanwhile
    floors        ping-pong and process starts without leeward, each a `Subject`
    floors.c      the hops in C, and a bare supervisor; compiled.py compiles it
    peers         the processes at the other end of the floors
    alternatives  what people would use instead, as far as it is installed
    ours          the subject itself: a daemon of its own, one connection, 8 callers
    native        the same from C
    spent         the processor time of its processes
    rounds        the interleaved run
    report, plot  the findings as text, and as a picture
    table         the figures to reach, one module a group
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

#: Without --rounds: 800 calls of leeward where the machine is quiet, 8 of them at or above its
#: p99; and no further round after so many seconds, so that all is done within two minutes.
ROUNDS, SECONDS = 40, 75.0


#: What each level of the daemon is worth: the same without it.
LEVELS = (("--io=socket",), ("--no-fast-path",), ("--no-rehearse",), ("--spares=0",),
          ("--io=socket", "--no-fast-path", "--no-rehearse", "--spares=0"))


def run(socket: str | None, rounds: int | None, as_json: bool, levels: bool = False, plot: str | None = None) -> None:
    """
    Measure and print.

    Args:
        socket: of a running daemon; None starts one for the bench.
        rounds: None for ROUNDS, or as many as SECONDS allow.
        levels: measure daemons without this and that beside it.
        plot: a file for a picture of it, SVG.

    Raises:
        OSError: the picture can't be written.
        LeewardError: no daemon, or a wrong answer from anybody who is measured.
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

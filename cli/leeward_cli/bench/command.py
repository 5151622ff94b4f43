"""`leeward bench` on the command line."""

from __future__ import annotations

import contextlib
import json
import math
import sys

import click

from leeward.errors import LeewardError
from leeward_cli.bench.ours import daemon
from leeward_cli.bench.report import findings, svg, text
from leeward_cli.bench.rounds import measure
from leeward_cli.click_options import socket_option

#: Without --rounds: on a quiet machine there are 800 calls of leeward, 8 of them at or above the p99. No round
#: starts after SECONDS, so that the bench takes less than two minutes.
ROUNDS, SECONDS = 40, 75.0

#: Options that switch optimisations of the daemon off, to measure the gain of each.
LEVELS = (("--io=socket",), ("--no-fast-path",), ("--no-rehearse",), ("--spares=0",),
          ("--io=socket", "--no-fast-path", "--no-rehearse", "--spares=0"))


def run(socket: str | None, rounds: int | None, as_json: bool, levels: bool = False, plot: str | None = None) -> None:
    """Measure, and print the findings; the options of `bench` say how. OSError: the picture can't be written."""
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


@click.command()
@click.option("--rounds", type=click.IntRange(1, 10_000), metavar="N",
              help="Rounds to measure; more are more exact.  [default: 40, or as many as fit into 75 s]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@socket_option("Measure this daemon; by default one is started.")
@click.option("--levels", is_flag=True, help="Also measure daemons with each optimisation switched off.")
@click.option("--plot", metavar="FILE", help="Also draw the results, as SVG.")
def bench(rounds: int | None, as_json: bool, socket: str | None, levels: bool, plot: str | None) -> None:
    """Measure a fresh job, beside lower bounds and alternatives, in turn."""
    try:
        run(socket, rounds, as_json, levels, plot)
    except OSError as error:
        raise LeewardError(f"bench: {error}") from None

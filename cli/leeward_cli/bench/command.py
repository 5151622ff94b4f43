"""
`leeward bench` on the command line.

Runs in:   the CLI, by click.
"""

from __future__ import annotations

import click

from leeward.errors import LeewardError
from leeward_cli import bench as measuring
from leeward_cli.click_options import socket_option


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
        measuring.run(socket, rounds, as_json, levels, plot)
    except OSError as error:
        raise LeewardError(f"bench: {error}") from None

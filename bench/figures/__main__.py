"""The command line of `./dev figures`."""

from __future__ import annotations

import sys

import click

from bench.figures import GROUPS, run
from leeward.errors import LeewardError


@click.command(help=f"Measure GROUPS of the table of goals, or all of them: {', '.join(GROUPS)}.")
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option("--rounds", type=click.IntRange(1, 10_000), metavar="N", help="Rounds to measure; more are more exact.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(groups: tuple[str, ...], rounds: int | None, as_json: bool) -> None:
    unknown = [name for name in groups if name not in GROUPS]
    if unknown:
        raise click.UsageError(f"no such group: {unknown[0]!r}; there are {', '.join(GROUPS)}")
    try:
        run(groups or tuple(GROUPS), rounds, as_json)
    except LeewardError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    sys.exit(main(prog_name="./dev figures"))

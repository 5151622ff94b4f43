"""The options of `leeward_cli.options` as click's: for help, completion and usage errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from leeward_cli import options
from leeward_cli.options import OPTIONS, USAGE, Option, UsageError, parse


class Tabled(click.Command):
    """A command whose options are in the table: parsed as where it runs without click; click shows the help."""

    def __init__(self, command: str, **settings: Any) -> None:
        self._command = command
        super().__init__(command.rpartition(" ")[2], params=[_of_click(option) for option in OPTIONS[command]], **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing or not {*args}.isdisjoint(ctx.help_option_names):
            return super().parse_args(ctx, args)
        try:
            ctx.params = parse(self._command, args).parameters()
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from None
        return []

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"Usage: {USAGE[self._command]}\n")


def _of_click(option: Option) -> click.Option:
    names = [*([option.short] if option.short else []), option.name, option.parameter]
    if option.kind is options.flag:
        if option.off:
            names[-2] = f"{option.name}/--no-{option.name[2:]}"
        return click.Option(names, is_flag=True, default=None, help=option.help, hidden=not option.help)
    kind = click.Choice(option.kind) if isinstance(option.kind, tuple) else str
    return click.Option(names, type=kind, metavar=option.value or None, multiple=option.many, help=option.help,
                        hidden=not option.help)


def socket_option(about: str = options.SOCKET.help) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("-s", "--socket", metavar="PATH", help=about)


SOCKET = socket_option()
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
JSON_LINES = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
FOLLOW = click.option("-f", "--follow", is_flag=True, help="Follow: show what is added, until Ctrl-C.")
TERMINAL = click.option("--terminal/--no-terminal", default=None,
                        help="Give COMMAND a terminal.  [default: if standard input and output are terminals]")
RAW = click.option("--raw", is_flag=True, help="Without a terminal inside: don't escape control characters.")

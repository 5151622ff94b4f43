"""What this command adds to click: options of the table `leeward_cli.options`, shared options, messages of errors."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from leeward.errors import LeewardError
from leeward_cli import options
from leeward_cli.interrupts import die_by
from leeward_cli.messages import FULL, complain, complain_of_system, encoded, escape
from leeward_cli.options import OPTIONS, USAGE, Option, UsageError, parse


class CommandGroup(click.Group):
    """A group whose help has the first sentence of each command, whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_commands(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_commands(self, ctx: click.Context, formatter: click.HelpFormatter, title: str, names: Iterable[str]) -> None:
        found = [(name, self.get_command(ctx, name)) for name in names]
        with formatter.section(title):
            formatter.write_dl([(name, sentence(command)) for name, command in found if command is not None])


def sentence(command: click.Command) -> str:
    """What *command* does: the first sentence of its help."""
    paragraph = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z])", paragraph)[0]


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
JSON_ALL = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
JSON_LINES = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
CONFIG = click.option("--config", "config_file", metavar="FILE", help="Read this configuration as well.")
FOLLOW = click.option("-f", "--follow", is_flag=True, help="Follow: show what is added, until Ctrl-C.")
TERMINAL = click.option("--terminal/--no-terminal", default=None,
                        help="Give COMMAND a terminal.  [default: if standard input and output are terminals]")
RAW = click.option("--raw", is_flag=True, help="Without a terminal inside: don't escape control characters.")


# --- running ------------------------------------------------------------------


def run_group(group: click.Group, argv: Sequence[str]) -> int:
    try:
        status = group.main(args=list(argv), prog_name="leeward", standalone_mode=False)
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return die_by("SIGINT")
    except LeewardError as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain_of_system(error)
        if error.errno in FULL and error.filename is None:
            # At its end the interpreter writes what is still buffered, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return 1
    return status if isinstance(status, int) else 0


def _show(error: click.ClickException) -> None:
    """Show a mistake in the command line as click does, without what a terminal would interpret."""
    said = io.StringIO()
    if (isinstance(error, click.NoSuchOption) and error.ctx is not None and not error.possibilities
            and any("-- " in piece for piece in error.ctx.command.collect_usage_pieces(error.ctx))):
        error = click.NoSuchOption(error.option_name, f"{error.message} What follows -- isn't an option of this command.",
                                   ctx=error.ctx)
    error.show(said)
    with contextlib.suppress(OSError):  # standard error is closed, or full
        click.echo(escape(encoded(said.getvalue())), err=True, nl=False)


def run_alone(command: click.Command, argv: Sequence[str]) -> int:
    """Run *command*, the first word of *argv*, as if `leeward` had no other. Returns the exit status."""
    group = click.Group("leeward", {command.name or "": command},
                        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    return run_group(group, argv)

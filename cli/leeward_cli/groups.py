"""
Runs commands of click, and turns their errors into messages and exit statuses.

A group that must start fast is run without the other groups, which import most of leeward.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence

import click

from leeward.errors import LeewardError
from leeward_cli.interrupts import die_by
from leeward_cli.messages import FULL, complain, complain_of_system, encoded, escape


def run_group(group: click.Group, argv: Sequence[str]) -> int:
    """Run the command in *argv*, one of *group*. Returns the exit status."""
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
    error.show(said)
    with contextlib.suppress(OSError):  # standard error is closed, or full
        click.echo(escape(encoded(said.getvalue())), err=True, nl=False)


def run_alone(command: click.Command, argv: Sequence[str]) -> int:
    """Run *command*, the first word of *argv*, as if `leeward` had no other. Returns the exit status."""
    group = click.Group("leeward", {command.name or "": command},
                        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    return run_group(group, argv)

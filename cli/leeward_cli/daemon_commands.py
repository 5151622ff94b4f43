"""`leeward daemon`: the commands that start, stop and look after the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from leeward.client import autostart
from leeward.spec.paths import client_socket
from leeward_cli import background, control, install, stopping
from leeward_cli.click_options import FOLLOW, JSON, SOCKET, Tabled
from leeward_cli.daemon import configuration


@click.group()
def daemon() -> None:
    """Run, start and stop the daemon, and look after it."""


def _start(**options: Any) -> int:
    """Start the daemon in the background, and wait until it is ready."""
    return background.start(_words(options), configuration(**options).socket)


def _words(options: dict[str, Any]) -> list[str]:
    """*options* of the daemon as words of a command line."""
    arguments: list[str] = []
    for name, value in options.items():
        option = "--config" if name == "config_file" else f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        elif value is False:
            arguments.append(f"--no-{option[2:]}")
        elif isinstance(value, tuple):
            arguments += [f"{option}={item}" for item in value]
        elif value is not None:
            arguments.append(f"{option}={os.path.abspath(value) if name in ('socket', 'config_file') else value}")
    return arguments


def _restart(now: bool | None, **options: Any) -> int:
    """
    Stop the daemon in the background and start it again, or a service by its manager; where none runs, start one.

    Without options it gets those that it had. They are checked, with the configuration, before it is stopped.
    """
    given = _words({name: value for name, value in options.items() if name != "socket"})
    configuration(**options)
    return control.restart(client_socket(options["socket"]), given, bool(now))


for _tabled in (Tabled("daemon run", help="Run the daemon in the foreground, until SIGTERM or Ctrl-C."),
                Tabled("daemon start", callback=_start, help=_start.__doc__),
                Tabled("daemon restart", callback=_restart, help=_restart.__doc__)):
    daemon.add_command(_tabled)


@daemon.command("stop")
@SOCKET
@click.option("--now", is_flag=True, help="End running jobs at once; their clients get an answer that says so.")
def daemon_stop(socket: str | None, now: bool) -> int:
    """
    Stop the daemon, and wait until its process has ended. Running jobs have 4 seconds to finish.

    Called again, it waits as well and changes nothing. The exit status is 0 if the process has ended, and 1 if no
    daemon answers, if the daemon isn't yours to stop, or if it is still there after 15 seconds.
    """
    return stopping.stop(client_socket(socket), now)


@daemon.command("status")
@JSON
@SOCKET
def daemon_status(as_json: bool, socket: str | None) -> int:
    """
    Show which daemon answers: its process, socket and log, and who started it. `leeward status` has the rest.

    The exit status is 1 if none answers.
    """
    return control.status(client_socket(socket), as_json)


@daemon.command("reload")
@SOCKET
def daemon_reload(socket: str | None) -> int:
    """
    Make the daemon read its configuration again, and show its answer.

    The exit status is 1 if it refuses the configuration: then the old one stays in force.
    """
    return control.reload(client_socket(socket))


@daemon.command("logs")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=100, metavar="N",
              help="How many of the last lines.  [default: 100]")
@FOLLOW
@SOCKET
def daemon_logs(lines: int, follow: bool, socket: str | None) -> int:
    """Show the log of a daemon in the background, also after its end; of a service, its journal."""
    return control.logs(client_socket(socket), lines, follow)


def _unit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--user/--system", "user", default=None, help="For you alone, or for the system."
                                                                   "  [default: --system as root, --user else]"),
        click.option("--root", metavar="FOLDER", default="/", help="Write below this folder in place of /; start"
                                                                   " nothing."),
    ):
        command = option(command)
    return command


@daemon.command("install")
@_unit_options
@click.option("--group", metavar="NAME", default="", help="With --system: a group whose members may use the daemon;"
                                                          " else only root may.")
def daemon_install(user: bool | None, root: str, group: str) -> None:
    """Make the daemon a service of systemd, which starts it now and at each boot."""
    place = install.Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))
    if group and place.user:
        raise click.UsageError("--group needs --system: a user's own service is for that user alone")
    for path in install.install(place, group):
        click.echo(path)


@daemon.command("uninstall")
@_unit_options
def daemon_uninstall(user: bool | None, root: str) -> None:
    """Stop the service that `install` made, and remove its files. Says on standard error what may still start a daemon."""
    place = install.Place(user=os.geteuid() != 0 if user is None else user, root=os.path.abspath(root))
    removed = install.uninstall(place)
    for path in removed:
        click.echo(path)
    if removed and place.live and install.clients_start_one():
        click.echo(f"leeward: clients of yours start a daemon by themselves from now on, one that ends after"
                   f" {autostart.IDLE_S // 60} minutes without a request; {autostart.VARIABLE}=0 prevents that", err=True)

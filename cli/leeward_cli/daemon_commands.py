"""
`leeward daemon`: the commands that start, stop and look after the daemon.

The kernel says which process answers (stopping.Line). /proc shows how that process was started: its command line has
--ready-fd if `leeward daemon start` started it, and its cgroup is that of a unit if a service manager did. Signals are
sent by a pidfd that was opened while the process was known to answer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import click

from leeward.errors import DaemonAway, LeewardError, quoted, reason_of
from leeward.spec.paths import client_socket
from leeward_cli import install
from leeward_cli.background import start
from leeward_cli.click_options import FOLLOW, JSON, SOCKET, CommandGroup, Tabled
from leeward_cli.daemon import configuration, log_file
from leeward_cli.messages import complain, encoded, escape, write
from leeward_cli.options import UsageError, parse
from leeward_cli.status import status_text
from leeward_cli.stopping import Line, pidfd_of, stop

ANSWER_S, RELOAD_S = 5.0, 5.0
_LOOK_S = 0.2
#: Bytes that are read from the end of a log to find its last lines.
_TAIL = 1 << 20


class Running:
    """
    The daemon that answers on a socket; DaemonAway if none does.

    Attributes:
        pid: 0 if it is in a pid namespace that this process doesn't see.
        unit: the systemd unit to which the daemon belongs, or "".
        arguments: the arguments after `daemon run`, without --ready-fd; None unless `leeward daemon start` started it.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        with contextlib.closing(Line(socket)) as line:
            reply = line.ask("status", {}, time.monotonic() + ANSWER_S)
            self.status: dict[str, Any] = dict(reply.ok or {})
            self.pid = line.pid
            self.process = pidfd_of(line.pid)
            line.ask("ping", {}, time.monotonic() + ANSWER_S)  # the answer shows that the pidfd is that process's
        self.unit = unit_of(_text(f"/proc/{self.pid}/cgroup")) if self.pid else ""
        self.arguments = arguments_of(_text(f"/proc/{self.pid}/cmdline")) if self.pid else None

    @property
    def origin(self) -> str:
        if self.unit:
            return f"the service {self.unit}"
        return "`leeward daemon start`" if self.arguments is not None else "hand, in the foreground"

    @property
    def log(self) -> str:
        if self.unit:
            return f"`{' '.join(journal(self.unit))}`"
        return log_file(self.socket) if self.arguments is not None else "its standard error"

    def signal(self, number: int) -> None:
        """Send a signal to the daemon; LeewardError if it belongs to another user, or isn't visible here."""
        if self.process < 0:
            raise LeewardError("the daemon's process isn't visible here: it is in another pid namespace")
        try:
            signal.pidfd_send_signal(self.process, number)
        except OSError as error:
            raise LeewardError(f"daemon {self.pid}: {reason_of(error)}") from None

    def close(self) -> None:
        if self.process >= 0:
            os.close(self.process)
            self.process = -1


def unit_of(cgroups: str) -> str:
    """The service unit in the text of /proc/PID/cgroup; "" if there is none. Pure."""
    for line in cgroups.splitlines():
        for part in line.rpartition(":")[2].split("/"):
            if part.startswith("leeward") and part.endswith(".service"):
                return part
    return ""


def arguments_of(command: str) -> list[str] | None:
    """The options of a background daemon, from the text of /proc/PID/cmdline; None for any other process. Pure."""
    words = command.split("\0")[:-1]
    for at, pair in enumerate(itertools.pairwise(words)):
        if pair == ("daemon", "run"):
            options = words[at + 2:]
            if not any(word.startswith("--ready-fd=") for word in options):
                return None
            return [word for word in options if not word.startswith("--ready-fd=")]
    return None


def journal(unit: str, *options: str) -> list[str]:
    return ["journalctl", *(["--user"] if os.geteuid() else []), "-u", unit, *options]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def restart(socket: str, given: list[str], now: bool) -> int:
    """Stop the daemon (*now*: with its jobs), if one runs, and start it with *given* options, or those that it had."""
    try:
        daemon = Running(socket)
    except DaemonAway:
        return start(given, socket)
    daemon.close()
    if daemon.unit:
        return subprocess.call(["systemctl", *(["--user"] if os.geteuid() else []), "restart", daemon.unit])
    if daemon.arguments is None:
        raise LeewardError(f"daemon {daemon.pid or ''} wasn't started by `leeward daemon start`; end it with `leeward"
                           " daemon stop` and start it where it was started")
    arguments = given or daemon.arguments
    try:
        options = parse("daemon start", arguments).parameters()
    except UsageError:
        raise LeewardError("the daemon's options can't be read; give them to `leeward daemon restart`") from None
    if not options["socket"]:
        arguments = [*arguments, f"--socket={socket}"]
    configuration(**options)  # checked before the running daemon is stopped
    stop(socket, now)
    return start(arguments, socket)


def _refused(socket: str, before: Any) -> bool | None:
    """Whether the daemon has refused the configuration; None if its count of reloads, *before*, doesn't change."""
    until = time.monotonic() + RELOAD_S
    while time.monotonic() < until:
        daemon = Running(socket)
        daemon.close()
        now = daemon.status.get("reloads")
        if isinstance(before, list) and isinstance(now, list) and now != before:
            return bool(now[1] != before[1])
        time.sleep(0.02)
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read_from(path: str, start: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(_TAIL)
    except OSError:
        return b""


def logs(socket: str, lines: int, follow: bool) -> int:
    """Print the last *lines* of the daemon's log; with *follow* also new ones, until Ctrl-C. Returns the exit status."""
    unit = ""
    try:
        daemon = Running(socket)
        daemon.close()
        unit = daemon.unit
    except DaemonAway:
        pass  # the log shows how the daemon ended
    if unit:
        return subprocess.call(journal(unit, f"-n{lines}", *(["-f"] if follow else ["--no-pager"])))
    path = log_file(socket)
    if not os.path.isfile(path):
        raise LeewardError(f"there is no log {quoted(path)}: a daemon in the foreground logs to its standard error,"
                           " a service to the journal")
    start = max(0, _size(path) - _TAIL)
    content = _read_from(path, start)
    at = start + len(content)
    write(1, _shown(b"".join(content.splitlines(keepends=True)[-lines:] if lines else [])))
    while follow:
        time.sleep(_LOOK_S)
        if _size(path) < at:  # another daemon has truncated it
            at = 0
        content = _read_from(path, at)
        at += len(content)
        write(1, _shown(content))
    return 0


def _shown(content: bytes) -> bytes:
    return escape(content) if os.isatty(1) else content


# --- the commands -------------------------------------------------------------


@click.group(cls=CommandGroup)
def daemon() -> None:
    """Run, start and stop the daemon, and look after it."""


def _start(**options: Any) -> int:
    """Start the daemon in the background, and wait until it is ready."""
    return start(_words(options), configuration(**options).socket)


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
    return restart(client_socket(options["socket"]), given, bool(now))


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
    daemon answers, if the daemon isn't yours to stop, or if it is still there after 75 seconds: a
    daemon with a `sleep_folder` may take a minute, in which it puts sandboxes to sleep.
    """
    return stop(client_socket(socket), now)


@daemon.command("status")
@JSON
@SOCKET
def daemon_status(as_json: bool, socket: str | None) -> None:
    """
    Show which daemon answers: its process, socket and log, and who started it. `leeward status` has the rest.

    The exit status is 1 if none answers.
    """
    socket = client_socket(socket)
    daemon = Running(socket)
    daemon.close()
    rows = {"pid": daemon.pid, "socket": socket, "uptime": daemon.status.get("uptime"), "started_by": daemon.origin,
            "log": daemon.log, "workers": daemon.status.get("workers"), "jobs": daemon.status.get("jobs"),
            "degraded": daemon.status.get("degraded")}
    if as_json:
        write(1, json.dumps(rows).encode() + b"\n")
        return

    head = (f"{'process':<15} {daemon.pid or 'not visible here'}\n{'socket':<15} {socket}\n"
            f"{'started by':<15} {daemon.origin}\n{'log':<15} {daemon.log}\n")
    shown: dict[str, Any] = {key: daemon.status[key] for key in ("workers", "jobs", "degraded", "uptime")
                             if key in daemon.status}
    rest = status_text(shown).replace("layers\n", "")
    write(1, escape(encoded(head + rest)))


@daemon.command("reload")
@SOCKET
def daemon_reload(socket: str | None) -> int:
    """
    Make the daemon read its configuration again, and show its answer.

    The exit status is 1 if it refuses the configuration: then the old one stays in force.
    """
    socket = client_socket(socket)
    with contextlib.closing(Running(socket)) as daemon:
        background = daemon.arguments is not None and not daemon.unit
        end = _size(log_file(socket)) if background else 0
        daemon.signal(signal.SIGHUP)
    refused = _refused(socket, daemon.status.get("reloads"))
    if refused is None:
        complain(f"daemon {daemon.pid} doesn't say whether it has read its configuration: {daemon.log}")
        return 1
    if background:
        write(1, escape(_read_from(log_file(socket), end)))
    elif refused:
        complain(f"daemon {daemon.pid} has refused its configuration, and what was in force stays; the log says why:"
                 f" {daemon.log}")
    else:
        complain(f"daemon {daemon.pid} has read its configuration again; the log names what needs a restart:"
                 f" {daemon.log}")
    return int(refused)


@daemon.command("logs")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=100, metavar="N",
              help="How many of the last lines.  [default: 100]")
@FOLLOW
@SOCKET
def daemon_logs(lines: int, follow: bool, socket: str | None) -> int:
    """Show the log of a daemon in the background, also after its end; of a service, its journal."""
    return logs(client_socket(socket), lines, follow)


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
    starts = install.still_starts(place) if removed and place.live else ""
    if starts:
        click.echo(f"leeward: {starts}", err=True)

"""
`leeward daemon status`, `restart`, `reload` and `logs`, for a daemon that runs already.

The kernel says which process answers (stopping.Line). /proc shows how that process was started: its command line has
--ready-fd if `leeward daemon start` started it, and its cgroup is that of a unit if a service manager did. Signals are
sent by a pidfd that was opened while the process was known to answer.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from typing import Any

from leeward.errors import DaemonAway, LeewardError, quoted
from leeward_cli.background import start
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
        line = Line(socket)
        try:
            reply = line.ask("status", {}, time.monotonic() + ANSWER_S)
            self.status: dict[str, Any] = dict(reply.ok or {})
            self.pid = line.pid
            self.process = pidfd_of(line.pid)
            line.ask("ping", {}, time.monotonic() + ANSWER_S)  # the answer shows that the pidfd is that process's
        finally:
            line.close()
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
            raise LeewardError(f"daemon {self.pid}: {(error.strerror or str(error)).lower()}") from None

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


def status(socket: str, as_json: bool) -> int:
    """Print facts about the daemon that answers on *socket*. Returns the exit status."""
    daemon = Running(socket)
    daemon.close()
    rows = {"pid": daemon.pid, "socket": socket, "uptime": daemon.status.get("uptime"), "started_by": daemon.origin,
            "log": daemon.log, "workers": daemon.status.get("workers"), "jobs": daemon.status.get("jobs"),
            "degraded": daemon.status.get("degraded")}
    if as_json:
        write(1, json.dumps(rows).encode() + b"\n")
        return 0

    head = (f"{'process':<15} {daemon.pid or 'not visible here'}\n{'socket':<15} {socket}\n"
            f"{'started by':<15} {daemon.origin}\n{'log':<15} {daemon.log}\n")
    shown: dict[str, Any] = {key: daemon.status[key] for key in ("workers", "jobs", "degraded", "uptime")
                             if key in daemon.status}
    rest = status_text(shown).replace("layers\n", "")
    write(1, escape(encoded(head + rest)))
    return 0


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


def reload(socket: str) -> int:
    """Make the daemon read its configuration again. Returns 1 if it refuses that, or doesn't say that it has taken it."""
    daemon = Running(socket)
    try:
        background = daemon.arguments is not None and not daemon.unit
        end = _size(log_file(socket)) if background else 0
        daemon.signal(signal.SIGHUP)
    finally:
        daemon.close()
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

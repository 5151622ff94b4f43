"""
Sandboxes of `leeward agent start --approved` and `leeward approvals run`, registered with the service for approvals:
their processes ask before anything leaves the sandbox, and a person decides; at the end, too.

Holds:     without the service no agent is started, since nobody would decide. When the service ends, it ends the
           sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

import click

from leeward.apps.approvals.bridge.boxes import LEFT_S, environment_of
from leeward.apps.approvals.operator_connection import OperatorConnection
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError, SandboxOver
from leeward_cli.messages import complain
from leeward_cli.terminal_rows import plain

#: Ids of requests that are printed in one line.
_SHOWN_IDS = 100


class ApprovedAgent:
    """The registration of an agent's sandbox, over a copy of *project*; LeewardError if the service doesn't answer."""

    def __init__(self, project: str, socket: str | None) -> None:
        self._project, self._connection, self._socket = project, OperatorConnection(), socket
        self._connection.call("GET", "/api/status")
        self._sandbox, self._git = "", False

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        own = environment_of(self._project)
        if env.get("PYTHONPATH"):
            own["PYTHONPATH"] = f"{own['PYTHONPATH']}:{env['PYTHONPATH']}"
        return own

    def opened(self, sandbox: str) -> None:
        made = self._connection.open_sandbox(self._project, sandbox=sandbox)
        self._sandbox, self._git = sandbox, bool(made.get("git"))

    def ending(self) -> bool:
        """Make requests for the changes and pushes in the sandbox. Returns whether it stays, since some have none yet."""
        sandbox, self._sandbox = self._sandbox, ""
        if not sandbox:
            return False
        with contextlib.suppress(LeewardError):  # the service has ended after `ask_at_end`
            return (not ask_at_end(self._connection, sandbox, self._socket, git=self._git)
                    or close_asked(self._connection, sandbox))
        return True


def ask_at_end(connection: OperatorConnection, box: str, daemon: str | None, *, git: bool) -> bool:
    """Make requests of the changes and pushes in a sandbox whose work is over. Returns False, and keeps it, if that fails."""
    try:
        tell_sync("files", connection.collect_files(box))
        if git:
            tell_sync("branches", connection.call("POST", "/api/sync/git", {"sandbox": box}))
    except SandboxOver as error:
        complain(f"what the sandbox has changed is lost: {error}")
    except LeewardError as error:
        complain(f"{error}\n{kept_line(box, daemon)}")
        return False
    return True


def kept_line(box: str, daemon: str | None) -> str:
    """Keep a sandbox with changes that nobody was asked about for LEFT_S. Returns a line that says how to get them."""
    where = "its changes are in the sandbox"
    one = Sandbox.attach(box, socket=daemon)
    try:
        one.extend(idle=LEFT_S)
        where += f", which stays for {LEFT_S / 60:.0f} minutes without use"
    except LeewardError as error:
        where += f", which stays until its idle time is over ({error})"
    finally:
        one.detach()
    return f"{where}: `leeward diff {box}`, `leeward apply {box} PATH`, `leeward sandbox kill {box}`"


def close_asked(connection: OperatorConnection, box: str) -> bool:
    """End a sandbox for whose changes `ask_at_end` has made requests. Returns whether it stays, since some have none yet."""
    stays = connection.close_sandbox(box, left=True)
    if stays:
        complain(f"the sandbox stays for the changes that have no request: those that wait for room are asked for when the"
                 f" requests before them are decided. `leeward diff {box}`, `leeward apply {box} PATH`; `leeward sandbox"
                 f" kill {box}` discards them")
    return stays


def tell_sync(what: str, found: Mapping[str, Any]) -> None:
    """Print to standard error which requests wait for a sandbox's changes, and which changes were refused."""
    waiting = [row["id"] for row in found.get("requests", []) if row["status"] == "pending"]
    count = max(len(waiting), found.get("pending", 0))
    if waiting:
        which = " ".join(map(str, waiting)) if count <= _SHOWN_IDS else "--all filesystem"
        click.echo(f"leeward: {count} requests about {what} wait: leeward approvals approve {which}", err=True)
    for each in found.get("refused", []):
        click.echo(plain(f"leeward: {each['path']}: can't be asked for: {each['reason']}"), err=True)
    if found.get("more"):
        click.echo(f"leeward: {found['more']} more {what} wait for room among the requests", err=True)


def tell_notes(connection: OperatorConnection, box: str) -> None:
    """Print to standard error the changes that live sync has not written, without those that `tell_sync` has printed."""
    for row in connection.call("GET", "/api/sandboxes")["sandboxes"]:
        for line in note_lines(row, ("conflict", "denied")) if row["sandbox"] == box else ():
            click.echo(f"leeward: {line}", err=True)


def note_lines(row: Mapping[str, Any], kinds: Collection[str] = ()) -> list[str]:
    """Lines about the changes that live sync of a sandbox hasn't written; only those of *kinds*, if there are any."""
    sync = row.get("sync") or {}
    lines = list[str]()
    for note in (each for each in sync.get("notes", []) if not kinds or each["kind"] in kinds):
        asked = f" (request {note['request']})" if note.get("request") else ""
        lines.append(plain(f"{note['kind']}: {note['path']}: {note['why']}{asked}"))
    if sync.get("more"):
        lines.append(f"{sync['more']} more")
    if sync.get("trouble"):
        lines.append(plain(sync["trouble"]))
    return lines

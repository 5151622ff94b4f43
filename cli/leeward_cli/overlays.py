"""`leeward diff`, `apply`, `discard`, `checkpoint` and `restore`: a sandbox's changes in its copy of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import click

from leeward.client.applying import finish_interrupted
from leeward.client.changes import FolderChange
from leeward.errors import Stale
from leeward.spec.obeyed.search import at_once_among
from leeward_cli.click_options import JSON_LINES, SOCKET
from leeward_cli.messages import complain
from leeward_cli.progress import Progress
from leeward_cli.sandbox_command import attached
from leeward_cli.terminal_rows import plain

_TARGET = click.option("--target", metavar="FOLDER", default="", help="The mount, if the sandbox has several overlays.")
#: The greatest number of paths in one message.
_SHOWN = 50
#: The letters of git, and m for a change of the mode alone.
_LETTERS = {"created": "A", "modified": "M", "deleted": "D", "mode": "m"}


@click.command()
@SOCKET
@_TARGET
@JSON_LINES
@click.argument("name", metavar="ID")
def diff(socket: str | None, target: str, as_json: bool, name: str) -> None:
    """Show what a sandbox has changed in its copy of a folder: A for added, M modified, D deleted, m for a mode alone."""
    with attached(name, socket) as box, Progress("comparing"):
        found = box.diff(target)
    for change in found:
        click.echo(json.dumps(row_of(change)) if as_json else line(change))
    tell_obeyed(found)


def row_of(change: FolderChange) -> dict[str, Any]:
    """A change for JSON."""
    return {each.name: getattr(change, each.name) for each in fields(change)}


@click.command()
@SOCKET
@_TARGET
@click.argument("name", metavar="ID")
@click.argument("paths", metavar="[PATH...]", nargs=-1)
def apply(socket: str | None, target: str, name: str, paths: tuple[str, ...]) -> int:
    """
    Apply the changes that `leeward diff` shows to the host: all of them, or those of the files and folders PATH.

    The exit status is 1, and nothing is written, if a file of the host has changed since the sandbox was opened.
    """
    tell_finished()
    try:
        with attached(name, socket) as box, Progress("applying"):
            found = box.apply(paths or None, target)
    except Stale as error:
        complain(failure(error))
        return 1
    for change in found:
        click.echo(line(change))
    tell_obeyed(found)
    return 0


@click.command()
@SOCKET
@_TARGET
@click.argument("name", metavar="ID")
@click.argument("paths", metavar="[PATH...]", nargs=-1)
def discard(socket: str | None, target: str, name: str, paths: tuple[str, ...]) -> None:
    """Undo what `leeward diff` shows: everything, or the files and folders PATH. No process may run in the sandbox."""
    with attached(name, socket) as box, Progress("discarding"):
        found = box.discard(paths or None, target)
    for change in found:
        click.echo(line(change))


@click.command()
@SOCKET
@_TARGET
@click.argument("name", metavar="ID")
@click.argument("checkpoint", metavar="[NAME]", default="")
def checkpoint(socket: str | None, target: str, name: str, checkpoint: str) -> None:
    """Keep a copy of a sandbox's changes, in its own memory, and print the copy's NAME; without NAME it gets a number."""
    with attached(name, socket) as box, Progress("keeping"):
        made = box.checkpoint(checkpoint, target)
    click.echo(made)


@click.command()
@SOCKET
@_TARGET
@click.argument("name", metavar="ID")
@click.argument("checkpoint", metavar="NAME")
def restore(socket: str | None, target: str, name: str, checkpoint: str) -> None:
    """Restore a sandbox's copy of a folder from a checkpoint. No process may run in the sandbox."""
    with attached(name, socket) as box, Progress("restoring"):
        box.restore(checkpoint, target)


def tell_obeyed(changes: Iterable[FolderChange]) -> None:
    """Say on standard error which of *changes* programs on the host run at once."""
    found = at_once_among(change.path for change in changes if change.kind != "deleted")
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        complain(f"programs on the host run this without a further question: {', '.join(map(plain, found[:_SHOWN]))}{more}")


def tell_finished() -> None:
    """Finish what `apply` of a program that was killed has begun, and say so on standard error."""
    for each in finish_interrupted():
        complain(plain(f"an apply to {each.folder} was interrupted before: {len(each.done)} changes were finished now,"
                       f" {len(each.left)} were left out"))
        for error in each.left[:_SHOWN]:
            complain(plain(f"left out: {error}"))


def failure(error: Stale) -> str:
    if not error.applied:
        return f"{error}; nothing was applied"
    more = f" and {len(error.applied) - _SHOWN} more" if len(error.applied) > _SHOWN else ""
    return f"{error}; applied before: {', '.join(map(plain, error.applied[:_SHOWN]))}{more}"


def line(change: FolderChange) -> str:
    return f"{_LETTERS[change.kind]} {plain(change.path)}" + ("" if change.is_compared else "  (not compared)")

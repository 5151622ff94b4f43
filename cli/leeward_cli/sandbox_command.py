"""Runs a command in a live sandbox, connected with this command's terminal, or by pipes."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click

from leeward.base.closing import on_failure
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest
from leeward_cli import terminal as ours
from leeward_cli.interrupts import EndRequested, die_by
from leeward_cli.passing import pass_on
from leeward_cli.progress import Progress
from leeward_cli.sandbox_names import sandbox_id


def in_sandbox(name: str | None, socket: str | None, given: Mapping[str, Any], argv: list[str], cwd: str | None,
               terminal: bool | None, raw: bool) -> int:
    if terminal and not ours.is_ours():
        raise click.UsageError("--terminal: standard input and output are not a terminal")
    try:
        with used(name, socket, given) as box:
            if ours.is_ours() if terminal is None else terminal:
                return ours.attend(ours.start(box, argv, cwd))
            return pass_on(box.start(argv or ["/bin/sh"], cwd=cwd, stdin=None), raw)
    except EndRequested as asked:
        return die_by(signal.Signals(int(asked.args[0])).name)


@contextlib.contextmanager
def used(name: str | None, socket: str | None, given: Mapping[str, Any]) -> Iterator[Sandbox]:
    """A context with the sandbox *name*, which stays; or with a new one of the options *given*, which ends with it."""
    if name is None:
        box = opened(socket, given)
        with ended(box, given):
            yield box
        return
    if given:
        raise click.UsageError("limits and variables are those of a new sandbox: not beside an ID")
    with attached(_meant(name, socket), socket, held=True) as box:
        yield box


def _meant(name: str, socket: str | None) -> str:
    """The id of the sandbox *name*; BadRequest says how a command is given, if *name* is one."""
    try:
        return sandbox_id(name, socket)
    except BadRequest as error:
        if shutil.which(name) is None:
            raise
        raise BadRequest(f"{error}; a command follows --: {click.get_current_context().command_path} -- {name}") from None


@contextlib.contextmanager
def attached(name: str, socket: str | None, held: bool = False) -> Iterator[Sandbox]:
    """A context with the sandbox that *name*, an id, the beginning of one or a name, means; at the end it stays."""
    box = Sandbox.attach(sandbox_id(name, socket), socket=socket, held=held)
    try:
        yield box
    finally:
        box.detach()


def ended(box: Sandbox, given: Mapping[str, Any]) -> AbstractContextManager[object]:
    """A context at whose end *box* ends, which this command has opened with the options *given*."""
    if given.get("workdir") is None and not given.get("mounts"):
        return contextlib.closing(box)
    from leeward_cli.saved_work import has_copies, keeping  # few sandboxes have a copy of a folder

    return keeping(box) if has_copies(given) else contextlib.closing(box)


def split_words(words: Sequence[str], line: Sequence[str]) -> tuple[str | None, list[str]]:
    """The id, or None if there is none, and the command, which follows `--` in *line*."""
    command = list(line[line.index("--") + 1:]) if "--" in line else []
    before = list(words[:len(words) - len(command)])
    if len(before) > 1:
        command_path = click.get_current_context().command_path
        raise click.UsageError(f"a command must follow --: {command_path} {before[0]} -- {' '.join(before[1:])}")
    return (before[0] if before else None), command


def opened(socket: str | None, given: Mapping[str, Any], held: bool = True) -> Sandbox:
    """Open a sandbox. This may start a daemon or install packages, so progress is shown."""
    box = Sandbox(socket=socket, held=held, **given)
    with on_failure(box.close), Progress("opening a sandbox"):
        assert box.id
    return box

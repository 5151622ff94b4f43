"""
`leeward audit show`, `verify` and `mend`, which alone writes: the record of decisions.

Trust:     none in a line: its texts may come from a sandbox, and are shown escaped.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import click

from leeward.apps.audit.journal import default_folder
from leeward.apps.audit.record import mend_record, read_record, verify_record
from leeward.apps.audit.record_lines import ReadLine
from leeward.errors import BadRequest, quoted, reason_of
from leeward_cli.click_options import JSON_LINES, CommandGroup
from leeward_cli.sandbox_names import asked_id
from leeward_cli.terminal_rows import plain, second

_FOLDER = click.option("--folder", metavar="DIR", help="Where the record is; else leeward/audit of the state folder.")


@click.group(cls=CommandGroup)
def audit() -> None:
    """Show the record of decisions, and verify it."""


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """A context in which what can't be read is a BadRequest."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadRequest(f"there is no record in {quoted(error.filename)}: `leeward approvals serve` writes it, and"
                         " --folder names another folder") from None
    except OSError as error:
        raise BadRequest(f"the record: {reason_of(error)}: {quoted(error.filename)}") from None


@audit.command("show")
@_FOLDER
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Lines at most.")
@click.option("--sandbox", metavar="ID", help="Only rows of this sandbox: its id, the beginning of that, or its name.")
@JSON_LINES
def show(folder: str | None, limit: int, sandbox: str | None, as_json: bool) -> None:
    """Show the record, the newest line first. A bad line is shown as bad, and skipped."""
    found, meant = deque[ReadLine](maxlen=limit), set[str]()
    begun = sandbox and asked_id(sandbox, None)
    with _readable():
        for line in read_record(folder or default_folder(os.environ)):
            name = str((line.row or {}).get("sandbox") or "")
            if begun is None or line.row is None or (begun and name.startswith(begun)):
                found.append(line)
                meant.add(name)
    meant.discard("")
    if begun and len(meant) > 1:
        raise BadRequest(f"{begun!a:.60} fits several sandboxes: {', '.join(map(ascii, sorted(meant)[:10]))}")
    for line in reversed(found):
        bad = {"bad": line.fault, "line": line.number} if line.fault else {}
        click.echo(json.dumps({**(line.row or {}), **bad}) if as_json else plain(text_of(line)))


@audit.command("verify")
@_FOLDER
@click.option("--head", metavar="DIR", help="The folder of the record's head, if it isn't beside the record.")
def check(folder: str | None, head: str | None) -> int:
    """
    Verify the record: each line follows the one before, and the last is the one that the head names.

    The exit status is 1 if it isn't; the first line that doesn't fit is named.
    """
    with _readable():
        found = verify_record(folder or default_folder(os.environ), head)
    if found.fault is not None:
        click.echo(plain(f"line {found.fault.number}, in {found.fault.file}: {found.fault.fault}"))
        if found.fault.row is None:
            click.echo("if it is half-written, as a power cut leaves a line, `leeward audit mend` takes it out")
    if found.head:
        click.echo(plain(found.head))
    if found.is_whole:
        click.echo(f"{found.lines} lines, and each follows the one before")
    return 0 if found.is_whole else 1


@audit.command("mend")
@_FOLDER
@click.option("--head", metavar="DIR", help="The folder of the record's head, if it isn't beside the record.")
def mend(folder: str | None, head: str | None) -> None:
    """
    Take half-written lines out of the record, and record that. The service mustn't run.

    Their bytes are kept in `audit.torn`. Any other fault is named, and stays.
    """
    with _readable():
        count = mend_record(folder or default_folder(os.environ), head)
    click.echo(f"{count} half-written lines were taken out" if count else "the record has no half-written line")


def text_of(line: ReadLine) -> str:
    if line.row is None:
        return f"BAD line {line.number}, in {line.file}: {line.fault}"
    row = line.row
    words = [_when(row.get("time")), *(str(row.get(name) or "-") for name in ("decision", "by", "category", "action"))]
    if row.get("id"):
        words.append(f"request {row['id']}")
    if row.get("sandbox"):
        words.append(f"sandbox {row['sandbox']}")
    metadata = row.get("metadata")
    if isinstance(metadata, Mapping):
        words += [f"{name}={value}" for name, value in metadata.items() if value not in ("", None, 0)]
    return ("" if not line.fault else f"BAD line {line.number}: {line.fault}: ") + "  ".join(words)


def _when(seconds: Any) -> str:
    try:
        return second(float(seconds))
    except (TypeError, ValueError, OverflowError, OSError):
        return "without a time"

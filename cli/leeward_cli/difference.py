"""
The difference that changes in a copy of a folder make, as text for a person: what `d` shows before they are applied.

Trust:     none in the texts, which come from a sandbox: each line is shown escaped, and only a newline ends one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from leeward.apps.approvals.carrying.detail import file_hunks, split_lines
from leeward.client.changes import FolderChange
from leeward.client.overlay import Overlay
from leeward.errors import BadRequest, LeewardError
from leeward.spec.sizes import size_text
from leeward_cli.overlays import line
from leeward_cli.terminal_rows import plain

#: Bytes of a file that is compared, lines that are shown in all and of one file, and characters of a line, at most.
_MOST_BYTES, _MOST_LINES, _MOST_OF_FILE, _MOST_WIDTH = 1 << 20, 5000, 1000, 500
#: Lines around each change that stay.
_AROUND = 3
_COLOURS = {"-": "red", "+": "green", "@": "cyan"}


def show_difference(overlay: Overlay, found: Sequence[FolderChange]) -> None:
    left = _MOST_LINES
    for number, change in enumerate(found):
        click.secho(line(change), bold=True, err=True)
        for shown in _bounded(overlay, change, min(left, _MOST_OF_FILE)):
            click.secho(shown, fg=_COLOURS.get(shown[:1]), err=True)
            left -= 1
        if left <= 0 and number + 1 < len(found):
            click.echo(f"{len(found) - number - 1} more files aren't shown", err=True)
            return


def _bounded(overlay: Overlay, change: FolderChange, most: int) -> Iterator[str]:
    for number, shown in enumerate(lines_of(overlay, change)):
        if number >= most:
            yield "  and more, which isn't shown"
            return
        yield shown if len(shown) <= _MOST_WIDTH else f"{shown[:_MOST_WIDTH]} ..."


def lines_of(overlay: Overlay, change: FolderChange) -> Iterator[str]:
    """The lines of one change: those that go begin with -, those that come with +, and those around them with a blank."""
    if change.type == "link" and change.kind != "deleted":
        yield f"+ a link to {plain(change.link or '')}"
    elif change.type != "file":
        return
    elif change.kind == "mode":
        yield f"  its mode is {change.mode:o} then"
    else:
        try:
            before = b"" if change.kind == "created" else overlay.host_content(change.path, _MOST_BYTES)
            after = b"" if change.kind == "deleted" else overlay.content(change.path, _MOST_BYTES)
            hunks = file_hunks(before, after)
        except BadRequest:
            yield f"  {size_text(change.size)} bytes that aren't compared by lines"
            return
        except (LeewardError, OSError) as error:
            yield f"  {plain(str(error))}"
            return
        old, at = split_lines(before), 0
        for number, hunk in enumerate(hunks):
            first, last = max(at, hunk.start - _AROUND), hunk.start + len(hunk.old)
            until = min(last + _AROUND, hunks[number + 1].start if number + 1 < len(hunks) else len(old))
            if first > at or not number:
                yield f"@ line {hunk.start + 1}"
            yield from (f"{sign}{_text(each)}" for sign, some in (
                (" ", old[first:hunk.start]), ("-", hunk.old), ("+", hunk.new), (" ", old[last:until])) for each in some)
            at = until


def _text(written: bytes) -> str:
    text = plain(written.removesuffix(b"\n").decode("utf-8", "backslashreplace").replace("\t", "    "))
    return text if written.endswith(b"\n") else f"{text}  (no newline at the end)"

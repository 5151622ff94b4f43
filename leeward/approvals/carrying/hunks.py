"""
Splits a change of a text file into hunks, so that a person can approve some of them.

Runs in:   the operator's program; pure.
Trust:     none in the texts. Only a newline ends a line, so CRLF and the line separators of Unicode can't hide a change
           within what looks like one line.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward.errors import BadRequest

#: Bytes and lines of a file that is split, at most.
MOST_BYTES, MOST_LINES = 1 << 20, 20_000

#: Pairs of lines that difflib compares, at most: about two seconds. A hostile text can make it take hours.
MOST_PAIRS = 10_000_000


@dataclass(frozen=True, slots=True)
class FileHunk:
    """
    A run of lines that differs.

    Attributes:
        start: the number of the first line of the old file that is replaced, from 0; of a hunk that only adds, the line
            before which it adds.
        old: the lines of the old file, with their newlines.
        new: the lines of the new file in their place.
        new_start: the number of the first of them in the new file, from 0.
    """

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    new_start: int

    def row(self) -> dict[str, Any]:
        """For JSON: lines as text, and numbers from 1."""
        return {"old_start": self.start + 1, "new_start": self.new_start + 1,
                "old": [line.decode("utf-8", "replace") for line in self.old],
                "new": [line.decode("utf-8", "replace") for line in self.new]}


def split_lines(content: bytes) -> list[bytes]:
    """The lines of *content* with their newlines."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def file_hunks(before: bytes, after: bytes) -> list[FileHunk]:
    """
    The hunks of a change, in the order of their lines.

    Raises:
        BadRequest: a file is too large or isn't text, or comparing takes too long.
    """
    if max(len(before), len(after)) > MOST_BYTES:
        raise BadRequest(f"a file above {MOST_BYTES} bytes is decided as a whole")
    if b"\0" in before or b"\0" in after:
        raise BadRequest("a file that isn't text is decided as a whole")
    old, new = split_lines(before), split_lines(after)
    if max(len(old), len(new)) > MOST_LINES:
        raise BadRequest(f"a file above {MOST_LINES} lines is decided as a whole")
    matcher = _BoundedMatcher(old, new)
    return [FileHunk(a, tuple(old[a:b]), tuple(new[c:d]), c) for tag, a, b, c, d in matcher.get_opcodes()
            if tag != "equal"]


class _BoundedMatcher(difflib.SequenceMatcher[bytes]):
    """A matcher that gives up after MOST_PAIRS comparisons."""

    def __init__(self, old: list[bytes], new: list[bytes]) -> None:
        super().__init__(None, old, new, autojunk=True)
        self._left = MOST_PAIRS
        # The comparisons for each line of `old`: one, and one for each place of the same line in `new`.
        places: Mapping[bytes, Sequence[int]] = vars(self)["b2j"]
        self._costs = list(itertools.accumulate((1 + len(places.get(line, ())) for line in old), initial=0))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0,
                           bhi: int | None = None) -> difflib.Match:
        """
        Raises:
            BadRequest: there were MOST_PAIRS comparisons.
        """
        self._left -= self._costs[len(self._costs) - 1 if ahi is None else ahi] - self._costs[alo]
        if self._left < 0:
            raise BadRequest("a file with so many lines that are alike is decided as a whole")
        return super().find_longest_match(alo, ahi, blo, bhi)


def take_hunks(before: bytes, hunks: Sequence[FileHunk], wanted: Iterable[int]) -> bytes:
    """
    *before* with only some of *hunks* applied.

    Args:
        before: the old file.
        hunks: from `file_hunks`.
        wanted: the places in *hunks* of those to apply.

    Raises:
        BadRequest: there is no such hunk, or *wanted* is empty.
    """
    chosen = sorted(set(wanted))
    if not chosen or chosen[0] < 0 or chosen[-1] >= len(hunks):
        raise BadRequest(f"hunks are numbers from 0 to {len(hunks) - 1}, at least one of them")
    lines, at, found = split_lines(before), 0, list[bytes]()
    for place in chosen:
        hunk = hunks[place]
        found += [*lines[at:hunk.start], *hunk.new]
        at = hunk.start + len(hunk.old)
    return b"".join([*found, *lines[at:]])


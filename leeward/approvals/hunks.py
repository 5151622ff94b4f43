"""
A change of a text file in pieces, so that a person can approve some of them.

Runs in:   the operator's program; pure.
Trust:     none in the texts. Lines are bytes up to a newline: nothing else ends one, so CRLF and odd separators of
           Unicode can't hide a change in what looks like one line.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward.errors import BadRequest

#: Bytes and lines of a file whose pieces are looked for.
MOST_BYTES, MOST_LINES = 1 << 20, 20_000

#: Pairs of lines that are looked at, at most: about two seconds. Texts can be written for which difflib takes hours.
MOST_PAIRS = 10_000_000


@dataclass(frozen=True, slots=True)
class FileHunk:
    """
    One piece.

    Attributes:
        start: the first line of the old file that it replaces, from 0; where it adds alone, the line before which.
        old: what it replaces.
        new: by what.
        new_start: where that is in the new file.
    """

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    new_start: int

    def row(self) -> dict[str, Any]:
        """
        For JSON: lines as text, counted from 1.
        """
        return {"old_start": self.start + 1, "new_start": self.new_start + 1,
                "old": [line.decode("utf-8", "replace") for line in self.old],
                "new": [line.decode("utf-8", "replace") for line in self.new]}


def split_lines(content: bytes) -> list[bytes]:
    """
    Lines with their newlines; all of them together are *content*.
    """
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def file_hunks(before: bytes, after: bytes) -> list[FileHunk]:
    """
    Raises:
        BadRequest: a file is too large, or isn't text.
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
            if "equal" != tag]


class _BoundedMatcher(difflib.SequenceMatcher[bytes]):
    """
    One that gives up.
    """

    def __init__(self, old: list[bytes], new: list[bytes]) -> None:
        super().__init__(None, old, new, autojunk=True)
        self._left = MOST_PAIRS
        # What one look costs: each line, and each place of the other text that has it.
        places: Mapping[bytes, Sequence[int]] = vars(self)["b2j"]
        self._costs = list(itertools.accumulate((1 + len(places.get(line, ())) for line in old), initial=0))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0,
                           bhi: int | None = None) -> difflib.Match:
        """
        Raises:
            BadRequest: it has looked at too much.
        """
        self._left -= self._costs[len(self._costs) - 1 if ahi is None else ahi] - self._costs[alo]
        if self._left < 0:
            raise BadRequest("a file with so many lines that are alike is decided as a whole")
        return super().find_longest_match(alo, ahi, blo, bhi)


def take_hunks(before: bytes, hunks: Sequence[FileHunk], wanted: Iterable[int]) -> bytes:
    """
    *before* with some of *hunks* alone.

    Args:
        before: the old file.
        hunks: of `file_hunks`.
        wanted: their places in it.

    Raises:
        BadRequest: there is no such hunk, or none is wanted.
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


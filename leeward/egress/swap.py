"""
Replaces byte strings in a stream, wherever the stream is cut into pieces.

Runs in:   the broker; pure.
Bound:     fewer bytes are held back than the longest of the strings to find has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Swap:
    """
    The replacements in one stream.

    Args:
        pairs: strings to find, none of which is empty, and the replacement of each. Where several match at one place,
            the longest is replaced.
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._to = dict(pairs)
        needles = sorted(self._to, key=len, reverse=True)
        self._needles = needles
        self._longest = len(needles[0]) if needles else 0
        self._any = re.compile(b"|".join(map(re.escape, needles)) if needles else b"(?!)")
        self._first = re.compile(b"|".join(sorted({re.escape(needle[:1]) for needle in needles})) or b"(?!)")
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Return *data* with all replacements made. It is complete by itself, not a piece of the stream."""
        return self._any.sub(lambda found: self._to[found[0]], data)

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the stream. Returns the output that is certain by now, and holds back the rest."""
        data = self._held + data
        said, at = [], 0
        while True:
            partial = self._partial_match(data, at)
            found = self._any.search(data, at)
            if found is None or found.start() >= partial:
                break
            said += [data[at:found.start()], self._to[found[0]]]
            at = found.end()
        self._held = data[partial:]
        return b"".join((*said, data[at:partial]))

    def end(self) -> bytes:
        """Return the output that was held back, at the stream's end."""
        held, self._held = self._held, b""
        return self.whole(held)

    def _partial_match(self, data: bytes, at: int) -> int:
        """
        Return the first place from *at* on at which the beginning of a string to find reaches the end of *data*, so
        that further bytes could complete it; the length of *data* if there is none.
        """
        for found in self._first.finditer(data, max(at, len(data) - self._longest + 1)):
            rest = data[found.start():]
            if any(len(needle) > len(rest) and needle.startswith(rest) for needle in self._needles):
                return found.start()
        return len(data)

"""
Bytes for other bytes in a stream, wherever it is cut.

Runs in:   the broker; pure.
Bound:     of what was fed, less than the longest of the bytes that are looked for is held back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Swap:
    """
    Args:
        pairs: what is looked for, none of it empty, and what comes in its place. At one place the longest counts.
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
        """
        All of *data*, which belongs to no stream.
        """
        return self._any.sub(lambda found: self._to[found[0]], data)

    def feed(self, data: bytes) -> bytes:
        """
        The output that is certain after *data*.
        """
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
        """
        The rest, at the stream's end.
        """
        held, self._held = self._held, b""
        return self.whole(held)

    def _partial_match(self, data: bytes, at: int) -> int:
        """
        Where, from *at* on, something begins that more bytes could complete; the length of *data* if nowhere.
        """
        for found in self._first.finditer(data, max(at, len(data) - self._longest + 1)):
            rest = data[found.start():]
            if any(len(needle) > len(rest) and needle.startswith(rest) for needle in self._needles):
                return found.start()
        return len(data)

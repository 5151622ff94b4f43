"""
What a job displays, by MIME types: its bounds, and a reader.

Trust:     none. A bundle is the job's own bytes, whoever carries them: type, number and size are checked, and nobody
           here interprets them.

A bundle is one thing in several forms, a map from MIME type to content: text, or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leeward.errors import PeerError

if TYPE_CHECKING:
    from msgpack import Unpacker

#: The MIME types of forms, and whether they are text.
IS_TEXT = {
    "text/plain": True, "text/html": True, "text/markdown": True, "text/latex": True, "image/svg+xml": True,
    "image/png": False, "image/jpeg": False, "application/pdf": False, "application/json": True,
}

#: Bundles of one job, at most.
MAX_RESULTS = 64
#: Bytes of one form, and of all forms of all bundles together, at most; text counts as UTF-8.
MAX_ONE, MAX_TOTAL = 4 << 20, 6 << 20
#: Characters of the value that an expression has, and of every `text/plain`, at most.
MAX_PLAIN = 64 << 10
#: Bytes of a reply for bundles beside their content: names of types, lengths, the value, what was left out.
AROUND = 1 << 20

Bundle = dict[str, str | bytes]


class Bundles:
    """Bundles that are checked one after the other."""

    def __init__(self) -> None:
        self.done: list[Bundle] = []
        self._left = MAX_TOTAL

    def add(self, forms: Iterable[tuple[object, object]]) -> None:
        """Take the forms of one bundle; PeerError if they are none, or exceed a bound."""
        if len(self.done) >= MAX_RESULTS:
            raise PeerError(f"what a job shows: more than {MAX_RESULTS} bundles")
        bundle: Bundle = {}
        for kind, content in forms:
            if not isinstance(kind, str) or kind not in IS_TEXT or kind in bundle:
                raise PeerError("what a job shows: no MIME type, or one twice")
            size = size_of(kind, content)
            self._left -= size
            if size > MAX_ONE or self._left < 0:
                raise PeerError("what a job shows: too many bytes")
            bundle[kind] = content  # type: ignore[assignment]  # text or bytes, as size_of has found
        if not bundle:
            raise PeerError("what a job shows: an empty bundle")
        self.done.append(bundle)


def size_of(kind: str, content: object) -> int:
    """Bytes of *content*, in the form *kind*; PeerError if it isn't of the type that this form has."""
    if IS_TEXT[kind] and isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode("utf-8", "replace"))
    if not IS_TEXT[kind] and isinstance(content, bytes):
        return len(content)
    raise PeerError(f"what a job shows: {kind} is {type(content).__name__}")


def read(reading: Unpacker) -> tuple[Bundle, ...]:
    """Read bundles, container by container. Raises PeerError, and what *reading*'s `unpack` raises."""
    bundles = Bundles()
    for _ in range(_counted(reading.read_array_header(), MAX_RESULTS)):
        count = _counted(reading.read_map_header(), len(IS_TEXT))
        bundles.add((reading.unpack(), reading.unpack()) for _ in range(count))
    return tuple(bundles.done)


def checked(value: object) -> tuple[Bundle, ...]:
    """The bundles in *value*, which a client has decoded; PeerError if it is something else."""
    if type(value) is not list:
        raise PeerError("a result: results is no array")
    bundles = Bundles()
    for bundle in value:
        if type(bundle) is not dict:
            raise PeerError("a result: results holds something else than maps")
        bundles.add(bundle.items())
    return tuple(bundles.done)


def value_text(value: object) -> str | None:
    """The text of an expression's value; PeerError if it is something else, or too long."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_PLAIN:
        raise PeerError("a result: value is no short text")
    return value


def _counted(count: int, most: int) -> int:
    if count > most:
        raise PeerError(f"what a job shows: {count} entries")
    return count

"""
What a job displays, by MIME types: its bounds, and a reader.

Trust:     none. A bundle is the job's own bytes, whoever carries them: type, number and size are checked, and nobody
           here interprets them.

A bundle is one thing in several forms, a map from MIME type to content: text, or bytes.
"""

from __future__ import annotations

from leeward.errors import PeerError

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

Bundle = dict[str, "str | bytes"]  # Python 3.9 can't evaluate it


def size_of(kind: str, content: object) -> int:
    """Bytes of *content*, in the form *kind*; PeerError if it isn't of the type that this form has."""
    if IS_TEXT[kind] and isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode("utf-8", "replace"))
    if not IS_TEXT[kind] and isinstance(content, bytes):
        return len(content)
    raise PeerError(f"what a job shows: {kind} is {type(content).__name__}")


def checked(value: object) -> tuple[Bundle, ...]:
    """The bundles in *value*, which was decoded; PeerError if it is something else, or exceeds a bound."""
    if type(value) is not list or len(value) > MAX_RESULTS:
        raise PeerError("what a job shows: no short array")
    left = MAX_TOTAL
    for bundle in value:
        if type(bundle) is not dict or not bundle or not bundle.keys() <= IS_TEXT.keys():
            raise PeerError("what a job shows: no map of MIME types")
        for kind, content in bundle.items():
            size = size_of(kind, content)
            left -= size
            if size > MAX_ONE or left < 0:
                raise PeerError("what a job shows: too many bytes")
    return tuple(value)


def value_text(value: object) -> str | None:
    """The text of an expression's value; PeerError if it is something else, or too long."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_PLAIN:
        raise PeerError("a result: value is no short text")
    return value

"""Messages in pieces: what they say, and what isn't copied."""

from __future__ import annotations

import gc
import sys
from typing import Any

import msgpack
import pytest

from leeward.wire.answers import ok_pieces
from leeward.wire.file_answers import read_answer
from leeward.wire.frames import HEADER
from leeward.wire.pieces import APART, framed, pieces_of

LARGE, SMALL = bytes(APART), bytes(APART - 1)


@pytest.mark.parametrize("message", [
    {}, {"a": 1}, {"data": LARGE}, {"data": SMALL, "b": "text"}, {"data": LARGE, "b": {"c": memoryview(LARGE), "d": [LARGE]}},
])
def test_pieces_say_what_the_message_says(message: dict[str, Any]) -> None:
    whole = b"".join(framed(pieces_of(message)))
    assert len(whole) == HEADER + int.from_bytes(whole[:HEADER], "big")
    assert msgpack.unpackb(whole[HEADER:]) == msgpack.unpackb(msgpack.packb(message))


def test_large_values_are_not_copied() -> None:
    view = memoryview(LARGE)
    found = framed(pieces_of({"first": LARGE, "second": {"third": view, "small": SMALL}, "last": 1}))
    assert [LARGE] == [each for each in found if each is LARGE]
    assert [view] == [each for each in found if each is view]


def test_large_values_are_not_kept_until_a_collection() -> None:
    content, message = bytes(APART), dict[str, Any]()
    message["data"] = content
    gc.disable()
    try:
        before = sys.getrefcount(content)
        pieces_of(message)
        assert before == sys.getrefcount(content)
    finally:
        gc.enable()


def test_text_that_is_no_unicode_is_an_error_or_replaced() -> None:
    with pytest.raises(UnicodeEncodeError):
        pieces_of({"why": "\udc80"})
    assert {"why": "?"} == msgpack.unpackb(b"".join(pieces_of({"why": "\udc80"}, "replace")))


@pytest.mark.parametrize("content", [b"", b"short", LARGE])
def test_content_goes_from_a_sandbox_to_a_client(content: bytes) -> None:
    """By the daemon, which copies none that is large."""
    body = memoryview(b"".join(pieces_of({"n": 7, "data": content})))
    answer = read_answer("file_read_many", 7, body)
    assert isinstance(answer["data"], memoryview if content is LARGE else bytes)
    pieces = ok_pieces(3, answer)
    assert {"id": 3, "ok": {"data": content}} == msgpack.unpackb(b"".join(pieces)[HEADER:])

"""Text in pieces that are cut anywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leeward.client.characters import begun, text_of_piece
from leeward.client.sandbox_calls import Chunk, ChunkReader
from leeward.wire.replies import Reply

TEXT = "aé€𝄞" * 50


@pytest.mark.parametrize(("data", "rest"), [
    (b"", b""), (b"a", b""), (b"\xc3", b"\xc3"), (b"a\xe2\x82", b"\xe2\x82"), (b"\xf0\x9d\x84", b"\xf0\x9d\x84"),
    ("€".encode(), b""), ("𝄞".encode(), b""), (b"\x82\x82\x82\x82", b""), (b"\xff", b""), (b"\xc0", b""), (b"\xe2a", b""),
])
def test_what_a_piece_has_begun(data: bytes, rest: bytes) -> None:
    assert rest == begun(data)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 64])
def test_pieces_of_text_are_the_text(size: int) -> None:
    """Whatever the sizes."""
    data, left, found = TEXT.encode(), b"", ""
    for at in range(0, len(data), size):
        text, left = text_of_piece(left, data[at:at + size])
        found += text

    assert (TEXT, b"") == (found, left)


@pytest.mark.parametrize("seed", range(30))
def test_bytes_that_are_no_text_are_as_when_decoded_at_once(seed: int) -> None:
    chance = random.Random(seed)
    data = bytes(chance.choices([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9D, 0xFF, 0xED, 0xA0], k=400))
    left, found, at = b"", "", 0
    while at < len(data):
        size = chance.randrange(1, 9)
        text, left = text_of_piece(left, data[at:at + size], last=at + size >= len(data))
        found, at = found + text, at + size

    assert data.decode("utf-8", "replace") == found


def _read(reader: ChunkReader, rows: list[list[Any]], *, over: bool = False) -> list[Chunk]:
    return reader.take(Reply(1, {"chunks": rows, "over": over}, "", "", []))


def test_chunks_of_two_streams_are_decoded_apart() -> None:
    euro, reader = "€".encode(), ChunkReader()
    first = _read(reader, [[1, 1, 0.0, b"a" + euro[:1]], [2, 2, 0.0, euro[:2]], [3, 1, 0.0, euro[1:2]]])
    second = _read(reader, [[4, 1, 0.0, euro[2:] + euro[:2]], [5, 2, 0.0, euro[2:]]], over=True)

    assert ["a", "", ""] == [chunk.text for chunk in first]
    assert ["€\ufffd", "€"] == [chunk.text for chunk in second]  # nothing follows
    assert (5, True) == (reader.after, reader.at_end)


def test_after_a_chunk_that_another_reader_got_nothing_is_joined() -> None:
    reader = ChunkReader()
    _read(reader, [[1, 1, 0.0, "€".encode()[:2]]])
    later = _read(reader, [[3, 1, 0.0, b"b"]])

    assert ["b"] == [chunk.text for chunk in later]

"""Output that is passed on as it comes: escaped on a terminal, wherever it was cut."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from leeward_cli.job import escape
from leeward_cli.shown import EscapedStream, cut

TEXT = "é\x1b]0;t\x07 \u202e日本 🎉\u200b".encode() + b"\xff\xf0\x9f\x8e \xe2\x80"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def taken(fd: int, size: int) -> bytes:
    """*size* bytes, which a terminal may give in pieces."""
    found = b""
    while len(found) < size:
        found += os.read(fd, 4096)
    return found


@pytest.mark.parametrize("at", range(len(TEXT) + 1))
def test_output_written_in_pieces_is_shown_alike(terminal: tuple[int, int], at: int) -> None:
    master, slave = terminal
    stream = EscapedStream(slave, raw=False)
    for piece in (TEXT[:at], TEXT[at:]):
        stream.write(piece)
    stream.close()

    assert escape(TEXT) == taken(master, len(escape(TEXT)))


def test_raw_and_pipes_get_it_as_it_is(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    EscapedStream(slave, raw=True).write(b"\x1b[31m\xe2")
    assert b"\x1b[31m\xe2" == taken(master, 6)

    read_end, write_end = os.pipe()
    EscapedStream(write_end, raw=False).write(b"\x1b[31m\xe2")
    assert b"\x1b[31m\xe2" == os.read(read_end, 4096)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(("data", "count"), [
    (b"", 0), (b"a", 0), ("é".encode(), 0), (b"a\xc3", 1), (b"\xe2\x80", 2), (b"\xf0\x9f\x8e", 3), (b"\x80\x80\x80", 0),
    (b"\xff", 0), (b"\xe2\x80\xae", 0), (b"\xf0\x9f\x8e\x89", 0)])
def test_a_partial_character_at_the_end_is_held_back(data: bytes, count: int) -> None:
    assert count == cut(data)

"""Output that waits for a reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.sandboxes.streams import MOST_READERS, ROOM, STDERR, STDOUT, Chunks


def test_chunks_come_until_they_are_forgotten() -> None:
    """Then the numbers go on."""
    chunks = Chunks()
    chunks.put(STDOUT, 1.0, b"a")
    chunks.put(STDERR, 2.0, b"b")

    assert [(1, STDOUT, 1.0, b"a"), (2, STDERR, 2.0, b"b")] == [
        (each.number, each.stream, each.time, each.data) for each in chunks.after(0)]
    assert [b"b"] == [each.data for each in chunks.after(1)]
    chunks.has(0, 1, 0.0)
    chunks.put(STDOUT, 3.0, b"c")
    assert [2, 3] == [each.number for each in chunks.after(0)]
    chunks.drop()
    assert ([], 0, 3) == (chunks.after(0), chunks.size, chunks.last)


def test_a_process_that_writes_byte_by_byte_fills_its_room() -> None:
    """Each piece is counted with what it costs."""
    chunks = Chunks()
    count = 0
    while not chunks.full:
        chunks.put(STDOUT, 0.0, b"x")
        count += 1

    assert count < ROOM // 100


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=30), st.integers(1, 60))
def test_an_answer_has_a_bound(pieces: list[bytes], most: int) -> None:
    """And all of them together are everything, in order."""
    chunks = Chunks()
    for piece in pieces:
        chunks.put(STDOUT, 0.0, piece)
    got, last = b"", 0
    while found := chunks.after(last, most):
        assert len(found) == 1 or sum(len(each.data) for each in found) <= most
        got += b"".join(each.data for each in found)
        last = found[-1].number
        chunks.has(0, last, 0.0)

    assert b"".join(pieces) == got
    assert 0 == chunks.size


def test_a_chunk_stays_until_each_reader_has_it() -> None:
    chunks = Chunks()
    for data in (b"a", b"b", b"c"):
        chunks.put(STDOUT, 0.0, data)
    chunks.has(1, 0, 1.0)
    chunks.has(2, 3, 2.0)
    assert [b"a", b"b", b"c"] == [each.data for each in chunks.after(0)]
    assert (True, False) == (chunks.more(2), chunks.more(3))
    chunks.has(1, 2, 3.0)
    assert [b"c"] == [each.data for each in chunks.after(0)]
    chunks.has(1, 3, 4.0)

    assert ([], 0, False) == (chunks.after(0), chunks.size, chunks.more(0))


def test_readers_that_have_stopped_are_forgotten_but_for_the_last() -> None:
    chunks = Chunks()
    chunks.part(1.0)
    chunks.put(STDOUT, 0.0, b"a")
    chunks.has(1, 0, 1.0)
    chunks.has(2, 1, 5.0)
    chunks.part(1.0)
    assert 2 == chunks.readers
    chunks.part(9.0)

    assert (1, []) == (chunks.readers, chunks.after(0))
    chunks.part(9.0)
    assert 1 == chunks.readers


def test_there_are_only_so_many_readers() -> None:
    """The one that was silent for longest gives its place."""
    chunks = Chunks()
    chunks.put(STDOUT, 0.0, b"a")
    for number in (*range(MOST_READERS), 0):
        chunks.has(number, 0, 1.0)
    chunks.has(99, 0, 1.0)
    for number in (0, *range(2, MOST_READERS), 99):
        assert 1 == len(chunks.after(0))
        chunks.has(number, 1, 2.0)

    assert (MOST_READERS, []) == (chunks.readers, chunks.after(0))

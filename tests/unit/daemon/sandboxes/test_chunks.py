"""Output that waits for a reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leeward.daemon.sandboxes.streams import ROOM, STDERR, STDOUT, Chunks


def test_chunks_come_until_they_are_forgotten() -> None:
    """Then the numbers go on."""
    chunks = Chunks()
    chunks.put(STDOUT, 1.0, b"a")
    chunks.put(STDERR, 2.0, b"b")

    assert [(1, STDOUT, 1.0, b"a"), (2, STDERR, 2.0, b"b")] == [
        (each.number, each.stream, each.time, each.data) for each in chunks.after(0)]
    assert [b"b"] == [each.data for each in chunks.after(1)]
    chunks.forget(1)
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
        chunks.forget(last)

    assert b"".join(pieces) == got
    assert 0 == chunks.size

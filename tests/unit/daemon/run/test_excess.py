"""The ends of output that is longer than its limit."""

from __future__ import annotations

import random

import pytest

from leeward.daemon.run.output import EXCESS_CHUNK, NOTE_ROOM, Ends, ends_of, pause


@pytest.mark.parametrize(("limit", "most"), [(0, 0), (1, 0), (10, 5), (1 << 20, 1 << 19), (1 << 30, 1 << 20)])
def test_the_ends_have_half_of_a_small_limit(limit: int, most: int) -> None:
    assert most == ends_of(limit)


def test_what_fits_is_whole() -> None:
    ends = Ends(10)
    ends.put(0, b"abc")
    ends.put(1, b"defg")
    ends.put(0, b"hij")

    assert (b"abchij", b"defg") == (ends.take(0), ends.take(1))
    assert (0, 0) == ends.dropped


def test_the_oldest_bytes_are_left_out() -> None:
    ends = Ends(10)
    for number in range(100):
        ends.put(0, b"%02d" % number)

    assert b"\n[190 bytes left out]\n9596979899" == ends.take(0)
    assert b"" == ends.take(1)
    assert (190, 0) == ends.dropped


def test_a_flood_leaves_the_other_stream_its_half() -> None:
    ends = Ends(10)
    ends.put(1, b"error")
    for _ in range(50):
        ends.put(0, b"y" * 7)
    ends.put(1, b" told")

    assert (b"\n[345 bytes left out]\nyyyyy", b"\n[5 bytes left out]\n told") == (ends.take(0), ends.take(1))


def test_no_character_is_cut_at_the_beginning_of_an_end() -> None:
    ends = Ends(10)
    ends.put(0, "€".encode() * 10)

    assert "\n[21 bytes left out]\n€€€" == ends.take(0).decode()
    assert 21 == ends.dropped[0]


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_bounded_and_no_byte_is_miscounted(seed: int) -> None:
    """With pieces of any sizes, from both streams."""
    chance = random.Random(seed)
    room = chance.choice([0, 1, 7, 1000, 3 * EXCESS_CHUNK])
    ends, written = Ends(room), (bytearray(), bytearray())
    for _ in range(300):
        at, piece = chance.randrange(2), bytes(chance.choices(range(128), k=chance.choice([0, 1, 3, 400, 70_000])))
        ends.put(at, piece)
        written[at].extend(piece)
        assert sum(end.size for end in ends._ends) <= room + 2 * EXCESS_CHUNK + 70_000
    for at in (0, 1):
        end = ends.take(at)
        dropped = ends.dropped[at]
        note = b"\n[%d bytes left out]\n" % dropped if dropped else b""
        assert len(note) <= NOTE_ROOM
        assert note + written[at][dropped:] == end
    assert sum(map(len, written)) - sum(ends.dropped) <= room


def test_a_loop_that_is_late_is_left_alone_for_longer() -> None:
    assert 0.001 == pause(0.0)
    assert pause(0.001) < pause(0.01) <= pause(10.0) <= 0.1

"""Frames of calls and answers, and the values in them."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from leeward.errors import PeerError
from leeward.wire import function_frames as wire
from leeward.wire.job_frames import CODE, FILE_CALLS, HEADER, NOTHING_TO_TELL, SESSION

PLAIN: dict[str, Any] = {
    "none": None, "flags": [True, False], "numbers": [0, -1, 2**63, -(2**63), 0.5, math.inf], "text": "é\0",
    "bytes": b"\x90\xff", "empty": [[], {}, "", b""], "nested": {"a": [{"b": [1]}]},
}


def test_values_come_back_as_they_went() -> None:
    """JSON's, and bytes. A tuple is a list."""
    assert PLAIN == wire.unpack(wire.pack(PLAIN))
    assert [1, [2]] == wire.unpack(wire.pack((1, (2,))))
    assert ([1, b"x"], {"n": None}) == wire.unpack_arguments(wire.pack_arguments((1, b"x"), {"n": None}))


@pytest.mark.parametrize("value", [
    object(), {1, 2}, {1: 2}, {b"x": 1}, 2**64, "\udc80", msgpack.ExtType(1, b"x"), msgpack.Timestamp(1), 1j])
def test_other_values_are_refused_where_they_are(value: object) -> None:
    """As a TypeError of whoever sends them."""
    with pytest.raises(TypeError):
        wire.pack([value])


def test_values_have_bounds() -> None:
    """In bytes, in number and in depth."""
    deep: list[Any] = []
    for _ in range(wire.MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match="too many to send"):
        wire.pack(b"x" * wire.MAX_BODY)
    with pytest.raises(TypeError, match="nested"):
        wire.pack(deep)
    with pytest.raises(TypeError, match="values"):
        wire.pack([0] * wire.MAX_VALUES)
    assert wire.MAX_BODY - 5 == len(wire.unpack(wire.pack(b"x" * (wire.MAX_BODY - 5))))


@pytest.mark.parametrize("data", [
    b"", b"\xc1", b"\x91", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xd9\x01\xff", b"\x81\x01\x02", b"\x81\xc4\x01x\x02", b"\xc7\x00\x01", b"\xd4\x01x", b"\xd6\xff\0\0\0\0",
    b"\x01\x02", b"\xdc\xff\xff" + b"\x90" * 200_000, b"\xc4\xff", b"\x81\x81\x01\x02\x03"])
def test_hostile_values_are_a_peer_error(data: bytes) -> None:
    """And nothing else, whatever they claim to be."""
    with pytest.raises(PeerError):
        wire.unpack(data)


@pytest.mark.parametrize("value", [None, [], [[]], [[], {}, 1], [{}, []], ["x", {}], {"a": 1}])
def test_arguments_are_a_list_and_a_map(value: object) -> None:
    """In a list of two."""
    with pytest.raises(PeerError):
        wire.unpack_arguments(msgpack.packb(value))


def test_a_call_is_no_reply_and_a_piece_no_job() -> None:
    """By their first bytes."""
    call = wire.call_frame(7, 3, b"body")[HEADER.size:]
    assert wire.is_call(call)
    assert (7, 3, b"body") == wire.read_call(call)
    assert not wire.is_call(NOTHING_TO_TELL)
    assert not wire.is_call(b"")
    assert wire.ANSWER not in {CODE[0], SESSION[0], FILE_CALLS[0], NOTHING_TO_TELL[0]}


@pytest.mark.parametrize("body", [b"", b"\3", b"\3" + b"\0" * 4, b"\4" + b"\0" * 9, b"\3" * (wire.MAX_CALL + 1)])
def test_a_broken_call_is_a_peer_error(body: bytes) -> None:
    """One that is cut, of another kind, or too long."""
    with pytest.raises(PeerError):
        wire.read_call(body)


@pytest.mark.parametrize("size", [0, 1, 4085, 4086, 4087, 10_000, wire.MAX_BODY])
def test_an_answer_goes_in_pieces_that_the_kernel_takes_whole(size: int) -> None:
    """PIPE_BUF bytes each, at most; the last one says so."""
    body = bytes(index % 251 for index in range(size))
    frames = wire.answer_frames(9, True, body)
    pieces = [wire.read_piece(frame[HEADER.size:]) for frame in frames]

    assert all(len(frame) <= 4096 == wire.PIECE for frame in frames)
    assert all(HEADER.unpack_from(frame)[0] == len(frame) - HEADER.size for frame in frames)
    assert body == b"".join(piece.body for piece in pieces)
    assert {9} == {piece.number for piece in pieces}
    assert [wire.RAISED | wire.MORE] * (len(pieces) - 1) + [wire.RAISED] == [piece.flags for piece in pieces]


def test_an_exception_is_cut_and_never_fails() -> None:
    """Whatever its text is."""
    kind, text = wire.unpack(wire.pack_error("E" * 1000, "\udc80" + "x" * 100_000))
    assert (wire.MAX_TYPE, wire.MAX_TEXT) == (len(kind), len(text))

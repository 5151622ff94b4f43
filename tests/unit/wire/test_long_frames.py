"""Long frames: the same payloads and the same messages as others, without a copy of their large values."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import BadRequest, PeerError, brief
from leeward.wire import frames
from leeward.wire.frames import FrameReader, decode, decode_in_place, encode, frame
from leeward.wire.long_frames import LongFrame
from leeward.wire.requests import Execute, parse_request

#: Values on both sides of the border from which they are views.
SCALARS = (st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20)
           | st.integers(frames.LARGE_VALUE - 2, frames.LARGE_VALUE + 300).map(os.urandom) | st.binary(max_size=40))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4)
                      | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)


def _stream() -> tuple[list[bytes], bytes]:
    payloads = [b"one", os.urandom(frames.LONG), b"", os.urandom(3 * frames.LONG + 5), os.urandom(frames.LONG - 1)]
    return payloads, b"".join(map(frame, payloads))


@pytest.mark.parametrize("most", [1 << 10, 1 << 16, 1 << 20, 1 << 23])
def test_long_frames_survive_any_cuts(most: int) -> None:
    """Between others, in pieces of up to *most* bytes; and what is held is what has arrived."""
    payloads, stream = _stream()
    cuts, reader, at = random.Random(most), FrameReader(store=LongFrame), 0
    got: list[bytes | memoryview] = []
    while at < len(stream):
        piece = stream[at:at + cuts.randrange(1, most)]
        at += len(piece)
        got += reader.feed(piece)
        assert at == reader.held + sum(frames.HEADER + len(payload) for payload in got)

    assert reader.idle
    assert payloads == [bytes(payload) for payload in got]
    views = [isinstance(payload, memoryview) for payload in got]
    assert most > frames.LONG or [frames.LONG <= len(payload) for payload in got] == views


def test_an_unfinished_long_frame_can_be_dropped() -> None:
    """The reader begins anew then."""
    stream = frame(os.urandom(2 * frames.LONG))
    reader = FrameReader(store=LongFrame)
    assert not reader.feed(stream[:-1])
    assert not reader.idle
    assert 1 == reader.lacks

    reader.drop()
    assert (True, 0) == (reader.idle, reader.held)
    assert [b"x"] == reader.feed(frame(b"x"))


def test_a_claimed_length_takes_little_address_space() -> None:
    """A peer that promises 80 MiB and sends 2 has 4, and as many pages as it has sent."""
    def size() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")

    data = bytes(2 << 20)
    before, reader = size(), FrameReader(store=LongFrame)
    reader.feed(frames.MAX_REQUEST.to_bytes(frames.HEADER, "big") + data)

    assert size() - before < 10 << 20
    assert frames.HEADER + len(data) == reader.held


@given(st.dictionaries(st.text(max_size=12), VALUES, max_size=6))
def test_a_message_is_the_same_in_place(message: dict[str, object]) -> None:
    """Views compare as bytes do."""
    payload = msgpack.packb(message)

    assert message == decode(payload) == decode_in_place(memoryview(payload))


def test_large_values_are_views_that_can_not_be_written_to() -> None:
    """If they are most of the frame: a small one doesn't keep it."""
    large, small = b"l" * (1 << 20), b"s" * frames.LARGE_VALUE
    mostly = decode_in_place(memoryview(bytearray(msgpack.packb({"stdin": large, "files": {"a": small, "b": b"c"}}))))
    hardly = decode_in_place(memoryview(msgpack.packb({"stdin": small, "code": "t" * (1 << 20)})))

    assert [memoryview, memoryview, bytes] == [
        type(value) for value in (mostly["stdin"], *mostly["files"].values())]
    assert mostly["stdin"].readonly
    assert bytes is type(hardly["stdin"])


@pytest.mark.parametrize(("message", "why"), [
    ({"a": [b"x" * frames.LARGE_VALUE] * (frames.MAX_LARGE + 1)}, "more than 2048 binary values"),
    ({str(number): [b"x" * 1000] * 4000 for number in range(3)}, "bytes in values that are no binary"),
    ({"a": msgpack.ExtType(0, b"\0\0\0\0"), "b": b"x" * frames.LARGE_VALUE}, "extension types"),
    ({"a": msgpack.ExtType(0, b"\0\0\0\1"), "b": b"x" * frames.LARGE_VALUE}, "extension types"),
    ({b"k" * frames.LARGE_VALUE: 1}, "not MessagePack"),
])
def test_what_takes_long_to_decode_in_place_is_refused(message: dict[object, object], why: str) -> None:
    """Many values, or much beside them; and the types by which the decoder names the values."""
    payload = msgpack.packb(message)
    with pytest.raises(PeerError, match=why):
        decode_in_place(memoryview(payload))


def test_a_view_is_binary_in_every_field() -> None:
    """Those that may be large keep it, others have a copy, and what is wrong is said as of bytes."""
    view = memoryview(b"x" * 2000)
    request = parse_request({"v": 1, "id": 1, "op": "execute", "code": view, "stdin": view, "files": {"f": view}})

    assert isinstance(request, Execute)
    assert [bytes, memoryview, memoryview] == [type(request.code), type(request.stdin), type(request.files["f"])]
    with pytest.raises(BadRequest, match="an argument must be text, not bytes"):
        parse_request({"v": 1, "id": 1, "op": "execute", "code": b"", "args": [view]})
    with pytest.raises(BadRequest, match="policy has more than"):
        parse_request({"v": 1, "id": 1, "op": "execute", "code": b"", "policy": {
            str(number): [view] * 2 for number in range(32)}})
    assert brief(bytes(view)) == brief(view)
    overlay = {"v": 1, "id": 1, "op": "overlay_read", "sandbox": "a" * 26, "target": "/w", "path": view}
    assert parse_request(overlay) == parse_request({**overlay, "path": bytes(view)})


def test_the_largest_request_is_within_the_bounds() -> None:
    """As many files as there may be, each a large value, with code, input and text."""
    message = {"v": 1, "id": 1, "op": "execute", "code": b"#" * (16 << 20), "stdin": b"i" * (46 << 20), "name": "é",
               "files": {f"f{number}": b"f" * (15 << 10) for number in range(1024)}, "args": ["a" * (1 << 20)]}
    [payload] = FrameReader(store=LongFrame).feed(encode(message))

    assert isinstance(payload, bytes)  # it came at once
    assert message == decode_in_place(memoryview(payload), frames.MAX_TEXT)

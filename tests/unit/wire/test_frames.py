"""Frames: any split gives the same messages, and no bytes give anything but a map or PeerError."""

from __future__ import annotations

import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.wire import frames
from leeward.wire.frames import FrameReader, decode, encode, frame

SCALARS = (st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
           | st.text(max_size=40) | st.binary(max_size=40))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5)
                      | st.dictionaries(st.text(max_size=8), inner, max_size=5), max_leaves=20)
MESSAGES = st.dictionaries(st.text(max_size=12), VALUES, max_size=8)


def test_frames_survive_any_split() -> None:
    """Cutting the stream at any byte gives the same frames."""
    stream = frame(b"one") + frame(b"") + frame(b"three" * 60)
    for cut in range(len(stream) + 1):
        reader = FrameReader()

        assert [b"one", b"", b"three" * 60] == reader.feed(stream[:cut]) + reader.feed(stream[cut:])
        assert 0 == reader.held


def test_a_frame_survives_byte_by_byte() -> None:
    """One frame in as many reads as it has bytes."""
    message = {"v": 1, "id": 1, "op": "execute", "code": b"print(1)" * 100}
    reader = FrameReader()
    got = [payload for byte in encode(message) for payload in reader.feed(bytes([byte]))]

    assert [message] == [decode(payload) for payload in got]


@pytest.mark.thorough
@given(st.lists(MESSAGES, max_size=4), st.data())
def test_messages_survive_any_cuts(messages: list[dict[str, object]], data: st.DataObject) -> None:
    """Any messages, cut anywhere, any number of times."""
    stream = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, got = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += [decode(payload) for payload in reader.feed(stream[start:end])]

    assert messages == got


@pytest.mark.parametrize("length", [frames.MAX_REQUEST + 1, 2**31, 2**32 - 1])
def test_a_length_above_the_limit_is_refused_at_once(length: int) -> None:
    """The claimed length is enough; nothing is kept, and the stream stays refused."""
    reader = FrameReader()
    with pytest.raises(PeerError, match="at most"):
        reader.feed(struct.pack(">I", length) + b"x")
    with pytest.raises(PeerError, match="at most"):
        reader.feed(frame(b"good"))

    assert 0 == reader.held


def test_a_claimed_length_takes_no_memory() -> None:
    """A peer that promises 64 MiB and sends ten bytes costs ten bytes."""
    reader = FrameReader()
    tracemalloc.start()
    reader.feed(struct.pack(">I", 64 << 20) + b"0123456789")
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert held < 1 << 16
    assert 14 == reader.held


BOMBS = {
    "empty": b"",
    "no map": b"\x93\x01\x02\x03",
    "a bare number": b"\x07",
    "nested deeper than the stack": b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    "nested one too deep": b"\x81\xa1a" + b"\x91" * 32 + b"\xc0",
    "array of 4 billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "binary of 4 billion": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "text of 4 billion": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "array above the cap": msgpack.packb({"a": [None] * (frames.MAX_ENTRIES + 1)}),
    "too many values": msgpack.packb({"a": [[None] * 4000] * 10}),
    "long arrays inside each other": b"\x81\xa1a" + b"\xdc\x0f\xff" * 31,
    "the same key twice": b"\x82\xa1a\x01\xa1a\x02",
    "a number as key": b"\x81\x01\x02",
    "binary as key": b"\x81\xc4\x01a\x02",
    "nil as key": b"\x81\xc0\x02",
    "a map as key": b"\x81\x80\x02",
    "a key of 1 MB": msgpack.packb({"k" * 1_000_000: 1}),
    "an extension type": msgpack.packb({"a": msgpack.ExtType(5, b"x")}),
    "a long extension type": msgpack.packb({"a": msgpack.ExtType(5, b"x" * 300)}),
    "a timestamp": msgpack.packb({"a": msgpack.Timestamp(1, 2)}),
    "a timestamp out of range": b"\x81\xa1a\xd7\xff" + b"\xff" * 8,
    "invalid UTF-8": b"\x81\xa1a\xa2\xff\xfe",
    "invalid UTF-8 in a key": b"\x81\xa1\xff\x01",
    "a surrogate": b"\x81\xa1a\xa3\xed\xa0\x80",
    "the byte that is never used": b"\x81\xa1a\xc1",
    "trailing bytes": msgpack.packb({"a": 1}) + b"\x01",
    "two maps": msgpack.packb({"a": 1}) * 2,
}


@pytest.mark.parametrize("name", BOMBS)
def test_c100_bombs_are_refused_before_they_are_built(name: str) -> None:
    """Each ends as PeerError, in memory that is in proportion to the input."""
    tracemalloc.start()
    with pytest.raises(PeerError):
        decode(BOMBS[name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 * len(BOMBS[name]) + (1 << 20)


def test_c100_the_plain_decoder_would_have_built_it() -> None:
    """Control: without the survey, a byte on the wire becomes 56 in memory."""
    bomb = msgpack.packb({"a": [[]] * 300_000})
    tracemalloc.start()
    msgpack.unpackb(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak > 50 * len(bomb)


def test_every_truncation_of_a_map_is_refused() -> None:
    """A map that ends early is never taken for a shorter one."""
    payload = encode({"a": [1, "two", b"three", {"x": 1.5}], "b": "x" * 300, "c": b"y" * 70000, "d": None})[4:]
    for cut in [*range(400), *range(400, len(payload), 997), len(payload) - 1]:
        with pytest.raises(PeerError):
            decode(payload[:cut])


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_only_peer_error_comes_out(data: bytes) -> None:
    """Any bytes: a map or PeerError."""
    for payload in (data, b"\x81\xa1a" + data, b"\x8f" + data):
        try:
            assert isinstance(decode(payload), dict)
        except PeerError:
            pass


@pytest.mark.thorough
@settings(max_examples=150)
@given(MESSAGES, st.data())
def test_only_peer_error_comes_out_of_damaged_messages(message: dict[str, object], data: st.DataObject) -> None:
    """Bytes flipped in a real message: a map or PeerError."""
    payload = bytearray(encode(message)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(decode(bytes(payload)), dict)
    except PeerError:
        pass


@pytest.mark.thorough
@given(MESSAGES)
def test_encoding_comes_back(message: dict[str, object]) -> None:
    """What is encoded is decoded to the same, by our decoder and by any other."""
    payload = encode(message)[4:]

    assert message == decode(payload) == msgpack.unpackb(payload)


def test_encode_keeps_to_its_limit() -> None:
    """A message that the peer would refuse isn't made."""
    with pytest.raises(ValueError, match="above the 100"):
        encode({"code": b"x" * 100}, limit=100)


def test_c397_much_text_is_refused_before_it_is_decoded() -> None:
    """In one value, in many, and in keys; binary isn't text."""
    many = {str(at): "a" * 2000 for at in range(9)}
    for message in ({"a": "\u0130" * 5000}, many, {"a": [many]}, {"k" * 4000: 1, "l" * 4000: 1, "m" * 4000: 2}):
        payload = msgpack.packb(message)
        assert message == decode(payload) == decode(payload, len(payload))
        with pytest.raises(PeerError, match="text of"):
            decode(payload, len(payload) // 2)
    assert {"a": b"a" * 5000} == decode(msgpack.packb({"a": b"a" * 5000}), 0)

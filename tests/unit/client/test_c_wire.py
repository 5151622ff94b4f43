"""The C client's reading and writing beside the Python one's: the same verdict, the same bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.c_client import Options, options_of
from leeward.client.options import execute_fields
from leeward.errors import PeerError, quoted
from leeward.wire import frames, job_frames
from leeward.wire.frames import HEADER, decode, encode
from leeward_cli.messages import escape

pytestmark = pytest.mark.needs("compiler")

SCALARS = (st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
           | st.text(max_size=40) | st.binary(max_size=40))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5)
                      | st.dictionaries(st.text(max_size=8), inner, max_size=5), max_leaves=20)
MESSAGES = st.dictionaries(st.text(max_size=12), VALUES, max_size=30)

#: The library is made once and keeps nothing, so that examples may share the fixture.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)


class Buffer(ctypes.Structure):
    """struct lw_buffer."""

    _fields_ = (("data", ctypes.POINTER(ctypes.c_ubyte)), ("length", ctypes.c_size_t), ("capacity", ctypes.c_size_t),
                ("limit", ctypes.c_size_t), ("no_memory", ctypes.c_bool))

    def __init__(self) -> None:
        super().__init__(limit=1 << 30)

    def content(self) -> bytes:
        return ctypes.string_at(self.data, self.length) if self.length else b""


def verdict(inside: ctypes.CDLL, payload: bytes) -> str | None:
    """What C finds wrong with *payload*. The copy ends where the payload does."""
    wrong = ctypes.c_char_p()
    copy = (ctypes.c_ubyte * len(payload)).from_buffer_copy(payload)
    failed = inside.lw_check(copy, ctypes.c_size_t(len(payload)), ctypes.byref(wrong))
    assert bool(failed) == bool(wrong.value)
    return None if wrong.value is None else wrong.value.decode()


def agree(inside: ctypes.CDLL, payload: bytes) -> None:
    try:
        decode(payload)
        fine = True
    except PeerError:
        fine = False

    assert fine == (verdict(inside, payload) is None), (payload, verdict(inside, payload))


BOMBS = (
    b"", b"\x93\x01\x02\x03", b"\x07",
    b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0", b"\x81\xa1a" + b"\x91" * 32 + b"\xc0",
    b"\x81\xa1a" + b"\x91" * 31 + b"\xc0", b"\x81\xa1a\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\x81\xa1a\xc6\xff\xff\xff\xff", b"\x81\xa1a\xdb\xff\xff\xff\xff",
    msgpack.packb({"a": [None] * 4096}), msgpack.packb({"a": [None] * 4097}),
    msgpack.packb({"a": [[None] * 4000] * 10}),
    b"\x81\xa1a" + b"\xdc\x0f\xff" * 31, b"\x82\xa1a\x01\xa1a\x02", b"\x81\x01\x02", b"\x81\xc4\x01a\x02",
    b"\x81\xc0\x02", b"\x81\x80\x02", msgpack.packb({"k" * 4096: 1}), msgpack.packb({"k" * 4097: 1}),
    msgpack.packb({"é" * 4096: 1}), msgpack.packb({"a": msgpack.ExtType(5, b"x" * 300)}),
    msgpack.packb({"a": msgpack.Timestamp(1, 2)}), b"\x81\xa1a\xa2\xff\xfe", b"\x81\xa1\xff\x01",
    b"\x81\xa1a\xa3\xed\xa0\x80", b"\x81\xa1a\xa4\xf4\x90\x80\x80", b"\x81\xa1a\xa3\xe0\x80\x80", b"\x81\xa1a\xc1",
    msgpack.packb({"a": 1}) + b"\x01", msgpack.packb({str(key): 1 for key in range(4096)}),
    b"\xde\x00\x64" + b"".join(msgpack.packb(f"k{key % 99}") + b"\x01" for key in range(100)),
)


@pytest.mark.parametrize("number", range(len(BOMBS)))
def test_c100_bombs_have_the_same_verdict(c_inside: ctypes.CDLL, number: int) -> None:
    """Each is refused, or taken, as Python does."""
    agree(c_inside, BOMBS[number])


@SHARED
@given(st.binary(max_size=200))
def test_any_bytes_have_the_same_verdict(c_inside: ctypes.CDLL, data: bytes) -> None:
    """Also as the inside of a map."""
    for payload in (data, b"\x81\xa1a" + data, b"\x8f" + data):
        agree(c_inside, payload)


@pytest.mark.thorough
@SHARED
@given(MESSAGES, st.data())
def test_damaged_messages_have_the_same_verdict(c_inside: ctypes.CDLL, message: dict[str, Any],
                                                data: st.DataObject) -> None:
    """A real message, then bytes flipped in it, then cut short."""
    payload = bytearray(encode(message)[HEADER:])
    assert verdict(c_inside, bytes(payload)) is None
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    agree(c_inside, bytes(payload))
    agree(c_inside, bytes(payload[:data.draw(st.integers(0, len(payload)))]))


@SHARED
@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_text_is_shown_as_python_does(c_inside: ctypes.CDLL, data: bytes) -> None:
    """For a terminal, and quoted."""
    escaped = Buffer()
    c_inside.lw_escape(ctypes.byref(escaped), data, ctypes.c_size_t(len(data)))
    shown = ctypes.create_string_buffer(1000)
    plain = data.replace(b"\0", b"")
    c_inside.lw_quoted(shown, ctypes.c_size_t(1000), plain)

    assert escape(data) == escaped.content()
    assert quoted(plain) == shown.value.decode()


def test_every_character_is_shown_as_python_does(c_inside: ctypes.CDLL) -> None:
    every = "".join(map(chr, range(0x110000))).encode("utf-8", "surrogatepass")
    escaped = Buffer()
    c_inside.lw_escape(ctypes.byref(escaped), every, ctypes.c_size_t(len(every)))

    assert escape(every) == escaped.content()


@SHARED
@given(st.text(max_size=30) | st.text("./ab", max_size=40))
def test_no_name_is_taken_that_python_refuses_for_its_parts(c_inside: ctypes.CDLL, name: str) -> None:
    """What C takes and Python doesn't can only be a character of another kind of unprintable."""
    data = name.encode()
    c_inside.lw_is_plain_name.restype = ctypes.c_bool
    taken = c_inside.lw_is_plain_name(data, ctypes.c_size_t(len(data)))

    if job_frames.is_plain_name(name):
        assert taken
    elif name.isprintable():
        assert not taken


#: What is asked of both clients: keywords of Python's execute.
REQUESTS: dict[str, dict[str, Any]] = {
    "code": {"code": b"print(1)"},
    "no code at all": {"code": b""},
    "a module": {"code": None, "module": "json.tool"},
    "binary": {"code": bytes(range(256)) * 300},
    "everything": {
        "code": b"x", "name": "me.py", "args": ["a", "é" * 40, "x" * 300, "y" * 70_000],
        "env": {"K": "v", "L": "", "M": "a=b"}, "files": {"d/f": b"\0", "e": b""}, "stdin": b"in\0",
        "collect": ["*.png", "**/x"], "timeout": 1.5, "memory": 64 << 20, "processes": 3, "output": 1000,
        "descriptors": 300, "label": "run-7",
    },
    "numbers": {"code": b"", "memory": 2**33, "output": 127, "processes": 128},
    "display": {"code": b"1", "display": True, "collect": ["x"], "timeout": 1.0},
    "an overflow alone": {"code": b"1", "overflow": "cut"},
    "descriptors alone": {"code": b"1", "descriptors": 2048},
    "both clocks": {"code": b"1", "timeout": 1.5, "wall": 60.0, "cpu_time": 0.5},
    "a hard limit": {"code": b"1", "overflow": "end", "timeout": 1.5, "output": 1000},
    "many": {"code": b"", "args": [str(number) for number in range(70)], "collect": ["x"] * 16},
}


#: leeward_overflow, by the option in Python.
OVERFLOWS = {None: 0, "cut": 1, "end": 2}


@pytest.mark.parametrize("what", REQUESTS)
def test_both_clients_send_the_same_bytes(c_inside: ctypes.CDLL, what: str) -> None:
    """The frame of a request."""
    asked = REQUESTS[what]
    options = options_of(asked, display=asked.get("display", False), overflow=OVERFLOWS[asked.get("overflow")])
    buffer = Buffer()
    code = asked["code"]
    failed = c_inside.lw_request_execute(ctypes.byref(buffer), ctypes.c_int64(300), None, ctypes.c_int64(0), code,
                                         ctypes.c_size_t(len(code or b"")), ctypes.byref(options))

    assert 0 == failed
    assert encode({"v": 1, "id": 300, "op": "execute", **execute_fields(**asked)}) == buffer.content()


def test_a_request_above_the_limit_is_counted_and_not_kept(c_inside: ctypes.CDLL) -> None:
    """The message has its size."""
    code = b"x" * (frames.MAX_REQUEST + 1)
    buffer = Buffer()
    c_inside.leeward_last_error.restype = ctypes.c_char_p
    failed = c_inside.lw_request_execute(ctypes.byref(buffer), ctypes.c_int64(1), None, ctypes.c_int64(0), code,
                                         ctypes.c_size_t(len(code)), ctypes.byref(Options()))

    assert -21 == failed
    size = len(msgpack.packb({"v": 1, "id": 1, "op": "execute", "code": code}))
    assert (f"execute can't be sent: a message of {size} bytes is above the {frames.MAX_REQUEST} that a frame may have"
            == c_inside.leeward_last_error().decode())
    assert buffer.capacity < 1 << 20

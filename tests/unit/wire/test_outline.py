"""A request, told by as little of it as possible: never wrongly taken for a job of its own."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import LeewardError
from leeward.wire import outline
from leeward.wire.frames import HEADER, decode
from leeward.wire.requests import Execute, Ping, Slot, encode_request, parse_request
from leeward.wire.schema import ClientRequest

BIG = bytes(100_000)


def payload(request: ClientRequest) -> bytes:
    return encode_request(request)[HEADER:]


@pytest.mark.parametrize(("request_", "number"), [
    (Execute(7, code=b"1"), 7), (Execute(127, code=BIG), 127), (Execute(128, code=b""), 128),
    (Execute(2**53 - 1, module="m", args=("a",) * 40, env={"A": "b"}, files={"f": BIG}, stdin=BIG), 2**53 - 1),
    (Execute(1 << 20, code=b"1", limits={"time": 1.5}, collect=("*",)), 1 << 20),
    (Execute(7, session=1, code=b"1"), 0), (Ping(7), 0), (Slot(7, 0, 100), 0),
])
def test_requests_of_leewards_clients_are_recognized(request_: ClientRequest, number: int) -> None:
    assert number == outline.whole(payload(request_))


def test_the_order_of_fields_is_the_clients() -> None:
    """A session's number may come last."""
    plain = {"code": BIG, "id": 9, "op": "execute", "v": 1}

    assert 9 == outline.whole(msgpack.packb(plain)) == outline.unread(msgpack.packb(plain))
    assert 0 == outline.whole(msgpack.packb({**plain, "session": 1}))


@pytest.mark.parametrize("field", [
    {"v": 2}, {"v": "1"}, {"op": "executes"}, {"op": 7}, {"id": 0}, {"id": -1}, {"id": 1.0}, {"id": None}, {"id": "7"}])
def test_unusual_fields_are_left_to_the_full_decoder(field: dict[str, object]) -> None:
    assert 0 == outline.whole(msgpack.packb({"v": 1, "id": 9, "op": "execute", "code": b"1", **field}))


def test_a_malformed_message_has_no_outline() -> None:
    good = payload(Execute(7, code=b"some code", env={"A": "b"}))

    assert [0] * len(good) == [outline.whole(good[:end]) for end in range(len(good))]
    assert 0 == outline.whole(good + b"\0")
    assert 0 == outline.unread(good + b"\0")
    assert 0 == outline.whole(msgpack.packb([1])) == outline.whole(b"\x81\xc1\x01")
    assert 0 == outline.whole(b"\x85\xa1v\x01" + good[4:-1] + b"\xa1v\x01")  # a field twice


def test_the_outline_of_a_hostile_message_takes_bounded_time() -> None:
    """Four billion values by its first bytes; and more of them than the outline looks at."""
    endless = b"\x84\xa1v\x01\xa2id\x07\xa2op\xa7execute\xa4args\xdd\xff\xff\xff\xff" + bytes(1 << 16)
    many = payload(Execute(7, code=b"1", args=("a",) * 100))

    assert 0 == outline.unread(endless)
    assert (7, 0) == (outline.whole(many), outline.unread(many))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 40) | st.text(max_size=9) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4))


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(["v", "id", "op", "session", "code", "env", "x"]),
                       VALUES | st.sampled_from([1, "execute"]), max_size=7))
def test_a_request_with_an_outline_is_a_job_of_its_own(message: dict[str, object]) -> None:
    """Or would have been refused for a field of it."""
    data = msgpack.packb(message)
    number = outline.whole(data)
    assert outline.unread(data) in (0, number)
    if number:
        assert (number, "execute", 1) == (message["id"], message["op"], message["v"])
        assert "session" not in message
    try:
        request = parse_request(decode(data))
    except LeewardError:
        return
    if isinstance(request, Execute) and not request.session and "session" not in message:
        assert request.id == number


@given(st.binary(max_size=200))
def test_any_bytes_have_an_outline_or_none(data: bytes) -> None:
    for look in (outline.whole, outline.unread):
        assert look(data) >= 0

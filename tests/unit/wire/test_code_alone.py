"""A request of code alone, recognized by its bytes: the same value as by the general way, or none."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leeward.wire.frames import HEADER, decode
from leeward.wire.outline import MOST, code_alone
from leeward.wire.requests import Execute, Ping, encode_request, parse_request
from leeward.wire.schema import MAX_ID, ClientRequest


def payload(request: ClientRequest) -> bytes:
    return encode_request(request)[HEADER:]


def by_the_general_way(data: bytes) -> ClientRequest | None:
    try:
        return parse_request(decode(data))
    except Exception:
        return None


@pytest.mark.parametrize("number", [1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, MAX_ID])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 65000])
def test_what_a_client_sends_is_recognized(number: int, size: int) -> None:
    request = Execute(number, code=bytes(size))

    assert request == code_alone(payload(request)) == by_the_general_way(payload(request))


@pytest.mark.parametrize("request_", [
    Ping(7), Execute(7, module="m"), Execute(7, code=b"1", session=3), Execute(7, code=b"1", args=("a",)),
    Execute(7, code=b"1", display=True), Execute(7, code=b"1", stdin=b"x"), Execute(7, code=bytes(MOST)),
])
def test_any_other_request_is_left_to_the_general_way(request_: ClientRequest) -> None:
    assert code_alone(payload(request_)) is None
    assert request_ == by_the_general_way(payload(request_))


@pytest.mark.parametrize("message", [
    {"v": 2, "id": 7, "op": "execute", "code": b"1"}, {"v": 1, "id": 0, "op": "execute", "code": b"1"},
    {"v": 1, "id": -7, "op": "execute", "code": b"1"}, {"v": 1, "id": MAX_ID + 1, "op": "execute", "code": b"1"},
    {"v": 1, "id": 7.0, "op": "execute", "code": b"1"}, {"v": 1, "id": "7", "op": "execute", "code": b"1"},
    {"v": 1, "id": 7, "op": "execute", "code": 1}, {"v": 1, "id": 7, "op": "execute", "code": [b"1"]},
])
def test_what_is_wrong_is_left_to_the_general_way(message: dict[str, object]) -> None:
    assert code_alone(msgpack.packb(message)) is None


def test_the_template_may_be_part_of_the_code() -> None:
    """The first place at which it stands counts."""
    inner = payload(Execute(5, code=b"pass"))
    request = Execute(300, code=inner + inner)

    assert request == code_alone(payload(request))


_IDS = st.binary(max_size=10)
_LENGTHS = st.sampled_from([b"\xc4", b"\xc5", b"\xc6", b"\xd9", b""])


@given(_IDS, _LENGTHS, st.binary(max_size=4), st.binary(max_size=300))
@example(b"\xcd\x00\x07", b"\xc5", b"\x00\x01", b"x")  # longer than it has to be
@example(b"\xcc", b"\xc4", b"\x01", b"x")
@example(b"\x07", b"\xc4", b"", b"")
def test_recognized_bytes_have_the_same_value_by_the_general_way(number: bytes, kind: bytes, length: bytes,
                                                                 code: bytes) -> None:
    data = b"\x84\xa1v\x01\xa2id" + number + b"\xa2op\xa7execute\xa4code" + kind + length + code
    found = code_alone(data)

    assert found is None or found == by_the_general_way(data)


@given(st.integers(1, MAX_ID), st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=3))
def test_changed_bytes_have_the_value_of_the_general_way(number: int, code: bytes, at: int, instead: bytes) -> None:
    data = payload(Execute(number, code=code))
    changed = data[:at] + instead + data[at + len(instead):]
    found = code_alone(changed)

    assert found is None or found == by_the_general_way(changed)


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    code_alone(data)
    code_alone(b"\x84\xa1v\x01\xa2id" + data)

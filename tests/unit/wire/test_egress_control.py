"""Messages between the daemon and the egress broker: what is sent is what comes, and nothing else does."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.wire import egress_control as control
from leeward.wire.egress_control import Begin, Decided, Gone, Leased, Message, Over, Sealed, Stand, decode, encode

ROW = Decided(1.5, 7, 1, "example.org", "1.2.3.4", 443, "closed", "example.org", "why", 10, 1 << 40)


@pytest.mark.parametrize("message", [
    Begin([1999999999, 1999999999], b"\0" * 8, [1, 2, 3, 4, 5], ["/etc", "/usr"]), Begin([], b"", [], []),
    Stand(3, [53, 3128, 80], 2), Leased(3, 7, b"k" * 32, {"allow": ["example.org"], "limits": {"connect": 1.0}}),
    Leased(3, 7, b"k" * 32, {}, 2, {}, b"signer", b"certificate", ["leeward-1"]),
    Sealed(2, "/etc/ssl/certs/ca-certificates.crt", b"", ["KEY"]), Over(3), Gone(3), ROW,
])
def test_a_message_comes_as_it_was_sent(message: Message) -> None:
    assert message == decode(encode(message))


def changed(**fields: object) -> bytes:
    """ROW, with other values."""
    tag, *values = msgpack.unpackb(encode(ROW))
    names = list(Decided.__annotations__)
    return bytes(msgpack.packb([tag, *(fields.get(name, value) for name, value in zip(names, values, strict=True))]))


@pytest.mark.parametrize("data", [
    b"", b"\xc1", b"\x91" * 100_000, *map(msgpack.packb, (
        [], {}, [99], [-1], [True, 1], [1, 2, [3]], [3, "1"], [1, 2, ["80"], 1], [1, 2, [80] * 65, 1])),
    changed(lease=-1), changed(lease=True), changed(port=1 << 63), changed(time=float("nan")),
    changed(time=float("inf")), changed(verdict="perhaps"), changed(name="x" * 513), changed(name="a\x1b[2J"),
    changed(reason=None), changed(sent=1.0),
])
def test_a_malformed_message_is_refused(data: bytes) -> None:
    """Also a row with values that would harm a program that shows it."""
    with pytest.raises(PeerError):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    try:
        decode(data)
    except PeerError:
        pass


def test_an_error_has_no_byte_of_the_message() -> None:
    for data in (b"\x92\x06\xa7SECRET\xff", b"\x92\x06\xa6SECRET", b"\x91\xa6SECRET", b"\x92\xccc\xa6SECRET", b"SECRET"):
        with pytest.raises(PeerError) as refused:
            decode(data)
        assert "SECRET" not in str(refused.value)
        assert "0x" not in str(refused.value)


def test_a_message_that_is_too_long_is_refused() -> None:
    with pytest.raises(PeerError, match="bytes"):
        decode(bytes(control.MAX_MESSAGE + 1))

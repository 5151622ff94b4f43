"""
Control messages: each survives its datagram, nothing else does.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.wire import control

MESSAGES: tuple[control.Message, ...] = (
    control.MakeKeeper(3, True, 2), control.Made(3, 4711), control.Mapped(), control.Arm(7, False, 3, cpu=1),
    control.Arm(7, True, 0), control.Armed(7, 4712), control.Ended(7, None, 0.5), control.Ended(7, 9, 0),
    control.Locked(), control.Ready({"seccomp": "yes"}), control.Failed(7, "mounts", "why"),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives(message: control.Message):
    assert message == control.decode(control.encode(message))


def test_every_kind_is_tried():
    assert {type(message) for message in MESSAGES} == set(control.KINDS)


@given(st.binary(max_size=64))
@example(b"\xd7\x07" + bytes(8))  # an extension type: a pair, of a tag and bytes
def test_any_bytes_give_a_message_or_a_peer_error(data: bytes):
    try:
        control.decode(data)
    except PeerError:
        return


def test_a_longer_or_shorter_record_is_refused():
    for data in (b"\x92\x01\x91\x03", b"\x92\x01\x93\x03\x04\x05", b"\x92\xff\x90", b"\x92\x01\x92\xa1x\x04",
                 b"\x92\x01\xc4\x02\x03\x04", b"\x92\x07\x91\x00"):
        with pytest.raises(PeerError):
            control.decode(data)

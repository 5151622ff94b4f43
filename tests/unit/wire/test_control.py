"""Control messages: each survives its datagram, nothing else does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leeward.errors import KernelRefusal, PeerError
from leeward.wire import control

MESSAGES: tuple[control.Message, ...] = (
    control.MakeKeeper(3, True, 2), control.Made(3, 4711), control.Mapped(), control.Arm(7, False, 3, cpu=1),
    control.MakeKeeper(4, False, 0), control.Arm(7, True, 0), control.Arm(7, True, 0, proved=True, unpinned=True),
    control.Arm(8, True, 0, holder=1 << 40, again=True),
    control.Arm(7, True, 1, hurried=True), control.Arm(7, False, 1, cpu=0, hurried=True),
    control.Start(7, control.Kind.PROGRAM, True, False, 3, cpu=1, tasks=36, data=1 << 40, most_data=1 << 41),
    control.Start(7, control.Kind.TERMINAL, False, True, 0, reaper=True, files=1 << 40, sandbox=5),
    control.Start(1 << 60, control.Kind.INTERPRETER, True, True, 4, hurried=True),
    control.Locked(), control.Locked(5), control.Ready({"seccomp": "yes"}), control.Failed(7, "mounts", "why"),
    control.Importing(3),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives(message: control.Message):
    assert message == control.decode(control.encode(message))


def test_short_messages_are_kept_and_long_ones_arent():
    """So many at most, so what is kept has a bound, whoever sends them."""
    control._known.cache_clear()
    short, long = control.Ready({"seccomp": "yes"}), control.Failed(7, "mounts", "why" * control._SHORT)
    for message in (short, long):
        assert message == control.decode(control.encode(message)) == control.decode(control.encode(message))
    assert (1, 1) == (control._known.cache_info().hits, control._known.cache_info().currsize)
    for number in range(2 * control._KEPT):
        control.decode(control.encode(control.Failed(number, "mounts", "why")))
    assert control._KEPT == control._known.cache_info().currsize


def test_every_kind_is_tried():
    by_c = {control.MakeKeeper, control.Made, control.Arm, control.Start}
    assert {type(message) for message in MESSAGES} == {*control.KINDS, *by_c}


@pytest.mark.parametrize(("fields", "message"), [
    ((0xC1, 10, 0, 0, 4712, 7, 0, 0, 0, 0, 0), control.Made(7, 4712)),
    ((0xC1, 4, 4, 0, 11, 7, 0, 0, 0, 0, 0),
     control.Failed(7, "namespaces", str(KernelRefusal("clone3", "a keeper", 11)))),
    ((0xC1, 2, 0, 0, 4712, 7, 0, 0, 0, 0, 0), control.Armed(7, 4712)),
    ((0xC1, 3, 0, 0, 9, 7, 1_250_000, 0, 0, 0, 0), control.Ended(7, 9, 1.25)),
    ((0xC1, 3, 0, 0, -1, 1 << 40, 0, 0, 0, 0, 0), control.Ended(1 << 40, None)),
    ((0xC1, 4, 0, 0, 28, 7, 0, 0, 0, 0, 0),
     control.Failed(7, "namespaces", "clone3(a runner): ENOSPC: no space left on device")),
    ((0xC1, 4, 1, 0, 24, 7, 0, 0, 0, 0, 0), control.Failed(7, "namespaces", "pipe2(its ends): EMFILE: too many open files")),
    ((0xC1, 6, 0, 0, 4712, 7, 0, 15, 0, 0, 0), control.Started(7, 4712, 15)),
    ((0xC1, 7, 0, 0, 9, 7, 1_250_000, 4096, 0, 0, 0), control.Exited(7, 9, 1.25, 4096)),
    ((0xC1, 7, 0, 0, -1, 7, 0, 0, 0, 0, 0), control.Exited(7, None)),
    ((0xC1, 8, 7, 0, -2, 7, 0, 15, 0, 0, 0), control.Unstarted(7, control.Stage.EXEC, "", -2, 15)),
    ((0xC1, 8, 5, 6, -1, 7, 0, 0, 0, 0, 0), control.Unstarted(7, control.Stage.STEP, "landlock", -1)),
])
def test_messages_of_the_keeper_in_c_are_decoded(fields: tuple[int, ...], message: control.Message):
    assert message == control.decode(struct.pack("=BBBBiQQQQQQQ", *fields, 0))


@pytest.mark.parametrize("data", [b"\xc1", b"\xc1\x02" + bytes(61), b"\xc1\x02" + bytes(63), b"\xc1\x0b" + bytes(62),
                                  b"\xc1\x04\xff" + bytes(61), b"\xc1\x08\x09" + bytes(61),
                                  b"\xc1\x08\x05\x0b" + bytes(60), b"\xc1\x05\x30" + bytes(61)])
def test_a_struct_that_no_keeper_says_is_refused(data: bytes):
    """Too short, too long; of no kind, call, stage or layer; of two kinds of process."""
    with pytest.raises(PeerError):
        control.decode(data)


@given(st.binary(max_size=64))
@example(b"\xd7\x07" + bytes(8))  # an extension type: a pair, of a tag and bytes
def test_any_bytes_give_a_message_or_a_peer_error(data: bytes):
    try:
        control.decode(data)
    except PeerError:
        return


def test_a_longer_or_shorter_record_is_refused():
    for data in (b"\x92\x03\x92\x03\xa0", b"\x92\x03\x94\x03\xa0\xa0\x05", b"\x92\xff\x90", b"\x92\x03\x93\xa1x\xa0\xa0",
                 b"\x92\x03\xc4\x02\x03\x04", b"\x92\x07\x91\x00"):
        with pytest.raises(PeerError):
            control.decode(data)

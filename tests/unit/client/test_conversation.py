"""The conversation: ids, order, descriptors, and a daemon that breaks the rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.client.conversation import MAX_DESCRIPTORS, Conversation, refusal
from leeward.errors import BY_KIND, BadReply, Busy, Refused, RequestRejected
from leeward.wire.frames import HEADER, VERSION, decode, encode, frame


def ok(number: int, **answer: Any) -> bytes:
    return encode({"id": number, "ok": answer})


@pytest.fixture
def fds() -> Iterator[list[int]]:
    """Descriptors to receive; those that are closed by then are the test's success."""
    made = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    yield made
    for fd in made:
        if is_open(fd):
            os.close(fd)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_requests_are_numbered() -> None:
    """Each has an id of its own, the version, and its fields."""
    talk = Conversation()
    frames = [talk.request("ping", {}), talk.request("execute", {"code": b"1"})]

    assert [1, 2] == [number for number, _ in frames]
    assert {"v": VERSION, "id": 2, "op": "execute", "code": b"1"} == decode(frames[1][1][HEADER:])
    assert 2 == len(talk._waiting)


@pytest.mark.parametrize("fields", [
    {"args": ["\udc80"]}, {"code": object()}, {"n": 2**70}, {"code": bytes(90 << 20)}, {"x": {1, 2}},
])
def test_a_request_that_cannot_be_encoded_is_refused_locally(fields: dict[str, Any]) -> None:
    """By the error that the daemon's refusal would be; the conversation goes on."""
    talk = Conversation()
    with pytest.raises(RequestRejected):
        talk.request("execute", fields)

    assert not talk._waiting
    assert 1 == talk.request("ping", {})[0]


def test_answers_in_any_order_and_any_cut() -> None:
    """Byte by byte."""
    talk = Conversation()
    for _ in range(3):
        talk.request("ping", {})
    got = []
    for byte in ok(2, a=1) + ok(3) + encode({"id": 1, "error": {"kind": "busy", "message": "full"}}):
        got += talk.received(bytes([byte]))

    assert [2, 3, 1] == [reply.id for reply, _ in got]
    assert [{"a": 1}, {}, None] == [reply.ok for reply, _ in got]
    assert not talk._waiting


def test_descriptors_go_to_the_frames_that_announced_them(fds: list[int]) -> None:
    """The kernel keeps their order, though they may come with an earlier read."""
    talk = Conversation()
    for _ in range(3):
        talk.request("execute", {})
    stream = ok(1, arenas=[5]) + ok(2) + ok(3, arenas=[6, 7])
    got = talk.received(stream[:3], fds[:1]) + talk.received(stream[3:-1], fds[1:3]) + talk.received(stream[-1:])

    assert [fds[:1], [], fds[1:3]] == [owned for _, owned in got]
    assert [[5], [], [6, 7]] == [reply.arenas for reply, _ in got]


BROKEN = {
    "an unknown id": ok(7),
    "the same answer twice": ok(1) + ok(1),
    "an answer to nobody": ok(0),
    "a descriptor that didn't come": ok(1, arenas=[5]),
    "no map": frame(b"\x01"),
    "a frame of 4 GB": b"\xff\xff\xff\xff",
    "neither ok nor error": encode({"id": 1}),
    "nested lists": frame(b"\x82\xa2id\x01\xa2ok" + b"\x91" * 100_000),
    "an id that is text": encode({"id": "1", "ok": {}}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_c113_a_daemon_that_breaks_the_protocol(name: str, fds: list[int]) -> None:
    """BadReply; every descriptor that was received is closed."""
    talk = Conversation()
    talk.request("execute", {})
    talk.request("execute", {})
    before = ok(2, arenas=[1]) if name != "a descriptor that didn't come" else b""
    with pytest.raises(BadReply):
        talk.received(before + BROKEN[name], fds[:1] if before else ())
    talk.close()

    assert not before or not is_open(fds[0])


def test_descriptors_out_of_the_blue_are_bounded() -> None:
    """A peer can't fill our table by sending descriptors without frames."""
    talk = Conversation()
    sent = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(MAX_DESCRIPTORS + 1)]
    with pytest.raises(BadReply, match="more descriptors"):
        talk.received(b"", sent)

    assert not any(map(is_open, sent))


def test_a_refusal_of_the_connection_is_raised() -> None:
    """Id 0 is nobody's: everything that waits is refused."""
    talk = Conversation()
    talk.request("ping", {})
    with pytest.raises(Busy, match="too many"):
        talk.received(encode({"id": 0, "error": {"kind": "busy", "message": "too many"}}))


def reply_of(kind: str, message: str = "why") -> Any:
    talk = Conversation()
    talk.request("ping", {})
    return talk.received(encode({"id": 1, "error": {"kind": kind, "message": message}}))[0][0]


def test_every_kind_has_its_error() -> None:
    """And a kind of a later daemon is at least a Refused that knows its name."""
    assert BY_KIND == {kind: type(refusal(reply_of(kind))) for kind in BY_KIND}
    later = refusal(reply_of("too_hot", "it melts"))
    assert (Refused, "too_hot", "it melts") == (type(later), later.kind, str(later))


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_answers_or_errors(data: bytes, framed: bool) -> None:
    """Nothing but DaemonErrors comes out."""
    talk = Conversation()
    talk.request("ping", {})
    try:
        talk.received(frame(data) if framed else data)
    except (BadReply, Refused):
        pass

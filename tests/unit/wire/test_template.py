"""The short reading of an ordinary answer never differs from the long one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.spec.outcome import JobError, Limit, Outcome, Result
from leeward.wire import fields, replies
from leeward.wire.answers import encode_result
from leeward.wire.frames import HEADER, decode, frame
from leeward.wire.replies import parse_reply, parse_result
from leeward.wire.template import parse_by_template

IDS = st.integers(1, 2**53 - 1)
FIGURES: dict[str, Any] = {
    "duration": st.floats(0, 1e11), "cpu_time": st.floats(0, 1e11), "memory_peak": st.integers(0, 2**63 - 1),
    "stdout": st.binary(max_size=300) | st.just(b"x" * 70_000), "stderr": st.binary(max_size=300)}
ORDINARY = st.builds(Result, exit_code=st.just(0), outcome=st.just(Outcome.FINISHED),
                     degraded=st.sampled_from([(), ("cgroup",), ("landlock",)]), **FIGURES)
OTHER = st.builds(
    Result, exit_code=st.integers(0, 255), outcome=st.sampled_from(Outcome), limit=st.none() | st.sampled_from(Limit),
    denied=st.just({}) | st.just({"bpf": 1}), truncated=st.booleans(), degraded=st.sampled_from([(), ("cgroup",)]),
    error=st.none() | st.just(JobError("E", "m", "t")), files=st.sampled_from([{}, {"a": b"b"}]), **FIGURES)


def read_at_length(data: bytes) -> tuple[int, dict[str, Any]] | None:
    """Number and fields, as the long way has them; None where it refuses."""
    try:
        if int.from_bytes(data[:HEADER], "big") != len(data) - HEADER:
            return None
        reply = parse_reply(decode(data[HEADER:]))
        return reply.id, parse_result(reply)
    except PeerError:
        return None


def read(data: bytes) -> tuple[int, dict[str, Any]] | None:
    reply = parse_by_template(data)
    if reply is None:
        return None
    assert (reply.kind, reply.message, reply.arenas) == ("", "", [])
    return reply.id, parse_result(reply)


@given(IDS, ORDINARY)
@example(1, Result(b"", b"", 0, Outcome.FINISHED))
def test_an_ordinary_answer_is_read(number: int, result: Result) -> None:
    data = encode_result(number, result)

    assert read(data) == read_at_length(data)
    assert read(data) is not None


@given(IDS, OTHER)
def test_any_other_is_left_to_the_long_way(number: int, result: Result) -> None:
    data = encode_result(number, result)

    assert read(data) in (None, read_at_length(data))
    if (result.exit_code, result.outcome, result.limit, result.error) != (0, Outcome.FINISHED, None, None):
        assert read(data) is None


@given(IDS, ORDINARY, st.data())
def test_a_byte_that_was_changed_left_out_or_put_in(number: int, result: Result, data: st.DataObject) -> None:
    whole = bytearray(encode_result(number, result)[HEADER:])
    at = data.draw(st.integers(0, min(len(whole) - 1, 400)) | st.integers(0, len(whole) - 1))
    match data.draw(st.sampled_from(["change", "leave out", "put in", "cut"])):
        case "change":
            whole[at] = data.draw(st.integers(0, 255))
        case "leave out":
            del whole[at]
        case "put in":
            whole.insert(at, data.draw(st.integers(0, 255)))
        case "cut":
            del whole[at:]
    changed = frame(bytes(whole))

    assert read(changed) in (None, read_at_length(changed))


@pytest.mark.parametrize(("number", "found"), [(2**53 - 1, True), (2**53, False), (2**64 - 1, False)])
def test_a_number_that_no_request_has(number: int, found: bool) -> None:
    data = encode_result(number, Result(b"", b"", 0, Outcome.FINISHED))

    assert fields.MAX_ID == replies.MAX_ID
    assert read(data) == read_at_length(data)
    assert found is (read(data) is not None)


@given(st.binary(max_size=200))
def test_bytes_of_no_kind(data: bytes) -> None:
    assert read(frame(data)) is None
    assert read(data) is None


@pytest.mark.parametrize("pieces", [1, 2])
def test_not_one_whole_frame(pieces: int) -> None:
    """Half of one, and two together: the reader of frames has them."""
    data = encode_result(7, Result(b"x", b"", 0, Outcome.FINISHED))

    assert read(data * 2 if 2 == pieces else data[:-1]) is None


def test_truncated_and_extended_frames_are_not_plain() -> None:
    """The frame's length is right each time, so that only its content counts."""
    whole = encode_result(7, Result(b"out", b"error", 0, Outcome.FINISHED))[HEADER:]

    assert read(frame(whole)) is not None  # control
    for cut in range(len(whole)):
        assert read(frame(whole[:cut])) is None
    assert read(frame(whole + b"x")) is None

"""Answers: what the daemon writes is what a client reads, and a client trusts none of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import BadRequest, Busy, PeerError
from leeward.spec.outcome import JobError, LeftOut, LeftOutReason, Limit, Outcome, Result
from leeward.wire.answers import encode_refusal, encode_refused, encode_result, refusal_of
from leeward.wire.frames import HEADER, decode
from leeward.wire.replies import LEFT_OUT, LIMITS, OUTCOMES, parse_reply, parse_result


def test_the_words_of_results_are_those_of_outcome() -> None:
    """wire.replies spells them out because importing the enumerations costs too much."""
    assert set(Outcome) == OUTCOMES
    assert set(Limit) == LIMITS
    assert set(LeftOutReason) == LEFT_OUT


RESULT = Result(stdout=b"out\xff", stderr=b"", exit_code=1, outcome=Outcome.RAISED, limit=Limit.FILES, duration=0.25,
                cpu_time=0.125, memory_peak=5 << 20, denied={"mount": 2}, truncated=True, degraded=("landlock",),
                error=JobError("ValueError", "no \udc80 such", "Traceback ..."), files={"a/b.png": b"\x89PNG"},
                left_out=(LeftOut("a/*.csv", LeftOutReason.NO_MATCH), LeftOut("", LeftOutReason.MORE)))


def test_a_result_comes_back() -> None:
    """Every field of a result; a lone surrogate in the job's text becomes a question mark."""
    reply = parse_reply(decode(encode_result(3, RESULT)[HEADER:]))
    fields = parse_result(reply)

    assert 3 == reply.id
    assert fields == {
        "stdout": b"out\xff", "stderr": b"", "exit_code": 1, "outcome": "raised", "limit": "files", "duration": 0.25,
        "cpu_time": 0.125, "memory_peak": 5 << 20, "denied": {"mount": 2}, "truncated": True,
        "degraded": ("landlock",), "files": {"a/b.png": b"\x89PNG"},
        "error": {"type": "ValueError", "message": "no ? such", "traceback": "Traceback ..."},
        "left_out": (("a/*.csv", "no_match"), ("", "more")),
    }


def test_places_come_back() -> None:
    """Output in a memory file, with another one for files."""
    frame = encode_result(1, RESULT, stdout=(0, 0, 90), stderr=(0, 90, 10), files={"big": (1, 5, 7)}, arenas=(100, 12))
    reply = parse_reply(decode(frame[HEADER:]))
    fields = parse_result(reply)

    assert [100, 12] == reply.arenas
    assert ((0, 0, 90), (0, 90, 10)) == (fields["stdout"], fields["stderr"])
    assert {"a/b.png": b"\x89PNG", "big": (1, 5, 7)} == fields["files"]


def test_c115_a_jobs_error_text_is_bounded() -> None:
    """A job that raises 10 MB of text costs the client 64 KiB of it."""
    error = JobError("E" * 1000, "m" * 10_000_000, "t" * 10_000_000)
    frame = encode_result(1, Result(b"", b"", 1, Outcome.RAISED, error=error))

    assert len(frame) < 200_000


def ok(**changes: Any) -> dict[str, Any]:
    answer = dict(decode(encode_result(1, RESULT)[HEADER:])["ok"])
    for name, value in changes.items():
        if value is ...:
            del answer[name]
        else:
            answer[name] = value
    return answer


@pytest.mark.parametrize("changes", [
    {"outcome": "won"}, {"outcome": ...}, {"outcome": ["finished"]}, {"limit": "patience"}, {"limit": 1},
    {"limit": ["memory"]}, {"exit_code": 256}, {"exit_code": -1}, {"exit_code": True}, {"exit_code": "0"},
    {"duration": math.nan}, {"duration": -1}, {"duration": None}, {"cpu_time": math.inf}, {"memory_peak": -1},
    {"memory_peak": 1.5}, {"denied": []}, {"denied": {"a": "b"}}, {"truncated": 1}, {"degraded": "cgroup"},
    {"degraded": [1]}, {"stdout": "text"}, {"stdout": ...}, {"stdout": [0, 0, 1]}, {"stderr": [0, 0]},
    {"error": "x"}, {"error": {}}, {"error": {"type": "a", "message": "b", "traceback": 5}},
    {"files": []}, {"files": {"../x": b""}}, {"files": {"/x": b""}}, {"files": {"a\n": b""}}, {"files": {"a": "x"}},
    {"files": {"a": [0, 0, 1]}},
    {"arenas": [10], "stdout": [0, 5, 6]}, {"arenas": [10], "stdout": [1, 0, 1]},
    {"arenas": [10], "stdout": [-1, 0, 1]}, {"arenas": [10], "stdout": [0, -5, 6]},
    {"arenas": [10], "stdout": [0, 5, -1]}, {"arenas": [10], "stdout": [0, 0, 1.0]},
    {"left_out": {}}, {"left_out": "a"}, {"left_out": [["a"]]}, {"left_out": [["a", "link", "b"]]},
    {"left_out": [["a", "weather"]]}, {"left_out": [[b"a", "link"]]}, {"left_out": [["a", ["link"]]]},
    {"left_out": [["a", "link"]] * 1025}, {"left_out": ["ab"]}, {"left_out": None},
    {"arenas": [0]}, {"arenas": [1] * 5}, {"arenas": 1}, {"arenas": [1 << 62]}, {"arenas": ["1"]},
])
def test_c113_a_result_is_checked_field_by_field(changes: dict[str, Any]) -> None:
    """The client trusts no field, and only PeerError comes out."""
    assert parse_result(parse_reply({"id": 1, "ok": ok()}))  # control: unchanged it is a result
    with pytest.raises(PeerError):
        parse_result(parse_reply({"id": 1, "ok": ok(**changes)}))


@pytest.mark.parametrize("message", [
    {}, {"id": 1}, {"id": -1, "ok": {}}, {"id": "1", "ok": {}}, {"id": 1, "ok": []}, {"id": 1, "error": "no"},
    {"id": 1, "error": {"kind": "busy", "message": "", "retry_after": -1}},
    {"id": 1, "error": {"kind": "busy", "message": "", "retry_after": "soon"}},
    {"id": 1, "error": {"kind": "busy", "message": "", "retry_after": math.nan}},
    {"id": 1, "error": {"kind": "busy"}}, {"id": 1, "error": {"kind": 1, "message": ""}}, {"id": True, "ok": {}},
])
def test_a_malformed_reply_is_refused(message: dict[str, Any]) -> None:
    """Only PeerError comes out."""
    with pytest.raises(PeerError):
        parse_reply(message)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8)


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(list(ok())), ANYTHING))
def test_any_result_is_parsed_or_refused(changes: dict[str, Any]) -> None:
    """Whatever types the fields have."""
    try:
        parse_result(parse_reply({"id": 1, "ok": ok(**changes)}))
    except PeerError:
        pass


def test_a_refusal_comes_back() -> None:
    """Kind and message; a message that can't be encoded as it is, is."""
    kind, message = refusal_of(Busy("full"))
    reply = parse_reply(decode(encode_refusal(9, kind, message + "\udc80" + "x" * 9999)[HEADER:]))

    assert (9, None, "busy") == (reply.id, reply.ok, reply.kind)
    assert reply.message.startswith("full?xxx")
    assert 4096 == len(reply.message)
    assert ("bad_request", "no") == refusal_of(BadRequest("no"))
    assert reply.retry_after is None


@pytest.mark.parametrize(("error", "seconds"), [(Busy("full"), None), (Busy("full", retry_after=1), 1.0),
                                                (BadRequest("no"), None)])
def test_a_refusal_may_say_when(error: Exception, seconds: float | None) -> None:
    """After how many seconds the request may be taken."""
    reply = parse_reply(decode(encode_refused(9, error)[HEADER:]))

    assert (refusal_of(error), seconds) == ((reply.kind, reply.message), reply.retry_after)

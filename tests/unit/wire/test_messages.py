"""
Requests and replies: what is taken, what is refused, and that both ways agree.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import BadRequest, Busy, PeerError, VersionMismatch
from leeward.outcome import JobError, Limit, Outcome, Result
from leeward.wire import messages
from leeward.wire.frames import HEADER, VERSION, decode
from leeward.wire.messages import (
    Cancel,
    Execute,
    Interrupt,
    Ping,
    SessionClose,
    SessionOpen,
    SessionReset,
    Shutdown,
    Status,
    encode_refusal,
    encode_request,
    encode_result,
    parse_request,
    refusal_of,
)
from leeward.wire.replies import LIMITS, OUTCOMES, parse_reply, parse_result


def parse(**fields: Any) -> messages.Request:
    return parse_request({"v": VERSION, "id": 1, **fields})


FULL = Execute(id=7, code=b"print(1)", name="job.py", args=("-a", ""), env={"A": "b"}, files={"in/x.csv": b"1,2"},
               stdin=b"\xff", collect=("*.png", "out/*"), limits={"time": 1.5, "memory": 1 << 26})


@pytest.mark.parametrize("request_", [
    FULL, Execute(id=1, code=b""), Execute(id=2, module="json.tool", args=("x",)), Ping(3), Status(4), Shutdown(5),
    Cancel(6, target=3), Execute(id=7, session=3, code=b"x", limits={"time": 1.5}), SessionOpen(8),
    SessionOpen(9, limits={"memory": 1 << 26}, idle=2.5), SessionReset(10, session=1),
    SessionClose(11, session=2**53 - 1), Interrupt(12, session=1),
])
def test_every_request_comes_back(request_: messages.Request) -> None:
    """
    What a client encodes is what the daemon parses.
    """
    assert request_ == parse_request(decode(encode_request(request_)[HEADER:]))


def test_code_may_be_text() -> None:
    """
    Other languages' clients have strings.
    """
    assert Execute(id=1, code="print('é')".encode()) == parse(op="execute", code="print('é')")


REFUSED: dict[str, dict[str, Any]] = {
    "unknown operation": {"op": "launch"},
    "no operation": {},
    "operation of another type": {"op": ["execute"]},
    "no code": {"op": "execute"},
    "code and module": {"op": "execute", "code": b"", "module": "json"},
    "code is a number": {"op": "execute", "code": 5},
    "code is 17 MB": {"op": "execute", "code": bytes(17 << 20)},
    "misspelt field": {"op": "execute", "code": b"", "timeuot": 5},
    "field of another operation": {"op": "ping", "code": b""},
    "module with a path": {"op": "execute", "module": "../x"},
    "module with an empty part": {"op": "execute", "module": "a..b"},
    "module with a NUL": {"op": "execute", "module": "a\0"},
    "name with a newline": {"op": "execute", "code": b"", "name": "a\nb"},
    "name with an escape": {"op": "execute", "code": b"", "name": "\x1b[31m"},
    "args as text": {"op": "execute", "code": b"", "args": "abc"},
    "args of numbers": {"op": "execute", "code": b"", "args": [1]},
    "args with NUL": {"op": "execute", "code": b"", "args": ["a\0b"]},
    "args too many": {"op": "execute", "code": b"", "args": [""] * 1025},
    "args too long": {"op": "execute", "code": b"", "args": ["x" * (1 << 20), "y"]},
    "env as list": {"op": "execute", "code": b"", "env": [["A", "b"]]},
    "env without a name": {"op": "execute", "code": b"", "env": {"": "b"}},
    "env with = in a name": {"op": "execute", "code": b"", "env": {"A=B": "c"}},
    "env with NUL": {"op": "execute", "code": b"", "env": {"A": "b\0"}},
    "env of numbers": {"op": "execute", "code": b"", "env": {"A": 1}},
    "absolute file": {"op": "execute", "code": b"", "files": {"/etc/passwd": b""}},
    "file above": {"op": "execute", "code": b"", "files": {"../x": b""}},
    "file above, later": {"op": "execute", "code": b"", "files": {"a/../../x": b""}},
    "file here": {"op": "execute", "code": b"", "files": {"./x": b""}},
    "file with an empty part": {"op": "execute", "code": b"", "files": {"a//x": b""}},
    "folder as file": {"op": "execute", "code": b"", "files": {"a/": b""}},
    "file without a name": {"op": "execute", "code": b"", "files": {"": b""}},
    "file with NUL": {"op": "execute", "code": b"", "files": {"a\0b": b""}},
    "file with a newline": {"op": "execute", "code": b"", "files": {"a\nb": b""}},
    "file as text": {"op": "execute", "code": b"", "files": {"a": "text"}},
    "file that is a folder too": {"op": "execute", "code": b"", "files": {"a": b"", "a/b/c": b""}},
    "files too many": {"op": "execute", "code": b"", "files": {f"f{n}": b"" for n in range(1025)}},
    "files too large": {"op": "execute", "code": b"", "files": {"a": bytes(1 << 26), "b": b"x"}},
    "stdin as text": {"op": "execute", "code": b"", "stdin": "text"},
    "collect above": {"op": "execute", "code": b"", "collect": ["../*"]},
    "collect absolute": {"op": "execute", "code": b"", "collect": ["/etc/*"]},
    "collect of numbers": {"op": "execute", "code": b"", "collect": [1]},
    "collect too much": {"op": "execute", "code": b"", "collect": ["*"] * 65},
    "limits as list": {"op": "execute", "code": b"", "limits": [1]},
    "cancel nothing": {"op": "cancel"},
    "cancel id 0": {"op": "cancel", "target": 0},
    "a module in a session": {"op": "execute", "session": 1, "module": "json"},
    "stdin in a session": {"op": "execute", "session": 1, "code": b"", "stdin": b"x"},
    "session 0": {"op": "execute", "session": 0, "code": b""},
    "session by name": {"op": "execute", "session": "1", "code": b""},
    "session above all": {"op": "execute", "session": 2**53, "code": b""},
    "session is true": {"op": "execute", "session": True, "code": b""},
    "session with code": {"op": "session_open", "code": b""},
    "idle for no time": {"op": "session_open", "idle": 0},
    "idle for less": {"op": "session_open", "idle": -1.0},
    "idle for ever": {"op": "session_open", "idle": float("inf")},
    "idle for no number": {"op": "session_open", "idle": float("nan")},
    "idle as text": {"op": "session_open", "idle": "1"},
    "reset nothing": {"op": "session_reset"},
    "close nothing": {"op": "session_close"},
    "interrupt nothing": {"op": "interrupt"},
    "interrupt a request": {"op": "interrupt", "target": 1},
    "cancel by name": {"op": "cancel", "target": "1"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_c101_impossible_requests_are_refused_by_name(name: str) -> None:
    """
    One BadRequest each, short and printable whatever was sent.
    """
    with pytest.raises(BadRequest) as refusal:
        parse(**REFUSED[name])

    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("number", [None, 0, -1, 2**53, "1", 1.0, True, [1]])
def test_a_request_without_an_id_breaks_the_protocol(number: object) -> None:
    """
    There is no way to answer it.
    """
    with pytest.raises(PeerError):
        parse_request({"v": VERSION, "id": number, "op": "ping"})


@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0])
def test_c109_another_version_is_named(version: object) -> None:
    """
    Both versions are in the message.
    """
    with pytest.raises(VersionMismatch, match=f"this daemon {VERSION}"):
        parse_request({"v": version, "id": 1, "op": "ping"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8)


@given(st.dictionaries(st.sampled_from(["v", "id", "op", "target", "x", *messages.FIELDS["execute"][1]]), ANYTHING),
       st.sampled_from([*messages.FIELDS, "x"]))
def test_any_map_is_a_request_or_refused(fields: dict[str, Any], op: str) -> None:
    """
    Whatever types the fields have, nothing but the three errors comes out.
    """
    for message in (fields, {**fields, "v": VERSION, "id": 1}, {**fields, "v": VERSION, "id": 1, "op": op}):
        try:
            parse_request(message)
        except (BadRequest, PeerError, VersionMismatch):
            pass


def test_the_words_of_results_are_those_of_outcome() -> None:
    """
    wire.replies spells them out because importing the enumerations costs too much.
    """
    assert set(Outcome) == OUTCOMES
    assert set(Limit) == LIMITS


RESULT = Result(stdout=b"out\xff", stderr=b"", exit_code=1, outcome=Outcome.RAISED, limit=Limit.FILES, duration=0.25,
                cpu_time=0.125, memory_peak=5 << 20, denied={"mount": 2}, truncated=True, degraded=("landlock",),
                error=JobError("ValueError", "no \udc80 such", "Traceback ..."), files={"a/b.png": b"\x89PNG"})


def test_a_result_comes_back() -> None:
    """
    Every field of a result; a lone surrogate in the job's text becomes a question mark.
    """
    reply = parse_reply(decode(encode_result(3, RESULT)[HEADER:]))
    fields = parse_result(reply)

    assert 3 == reply.id
    assert fields == {
        "stdout": b"out\xff", "stderr": b"", "exit_code": 1, "outcome": "raised", "limit": "files", "duration": 0.25,
        "cpu_time": 0.125, "memory_peak": 5 << 20, "denied": {"mount": 2}, "truncated": True,
        "degraded": ("landlock",), "files": {"a/b.png": b"\x89PNG"},
        "error": {"type": "ValueError", "message": "no ? such", "traceback": "Traceback ..."},
    }


def test_places_come_back() -> None:
    """
    Output in a memory file, with another one for files.
    """
    frame = encode_result(1, RESULT, stdout=(0, 0, 90), stderr=(0, 90, 10), files={"big": (1, 5, 7)}, arenas=(100, 12))
    reply = parse_reply(decode(frame[HEADER:]))
    fields = parse_result(reply)

    assert [100, 12] == reply.arenas
    assert ((0, 0, 90), (0, 90, 10)) == (fields["stdout"], fields["stderr"])
    assert {"a/b.png": b"\x89PNG", "big": (1, 5, 7)} == fields["files"]


def test_c115_a_jobs_error_text_is_bounded() -> None:
    """
    A job that raises 10 MB of text costs the client 64 KiB of it.
    """
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
    {"arenas": [0]}, {"arenas": [1] * 5}, {"arenas": 1}, {"arenas": [1 << 62]}, {"arenas": ["1"]},
])
def test_c113_a_result_is_checked_field_by_field(changes: dict[str, Any]) -> None:
    """
    The client trusts no field, and only PeerError comes out.
    """
    assert parse_result(parse_reply({"id": 1, "ok": ok()}))  # control: unchanged it is a result
    with pytest.raises(PeerError):
        parse_result(parse_reply({"id": 1, "ok": ok(**changes)}))


@pytest.mark.parametrize("message", [
    {}, {"id": 1}, {"id": -1, "ok": {}}, {"id": "1", "ok": {}}, {"id": 1, "ok": []}, {"id": 1, "error": "no"},
    {"id": 1, "error": {"kind": "busy"}}, {"id": 1, "error": {"kind": 1, "message": ""}}, {"id": True, "ok": {}},
])
def test_what_is_no_reply_is_refused(message: dict[str, Any]) -> None:
    """
    Only PeerError comes out.
    """
    with pytest.raises(PeerError):
        parse_reply(message)


@given(st.dictionaries(st.sampled_from(list(ok())), ANYTHING))
def test_any_result_is_parsed_or_refused(changes: dict[str, Any]) -> None:
    """
    Whatever types the fields have.
    """
    try:
        parse_result(parse_reply({"id": 1, "ok": ok(**changes)}))
    except PeerError:
        pass


def test_a_refusal_comes_back() -> None:
    """
    Kind and message; a message that can't be encoded as it is, is.
    """
    kind, message = refusal_of(Busy("full"))
    reply = parse_reply(decode(encode_refusal(9, kind, message + "\udc80" + "x" * 9999)[HEADER:]))

    assert (9, None, "busy") == (reply.id, reply.ok, reply.kind)
    assert reply.message.startswith("full?xxx")
    assert 4096 == len(reply.message)
    assert ("bad_request", "no") == refusal_of(BadRequest("no"))

"""The job pipe and the reply pipe. A reply's bytes are hostile."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.spec.job import Job
from leeward.spec.outcome import Limit
from leeward.wire.job_frames import (
    HEADER,
    LENT,
    MAX_FILES,
    SESSION,
    VARIABLES,
    code_of,
    is_plain_name,
    job_frame,
    read_job,
    read_lent,
    read_reply,
    read_variables,
    reply_pieces,
    session_frame,
    variables_frame,
)


def _body(frame: bytes) -> bytes:
    assert HEADER.unpack(frame[:4])[0] == len(frame) - 4
    return frame[4:]


def test_a_job_survives_the_pipe():
    job = Job(code=b"\xff\x00", name="x.py", args=("a", "\udcff"[:0]), env={"K": "V"}, files={"d/f": b"\x00"},
              stdin=b"in", collect=("*.png",))

    fields = read_job(_body(job_frame(job)))

    assert (b"\xff\x00", None, "x.py", {"d/f": b"\x00"}, b"in") == tuple(
        fields[name] for name in ("code", "module", "name", "files", "stdin"))


@pytest.mark.parametrize("job", [Job(code=b"x = 1"), Job(code=b"x = 1", name="x.py"), Job(code=b"")])
def test_a_sessions_frame_is_a_jobs_behind_a_byte(job: Job) -> None:
    """With which no other frame starts, so that a process which expects one job can't take it for its own."""
    alone = _body(job_frame(job))

    assert _body(session_frame(job)) == SESSION + alone
    assert not alone.startswith(SESSION)
    assert code_of(_body(session_frame(job))) is None


def test_variables_of_a_lease_come_with_a_job_or_before_the_first_of_a_session() -> None:
    """A client's own go before."""
    own = {"A": "1", "B": "2"}
    assert own == read_variables(_body(variables_frame(own)))
    assert _body(variables_frame(own)).startswith(VARIABLES)
    assert job_frame(Job(code=b"x = 1")) == job_frame(Job(code=b"x = 1"), {})
    lent = _body(job_frame(Job(code=b"x = 1"), own))
    assert (LENT, None, (own, b"x = 1")) == (lent[:1], code_of(lent), read_lent(lent))
    fields = read_job(_body(job_frame(Job(code=b"x = 1", env={"B": "3"}), own)))
    assert {"A": "1", "B": "3"} == fields["env"]
    assert not any(_body(frame).startswith(VARIABLES) for frame in (
        session_frame(Job(code=b"x")), session_frame(Job(code=b"x", env=own)),
        session_frame(Job(code=b"x", display=True))))


def test_a_reply_survives_the_pipe():
    left_out = [("*.csv", "no_match"), ("x\ny" * 200, "name")]
    frame = reply_pieces(3, ("ValueError", "text", "trace"), "files", {"a/b.png": b"\x89"}, left_out)[0]
    reply = read_reply(_body(frame), MAX_FILES)

    assert ["no_match", "name"] == [one.reason for one in reply.left_out]
    assert "*.csv" == reply.left_out[0].name
    assert reply.left_out[1].name.startswith("x\\nyx\\ny")
    assert 255 == len(reply.left_out[1].name)
    assert (3, True, Limit.FILES, {"a/b.png": b"\x89"}) == (reply.exit_code, reply.raised, reply.limit, reply.files)


def test_lone_surrogates_of_a_job_do_no_harm():
    reply = read_reply(_body(reply_pieces(1, ("E", "\udc80", "t\ud800"), None, {})[0]), MAX_FILES)

    assert reply.error is not None
    assert "\udc80" not in reply.error.message


@given(st.binary(max_size=200))
def test_any_bytes_give_a_reply_or_a_peer_error(data: bytes):
    try:
        read_reply(data, MAX_FILES)
    except PeerError:
        return


GOOD = {"exit": 0, "error": None, "limit": None, "files": {}}


@pytest.mark.parametrize("wrong", [
    {"exit": 256}, {"exit": -1}, {"exit": True}, {"exit": "0"}, {"exit": 2**63},
    {"error": "text"}, {"error": ["a", "b"]}, {"error": ["a", "b", 3]}, {"limit": "sky"}, {"limit": 3},
    {"limit": {}}, {"limit": []}, {"limit": b"memory"}, {"exit": []}, {"exit": {}}, {"error": {}},
    {"error": [[], {}, []]},
    {"files": []}, {"files": {"../x": b""}}, {"files": {"/x": b""}}, {"files": {"x": "text"}}, {"more": 1},
    {"files": {"a\nb": b""}}, {"files": {"": b""}}, {"files": {str(number): b"" for number in range(MAX_FILES + 1)}},
    {"left_out": None}, {"left_out": "a"}, {"left_out": ["ab"]}, {"left_out": [["a"]]},
    {"left_out": [["a", "link", 1]]},
    {"left_out": [["a", "weather"]]}, {"left_out": [[b"a", "link"]]}, {"left_out": [["a", "link"]] * 258},
    {"left_out": {"a": "link"}},
])
def test_wrong_fields_are_refused(wrong: dict[str, object]):
    with pytest.raises(PeerError):
        read_reply(msgpack.packb({**GOOD, **wrong}), MAX_FILES)


@pytest.mark.parametrize("bomb", [
    b"\x81" * 100_000, b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xc7\xff\x01" + b"x" * 255, b"",
])
def test_bombs_are_refused(bomb: bytes):
    with pytest.raises(PeerError):
        read_reply(bomb, MAX_FILES)


@pytest.mark.parametrize("field", list(GOOD))
def test_a_missing_field_is_refused(field: str):
    with pytest.raises(PeerError):
        read_reply(msgpack.packb({name: value for name, value in GOOD.items() if name != field}), MAX_FILES)
    with pytest.raises(PeerError):
        read_reply(msgpack.packb({**{name: value for name, value in GOOD.items() if name != field}, "left_out": []}),
                   MAX_FILES)


@pytest.mark.parametrize("at", ["exit", "error", "limit", "files", "name"])
def test_a_bomb_costs_no_more_memory_than_its_bytes(at: str):
    """Nested arrays become objects of fifty times their size; none is made for bytes that can't be right."""
    bomb = b"\x90"
    for _ in range(11):
        bomb = b"\x93" + 3 * bomb
    values = {"exit": b"\x00", "error": b"\xc0", "limit": b"\xc0", "files": b"\x80"}
    if "name" == at:
        values["files"] = b"\x81" + bomb + b"\xc4\x00"
    else:
        values[at] = bomb
    body = b"\x84" + b"".join(msgpack.packb(name) + value for name, value in values.items())
    tracemalloc.start()
    with pytest.raises(PeerError):
        read_reply(body, MAX_FILES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2 * len(body)


def test_bytes_behind_a_reply_are_refused():
    with pytest.raises(PeerError):
        read_reply(msgpack.packb(GOOD) + b"\xc0", MAX_FILES)


@pytest.mark.parametrize(("name", "plain"), [
    ("a.txt", True), ("a/b/c", True), ("ünï.png", True), ("-rf", True),
    ("", False), ("/etc/passwd", False), ("..", False), ("a/../b", False), ("a//b", False), ("a/", False), (".", False),
    ("a\0b", False), ("a\nb", False), ("\x1b[2J", False), ("x" * 1025, False), ("/".join("a" * 17), False), (3, False),
])
def test_plain_names_of_files(name: object, plain: bool):
    assert plain is is_plain_name(name)

"""Requests: what is taken, what is refused, and that both ways agree."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.example_requests import BOX, REQUESTS
from leeward.errors import BadRequest, PeerError, Refused, VersionMismatch, brief
from leeward.wire import requests
from leeward.wire.frames import HEADER, VERSION, decode
from leeward.wire.requests import (
    OPERATIONS,
    Execute,
    encode_request,
    parse_request,
)
from leeward.wire.schema import ClientRequest


def parse(**fields: Any) -> ClientRequest:
    return parse_request({"v": VERSION, "id": 1, **fields})


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_comes_back(request_: ClientRequest) -> None:
    """What a client encodes is what the daemon parses."""
    assert request_ == parse_request(decode(encode_request(request_)[HEADER:]))


def test_code_may_be_text() -> None:
    """Other languages' clients have strings."""
    assert Execute(id=1, code="print('é')".encode()) == parse(op="execute", code="print('é')")


REFUSED: dict[str, dict[str, Any]] = {
    "a sandbox without an id": {"op": "sandbox_info"},
    "a sandbox by another alphabet": {"op": "sandbox_info", "sandbox": "A" * 26},
    "a sandbox by a short id": {"op": "sandbox_kill", "sandbox": "a" * 25},
    "a sandbox by a number": {"op": "sandbox_kill", "sandbox": 7},
    "a profile by a number": {"op": "sandbox_open", "profile": 7},
    "a profile by a path": {"op": "sandbox_open", "profile": "../root"},
    "an environment without a name": {"op": "execute", "code": b"", "environment": ""},
    "an environment by a path": {"op": "execute", "code": b"", "environment": "/usr"},
    "an environment by a long name": {"op": "session_open", "environment": "a" * 65},
    "an environment beside a session's": {"op": "execute", "code": b"", "session": 1, "environment": "a"},
    "a lifetime of NaN": {"op": "sandbox_open", "lifetime": float("nan")},
    "metadata of numbers": {"op": "sandbox_open", "metadata": {"a": 1}},
    "too much metadata": {"op": "sandbox_open", "metadata": {"a": "x" * 20_000}},
    "no program": {"op": "process_run", "sandbox": BOX},
    "an empty program": {"op": "process_run", "sandbox": BOX, "argv": []},
    "a program without a name": {"op": "process_start", "sandbox": BOX, "argv": [""]},
    "a program and a line": {"op": "process_run", "sandbox": BOX, "argv": ["a"], "shell": "a"},
    "a NUL in an argument": {"op": "process_run", "sandbox": BOX, "argv": ["a\0"]},
    "an argument that is too long": {"op": "process_run", "sandbox": BOX, "argv": ["a" * 131_072]},
    "an empty folder": {"op": "process_run", "sandbox": BOX, "argv": ["a"], "cwd": ""},
    "signal 0": {"op": "process_signal", "sandbox": BOX, "process": 1, "signal": 0},
    "a terminal that is a text": {"op": "process_start", "sandbox": BOX, "argv": ["a"], "terminal": "24x80"},
    "a terminal of one side": {"op": "process_start", "sandbox": BOX, "argv": ["a"], "terminal": [24]},
    "a terminal of three sides": {"op": "process_start", "sandbox": BOX, "argv": ["a"], "terminal": [24, 80, 1]},
    "a terminal without rows": {"op": "process_start", "sandbox": BOX, "argv": ["a"], "terminal": [0, 80]},
    "a run on a terminal": {"op": "process_run", "sandbox": BOX, "argv": ["a"], "terminal": [24, 80]},
    "columns above the kernel's": {"op": "process_resize", "sandbox": BOX, "process": 1, "rows": 1, "columns": 65536},
    "rows that are true": {"op": "process_resize", "sandbox": BOX, "process": 1, "rows": True, "columns": 1},
    "no columns": {"op": "process_resize", "sandbox": BOX, "process": 1, "rows": 1},
    "no signal": {"op": "process_signal", "sandbox": BOX, "process": 1},
    "no process": {"op": "process_kill", "sandbox": BOX},
    "a wait without end": {"op": "process_wait", "sandbox": BOX, "process": 1, "wait": float("inf")},
    "a write of text": {"op": "process_write", "sandbox": BOX, "process": 1, "data": "x"},
    "an end that is a number": {"op": "process_write", "sandbox": BOX, "process": 1, "end": 1},
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
    "file below here": {"op": "execute", "code": b"", "files": {"a/./x": b""}},
    "file elsewhere": {"op": "execute", "code": b"", "files": {"/etc/x": b""}},
    "file above by its whole name": {"op": "execute", "code": b"", "files": {"/workspace/../x": b""}},
    "file twice": {"op": "execute", "code": b"", "files": {"x": b"", "/workspace/x": b""}},
    "pattern with too much in braces": {"op": "execute", "code": b"", "collect": ["{a,b}" * 9]},
    "patterns with too much in braces": {"op": "execute", "code": b"", "collect": ["{a,b}" * 7] * 3},
    "pattern above by braces": {"op": "execute", "code": b"", "collect": ["{a,../b}"]},
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
    "cancel in two ways": {"op": "cancel", "target": 1, "interrupt": True, "kill": True},
    "cancel by a number": {"op": "cancel", "target": 1, "interrupt": 1},
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
    "read nothing that is kept": {"op": "kept_read"},
    "read of a negative file": {"op": "kept_read", "target": 1, "arena": -1},
    "read from a fraction on": {"op": "kept_read", "target": 1, "offset": 0.5},
    "read no byte": {"op": "kept_read", "target": 1, "size": 0},
    "read more than an answer takes": {"op": "kept_read", "target": 1, "size": (1 << 20) + 1},
    "drop nothing": {"op": "kept_drop"},
    "keep this": {"op": "keep_results", "target": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_c101_impossible_requests_are_refused_by_name(name: str) -> None:
    """One BadRequest each, short and printable whatever was sent."""
    with pytest.raises(BadRequest) as refusal:
        parse(**REFUSED[name])

    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("number", [None, 0, -1, 2**53, "1", 1.0, True, [1]])
def test_a_request_without_an_id_breaks_the_protocol(number: object) -> None:
    """There is no way to answer it."""
    with pytest.raises(PeerError):
        parse_request({"v": VERSION, "id": number, "op": "ping"})


@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0])
def test_c109_another_version_is_named(version: object) -> None:
    """Both versions are in the message."""
    with pytest.raises(VersionMismatch, match=f"this daemon {VERSION}"):
        parse_request({"v": version, "id": 1, "op": "ping"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8)


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_without_its_fields_is_a_request_or_refused(op: str) -> None:
    with suppress(BadRequest):
        parse_request({"v": VERSION, "id": 1, "op": op})


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(["v", "id", "op", "target", "x", *OPERATIONS["execute"].fields]), ANYTHING),
       st.sampled_from([*OPERATIONS, "x"]))
def test_any_map_is_a_request_or_refused(fields: dict[str, Any], op: str) -> None:
    """Whatever types the fields have, nothing but the three errors comes out."""
    for message in (fields, {**fields, "v": VERSION, "id": 1}, {**fields, "v": VERSION, "id": 1, "op": op}):
        try:
            parse_request(message)
        except (BadRequest, PeerError, VersionMismatch):
            pass


@pytest.mark.parametrize("more", [
    {"cpu_time": 0}, {"cpu_time": 0.0005}, {"cpu_time": -1}, {"cpu_time": 3600.1}, {"cpu_time": float("nan")},
    {"cpu_time": True}, {"cpu_time": "1"}, {"clean": 1}, {"clean": "yes"},
])
def test_a_bound_on_processor_time_has_bounds(more: dict[str, Any]) -> None:
    """And what is a switch is one."""
    for op in ("process_run", "process_start"):
        with pytest.raises(BadRequest):
            parse(op=op, sandbox=BOX, shell="ls", **more)


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_c397_no_check_of_a_field_copies_what_it_refuses(op: str) -> None:
    """The repr of 64 MiB, for a message that has 40 characters of it, takes a second."""
    filled: dict[str, Any] = {"code": b"1", "sandbox": "a" * 26, "argv": ["a"], "path": b"/a", "data": b"a",
                              "process": 1}
    others = {name: value for name, value in filled.items() if name in OPERATIONS[op].fields}
    huge = b"\0" * (1 << 20)
    for name in ("id", "v", *OPERATIONS[op].fields):
        for value in (huge, [huge], [{"a": huge}], {"a": [huge]}):
            message = {"v": VERSION, "id": 1, "op": op, **others, name: value}
            tracemalloc.start()
            with suppress(PeerError, BadRequest, Refused):
                requests.request_id(message)
                parse_request(message)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < len(huge), name


@pytest.mark.parametrize("value", ["text", "it's", b"bytes\0", 12, None, 1.5, [], [1, "a"], {"a": [b"b"]}, (), (1, 2),
                                   "x" * 100, b"x" * 100, [["x" * 100]], list(range(100)),
                                   {str(at): at for at in range(99)}])
def test_a_brief_repr_is_the_beginning_of_the_repr(value: object) -> None:
    for most in (5, 40, 80):
        assert f"{value!r:.{most}}" == brief(value, most)

"""The frames of tests/conformance, run against the Python and the C client over a real socket, and the daemon's reading."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.c_client import File, Options, options_of
from kit.fake_daemon import Rogue
from kit.features import ROOT
from kit.skip_policy import require
from leeward import Client
from leeward.errors import BY_KIND, BadReply, Refused
from leeward.spec.outcome import Result
from leeward.wire import frames
from leeward.wire.requests import Execute, SessionClose, SessionOpen, SessionReset, parse_request

FRAMES = ROOT / "tests" / "conformance" / "frames.json"
CASES = json.loads(FRAMES.read_text())

#: Seconds for one answer; a client that takes that long has hung.
DEADLINE_S = 20.0

#: What the C client says of a refusal, by its kind on the wire; leeward.h.
CODES = {"busy": -17, "queue_timeout": -18, "shutting_down": -19, "version": -20, "bad_request": -21, "cancelled": -22,
         "forbidden": -23, "sandbox_over": -24, "process_over": -25, "session_over": -26, "snapshot_failed": -27}
BAD_REPLY, REFUSED = -5, -16

OUTCOMES = (None, "finished", "raised", "signalled", "timed_out", "out_of_memory", "output_limit", "internal")
LIMITS = (None, "memory", "processes", "files", "output", "time", "cpu", "descriptors")

#: What became of an execute: its result as the file has it, {"refused": ...} or {"broken": True}.
Seen = dict[str, Any]

#: Sends an execute to a socket, and tells what became of it.
Asker = Callable[[str, dict[str, Any]], Seen]


def content(parts: list[Any] | str) -> bytes:
    if isinstance(parts, str):
        return bytes.fromhex(parts)
    pairs = ((part, 1) if isinstance(part, str) else part for part in parts)
    return b"".join(bytes.fromhex(said) * times for said, times in pairs)


# --- the Python client -----------------------------------------------------------


def shown(result: Result) -> Seen:
    error = result.error and {"type": result.error.type, "message": result.error.message,
                              "traceback": result.error.traceback}
    return {"outcome": result.outcome.value, "exit_code": result.exit_code,
            "limit": result.limit and result.limit.value, "duration_us": round(result.duration * 1e6),
            "cpu_time_us": round(result.cpu_time * 1e6),
            "memory_peak": result.memory_peak, "denied": dict(result.denied), "truncated": result.truncated,
            "degraded": list(result.degraded), "error": error, "stdout": result.stdout.hex(),
            "stderr": result.stderr.hex(), "files": {name: data.hex() for name, data in result.files.items()},
            "left_out": [[one.name, one.reason.value] for one in result.left_out],
            "omitted": [result.stdout_omitted, result.stderr_omitted]}


def unhexed(asked: dict[str, Any]) -> dict[str, Any]:
    plain = {name: content(value) if name in ("code", "stdin") else value for name, value in asked.items()}
    if "files" in plain:
        plain["files"] = {name: bytes.fromhex(data) for name, data in plain["files"].items()}
    return plain


def by_python(path: str, asked: dict[str, Any]) -> Seen:
    with Client(path, retry=False) as client:  # the frames have an id: that of a first attempt
        try:
            return {"result": shown(client.execute(**unhexed(asked), deadline=DEADLINE_S))}
        except BadReply:
            return {"broken": True}
        except Refused as refusal:
            # Of a class of its own, as far as there is one.
            known = type(refusal) is BY_KIND.get(refusal.kind, Refused)
            after = {} if refusal.retry_after is None else {"retry_after": refusal.retry_after}
            return {"refused": {"kind": refusal.kind if known else None, "message": refusal.message, **after}}


# --- the C client ------------------------------------------------------------------


class Denied(ctypes.Structure):
    """leeward_denied."""

    _fields_ = (("name", ctypes.c_char_p), ("count", ctypes.c_uint64))


class LeftOut(ctypes.Structure):
    """leeward_left_out."""

    _fields_ = (("name", ctypes.c_char_p), ("reason", ctypes.c_char_p))


class CResult(ctypes.Structure):
    """leeward_result."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("id", ctypes.c_int64), ("outcome", ctypes.c_int32), ("exit_code", ctypes.c_int32),
        ("limit", ctypes.c_int32), ("truncated", ctypes.c_int32), ("stdout_data", ctypes.c_void_p),
        ("stdout_length", ctypes.c_size_t), ("stderr_data", ctypes.c_void_p), ("stderr_length", ctypes.c_size_t),
        ("duration_us", ctypes.c_int64), ("cpu_time_us", ctypes.c_int64), ("memory_peak", ctypes.c_uint64),
        ("denied", ctypes.POINTER(Denied)), ("denied_count", ctypes.c_size_t),
        ("degraded", ctypes.POINTER(ctypes.c_char_p)), ("degraded_count", ctypes.c_size_t),
        ("error_type", ctypes.c_char_p), ("error_message", ctypes.c_char_p), ("error_traceback", ctypes.c_char_p),
        ("files", ctypes.POINTER(File)), ("file_count", ctypes.c_size_t),
        ("left_out", ctypes.POINTER(LeftOut)), ("left_out_count", ctypes.c_size_t),
        ("value", ctypes.c_char_p), ("shown", ctypes.c_void_p), ("shown_count", ctypes.c_size_t),
        ("stdout_omitted", ctypes.c_uint64), ("stderr_omitted", ctypes.c_uint64), ("hint", ctypes.c_char_p),
        ("starved_us", ctypes.c_int64),
    )


def c_shown(result: CResult) -> Seen:
    def data(place: int | None, length: int) -> str:
        return ctypes.string_at(place, length).hex() if place else ""

    error = {"type": result.error_type.decode(), "message": result.error_message.decode(),
             "traceback": result.error_traceback.decode()} if result.error_type is not None else None
    assert ctypes.sizeof(result) == result.size
    return {
        "outcome": OUTCOMES[result.outcome], "exit_code": result.exit_code, "limit": LIMITS[result.limit],
        "duration_us": result.duration_us, "cpu_time_us": result.cpu_time_us, "memory_peak": result.memory_peak,
        "denied": {result.denied[at].name.decode(): result.denied[at].count for at in range(result.denied_count)},
        "truncated": bool(result.truncated),
        "degraded": [result.degraded[at].decode() for at in range(result.degraded_count)],
        "error": error, "stdout": data(result.stdout_data, result.stdout_length),
        "stderr": data(result.stderr_data, result.stderr_length),
        "files": {result.files[at].name.decode(): data(result.files[at].data, result.files[at].length)
                  for at in range(result.file_count)},
        "left_out": [[result.left_out[at].name.decode(), result.left_out[at].reason.decode()]
                     for at in range(result.left_out_count)],
        "omitted": [result.stdout_omitted, result.stderr_omitted],
    }


def c_options(asked: dict[str, Any]) -> Options:
    files = {name: bytes.fromhex(data) for name, data in asked.get("files", {}).items()}
    return options_of({**asked, "files": files, "stdin": bytes.fromhex(asked.get("stdin", ""))},
                      size=ctypes.sizeof(Options), deadline=DEADLINE_S, no_retry=1)


@pytest.fixture(scope="module")
def by_c(c_build: Path) -> Asker:
    """by_python's work, by the shared library."""
    library = ctypes.CDLL(str(c_build / "libleeward.so"))
    library.leeward_connect.restype = ctypes.c_void_p
    library.leeward_execute.restype = ctypes.POINTER(CResult)
    library.leeward_last_error.restype = ctypes.c_char_p
    library.leeward_last_error_retry_after.restype = ctypes.c_double

    def run(path: str, asked: dict[str, Any]) -> Seen:
        options = c_options(asked)
        code = content(asked["code"]) if "code" in asked else None
        handle = ctypes.c_void_p(library.leeward_connect(path.encode()))
        assert handle
        result = library.leeward_execute(handle, code, ctypes.c_size_t(len(code or b"")), ctypes.byref(options))
        library.leeward_disconnect(handle)
        if result:
            seen = {"result": c_shown(result.contents)}
            library.leeward_free_result(result)
            return seen
        error, text = library.leeward_last_error_code(), library.leeward_last_error().decode()
        if BAD_REPLY == error:
            return {"broken": True}
        kinds = {code: kind for kind, code in CODES.items()}
        assert error in kinds or REFUSED == error, text
        after = library.leeward_last_error_retry_after()
        told = {"retry_after": after} if after >= 0 else {}
        return {"refused": {"kind": kinds.get(error), "message": text, **told}}

    return run


@pytest.fixture(params=["python", "c"])
def client(request: pytest.FixtureRequest) -> Asker:
    if "python" == request.param:
        return by_python
    require("compiler")
    found: Asker = request.getfixturevalue("by_c")
    return found


# --- the daemon ----------------------------------------------------------------------


def received(sock: socket.socket) -> bytes:
    """One whole frame, as it came."""
    data = b""
    while len(data) < frames.HEADER or len(data) < frames.HEADER + int.from_bytes(data[:frames.HEADER], "big"):
        more = sock.recv(1 << 16)
        assert more
        data += more
    return data


def descriptor(file: dict[str, Any]) -> int:
    if "seals" not in file:
        return os.open(os.devnull, os.O_RDONLY)
    fd = os.memfd_create("leeward_results", os.MFD_ALLOW_SEALING)
    if "size" in file:
        os.ftruncate(fd, file["size"])
    else:
        os.write(fd, bytes.fromhex(file["data"]))
    for name in sorted(file["seals"], key=lambda name: "SEAL" == name):  # that one forbids the others
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, getattr(fcntl, f"F_SEAL_{name}"))
    return fd


class Answering:
    """
    A daemon that takes one case after the other, each over a connection of its own: it keeps the
    request, answers, and waits until its client has hung up.
    """

    def __init__(self) -> None:
        self.case: dict[str, Any] = {}
        self.request = b""

    def __call__(self, sock: socket.socket) -> None:
        self.request = received(sock)
        data, files = content(self.case["frame"]), [descriptor(file) for file in self.case.get("files", [])]
        sent = socket.send_fds(sock, [data], files)
        for fd in files:
            os.close(fd)
        sock.sendall(data[sent:])
        while sock.recv(1 << 16):
            pass


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Answering, str]]:
    answering = Answering()
    with Rogue(tmp_path / "s", answering) as rogue:
        yield answering, rogue.path


def test_requests_are_those_bytes(client: Asker, daemon: tuple[Answering, str]) -> None:
    answering, path = daemon
    answering.case = CASES["replies"][0]
    wrong = {}
    for case in CASES["requests"]:
        assert {"result": answering.case["result"]} == client(path, case["execute"])
        if answering.request != content(case["frame"]):
            wrong[case["what"]] = answering.request.hex()

    assert {} == wrong


@pytest.mark.parametrize("what", ["result", "refused", "broken"])
def test_c113_replies_are_read_so(client: Asker, daemon: tuple[Answering, str], what: str) -> None:
    answering, path = daemon
    wrong, count = {}, 0
    for answering.case in CASES["replies"]:
        if what not in answering.case:
            continue
        seen, count = client(path, {"code": ""}), count + 1
        if "refused" == what and seen.get("refused", {}).get("kind", "") is None:
            assert answering.case["refused"]["kind"] not in CODES
            seen["refused"]["kind"] = answering.case["refused"]["kind"]  # in C all others are LEEWARD_REFUSED
        if {what: answering.case[what]} != seen:
            wrong[answering.case["what"]] = seen

    assert {} == wrong
    assert count >= 10


def test_c167_sessions_are_those_bytes(tmp_path: Path) -> None:
    """One after the other, over the connection that the session was opened on."""
    asked: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        for step in CASES["sessions"]:
            asked.append(received(sock))
            sock.sendall(content(step["reply"]))
        assert b"" == sock.recv(1)

    session: Any = None
    wrong = {}
    with Rogue(tmp_path / "s", serve) as rogue, Client(rogue.path) as client:
        for step in CASES["sessions"]:
            call = getattr(client if "session" == step["call"] else session, step["call"])
            try:
                answer = call(**unhexed(step["asked"]))
                seen: Seen = {"result": shown(answer)} if isinstance(answer, Result) else {"done": True}
            except Refused as refusal:
                known = type(refusal) is BY_KIND[refusal.kind]
                seen = {"refused": {"kind": refusal.kind if known else None, "message": refusal.message}}
            if "session" == step["call"]:
                session = answer
            if any(step.get(name) != value for name, value in seen.items()):
                wrong[step["what"]] = seen
            if asked[-1] != content(step["frame"]):
                wrong[step["what"]] = {"asked": asked[-1].hex()}

    assert {} == wrong
    assert len(CASES["sessions"]) == len(asked)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["what"]) for case in CASES["sessions"]])
def test_the_daemon_takes_the_requests_of_sessions(case: dict[str, Any]) -> None:
    """As what was asked."""
    request = parse_request(frames.decode(content(case["frame"])[frames.HEADER:]))

    assert isinstance(request, {"session": SessionOpen, "execute": Execute, "reset": SessionReset,
                                "close": SessionClose}[case["call"]])
    if isinstance(request, SessionOpen):
        assert (request.idle, request.limits["memory"]) == (case["asked"]["idle"], case["asked"]["memory"])
    else:
        assert 300 == request.session
    if isinstance(request, Execute):
        assert request.code == bytes.fromhex(case["asked"]["code"])
        assert request.limits.get("time") == case["asked"].get("timeout")


class Lending:
    """A daemon that gives an arena, or what a case says, and answers what comes then."""

    def __init__(self) -> None:
        self.case: dict[str, Any] = {}
        self.seen: dict[str, bytes] = {}

    def __call__(self, sock: socket.socket) -> None:
        case, good = self.case, CASES["replies"][0]
        self.seen = {"asked": received(sock)}
        files = [descriptor(case["file"])] if "file" in case else []
        socket.send_fds(sock, [content(case["answer"])], files)
        if not case.get("broken"):
            self.seen["then"] = received(sock)
            if "memory" in case:
                self.seen["memory"] = os.pread(files[0], len(content(case["memory"])), 0)
            sock.sendall(content(good["frame"]).replace(b"\xa2id\x01", b"\xa2id\x02"))
        for fd in files:
            os.close(fd)
        while sock.recv(1 << 16):
            pass


def test_large_requests_go_by_an_arena_if_there_is_one(client: Asker, tmp_path: Path) -> None:
    lending, wrong = Lending(), {}
    with Rogue(tmp_path / "s", lending) as rogue:
        for case in CASES["arenas"]:
            lending.case = case
            seen = client(rogue.path, case["execute"])
            wanted = {"broken": True} if case.get("broken") else {"result": CASES["replies"][0]["result"]}
            sent = {name: content(case[name]) for name in ("asked", "then", "memory") if name in case}
            if (wanted, sent) != (seen, lending.seen):
                wrong[case["what"]] = seen, {name: data[:80].hex() for name, data in lending.seen.items()}

    assert {} == wrong
    assert len(CASES["arenas"]) >= 10


@pytest.mark.parametrize("case", [pytest.param(case, id=case["what"]) for case in CASES["requests"]])
def test_the_daemon_takes_the_requests(case: dict[str, Any]) -> None:
    """As what was asked."""
    asked = case["execute"]
    limits = {"memory": "memory", "processes": "processes", "output": "output", "timeout": "time"}
    request = parse_request(frames.decode(content(case["frame"])[frames.HEADER:]))

    assert isinstance(request, Execute)
    assert request.id == 1
    assert (request.module, request.name) == (asked.get("module"), asked.get("name", ""))
    assert request.code == (bytes.fromhex(asked["code"]) if "code" in asked else None)
    assert request.stdin == bytes.fromhex(asked.get("stdin", ""))
    assert (list(request.args), list(request.collect)) == (asked.get("args", []), asked.get("collect", []))
    assert request.env == asked.get("env", {})
    assert {name: data.hex() for name, data in request.files.items()} == asked.get("files", {})
    assert request.limits == {limits[name]: asked[name] for name in limits if name in asked}

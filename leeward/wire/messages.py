"""
What a client asks, and how the daemon answers: docs/wire.md as code.

Runs in:   the daemon and the clients; pure. The CLI's fast path reads replies by
           `wire.replies` alone, which imports less.
Trust:     a request is hostile. It is checked field by field into a frozen dataclass;
           what is not named there is refused, so a misspelt option is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from leeward.dataclass import dataclass, field
from leeward.errors import BadRequest, PeerError, Refused, VersionMismatch
from leeward.outcome import Result
from leeward.wire.frames import MAX_REPLY, VERSION, encode
from leeward.wire.job import is_plain_name

#: An id is the client's choice; 0 is the daemon's, for what concerns the whole connection.
MAX_ID = 2**53 - 1

#: Bytes of source text. CPython itself takes minutes and gigabytes for more.
MAX_CODE = 16 << 20
#: Bytes of standard input, and of all input files together. The frame bounds their sum.
MAX_STDIN = MAX_FILES = 64 << 20
#: Input files in one request.
MAX_FILE_COUNT = 1024
#: Arguments and environment variables, each: how many, and characters of all together.
MAX_STRINGS, MAX_STRING_TOTAL = 1024, 1 << 20
#: Patterns of files to bring back.
MAX_PATTERNS = 64
#: Characters of a name that shows in tracebacks, or of a module's name.
MAX_NAME = 255
#: Seconds that a session may ask to be kept without a job; the daemon's own bound is lower.
MAX_IDLE = 86400.0


def _text(value: object, what: str, limit: int = MAX_STRING_TOTAL) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{what} must be text, not {type(value).__name__}")
    if "\0" in value:
        raise BadRequest(f"{what} has a NUL in it")
    if len(value) > limit:
        raise BadRequest(f"{what} has {len(value)} characters; at most {limit} are taken")
    return value


def _binary(value: object, what: str, limit: int) -> bytes:
    if not isinstance(value, bytes):
        raise BadRequest(f"{what} must be binary, not {type(value).__name__}")
    if len(value) > limit:
        raise BadRequest(f"{what} has {len(value)} bytes; at most {limit} are taken")
    return value


def _entries(value: object, kind: type, what: str, limit: int) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(f"{what} must be {'a map' if kind is dict else 'an array'}, not {type(value).__name__}")
    if len(value) > limit:  # type: ignore[arg-type]  # a dict or a list, by the check above
        raise BadRequest(f"{what} has {len(value)} entries; at most {limit} are taken")  # type: ignore[arg-type]
    return value


def _total(strings: list[str], what: str) -> None:
    total = sum(map(len, strings))
    if total > MAX_STRING_TOTAL:
        raise BadRequest(f"{what} has {total} characters together; at most {MAX_STRING_TOTAL} are taken")


def _code(value: object) -> bytes:
    # As text or as bytes: bytes may declare a coding of their own, as a file may.
    return _binary(value.encode() if isinstance(value, str) else value, "code", MAX_CODE)


def _module(value: object) -> str:
    name = _text(value, "module", MAX_NAME)
    if not name.isprintable() or "/" in name or not all(name.split(".")):
        raise BadRequest(f"module {name!r:.80} is no module's name")
    return name


def _name(value: object) -> str:
    name = _text(value, "name", MAX_NAME)
    if not name or not name.isprintable():
        raise BadRequest(f"name {name!r:.80} can't be shown in a traceback")
    return name


def _args(value: object) -> tuple[str, ...]:
    args = [_text(item, "an argument") for item in _entries(value, list, "args", MAX_STRINGS)]
    _total(args, "args")
    return tuple(args)


def _env(value: object) -> dict[str, str]:
    env: dict[str, str] = _entries(value, dict, "env", MAX_STRINGS)
    for key, item in env.items():
        if not _text(key, "a variable's name") or "=" in key:
            raise BadRequest(f"env: {key!r:.80} can't be a variable's name")
        _text(item, f"env {key!r:.80}")
    _total([*env, *env.values()], "env")
    return env


def _files(value: object) -> dict[str, bytes]:
    files: dict[str, bytes] = _entries(value, dict, "files", MAX_FILE_COUNT)
    total = 0
    for name, content in files.items():
        if not is_plain_name(name):
            raise BadRequest(f"files: {name!r:.80} is no plain path below /workspace")
        total += len(_binary(content, f"file {name!r:.80}", MAX_FILES))
    if total > MAX_FILES:
        raise BadRequest(f"files have {total} bytes together; at most {MAX_FILES} are taken")
    for name in files:
        parent = name
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in files:
                raise BadRequest(f"files: {parent!r:.80} is a file, and a folder of {name!r:.80}")
    return files


def _collect(value: object) -> tuple[str, ...]:
    patterns = _entries(value, list, "collect", MAX_PATTERNS)
    for pattern in patterns:
        if not is_plain_name(pattern):
            raise BadRequest(f"collect: {pattern!r:.80} is no pattern of plain paths below /workspace")
    return tuple(patterns)


def _stdin(value: object) -> bytes:
    return _binary(value, "stdin", MAX_STDIN)


def _limits(value: object) -> dict[str, Any]:
    limits: dict[str, Any] = _entries(value, dict, "limits", 16)
    return limits  # names and values are checked against the daemon's ceilings, by spec.limits


def _idle(value: object) -> float:
    if type(value) not in (int, float) or not 0 < value <= MAX_IDLE:  # type: ignore[operator]  # NaN compares false
        raise BadRequest(f"idle must be seconds above 0, at most {MAX_IDLE:.0f}, not {value!r:.40}")
    return float(value)  # type: ignore[arg-type]  # a number, by the line above


def _session(value: object) -> int:
    if not _is_id(value):
        raise BadRequest("session must be the number of a session")
    assert isinstance(value, int)
    return value


@dataclass(frozen=True, slots=True)
class Execute:
    """
    Run code, or a module, and answer with its result.

    Attributes:
        session: where to run it, 0 for a process of its own.
        code: source text, or None where *module* is given.
        module: what `python -m` would run.
        name: the file name that tracebacks show, "" for the daemon's choice.
        limits: what this job wants otherwise than the daemon's defaults.
    """

    op: ClassVar[str] = "execute"

    id: int
    session: int = 0
    code: bytes | None = None
    module: str | None = None
    name: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    collect: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """
    End the request *target* of this connection, if it is still there.
    """

    op: ClassVar[str] = "cancel"

    id: int
    target: int


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """
    Keep one process for jobs of this connection, one after the other.

    Attributes:
        limits: of the whole session; time and output are each job's, unless it asks otherwise.
        idle: seconds without a job after which it may be ended, 0 for as long as the daemon allows.
    """

    op: ClassVar[str] = "session_open"

    id: int
    limits: Mapping[str, Any] = field(default_factory=dict)
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionReset:
    """
    Give *session* a fresh process; what was in the old one is gone.
    """

    op: ClassVar[str] = "session_reset"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class SessionClose:
    """
    End *session*.
    """

    op: ClassVar[str] = "session_close"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """
    Raise KeyboardInterrupt in the job that runs in *session*.
    """

    op: ClassVar[str] = "interrupt"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class Ping:
    """
    Say that you are there.
    """

    op: ClassVar[str] = "ping"

    id: int


@dataclass(frozen=True, slots=True)
class Status:
    """
    Tell about workers, jobs and layers.
    """

    op: ClassVar[str] = "status"

    id: int


@dataclass(frozen=True, slots=True)
class Arena:
    """
    Give this connection a memory file for large requests.
    """

    op: ClassVar[str] = "arena"

    id: int


@dataclass(frozen=True, slots=True)
class Slot:
    """
    The request lies in the arena: *length* bytes from the start of *slot* on, as a frame's payload.
    """

    op: ClassVar[str] = "slot"

    id: int
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """
    Drain and end, as SIGTERM would.
    """

    op: ClassVar[str] = "shutdown"

    id: int


Request = (Execute | Cancel | SessionOpen | SessionReset | SessionClose | Interrupt | Ping | Status | Arena | Slot
           | Shutdown)


def _target(value: object) -> int:
    if not _is_id(value):
        raise BadRequest("target must be the id of a request")
    assert isinstance(value, int)
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise BadRequest(f"slot and length must be whole numbers, not {value!r:.40}")
    return value


#: Every field of every request, with its check. Fields that are missing keep their default.
FIELDS: dict[str, tuple[type[Request], dict[str, Callable[[object], object]]]] = {
    "execute": (Execute, {
        "session": _session, "code": _code, "module": _module, "name": _name, "args": _args, "env": _env,
        "files": _files, "stdin": _stdin, "collect": _collect, "limits": _limits,
    }),
    "cancel": (Cancel, {"target": _target}),
    "session_open": (SessionOpen, {"limits": _limits, "idle": _idle}),
    "session_reset": (SessionReset, {"session": _session}),
    "session_close": (SessionClose, {"session": _session}),
    "interrupt": (Interrupt, {"session": _session}),
    "ping": (Ping, {}),
    "status": (Status, {}),
    "arena": (Arena, {}),
    "slot": (Slot, {"slot": _count, "length": _count}),
    "shutdown": (Shutdown, {}),
}

#: Fields that an operation can't go without.
_NEEDED = {"cancel": "target", "session_reset": "session", "session_close": "session", "interrupt": "session"}


def _is_id(value: object) -> bool:
    return type(value) is int and 0 < value <= MAX_ID


def request_id(message: Mapping[str, Any]) -> int:
    """
    The id that the answer to *message* must have.

    Raises:
        PeerError: it has none, so it can't be answered.
    """
    value = message.get("id")
    if not _is_id(value):
        raise PeerError(f"a request's id must be a whole number from 1 to 2**53 - 1, not {value!r:.40}")
    assert isinstance(value, int)
    return value


def parse_request(message: Mapping[str, Any]) -> Request:
    """
    The request that *message* is, every field checked.

    Raises:
        PeerError: it has no id.
        VersionMismatch: it speaks another version of the wire.
        BadRequest: an unknown operation or field, a missing field, a wrong type or value.
    """
    number = request_id(message)
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise VersionMismatch(f"the client speaks version {version!r:.20} of the wire, this daemon {VERSION};"
                              " install the same leeward on both sides")
    op = message.get("op")
    if not isinstance(op, str) or op not in FIELDS:
        raise BadRequest(f"operation {op!r:.40} is unknown; these are known: {', '.join(FIELDS)}")
    kind, checks = FIELDS[op]
    values: dict[str, Any] = {"id": number}
    for name, value in message.items():
        check = checks.get(name)
        if check is not None:
            if value is not None:
                values[name] = check(value)
        elif name not in ("v", "id", "op"):
            raise BadRequest(f"{op} has no field {name!r:.40}")
    if kind is Execute and ("code" in values) == ("module" in values):
        raise BadRequest("execute takes one of code and module")
    if kind is Execute and "session" in values and ("module" in values or "stdin" in values):
        raise BadRequest("a session's job is code: it takes no module and no stdin")
    needed = _NEEDED.get(op)
    if needed is not None and needed not in values:
        raise BadRequest(f"{op} needs a {needed}")
    if kind is Slot and not {"slot", "length"} <= values.keys():
        raise BadRequest("slot needs a slot and a length")
    return kind(**values)


def encode_request(request: Request) -> bytes:
    """
    *request* as a frame, without the fields that have their default.

    Raises:
        ValueError, TypeError: it is too large for a frame, or holds what the wire can't say.
    """
    message: dict[str, Any] = {"v": VERSION, "id": request.id, "op": request.op}
    for name in FIELDS[request.op][1]:
        value = getattr(request, name)
        if value is not None and (value or name == "code"):
            message[name] = value
    return encode(message)


#: A piece of a result that lies in a memory file: which one, offset, length.
Place = tuple[int, int, int]

#: Characters of an error's text in a reply, and of a job's traceback.
MAX_ERROR, MAX_TRACEBACK = 4096, 64 << 10
#: Names of denied syscalls in one result.
MAX_DENIED = 512


def _clean(text: str, limit: int) -> str:
    # A job chooses its error's text: lone surrogates have no UTF-8.
    return text[:limit].encode("utf-8", "replace").decode()


def encode_ok(number: int, answer: Mapping[str, Any]) -> bytes:
    """
    The good answer to request *number*, as a frame.
    """
    return encode({"id": number, "ok": answer}, MAX_REPLY)


def encode_refusal(number: int, kind: str, message: str) -> bytes:
    """
    The refusal of request *number*, or with 0 of the connection, as a frame.
    """
    return encode({"id": number, "error": {"kind": kind, "message": _clean(message, MAX_ERROR)}})


def refusal_of(error: Exception) -> tuple[str, str]:
    """
    Kind and message on the wire for *error*.
    """
    if isinstance(error, Refused):
        return error.kind, error.message
    return "bad_request", str(error)


def encode_result(number: int, result: Result, *, stdout: Place | None = None, stderr: Place | None = None,
                  files: Mapping[str, Place] | None = None, arenas: tuple[int, ...] = ()) -> bytes:
    """
    *result* as the answer to request *number*.

    Args:
        stdout, stderr, files: where they lie, for those that aren't inline.
        arenas: sizes of the memory files whose descriptors go with the frame, in order.
    """
    error = result.error
    answer: dict[str, Any] = {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "limit": None if result.limit is None else str(result.limit),
        "duration": result.duration,
        "cpu_time": result.cpu_time,
        "memory_peak": result.memory_peak,
        "denied": dict(list(result.denied.items())[:MAX_DENIED]),
        "truncated": result.truncated,
        "degraded": list(result.degraded),
        "error": None if error is None else {
            "type": _clean(error.type, MAX_NAME),
            "message": _clean(error.message, MAX_TRACEBACK),
            "traceback": _clean(error.traceback, MAX_TRACEBACK),
        },
        "stdout": result.stdout if stdout is None else stdout,
        "stderr": result.stderr if stderr is None else stderr,
    }
    if result.files or files:
        answer["files"] = {**result.files, **(files or {})}
    if arenas:
        answer["arenas"] = arenas
    return encode_ok(number, answer)

"""
Requests of clients: every operation of docs/wire.md; decodes and encodes them.

Runs in:   the daemon, and `leeward run`; pure.
Trust:     a request is hostile. It is checked field by field into a frozen dataclass; a field that isn't named here is
           refused, so a misspelt option is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from leeward.dataclass import dataclass, field
from leeward.errors import BadRequest, PeerError, VersionMismatch, brief
from leeward.wire import egress_requests, fetches, fields, file_requests, sandbox_fields, sandbox_requests
from leeward.wire.egress_requests import EgressRequest
from leeward.wire.file_requests import FileRequest
from leeward.wire.frames import VERSION, encode
from leeward.wire.sandbox_requests import SandboxRequest


@dataclass(frozen=True, slots=True)
class Execute:
    """
    Run code, or a module, and answer with its result.

    Attributes:
        session: the session to run it in, 0 for a process of its own.
        code: source text, or None if *module* is given.
        module: the name of a module, to be run as `python -m` does.
        name: the file name that tracebacks show, "" for the daemon's choice.
        display: answer with what the code shows, too, and with the value of its last expression.
        limits: those limits that differ from the daemon's defaults.
        profile: what the sandbox shows and permits, "" for `python`.
        environment: the interpreter and its packages, "" for the daemon's own.
        egress: the operator's policy of what it may reach, "" for nothing.
        policy: what of that policy it takes, as a map of `spec.egress.KEYS`.
        label: the client's own name for the job, for the daemon's log and the result.
        functions: `names` of the client's that the code may call, `wait` in seconds, and `stop_clock`.
    """

    op: ClassVar[str] = "execute"

    id: int
    session: int = 0
    code: bytes | None = None
    module: str | None = None
    name: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    stdin: bytes | memoryview = b""
    collect: tuple[str, ...] = ()
    display: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    functions: Mapping[str, Any] = field(default_factory=dict)
    profile: str = ""
    environment: str = ""
    egress: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FunctionTake:
    """Wait for calls of functions by the job of the request *target* of this connection."""

    op: ClassVar[str] = "function_take"

    id: int
    target: int


@dataclass(frozen=True, slots=True)
class OutputTake:
    """Wait for output of the job of the request *target* of this connection, behind what the client has."""

    op: ClassVar[str] = "output_take"

    id: int
    target: int
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """
    Answer a call.

    Attributes:
        call: its number.
        outcome: "returned", "raised", or "broken" if the call's bytes are malformed.
        value: the returned value, or the exception, as `wire/functions.py` encodes them.
    """

    op: ClassVar[str] = "function_answer"

    id: int
    target: int
    call: int
    outcome: str = "returned"
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Cancel:
    """
    End the request *target* of this connection, unless it has been answered.

    Attributes:
        interrupt: raise KeyboardInterrupt in its job instead.
        kill: end its job, and answer it with its result.
    """

    op: ClassVar[str] = "cancel"

    id: int
    target: int
    interrupt: bool = False
    kill: bool = False


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """
    Keep one process for jobs of this connection, one after the other.

    Attributes:
        limits: those of the whole session. Those on time and output apply to each job that asks for none.
        idle: seconds without a job after which the session may be ended, 0 for as many as the daemon allows.
        profile, environment, egress, policy: as for Execute.
    """

    op: ClassVar[str] = "session_open"

    id: int
    limits: Mapping[str, Any] = field(default_factory=dict)
    idle: float = 0.0
    profile: str = ""
    environment: str = ""
    egress: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionReset:
    """Give *session* a new process. The state of the old one is lost."""

    op: ClassVar[str] = "session_reset"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class SessionClose:
    """End *session*."""

    op: ClassVar[str] = "session_close"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Raise KeyboardInterrupt in the job that runs in *session*."""

    op: ClassVar[str] = "interrupt"

    id: int
    session: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether the daemon answers."""

    op: ClassVar[str] = "ping"

    id: int


@dataclass(frozen=True, slots=True)
class Status:
    """
    Ask for the state of workers, jobs and layers.

    Attributes:
        form: "json" for an answer that is a text with one JSON object, None for a map.
    """

    op: ClassVar[str] = "status"

    id: int
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """
    Ask how this user's last jobs and sandboxes ended.

    Attributes:
        after: the number of the last one that the client has.
        wait: seconds to wait for another one.
    """

    op: ClassVar[str] = "recall"

    id: int
    after: int = 0
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class ArenaOpen:
    """Ask for a memory file for this connection's large requests."""

    op: ClassVar[str] = "arena"

    id: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Serve the request in the arena: a frame's payload of *length* bytes at the start of *slot*."""

    op: ClassVar[str] = "slot"

    id: int
    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class KeepResults:
    """Say that this client takes no descriptors: memory files of answers stay with the daemon, to be read by requests."""

    op: ClassVar[str] = "keep_results"

    id: int


@dataclass(frozen=True, slots=True)
class KeptRead:
    """
    Read a piece of a memory file that was kept.

    Attributes:
        target: the request whose answer announced it.
        arena: which of that answer's files, from 0.
        offset: where the piece begins.
        size: bytes of it at most, 0 for as many as an answer takes.
    """

    op: ClassVar[str] = "kept_read"

    id: int
    target: int
    arena: int = 0
    offset: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class KeptDrop:
    """Close the memory files of the answer to *target*."""

    op: ClassVar[str] = "kept_drop"

    id: int
    target: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """
    End the daemon when its jobs are done, as SIGTERM does.

    Attributes:
        now: end running jobs at once.
    """

    op: ClassVar[str] = "shutdown"

    id: int
    now: bool = False


Request = (Execute | Cancel | SessionOpen | SessionReset | SessionClose | Interrupt | Ping | Status | Recall
           | ArenaOpen | Slot | KeepResults | KeptRead | KeptDrop | Shutdown | FunctionTake | FunctionAnswer
           | OutputTake
           | EgressRequest | SandboxRequest | FileRequest)

#: Every field of every request, with its check. A field that is missing has its default.
FIELDS: dict[str, tuple[type[Request], dict[str, Callable[[object], object]]]] = {
    "execute": (Execute, {
        "session": fields.session, "code": fields.code, "module": fields.module, "name": fields.name,
        "args": fields.args, "env": fields.env, "files": fields.files, "stdin": fields.stdin,
        "collect": fields.collect, "display": sandbox_fields.flag("display"), "limits": fields.limits,
        "label": fields.label, "functions": fields.functions, "profile": fields.named("profile"),
        "environment": fields.named("environment"), "egress": fields.named("egress"),
        "policy": fetches.policy("policy"),
    }),
    "function_take": (FunctionTake, {"target": fields.target}),
    "output_take": (OutputTake, {"target": fields.target, "stdout": sandbox_fields.whole("stdout"),
                                 "stderr": sandbox_fields.whole("stderr")}),
    "function_answer": (FunctionAnswer, {"target": fields.target, "call": fields.call, "outcome": fields.outcome,
                                         "value": fields.answer}),
    "cancel": (Cancel, {
        "target": fields.target, "interrupt": sandbox_fields.flag("interrupt"), "kill": sandbox_fields.flag("kill"),
    }),
    "session_open": (SessionOpen, {"limits": fields.limits, "idle": fields.idle, "profile": fields.named("profile"),
                                    "environment": fields.named("environment"), "egress": fields.named("egress"),
                                    "policy": fetches.policy("policy")}),
    "session_reset": (SessionReset, {"session": fields.session}),
    "session_close": (SessionClose, {"session": fields.session}),
    "interrupt": (Interrupt, {"session": fields.session}),
    "ping": (Ping, {}),
    "status": (Status, {"form": fields.form}),
    "recall": (Recall, {"after": sandbox_fields.whole("after"), "wait": sandbox_fields.wait}),
    "arena": (ArenaOpen, {}),
    "slot": (Slot, {"slot": fields.count, "length": fields.count}),
    "keep_results": (KeepResults, {}),
    "kept_read": (KeptRead, {"target": fields.target, "arena": fields.count, "offset": fields.count,
                             "size": fields.piece}),
    "kept_drop": (KeptDrop, {"target": fields.target}),
    "shutdown": (Shutdown, {"now": fields.flag}),
    **egress_requests.FIELDS, **sandbox_requests.FIELDS, **file_requests.FIELDS,
}

#: The fields that an operation must have.
_NEEDED: dict[str, tuple[str, ...]] = {
    "cancel": ("target",), "session_reset": ("session",), "session_close": ("session",), "interrupt": ("session",),
    "slot": ("slot", "length"), "function_take": ("target",), "function_answer": ("target", "call"),
    "kept_read": ("target",), "kept_drop": ("target",), "output_take": ("target",),
    **egress_requests.NEEDED, **sandbox_requests.NEEDED, **file_requests.NEEDED,
}


def request_id(message: Mapping[str, Any]) -> int:
    """
    The id of the request in *message*, which its answer must have.

    Raises:
        PeerError: there is none, so the request can't be answered.
    """
    value = message.get("id")
    if not fields.is_id(value):
        raise PeerError(f"a request's id must be a whole number from 1 to 2**53 - 1, not {brief(value)}")
    assert isinstance(value, int)
    return value


def parse_request(message: Mapping[str, Any]) -> Request:
    """
    The request in *message*, with every field checked.

    Raises:
        PeerError: it has no id.
        VersionMismatch: it speaks another version of the wire.
        BadRequest: an unknown operation or field, a missing field, a wrong type or value.
    """
    number = request_id(message)
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise VersionMismatch(f"the client speaks version {brief(version, 20)} of the wire, this daemon {VERSION};"
                              " after an upgrade of leeward end it with `leeward daemon stop`, otherwise install the"
                              " same leeward on both sides")
    op = message.get("op")
    if not isinstance(op, str) or op not in FIELDS:
        raise BadRequest(f"operation {brief(op)} is unknown; docs/wire.md lists those that there are")
    kind, checks = FIELDS[op]
    values: dict[str, Any] = {"id": number}
    for name, value in message.items():
        check = checks.get(name)
        if check is not None:
            if value is not None:
                values[name] = check(value)
        elif name not in ("v", "id", "op"):
            raise BadRequest(f"{op} has no field {brief(name)}")
    if kind is Execute and ("code" in values) == ("module" in values):
        raise BadRequest("execute takes one of code and module")
    if kind is Execute and "session" in values and ("module" in values or "stdin" in values):
        raise BadRequest("a session's job is code: it takes no module and no stdin")
    if kind is Execute and "session" in values and not {"profile", "environment", "egress", "policy"}.isdisjoint(
            values):
        raise BadRequest("a session's job runs by the session's profile, in its environment, with its egress: it takes"
                         " none of them")
    if kind is Execute and "module" in values and values.get("display"):
        raise BadRequest("display shows the value of code's last expression: it takes no module")
    if kind is Execute and "module" in values and "functions" in values:
        raise BadRequest("functions are names in the code: they take no module")
    for needed in _NEEDED.get(op, ()):
        if needed not in values:
            raise BadRequest(f"{op} needs a {needed}")
    if kind is Cancel and values.get("interrupt") and values.get("kill"):
        raise BadRequest("cancel takes one of interrupt and kill")
    if op in sandbox_requests.PROGRAMS and ("argv" in values) == ("shell" in values):
        raise BadRequest(f"{op} takes one of argv and shell")
    return kind(**values)


def encode_request(request: Request) -> bytes:
    """
    *request* as a frame, without the fields that have their default.

    Raises:
        ValueError, TypeError: it is too large for a frame, or holds a value that MessagePack can't encode.
    """
    message: dict[str, Any] = {"v": VERSION, "id": request.id, "op": request.op}
    for name in FIELDS[request.op][1]:
        value = getattr(request, name)
        if value is not None and (value or name in ("code", "process", "kernel")):
            message[name] = value
    return encode(message)

"""
Requests of clients: decodes and encodes them. Here are those about jobs, sessions, the
daemon itself, and egress: what sandboxes tried to reach, and questions that they wait for.

Trust:     a request is hostile. It is checked field by field into a frozen class; a field that isn't named there is
           refused, so a misspelt option is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest, VersionMismatch, brief
from leeward.wire import egress_asks, fetches, fields, file_requests, sandbox_requests  # noqa: F401  # they register
from leeward.wire import sandbox_fields as ours
from leeward.wire.answers import RESULT
from leeward.wire.frames import VERSION, encode
from leeward.wire.schema import OPERATIONS as OPERATIONS
from leeward.wire.schema import ClientRequest, check_id, field, operation

#: Of `leeward status`: these, or all of them as one text.
_STATUS = {
    "json?": "text", "workers?": "map", "jobs?": "map", "runners_made?": "int", "runners_armed?": "int",
    "runners_arming?": "int", "runners_kept?": "int", "layers?": "map", "transport?": "text", "degraded?": "array of text",
    "pools?": "array of map", "environments?": "map", "uptime?": "float", "connections?": "int", "sessions?": "int",
    "sandboxes?": "int", "max_sessions?": "int", "max_connections?": "int", "fresh_layout?": "bool", "snapshot?": "text",
    "faults?": "int", "pid?": "int", "reloads?": "array of int",
}


def _one_way(values: Mapping[str, Any]) -> None:
    """The check of what the fields of an `execute` say together."""
    module = "module" in values
    if ("code" in values) is module:
        raise BadRequest("execute takes one of code and module")
    if "session" in values:
        if module or "stdin" in values:
            raise BadRequest("a session's job is code: it takes no module and no stdin")
        if not {"profile", "environment", "egress", "policy"}.isdisjoint(values):
            raise BadRequest("a session's job runs by the session's profile, in its environment, with its egress: it"
                             " takes none of them")
    if module and values.get("display"):
        raise BadRequest("display shows the value of code's last expression: it takes no module")
    if module and "functions" in values:
        raise BadRequest("functions are names in the code: they take no module")


def _one_end(values: Mapping[str, Any]) -> None:
    if values.get("interrupt") and values.get("kill"):
        raise BadRequest("cancel takes one of interrupt and kill")


@operation("execute", answers=RESULT, admits="job", rule=_one_way)
class Execute(ClientRequest):
    """Run code, or a module, and answer with its result."""

    session: int = field(fields.session, "the session to run it in, see `session_open`; without it, a process of its "
                         "own", default=0, shown="none")
    code: bytes | None = field(fields.code, "Python source, at most 16 MiB, as text at most 4 MiB",
                               default=None, shown="", type="binary or text")
    module: str | None = field(fields.module, "a module to run as `python -m` does", default=None, shown="")
    name: str = field(fields.name, "the file name that tracebacks show; printable, at most 255 characters",
                      default="", shown="`<string>`")
    args: tuple[str, ...] = field(fields.args, "`sys.argv[1:]`; at most 1,024, together 2^20 characters, no NUL",
                                  default=())
    env: Mapping[str, str] = field(
        fields.env, "added to the sandbox's own; bounds as for `args`; no `=` in a name", default_factory=dict)
    files: Mapping[str, bytes | memoryview] = field(
        fields.files, "written to `/workspace` before the start; at most 1,024, together 64 MiB", default_factory=dict)
    stdin: bytes | memoryview = field(fields.stdin, "at most 64 MiB", default=b"")
    collect: tuple[str, ...] = field(
        fields.collect, "names, folders and patterns of regular files below `/workspace` to bring back; at most 64",
        default=())
    display: bool = field(fields.flag, "answer with `results` and `value` as well; not with `module`", default=False)
    limits: Mapping[str, Any] = field(fields.limits, "see below", default_factory=dict, shown="the daemon's")
    label: str = field(fields.label, "the client's own name for the job, for the daemon's log and the answer: at "
                       "most 64 letters, digits and `._:/@-`", default="")
    functions: Mapping[str, Any] = field(
        fields.functions, "functions of the client's that the code may call, see [`function_take`](#function_take); "
        "not with `module`", default_factory=dict)
    profile: str = field(fields.named, "which files the sandbox shows and what it permits: one of the daemon's "
                         "[profiles](profiles.md), without `shell`. Not with `session`", default="", shown="`python`")
    environment: str = field(fields.named, "the interpreter and packages, one of the daemon's "
                             "[environments](environments.md); without it the daemon's own. Not with `session`",
                             default="")
    egress: str = field(fields.named, "the name of an [egress policy](egress.md) of the daemon, `[egress.NAME]`; "
                        "without it the job has no network. Not with `session`", default="")
    policy: Mapping[str, Any] = field(
        fetches.policy, "a policy of the client, which narrows `egress`: the keys of [a policy](egress.md), without "
        "`authorities`; about 65,536 characters. Not with `session`", default_factory=dict)


class RequestAboutOther(ClientRequest):
    """A request about another one of this connection, which a job in flight may need."""

    target: int = field(fields.target, "the id of a request of this connection")


@operation("function_take", answers={"calls": "array", "over": "bool"}, admits="at once")
class FunctionTake(RequestAboutOther):
    """Wait for calls of functions by the job of the request *target* of this connection."""

    target: int = field(fields.target, "the id of the request for the job, on this connection")


@operation("output_take", answers={"stdout": "binary", "stderr": "binary", "running": "bool", "over": "bool"})
class OutputTake(RequestAboutOther):
    """Wait for output of the job of the request *target* of this connection, behind what the client has."""

    target: int = field(fields.target, "the id of the request for the job, an `execute` or a `sandbox_execute`, on this "
                        "connection")
    stdout: int = field(fields.whole, "bytes of each stream that the client has", default=0)
    stderr: int = field(fields.whole, "bytes of each stream that the client has", default=0)


@operation("function_answer", answers={"taken": "bool"}, admits="at once")
class FunctionAnswer(RequestAboutOther):
    """Answer a call."""

    call: int = field(fields.call, "the call's number")
    outcome: str = field(fields.outcome, "or `raised`, or `broken`", default="returned")
    value: bytes = field(fields.answer, "MessagePack, at most 512 KiB: what the function returned, or for `raised` "
                         "an array of two texts, the exception's type and its text", default=b"")


@operation("cancel", answers={"cancelled": "bool"}, admits="at once", rule=_one_end)
class Cancel(RequestAboutOther):
    """End the request *target* of this connection, unless it has been answered."""

    interrupt: bool = field(fields.flag, "raise `KeyboardInterrupt` in its job instead of ending it; only of an "
                            "`execute`", default=False)
    kill: bool = field(fields.flag, "end its job, and answer it with its result; only of an `execute`, and not with "
                       "`interrupt`", default=False)


@operation("session_open", answers={"session": "int"})
class SessionOpen(ClientRequest):
    """Keep one process for jobs of this connection, one after the other."""

    limits: Mapping[str, Any] = field(
        fields.limits, "as for `execute`. `memory` and `processes` hold for the whole session; `time` and `output` "
        "for each job that doesn't set its own", default_factory=dict, shown="the daemon's")
    idle: float = field(fields.idle, "seconds without a job after which the session is ended, at most `session_idle`",
                        default=0.0, shown="the daemon's")
    profile: str = field(fields.named, "as for `execute`, for all jobs of the session", default="", shown="`python`")
    environment: str = field(fields.named, "as for `execute`, for all jobs of the session", default="")
    egress: str = field(fields.named, "as for `execute`, for all jobs of the session", default="")
    policy: Mapping[str, Any] = field(
        fetches.policy, "as for `execute`, for all jobs of the session", default_factory=dict)


@operation("session_reset", answers={})
class SessionReset(ClientRequest):
    """Give *session* a new process. The state of the old one is lost."""

    session: int = field(fields.session, "the number of a session of this connection")


@operation("session_close", answers={})
class SessionClose(ClientRequest):
    """End *session*."""

    session: int = field(fields.session, "the number of a session of this connection")


@operation("interrupt", answers={"interrupted": "bool"})
class Interrupt(ClientRequest):
    """Raise KeyboardInterrupt in the job that runs in *session*."""

    session: int = field(fields.session, "the number of a session of this connection")


@operation("ping", answers={"version": "text", "wire": "int", "caps?": "map"}, admits="at once")
class Ping(ClientRequest):
    """Ask whether the daemon answers."""


@operation("status", answers=_STATUS, admits="if it waits")
class Status(ClientRequest):
    """Ask for the state of workers, jobs and layers."""

    form: str | None = field(fields.form, "`json`: the answer is `{\"json\": text}`, the map below as one JSON "
                             "object on one line, in ASCII", default=None)


@operation("recall", answers={"events": "array of map", "last": "int"}, admits="if it waits")
class Recall(ClientRequest):
    """Ask how this user's last jobs and sandboxes ended."""

    after: int = field(fields.whole, "the number of the last event that the client has", default=0)
    wait: float = field(ours.wait, "seconds to wait for another one, at most 3,600", default=0.0)


@operation("arena", answers={"slots": "int", "size": "int", "arenas": "array of int"}, admits="at once")
class ArenaOpen(ClientRequest):
    """Ask for a memory file for this connection's large requests."""


@operation("slot", answers=RESULT, admits="job")
class Slot(ClientRequest):
    """Serve the request in the arena: a frame's payload of *length* bytes at the start of *slot*."""

    slot: int = field(fields.whole, "which, from 0")
    length: int = field(fields.whole, "bytes from the slot's start on")


@operation("keep_results", answers={}, admits="at once")
class KeepResults(ClientRequest):
    """Say that this client takes no descriptors: memory files of answers stay with the daemon, to be read by requests."""


@operation("kept_read", answers={"data": "binary"}, admits="at once")
class KeptRead(RequestAboutOther):
    """Read a piece of a memory file that was kept."""

    target: int = field(fields.target, "the id of the request whose answer announced it")
    arena: int = field(fields.whole, "which of that answer's files", default=0)
    offset: int = field(fields.whole, "where the piece begins", default=0)
    size: int = field(fields.piece, "bytes of it at most, from 1 to 1 MiB", default=0, shown="1 MiB")


@operation("kept_drop", answers={"dropped": "bool"}, admits="at once")
class KeptDrop(RequestAboutOther):
    """Close the memory files of the answer to *target*."""

    target: int = field(fields.target, "the id of the request that was answered so")


@operation("shutdown", answers={}, admits="at once", guests="this daemon is not user {user}'s to end")
class Shutdown(ClientRequest):
    """End the daemon when its jobs are done, as SIGTERM does."""

    now: bool = field(fields.flag, "end running jobs at once", default=False)


_OPERATORS = "what a rule of `ask` asks for is the operator's to answer"


@operation("egress_log", answers={"events": "array of map", "last": "int", "forgotten": "int"}, admits="if it waits")
class EgressLog(ClientRequest):
    """Ask what this user's sandboxes tried to reach; for the operator, what all sandboxes tried."""

    after: int = field(fields.whole, "the number of the last row that the client has", default=0)
    wait: float = field(ours.wait, "seconds to wait for another one, at most 3,600", default=0.0)


@operation("egress_asks", answers={"events": "array of map"}, admits="if it waits", guests=_OPERATORS)
class EgressAsks(ClientRequest):
    """Ask for the questions of rules of `ask` that sandboxes wait for; only the operator may."""

    after: int = field(fields.whole, "the number of the last one that the client has", default=0)
    wait: float = field(ours.wait, "seconds to wait for one, at most 3,600", default=0.0)


@operation("egress_answer", answers={"taken": "bool"}, admits="at once", guests=_OPERATORS)
class EgressAnswer(ClientRequest):
    """Answer such a question."""

    ask: int = field(fields.whole, "its number")
    allow: bool = field(fields.flag, "it goes on; else it is refused", default=False)
    message: str = field(egress_asks.message, "why, for whoever asked: at most 500 printable characters. \"\" is "
                         "`Denied by leeward (request N)`", default="", shown="\"\"")


def request_id(message: Mapping[str, Any]) -> int:
    """The id of the request in *message*, which its answer must have; PeerError if there is none."""
    return check_id(message.get("id"))


def parse_request(message: Mapping[str, Any]) -> ClientRequest:
    """
    The request in *message*, with every field checked. PeerError if it has no id, VersionMismatch if it speaks another
    version of the wire, BadRequest for an unknown operation or field, a missing field, a wrong type or value.
    """
    number = request_id(message)
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise VersionMismatch(f"the client speaks version {brief(version, 20)} of the wire, this daemon {VERSION};"
                              " after an upgrade of leeward end it with `leeward daemon stop`, otherwise install the"
                              " same leeward on both sides")
    op = message.get("op")
    found = OPERATIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise BadRequest(f"operation {brief(op)} is unknown; docs/wire.md lists those that there are")
    checks = found.checks
    values: dict[str, Any] = {"id": number}
    for name, value in message.items():
        check = checks.get(name)
        if check is not None:
            if value is not None:
                values[name] = check(value, name)
        elif name not in ("v", "id", "op"):
            raise BadRequest(f"{op} has no field {brief(name)}")
    for needed in found.needed:
        if needed not in values:
            raise BadRequest(f"{op} needs a {needed}")
    if found.rule is not None:
        found.rule(values)
    return found.kind(**values)


def encode_request(request: ClientRequest) -> bytes:
    """*request* as a frame, without the fields that have their default. Raises as `frames.encode`."""
    message: dict[str, Any] = {"v": VERSION, "id": request.id, "op": request.op}
    for name, one in request.operation.fields.items():
        value = getattr(request, name)
        if value != one.absent:
            message[name] = value
    return encode(message)

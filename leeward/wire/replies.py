"""
Replies, as a client reads them.

Runs in:   the clients and the CLI's fast path; pure. Imports next to nothing: a whole
           `leeward exec` is one short process, and dataclasses alone cost it 8 ms.
Trust:     none. The daemon carries a job's bytes, so a reply is read as if a job had
           written it: plain data, each field's type and size checked, nothing imported
           or looked up by a name from it.
"""

from __future__ import annotations

from leeward.errors import PeerError

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Memory files with one reply.
MAX_ARENAS = 4
#: Bytes of one memory file that a client maps.
MAX_ARENA = 1 << 40

#: The largest number of a request, as messages.py has it, which no client imports; a test compares.
MAX_ID = 2**53 - 1
#: The largest number of a result, and what its times are below.
MAX_WHOLE, MAX_SECONDS = 2**63 - 1, 1e12

#: Values of leeward.outcome's enumerations, which cost too much to import here; a test compares.
OUTCOMES = frozenset({"finished", "raised", "signalled", "timed_out", "out_of_memory", "output_limit", "internal"})
LIMITS = frozenset({"memory", "processes", "files", "output", "time"})


class Reply:
    """
    One answer: `ok` is a map, or None and then `kind` and `message` say why not.

    Attributes:
        id: of the request, or 0 for a refusal of the whole connection.
        arenas: sizes in bytes of the memory files that came with it.
        fields: of a result, if they were read already.
    """

    __slots__ = ("arenas", "fields", "id", "kind", "message", "ok")

    def __init__(self, number: int, ok: dict[str, Any] | None, kind: str, message: str, arenas: list[int],
                 fields: dict[str, Any] | None = None) -> None:
        self.id, self.ok, self.kind, self.message, self.arenas = number, ok, kind, message, arenas
        self.fields = fields


def _get(fields: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise PeerError(f"{what}: {name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _whole(fields: Mapping[str, Any], name: str, what: str, limit: int) -> int:
    value: int = _get(fields, name, int, what)
    if not 0 <= value <= limit:
        raise PeerError(f"{what}: {name}={value} is out of range")
    return value


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if type(value) not in (int, float) or not 0 <= value < MAX_SECONDS:  # type: ignore[operator]  # NaN compares false
        raise PeerError(f"a result: {name} is no time")
    return float(value)  # type: ignore[arg-type]  # a number, by the line above


def parse_reply(message: Mapping[str, Any]) -> Reply:
    """
    The answer that *message* is; an answer's own fields are the business of the next functions.

    Raises:
        PeerError: it is none.
    """
    number = _whole(message, "id", "a reply", MAX_ID)
    if "error" in message:
        error = _get(message, "error", dict, "a reply")
        return Reply(number, None, _get(error, "kind", str, "a refusal"), _get(error, "message", str, "a refusal"), [])
    ok = _get(message, "ok", dict, "a reply")
    arenas = ok.pop("arenas", [])
    if type(arenas) is not list or len(arenas) > MAX_ARENAS:
        raise PeerError("a reply: arenas is no short array")
    for size in arenas:
        if type(size) is not int or not 0 < size <= MAX_ARENA:
            raise PeerError("a reply: a memory file's size is out of range")
    return Reply(number, ok, "", "", arenas)


def _piece(value: Any, arenas: list[int], what: str) -> bytes | tuple[int, int, int]:
    """
    Bytes as they are, or a place that lies inside one of *arenas*.
    """
    if type(value) is bytes:
        return value
    if type(value) is list and len(value) == 3 and all(type(item) is int and item >= 0 for item in value):
        arena, offset, length = value
        if arena < len(arenas) and offset + length <= arenas[arena]:
            return arena, offset, length
    raise PeerError(f"a result: {what} is neither binary nor a place in a memory file")


def _error(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if type(value) is not dict:
        raise PeerError("a result: error is no map")
    return {name: _get(value, name, str, "a job's error") for name in ("type", "message", "traceback")}


def parse_result(reply: Reply) -> dict[str, Any]:
    """
    The fields of a result, checked; those of leeward.outcome.Result, but plain values,
    and with places for stdout, stderr and files that lie in a memory file.

    Raises:
        PeerError: the reply holds no result.
    """
    if reply.fields is not None:
        return reply.fields
    ok, arenas = reply.ok, reply.arenas
    if ok is None:
        raise PeerError("a refusal holds no result")
    outcome, limit = _get(ok, "outcome", str, "a result"), ok.get("limit")
    if outcome not in OUTCOMES or not (limit is None or (type(limit) is str and limit in LIMITS)):
        raise PeerError("a result: outcome or limit is unknown")
    denied = _get(ok, "denied", dict, "a result")
    degraded = _get(ok, "degraded", list, "a result")
    files = ok.get("files", {})
    if type(files) is not dict or not all(type(count) is int and 0 <= count < 2**63
                                                for count in denied.values()) \
            or not all(type(layer) is str for layer in degraded):
        raise PeerError("a result: files, denied or degraded holds something else")
    if files:
        from leeward.wire.job import is_plain_name  # dataclasses and all: only who collects files pays

        for name in files:
            if not is_plain_name(name):
                raise PeerError(f"a result: {name!r:.80} is no plain name of a file")
    return {
        "stdout": _piece(ok.get("stdout"), arenas, "stdout"),
        "stderr": _piece(ok.get("stderr"), arenas, "stderr"),
        "exit_code": _whole(ok, "exit_code", "a result", 255),
        "outcome": outcome,
        "limit": limit,
        "duration": _seconds(ok, "duration"),
        "cpu_time": _seconds(ok, "cpu_time"),
        "memory_peak": _whole(ok, "memory_peak", "a result", MAX_WHOLE),
        "denied": denied,
        "truncated": _get(ok, "truncated", bool, "a result"),
        "degraded": tuple(degraded),
        "error": _error(ok.get("error")),
        "files": {name: _piece(piece, arenas, f"file {name!r:.80}") for name, piece in files.items()},
    }

"""
Decodes replies, for clients.

Runs in:   the clients and the CLI's fast path. Imports next to nothing: a whole `leeward exec` is one short process,
           and dataclasses alone would cost it 8 ms.

Trust:     none. A reply is read as if a job had written it: plain data, each field's type and size checked, nothing
           imported or looked up by a name from it.
"""

from __future__ import annotations

from leeward.errors import PeerError, brief

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Most memory files that one reply may have.
MAX_ARENAS = 4
#: Most bytes of one memory file that a client maps.
MAX_ARENA = 1 << 40

#: The largest number of a request, as fields.py has it, which no client imports; a test compares.
MAX_ID = 2**53 - 1
#: The largest number of a result, and what its times are below.
MAX_WHOLE, MAX_SECONDS = 2**63 - 1, 1e12

#: Values of leeward.spec.outcome's enumerations, which cost too much to import here; a test compares.
OUTCOMES = frozenset({"finished", "raised", "signalled", "timed_out", "out_of_memory", "output_limit", "internal"})
LIMITS = frozenset({"memory", "processes", "files", "descriptors", "output", "time", "cpu"})
LEFT_OUT = frozenset({"no_match", "hidden", "folder", "link", "special", "unreadable", "name", "too_large", "too_many",
                      "ended", "more"})

#: Entries of the list of what `collect` left out, at most.
MAX_LEFT_OUT = 1024


class Reply:
    """
    One reply, to the request *id*, or to the connection if that is 0. `ok` is a map, or None for a refusal: then `kind`
    and `message` say why, `error` has all of it, and `retry_after` the seconds after which the request may be taken,
    where the daemon can tell. `arenas` has the sizes in bytes of the memory files that came with it, `descriptors`
    their number with that of sockets, and `fields` a result that was decoded already.
    """

    __slots__ = ("arenas", "descriptors", "error", "fields", "id", "kind", "message", "ok", "retry_after")

    def __init__(self, number: int, ok: dict[str, Any] | None, kind: str, message: str, arenas: list[int],
                 fields: dict[str, Any] | None = None, error: dict[str, Any] | None = None) -> None:
        self.id, self.ok, self.kind, self.message, self.arenas = number, ok, kind, message, arenas
        self.fields, self.error = fields, error
        self.retry_after: float | None = None
        self.descriptors = len(arenas)


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


def _seconds(fields: Mapping[str, Any], name: str, what: str = "a result") -> float:
    value = fields.get(name)
    if type(value) not in (int, float) or not 0 <= value < MAX_SECONDS:  # type: ignore[operator]  # NaN compares false
        raise PeerError(f"{what}: {name} is no time")
    return float(value)  # type: ignore[arg-type]  # a number, by the line above


def parse_reply(message: Mapping[str, Any]) -> Reply:
    """Decode a reply, but not the fields of a result; PeerError if *message* isn't one."""
    number = _whole(message, "id", "a reply", MAX_ID)
    if "error" in message:
        error = _get(message, "error", dict, "a reply")
        kind, why = (_get(error, name, str, "a refusal") for name in ("kind", "message"))
        refused = Reply(number, None, kind, why, [], error=error)
        if error.get("retry_after") is not None:
            refused.retry_after = _seconds(error, "retry_after", "a refusal")
        return refused
    ok = _get(message, "ok", dict, "a reply")
    arenas = ok.pop("arenas", [])
    if type(arenas) is not list or len(arenas) > MAX_ARENAS:
        raise PeerError("a reply: arenas is no short array")
    for size in arenas:
        if type(size) is not int or not 0 < size <= MAX_ARENA:
            raise PeerError("a reply: a memory file's size is out of range")
    reply = Reply(number, ok, "", "", arenas)
    if "socket" in ok:
        reply.descriptors += _get(ok, "socket", bool, "a reply")
    return reply


def _piece(value: Any, arenas: list[int], what: str) -> bytes | tuple[int, int, int]:
    """Bytes, or a place (arena, offset, length) that is inside one of *arenas*."""
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


def _left_out(value: Any) -> tuple[tuple[str, str], ...]:
    if type(value) is not list or len(value) > MAX_LEFT_OUT:
        raise PeerError("a result: left_out is no short array")
    for one in value:
        if type(one) is not list or len(one) != 2 or type(one[0]) is not str or type(one[1]) is not str \
                or one[1] not in LEFT_OUT:
            raise PeerError("a result: left_out holds something else than a name and a reason")
    return tuple((name, reason) for name, reason in value)


def _omitted(value: Any) -> dict[str, int]:
    if type(value) is not list or len(value) != 2:
        raise PeerError("a result: omitted is no pair")
    counts = dict(zip(("stdout_omitted", "stderr_omitted"), value, strict=True))
    return {name: _whole(counts, name, "a result", MAX_WHOLE) for name in counts}


def _shown(ok: dict[str, Any]) -> dict[str, Any]:
    if "results" not in ok and "value" not in ok:
        return {}
    from leeward.wire.bundles import checked, value_text  # only who asks for it pays

    return {"results": checked(ok.get("results", [])), "value": value_text(ok.get("value"))}


def parse_result(reply: Reply) -> dict[str, Any]:
    """
    The checked fields of a result, as plain values of those of leeward.spec.outcome.Result, with places for stdout, stderr
    and files that are in a memory file. PeerError if the reply isn't a result.
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
        from leeward.wire.job_frames import is_plain_name  # dataclasses and all: only who collects files pays

        for name in files:
            if not is_plain_name(name):
                raise PeerError(f"a result: {brief(name, 80)} is no plain name of a file")
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
        "files": {name: _piece(piece, arenas, f"file {brief(name, 80)}") for name, piece in files.items()},
        "left_out": _left_out(ok.get("left_out", [])),
        **_shown(ok),
        **(_omitted(ok["omitted"]) if "omitted" in ok else {}),
        **({"starved": _seconds(ok, "starved")} if "starved" in ok else {}),
        **({"label": _get(ok, "label", str, "a result"), "job": _whole(ok, "job", "a result", MAX_WHOLE)}
           if "label" in ok else {}),
    }

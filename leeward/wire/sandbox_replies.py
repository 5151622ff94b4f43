"""
Decodes a daemon's answers about live sandboxes, for clients. Every function raises PeerError where an answer is
malformed.

Trust:     none, as in `replies`: names and output come from the sandbox's processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import PeerError, SandboxOver
from leeward.wire.replies import LIMITS, MAX_SECONDS, Reply
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH

#: Chunks of one answer, and rows of a list, at most: more than a frame may have.
_MOST = 4096
_MAX = 2**63 - 1


def over(message: str, error: Mapping[str, Any]) -> SandboxOver:
    """The exception for a refusal `sandbox_over`. Malformed fields beside its message are ignored."""
    reason, when, limit = error.get("reason"), error.get("when"), error.get("limit")
    return SandboxOver(
        message, reason if isinstance(reason, str) else "unknown",
        float(when) if isinstance(when, (int, float)) and 0 <= when < MAX_SECONDS else 0.0,
        limit if isinstance(limit, str) and limit in LIMITS else None,
        may_have_run=error.get("begun") is not False)


def answer(reply: Reply) -> dict[str, Any]:
    """The fields of an answer; PeerError if it is a refusal."""
    if reply.ok is None:
        raise PeerError("a refusal holds no answer")
    return reply.ok


def sandbox_id(reply: Reply) -> str:
    """The id of an opened sandbox."""
    return _id(reply, "sandbox")


def _id(reply: Reply, what: str) -> str:
    value = answer(reply).get(what)
    if not isinstance(value, str) or len(value) != ID_LENGTH or value.strip(ID_ALPHABET):
        raise PeerError(f"an opened {what} has no id")
    return value


def whole(reply: Reply, name: str, least: int = 0) -> int:
    """The number *name* of an answer, at least *least*."""
    value = answer(reply).get(name)
    if type(value) is not int or not least <= value <= _MAX:
        raise PeerError(f"an answer's {name} is no number from {least} on")
    return value


def snapshot_facts(reply: Reply, asked: bool = True) -> dict[str, Any]:
    """What is told of a snapshot; nothing unless *asked*."""
    found = answer(reply)
    if not asked:
        return found
    kinds = {"snapshot": str, "size": int, "made": float, "python": str, "packages": dict, "lost": list}
    if any(type(found.get(name)) is not kind for name, kind in kinds.items()) or not all(
            isinstance(each, str) for each in (*found["packages"], *found["packages"].values(), *found["lost"])):
        raise PeerError("what is told of a snapshot isn't of its types")
    return found


def snapshot_needs(reply: Reply) -> tuple[dict[str, str], list[int]]:
    """What must be equal where a snapshot is imported, and the sizes of its parts."""
    found = answer(reply)
    key, sizes = found.get("key"), found.get("sizes")
    if not isinstance(key, dict) or not all(isinstance(each, str) for each in (*key, *key.values())) or not isinstance(
            sizes, list) or len(sizes) != 2 or any(type(each) is not int or not 0 <= each <= _MAX for each in sizes):
        raise PeerError("what a snapshot needs isn't of its types")
    return key, sizes


def piece(reply: Reply) -> bytes:
    """The next bytes of a snapshot: some."""
    data = answer(reply).get("data")
    if not isinstance(data, (bytes, memoryview)) or not data:
        raise PeerError("an answer has no bytes of a snapshot")
    return bytes(data)


def imported(reply: Reply) -> str:
    """The id of a snapshot that is imported."""
    return _id(reply, "snapshot")


def flag(reply: Reply, name: str) -> bool:
    value = answer(reply).get(name)
    if type(value) is not bool:
        raise PeerError(f"an answer's {name} is neither true nor false")
    return value


def chunks(reply: Reply) -> tuple[list[tuple[int, int, float, bytes]], bool]:
    """
    The chunks of an answer to `process_read`, as number, which ascends, stream, time and bytes; and whether no more
    come.
    """
    found: list[tuple[int, int, float, bytes]] = []
    rows = answer(reply).get("chunks")
    if type(rows) is not list or len(rows) > _MOST:
        raise PeerError("an answer's chunks are no array")
    last = 0
    for row in rows:
        if type(row) is not list or len(row) != 4:
            raise PeerError("a chunk has other than four parts")
        number, stream, when, data = row
        if type(number) is not int or not last < number <= _MAX or stream not in (1, 2) or type(stream) is not int:
            raise PeerError("a chunk's number or stream is out of range")
        if type(when) is not float or not 0 <= when < MAX_SECONDS or type(data) is not bytes:
            raise PeerError("a chunk's time or bytes are wrong")
        last = number
        found.append((number, stream, when, data))
    return found, flag(reply, "over")


def page(reply: Reply, after: int = 0) -> tuple[list[dict[str, Any]], int]:
    """
    The rows of the page of `sandbox_list` behind *after*, and the number behind which the next one begins; 0 after the
    last.
    """
    found = rows(reply, "sandboxes")
    return found, whole(reply, "last", after + 1) if found and answer(reply).get("more") is True else 0


def rows(reply: Reply, name: str) -> list[dict[str, Any]]:
    """The maps of a list."""
    value = answer(reply).get(name)
    if type(value) is not list or len(value) > _MOST or not all(type(row) is dict for row in value):
        raise PeerError(f"an answer's {name} is no array of maps")
    return value

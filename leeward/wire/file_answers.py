"""
The answers of the process that does file calls in a live sandbox, which the daemon passes on to clients.

Trust:     none: a process of the sandbox may have written them. `read_answer` gives a map with exactly the fields that
           the operation has, each of its type and within its bounds, or PeerError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from leeward.errors import PeerError
from leeward.wire.frames import decode, decode_in_place

#: In front of each frame on the pipes of that process: bytes of its body.
HEADER = struct.Struct(">I")

#: Bytes of a file in one request or answer.
CHUNK = 1 << 20
#: Rows of one answer, and about how many bytes they have together: below what a frame may have of values.
MAX_ROWS, MAX_ROW_BYTES = 4000, 1 << 20
#: Bytes of an answer: a chunk or rows, and the rest of it.
MAX_ANSWER = CHUNK + MAX_ROW_BYTES + (64 << 10)
#: Bytes of a path, at most: PATH_MAX of the kernel without its NUL. Bytes of one component: NAME_MAX.
MAX_PATH, MAX_COMPONENT = 4095, 255
#: Characters of the reason for a failure.
MAX_WHY = 300
#: Bytes of a line that `file_grep` shows.
MAX_LINE = 1000
#: Handles are random numbers up to this, so that a handle of an earlier process isn't valid in the next one.
MAX_HANDLE = 2**53 - 1
#: The last nanosecond that a file system may have, as a signed number of 64 bits.
MAX_TIME = 2**63 - 1

#: What a row can be.
KINDS = ("file", "folder", "link", "other")

#: No errno of Linux is larger; 0 is for an invalid call, such as one with a malformed pattern.
MAX_ERRNO = 4095

Check = Callable[[object], object]


def _whole(most: int) -> Check:
    def check(value: object) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise PeerError("a file call's answer: a number is out of range")
        return value
    return check


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise PeerError("a file call's answer: something is neither true nor false")
    return value


def _bytes(most: int, least: int = 0) -> Callable[[object], bytes]:
    def check(value: object) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= most:
            raise PeerError("a file call's answer: bytes are missing, or too many")
        return value
    return check


def _content(value: object) -> bytes | memoryview:
    return value if type(value) is memoryview and len(value) <= CHUNK else _bytes(CHUNK)(value)


def _why(value: object) -> str:
    if type(value) is not str or len(value) > MAX_WHY:
        raise PeerError("a file call's answer: a reason is no short text")
    return value if value.isprintable() else repr(value)[1:-1][:MAX_WHY]


_SIZE, _MODE, _TIME = _whole(2**63 - 1), _whole(0o7777), _whole(MAX_TIME)
_PATH = _bytes(MAX_PATH, 1)


def component(value: object) -> bytes:
    """A name in a folder: no path, and not "." or ".."."""
    name = _bytes(MAX_COMPONENT, 1)(value)
    if name in (b".", b"..") or b"/" in name or b"\0" in name:
        raise PeerError("a file call's answer: a name leads out of its folder")
    return name


def _below(value: object) -> bytes:
    """A relative path without ".." and the like."""
    found = _PATH(value)
    for part in found.split(b"/"):
        component(part)
    return found


def _path(value: object) -> bytes:
    found = _PATH(value)
    if b"\0" in found:
        raise PeerError("a file call's answer: a path has a NUL")
    return found


def _row(name: Check) -> Check:
    def check(value: object) -> list[Any]:
        if type(value) is not list or len(value) != 6:
            raise PeerError("a file call's answer: a row has other than six parts")
        if type(value[1]) is not str or value[1] not in KINDS:
            raise PeerError("a file call's answer: a row is of no known kind")
        name(value[0])
        for number, one in ((2, _MODE), (3, _SIZE), (4, _TIME), (5, _bytes(MAX_PATH))):
            one(value[number])
        return value
    return check


def _match(value: object) -> list[Any]:
    if type(value) is not list or len(value) != 3:
        raise PeerError("a file call's answer: a match has other than three parts")
    for part, one in zip(value, (_path, _SIZE, _bytes(MAX_LINE)), strict=True):
        one(part)
    return value


def _refusal(value: object) -> list[Any]:
    if type(value) is not list or len(value) != 3:
        raise PeerError("a file call's answer: a file that wasn't written has other than three parts")
    for part, one in zip(value, (_whole(MAX_ROWS - 1), *FAILURE.values()), strict=True):
        one(part)
    return value


def _rows(one: Check) -> Check:
    def check(value: object) -> list[Any]:
        if type(value) is not list or len(value) > MAX_ROWS:
            raise PeerError("a file call's answer: rows are no short array")
        for row in value:
            one(row)
        return value
    return check


def _ascending(one: Check) -> Check:
    """Rows whose names ascend, so that the next page, which begins behind the last of them, is a different one."""
    many = _rows(one)

    def check(value: object) -> object:
        rows = many(value)
        assert isinstance(rows, list)
        if any(here[0] >= there[0] for here, there in pairwise(rows)):
            raise PeerError("a file call's answer: names don't ascend")
        return rows
    return check


_HANDLE = _whole(MAX_HANDLE)

#: By operation: every field of its answer. All of them are there, and no others.
ANSWERS: Mapping[str, Mapping[str, Check]] = {
    "file_read": {"data": _content, "handle": _HANDLE, "at": _SIZE, "end": _SIZE, "mode": _MODE, "time": _TIME},
    "file_write": {"handle": _HANDLE, "size": _SIZE},
    "file_append": {"size": _SIZE},
    "file_write_many": {"failed": _ascending(_refusal)}, "file_read_many": {"data": _content},
    "file_close": {},
    "file_list": {"rows": _ascending(_row(component)), "more": _flag},
    "file_walk": {"rows": _ascending(_row(_below))},
    "file_stat": {"row": _row(_path)},
    "file_mkdir": {}, "file_set": {}, "file_link": {}, "file_move": {}, "file_copy": {}, "file_remove": {},
    "file_glob": {"names": _rows(_path), "more": _flag},
    "file_grep": {"rows": _rows(_match), "more": _flag},
    "file_edit": {"found": _SIZE},
}

#: The answer to any of them that failed: an errno, and more about it than the errno says, or "".
FAILURE: Mapping[str, Check] = {"errno": _whole(MAX_ERRNO), "why": _why}


def check_answer(op: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """*answer*, as one of *op*; PeerError if it isn't one."""
    checks = FAILURE if "errno" in answer else ANSWERS[op]
    if answer.keys() != checks.keys():
        raise PeerError(f"a file call's answer: fields are missing, or too many, for {op}")
    return {name: check(answer[name]) for name, check in checks.items()}


def read_answer(op: str, number: int, body: memoryview) -> dict[str, Any]:
    """
    The answer to call *number*, an *op*, in the hostile *body* of a frame, of which large content may be a view. PeerError
    if it isn't one, and nothing else.
    """
    answer = decode_in_place(body) if "data" in ANSWERS[op] else decode(body)
    told = answer.pop("n", None)
    if type(told) is not int or told != number:
        raise PeerError("a file call's answer: it is to another call")
    return check_answer(op, answer)


def failure(errno: int, why: str = "") -> dict[str, Any]:
    """The answer to a call that failed."""
    return {"errno": errno, "why": why[:MAX_WHY]}

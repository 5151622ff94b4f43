"""
Requests about the files in a live sandbox: the operations `file_*` of docs/wire.md.

Each of them has a `path`, bytes without NUL of which a relative one begins at /workspace, and a `timeout`, the seconds
that it may take.

Runs in:   the daemon; pure. `requests` knows these by FIELDS, and parses and encodes them.
Trust:     a request is hostile; see `requests`. A path is bytes for a process inside the sandbox: the daemon opens
           none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from leeward.dataclass import dataclass
from leeward.errors import BadRequest, brief
from leeward.wire import sandbox_fields as ours
from leeward.wire.fields import binary
from leeward.wire.file_answers import CHUNK, MAX_HANDLE, MAX_PATH, MAX_ROWS, MAX_TIME

#: Bytes of the text that `file_edit` looks for, and of that in its place.
MAX_EDIT = 1 << 20
#: Bytes of a pattern of `file_glob` and `file_grep`.
MAX_PATTERN = 4096
#: Seconds that a call may take: by default, and at most.
CALL_S, MAX_CALL_S = 30.0, 300.0
#: The largest offset in a file: off_t of the kernel.
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FileRead:
    """
    Read a piece of a regular file.

    Attributes:
        handle: from an earlier answer; it stands for the file that was opened then, and *path* is ignored.
        offset: where the piece begins.
        size: bytes of it, at most.
        first, last: lines, from 1 on; 0 is none. The file is then those lines alone, and the offset counts from 0 in
            the whole file as before: the answer says where they begin.
    """

    op: ClassVar[str] = "file_read"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    handle: int = 0
    offset: int = 0
    size: int = CHUNK
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class FileWrite:
    """
    Write a piece of a file, which replaces the file *path* when its last piece has arrived.

    Attributes:
        handle: from the answer to the previous piece.
        offset: where the piece belongs.
        more: further pieces follow.
        new: fail if *path* exists.
        mode: permission bits; -1 keeps those of the file that is replaced, and is the default for a new one.
        time: of its last change, in nanoseconds since the epoch; -1 for now.
    """

    op: ClassVar[str] = "file_write"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    handle: int = 0
    offset: int = 0
    data: bytes = b""
    more: bool = False
    new: bool = False
    mode: int = -1
    time: int = -1


@dataclass(frozen=True, slots=True)
class FileAppend:
    """Append to a file, which is made if it doesn't exist."""

    op: ClassVar[str] = "file_append"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class FileClose:
    """Close a handle. A file that wasn't written completely is removed."""

    op: ClassVar[str] = "file_close"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    handle: int = 0


@dataclass(frozen=True, slots=True)
class FileList:
    """
    List a folder, sorted by name.

    Attributes:
        after: list only names behind this one.
    """

    op: ClassVar[str] = "file_list"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class FileWalk:
    """List everything below a folder; fails if one answer can't hold that."""

    op: ClassVar[str] = "file_walk"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S


@dataclass(frozen=True, slots=True)
class FileStat:
    """
    Ask for type, mode, size and time of *path*.

    Attributes:
        follow: a link stands for what it leads to.
    """

    op: ClassVar[str] = "file_stat"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    follow: bool = False


@dataclass(frozen=True, slots=True)
class FileMkdir:
    """
    Make a folder.

    Attributes:
        parents: and those that lead there.
        there: it may be there already.
    """

    op: ClassVar[str] = "file_mkdir"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    parents: bool = False
    there: bool = False


@dataclass(frozen=True, slots=True)
class FileSet:
    """Set the mode and the time of the last change of a file or folder; -1 leaves one as it is."""

    op: ClassVar[str] = "file_set"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    mode: int = -1
    time: int = -1


@dataclass(frozen=True, slots=True)
class FileLink:
    """Make *path* a symbolic link to *to*. It replaces a file or link, but not a folder."""

    op: ClassVar[str] = "file_link"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    to: bytes = b""


@dataclass(frozen=True, slots=True)
class FileMove:
    op: ClassVar[str] = "file_move"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    to: bytes = b""


@dataclass(frozen=True, slots=True)
class FileCopy:
    op: ClassVar[str] = "file_copy"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    to: bytes = b""


@dataclass(frozen=True, slots=True)
class FileRemove:
    """
    Remove a file, a link, or an empty folder.

    Attributes:
        recursive: a folder with all that is in it.
        missing: it may be gone already.
    """

    op: ClassVar[str] = "file_remove"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    recursive: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True)
class FileGlob:
    """Find names below the folder *path* that match *pattern*."""

    op: ClassVar[str] = "file_glob"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    pattern: bytes = b""
    most: int = MAX_ROWS


@dataclass(frozen=True, slots=True)
class FileGrep:
    """
    Find lines in the file *path*, or in all files below the folder *path*.

    Attributes:
        pattern: a Python regular expression, over bytes.
        include: a pattern for the last component of a file's name, empty for all.
        literal: *pattern* is text, not an expression.
        ignore_case: ASCII letters match in either case.
    """

    op: ClassVar[str] = "file_grep"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    pattern: bytes = b""
    include: bytes = b""
    literal: bool = False
    ignore_case: bool = False
    most: int = 1000


@dataclass(frozen=True, slots=True)
class FileEdit:
    """Replace *old*, which must occur exactly once, by *new*."""

    op: ClassVar[str] = "file_edit"

    id: int
    sandbox: str
    path: bytes = b"."
    timeout: float = CALL_S
    old: bytes = b""
    new: bytes = b""


FileRequest = (FileRead | FileWrite | FileAppend | FileClose | FileList | FileWalk | FileStat | FileMkdir | FileSet
               | FileLink | FileMove | FileCopy | FileRemove | FileGlob | FileGrep | FileEdit)

FILE_REQUESTS = (FileRead, FileWrite, FileAppend, FileClose, FileList, FileWalk, FileStat, FileMkdir, FileSet, FileLink,
                 FileMove, FileCopy, FileRemove, FileGlob, FileGrep, FileEdit)

Checks = dict[str, Callable[[object], object]]


def path(value: object) -> bytes:
    found = binary(value, "a path", MAX_PATH)
    if not found or b"\0" in found:
        raise BadRequest("a path is bytes, at least one, and none of them NUL")
    return found


def timeout(value: object) -> float:
    if type(value) not in (int, float) or not 0.01 <= value <= MAX_CALL_S or not math.isfinite(value):  # type: ignore[operator,arg-type]  # NaN compares false
        raise BadRequest(f"timeout must be seconds from 0.01 to {MAX_CALL_S:.0f}, not {brief(value)}")
    return float(value)  # type: ignore[arg-type]  # a number, by the line above


def _or_none(what: str, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int or not -1 <= value <= most:
            raise BadRequest(f"{what} must be a whole number from 0 to {most}, or -1, not {brief(value)}")
        return value
    return check


def _some(what: str, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise BadRequest(f"{what} must be a whole number from 1 to {most}, not {brief(value)}")
        return value
    return check


def _bytes(what: str, most: int) -> Callable[[object], bytes]:
    return lambda value: binary(value, what, most)


def _name(value: object) -> bytes:
    found = binary(value, "after", MAX_PATH)
    if b"\0" in found:
        raise BadRequest("after is a name, and none has a NUL")
    return found


_HANDLE = ours.whole("handle", MAX_HANDLE)
_OFFSET = ours.whole("offset", MAX_OFFSET)
_MODE = _or_none("mode", 0o777)
_TIME = _or_none("time", MAX_TIME)

_OWN: dict[type[FileRequest], Checks] = {
    FileRead: {"handle": _HANDLE, "offset": _OFFSET, "size": _some("size", CHUNK),
               "first": ours.whole("first", MAX_OFFSET), "last": ours.whole("last", MAX_OFFSET)},
    FileWrite: {"handle": _HANDLE, "offset": _OFFSET, "data": _bytes("data", CHUNK), "more": ours.flag("more"),
                "new": ours.flag("new"), "mode": _MODE, "time": _TIME},
    FileAppend: {"data": _bytes("data", CHUNK)},
    FileClose: {"handle": _HANDLE},
    FileList: {"after": _name},
    FileWalk: {},
    FileStat: {"follow": ours.flag("follow")},
    FileMkdir: {"parents": ours.flag("parents"), "there": ours.flag("there")},
    FileSet: {"mode": _MODE, "time": _TIME},
    FileLink: {"to": path},
    FileMove: {"to": path},
    FileCopy: {"to": path},
    FileRemove: {"recursive": ours.flag("recursive"), "missing": ours.flag("missing")},
    FileGlob: {"pattern": _bytes("pattern", MAX_PATTERN), "most": _some("most", MAX_ROWS)},
    FileGrep: {"pattern": _bytes("pattern", MAX_PATTERN), "include": _bytes("include", MAX_PATTERN),
               "literal": ours.flag("literal"), "ignore_case": ours.flag("ignore_case"),
               "most": _some("most", MAX_ROWS)},
    FileEdit: {"old": _bytes("old", MAX_EDIT), "new": _bytes("new", MAX_EDIT)},
}

#: As in `requests`.
FIELDS: dict[str, tuple[type[FileRequest], Checks]] = {
    kind.op: (kind, {"sandbox": ours.sandbox, "path": path, "timeout": timeout, **_OWN[kind]})
    for kind in FILE_REQUESTS
}

#: Fields that an operation must have.
NEEDED: dict[str, tuple[str, ...]] = {
    **{op: ("sandbox", *(name for name in ("to", "pattern") if name in checks)) for op, (_, checks) in FIELDS.items()},
    "file_edit": ("sandbox", "path", "old", "new"),
    "file_close": ("sandbox", "handle"),
}


def call_of(request: FileRequest) -> Mapping[str, Any]:
    """The call for the process in the sandbox: the operation and its fields, without those that only the daemon needs."""
    checks = FIELDS[request.op][1]
    return {"op": request.op, **{name: getattr(request, name) for name in checks if name != "sandbox"}}


def weight(call: Mapping[str, Any]) -> int:
    """About how many bytes of memory a waiting call takes."""
    return sum(len(value) for value in call.values() if isinstance(value, bytes))

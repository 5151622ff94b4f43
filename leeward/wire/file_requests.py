"""
Requests about the files in a live sandbox: the operations `file_*` of docs/wire.md.

Trust:     none. A path is bytes for a process inside the sandbox: the daemon opens none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest
from leeward.wire import fields
from leeward.wire.fields import binary, binary_of, number
from leeward.wire.file_answers import ANSWERS, CHUNK, MAX_HANDLE, MAX_PATH, MAX_ROWS, MAX_TIME
from leeward.wire.sandbox_requests import SandboxRequest
from leeward.wire.schema import field, operation

#: Bytes of the text that `file_edit` looks for, and of that in its place.
MAX_EDIT = 1 << 20
#: Bytes of a pattern of `file_glob` and `file_grep`.
MAX_PATTERN = 4096
#: Seconds that a call may take: by default, and at most.
CALL_S, MAX_CALL_S = 30.0, 300.0
#: The largest offset in a file: off_t of the kernel.
MAX_OFFSET = 2**63 - 1

_HANDLE, _OFFSET = number(0, MAX_HANDLE), number(0, MAX_OFFSET)
_MODE, _TIME = number(-1, 0o777), number(-1, MAX_TIME)
_DATA, _PATTERN, _TEXT = binary_of(CHUNK), binary_of(MAX_PATTERN), binary_of(MAX_EDIT)


def _path(value: object, what: str) -> bytes:
    found = binary(value, what, MAX_PATH)
    if not found or b"\0" in found:
        raise BadRequest(f"{what} is bytes, at least one, and none of them NUL")
    return found


def _name(value: object, what: str) -> bytes:
    found = binary(value, what, MAX_PATH)
    if b"\0" in found:
        raise BadRequest(f"{what} is a name, and none has a NUL")
    return found


class FileRequest(SandboxRequest):
    """A call for the process in the sandbox that does what is asked about files."""

    path: bytes = field(_path, "of the file or folder", default=b".", shown="`/workspace`")
    timeout: float = field(fields.seconds(0.01, MAX_CALL_S), "seconds", default=CALL_S)


@operation("file_read", answers=ANSWERS["file_read"])
class FileRead(FileRequest):
    """Read a piece of a regular file."""

    handle: int = field(_HANDLE, "of an earlier answer; then `path` isn't looked at", default=0)
    offset: int = field(_OFFSET, "where the piece begins", default=0)
    size: int = field(number(1, CHUNK), "bytes of it at most", default=CHUNK, shown="1 MiB")
    first: int = field(_OFFSET, "lines, from 1 on, to which the file is narrowed; 0 is none", default=0)
    last: int = field(_OFFSET, "lines, from 1 on, to which the file is narrowed; 0 is none", default=0)


@operation("file_write", answers=ANSWERS["file_write"])
class FileWrite(FileRequest):
    """Write a piece of a file, which replaces the file *path* when its last piece has arrived."""

    handle: int = field(_HANDLE, "of an earlier answer; then `path` isn't looked at", default=0)
    offset: int = field(_OFFSET, "where the piece belongs", default=0)
    data: bytes = field(_DATA, "at most 1 MiB", default=b"")
    more: bool = field(fields.flag, "others follow", default=False)
    new: bool = field(fields.flag, "`EEXIST` if something is there", default=False)
    mode: int = field(_MODE, "permission bits; -1 keeps those of the file before it", default=-1)
    time: int = field(_TIME, "of its last change, in nanoseconds since the epoch; -1 for now", default=-1)


@operation("file_append", answers=ANSWERS["file_append"])
class FileAppend(FileRequest):
    """Append to a file, which is made if it doesn't exist."""

    data: bytes = field(_DATA, "at most 1 MiB", default=b"")


@operation("file_write_many", answers=ANSWERS["file_write_many"])
class FileWriteMany(FileRequest):
    """Write many files, each as `file_write` does; one that fails keeps no other back."""

    data: bytes = field(_DATA, "the files, at most 4,000 and 1 MiB")


@operation("file_read_many", answers=ANSWERS["file_read_many"])
class FileReadMany(FileRequest):
    """Read many files, as many of the first ones as one answer holds."""

    paths: bytes = field(_DATA, "each with a NUL behind it, at most 4,000 and 1 MiB")


@operation("file_close", answers=ANSWERS["file_close"])
class FileClose(FileRequest):
    """Close a handle. A file that wasn't written completely is removed."""

    handle: int = field(_HANDLE, "of an earlier answer")


@operation("file_list", answers=ANSWERS["file_list"])
class FileList(FileRequest):
    """List a folder, sorted by name."""

    after: bytes = field(_name, "names behind this one alone", default=b"")


@operation("file_walk", answers=ANSWERS["file_walk"])
class FileWalk(FileRequest):
    """List everything below a folder; fails if one answer can't hold that."""


@operation("file_stat", answers=ANSWERS["file_stat"])
class FileStat(FileRequest):
    """Ask for type, mode, size and time of *path*."""

    follow: bool = field(fields.flag, "a link stands for what it leads to", default=False)


@operation("file_mkdir", answers=ANSWERS["file_mkdir"])
class FileMkdir(FileRequest):
    """Make a folder."""

    parents: bool = field(fields.flag, "and those that lead there", default=False)
    there: bool = field(fields.flag, "it may be there already", default=False)


@operation("file_set", answers=ANSWERS["file_set"])
class FileSet(FileRequest):
    """Set the mode and the time of the last change of a file or folder; -1 leaves one as it is."""

    mode: int = field(_MODE, "-1 leaves it as it is", default=-1)
    time: int = field(_TIME, "-1 leaves it as it is", default=-1)


@operation("file_link", answers=ANSWERS["file_link"])
class FileLink(FileRequest):
    """Make *path* a symbolic link to *to*. It replaces a file or link, but not a folder."""

    to: bytes = field(_path, "where it leads")


@operation("file_move", answers=ANSWERS["file_move"])
class FileMove(FileRequest):
    """Rename a file or folder; where `rename(2)` can't, copy and remove it."""

    to: bytes = field(_path, "the new name")


@operation("file_copy", answers=ANSWERS["file_copy"])
class FileCopy(FileRequest):
    """Copy a file or folder."""

    to: bytes = field(_path, "the copy's name")


@operation("file_remove", answers=ANSWERS["file_remove"])
class FileRemove(FileRequest):
    """Remove a file, a link, or an empty folder."""

    recursive: bool = field(fields.flag, "a folder with all that is in it", default=False)
    missing: bool = field(fields.flag, "it may be gone already", default=False)


@operation("file_glob", answers=ANSWERS["file_glob"])
class FileGlob(FileRequest):
    """Find names below the folder *path* that match *pattern*."""

    path: bytes = field(_path, "the folder where a relative pattern begins", default=b".", shown="`/workspace`")
    pattern: bytes = field(_PATTERN, "at most 4,096 bytes")
    most: int = field(number(1, MAX_ROWS), "names", default=MAX_ROWS, shown="4,000")


@operation("file_grep", answers=ANSWERS["file_grep"])
class FileGrep(FileRequest):
    """Find lines in the file *path*, or in all files below the folder *path*."""

    pattern: bytes = field(_PATTERN, "at most 4,096 bytes")
    include: bytes = field(_PATTERN, "a pattern for names of files", default=b"")
    literal: bool = field(fields.flag, "the pattern is text", default=False)
    ignore_case: bool = field(fields.flag, "of ASCII letters", default=False)
    most: int = field(number(1, MAX_ROWS), "lines, at most 4,000", default=1000)


@operation("file_edit", answers=ANSWERS["file_edit"])
class FileEdit(FileRequest):
    """Replace *old*, which must occur exactly once, by *new*."""

    path: bytes = field(_path, "of the file")
    old: bytes = field(_TEXT, "at most 1 MiB each")
    new: bytes = field(_TEXT, "at most 1 MiB each")


def call_of(request: FileRequest) -> Mapping[str, Any]:
    """The call for the process in the sandbox: the operation and its fields, without those that only the daemon needs."""
    return {"op": request.op, **{name: getattr(request, name) for name in request.operation.fields if name != "sandbox"}}


def weight(call: Mapping[str, Any]) -> int:
    """About how many bytes of memory a waiting call takes."""
    return sum(len(value) for value in call.values() if isinstance(value, bytes))

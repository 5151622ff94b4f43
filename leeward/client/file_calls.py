"""
File calls on a live sandbox: each is a generator of requests, which both clients drive.

Trust:     none in the answers: the sandbox chooses names, sizes and bytes. `wire/file_answers.py` has checked each
           answer's form; this module bounds endless files and folders.

A generator yields an operation with its fields, is sent the answer, and returns the call's result. It raises the
exceptions of Python's own functions: OSError by its errno, with the path.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from leeward.base.dataclass import dataclass
from leeward.base.protocols import Protocol
from leeward.errors import FilesFailed, PeerError
from leeward.wire.file_answers import CHUNK, MAX_PATH, MAX_ROWS, check_answer
from leeward.wire.file_batches import HEAD, file_of, found_in
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import answer

T = TypeVar("T")

#: An operation and its fields.
Ask = tuple[str, dict[str, Any]]
#: One call: requests, answers, the result.
Call = Generator[Ask, dict[str, Any], T]

#: A path in the sandbox. Text is encoded as os.fsencode does.
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

#: The default timeout of a search, and that of copies and removals, in seconds.
SEARCH_S, LONG_S = 10.0, 120.0

#: The greatest number of bytes that `read` returns by default, and of entries that `list` returns.
MOST_READ, MOST_LISTED = 1 << 30, 100_000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """
    A file, folder or link in a sandbox.

    Attributes:
        name: the path that the call was given; in a list, the name in the folder.
        kind: "file", "folder", "link" or "other".
        mode: permission bits.
        size: bytes of a regular file.
        mtime_ns: when the content was last changed, in nanoseconds since the epoch.
        target: the text of a link; else "".
    """

    name: str
    kind: str
    mode: int
    size: int
    mtime_ns: int
    target: str = ""

    @property
    def mtime(self) -> float:
        """When the content was last changed, in seconds since the epoch."""
        return self.mtime_ns / 1e9

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_folder(self) -> bool:
        return self.kind == "folder"


@dataclass(frozen=True, slots=True)
class FileMatch:
    """The line *line*, from 1, of the file *path*; *text* is its first 1,000 bytes, with U+FFFD for invalid UTF-8."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change that `watch` has seen: *kind* is "created", "modified" or "deleted", *path* relative to the watched folder."""

    kind: str
    path: str


class Found(list[T]):
    """The list of results. `more` is whether there are more than the limit allows, or than fit into one answer."""

    def __init__(self, items: Iterable[T], more: bool) -> None:
        super().__init__(items)
        self.more = more


def raw(path: Path) -> bytes:
    """*path* as bytes for the wire; ValueError if it is empty, has a NUL, or is too long."""
    found = os.fspath(path)
    name = found.encode("utf-8", "surrogateescape") if isinstance(found, str) else found
    if not name or b"\0" in name or len(name) > MAX_PATH:
        raise ValueError(f"{path!r:.80} isn't a path: it is empty, has a NUL, or is longer than {MAX_PATH} bytes")
    return name


def shown(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def answer_of(op: str, fields: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """The answer in *reply*; OSError if the call failed, ValueError for an invalid argument, PeerError if it is no answer."""
    found = check_answer(op, answer(reply))
    if "errno" not in found:
        return found
    raise failed_with(found["errno"], found["why"], fields.get("path", b"."))


def advanced(call: Call[Any], response: dict[str, Any] | None, error: Exception | None) -> tuple[bool, Any]:
    """
    Run the next step of *call*, with the last answer or error, None for both to begin: whether it is done, and its
    result or its next request.
    """
    try:
        return False, call.send(response) if error is None else call.throw(error)  # type: ignore[arg-type]  # None begins
    except StopIteration as end:
        return True, end.value


def info_of(row: list[Any]) -> FileInfo:
    name, kind, mode, size, time, target = row
    return FileInfo(shown(name), kind, mode, size, time, shown(target))


# --- content --------------------------------------------------------------------------


class Sink:
    """Takes the content of a file in pieces."""

    def begin(self, head: Mapping[str, Any], size: int) -> None:
        """Called before the first piece: the file has *size* bytes, and the mode and time of the answer *head*."""

    def take(self, data: bytes) -> None:
        raise NotImplementedError


class Memory(Sink):
    """Keeps the content in a BytesIO, whose `getvalue` doesn't copy."""

    def __init__(self) -> None:
        self.file = io.BytesIO()

    def take(self, data: bytes) -> None:
        self.file.write(data)


def fetch(path: bytes, sink: Sink, *, offset: int = 0, size: int | None = None, lines: tuple[int, int] | None = None,
          most: int) -> Call[int]:
    """
    Read a file, or *size* bytes of it from *offset* on, or *lines* of it, into *sink*; EFBIG if there are more than
    *most* bytes. Returns their number, which is less than `begin` was given if the file was truncated meanwhile.
    """
    fields: dict[str, Any] = {"path": path, "offset": offset}
    if lines is not None:
        fields |= {"first": lines[0], "last": lines[1]}
    response = yield "file_read", {**fields, "size": CHUNK if size is None else max(1, min(size, CHUNK))}
    at: int = response["at"]
    end: int = response["end"] if size is None else min(response["end"], at + size)
    begun, start = False, at
    while True:
        data = response["data"][:max(0, end - at)]
        at += len(data)
        handle = response["handle"]
        try:
            if end - start > most:
                raise OSError(errno.EFBIG, f"it has {end - start} bytes; the limit is {most}", shown(path))
            if not begun:
                sink.begin(response, max(0, end - start))
                begun = True
            sink.take(data)
        except Exception:
            if handle:
                yield "file_close", {"handle": handle}
            raise
        if not handle:
            return at - start
        if at >= end or not data:
            yield "file_close", {"handle": handle}
            return at - start
        response = yield "file_read", {"path": path, "handle": handle, "offset": at, "size": min(CHUNK, end - at)}


def read(path: Path, *, offset: int = 0, size: int | None = None, lines: tuple[int, int] | None = None,
         most: int = MOST_READ) -> Call[bytes]:
    if offset < 0 or (size is not None and size < 0):
        raise ValueError("offset and size are bytes, from 0 on")
    if lines is not None and not 1 <= lines[0] <= lines[1]:
        raise ValueError(f"lines are a first and a last one, from 1 on, not {lines!r:.40}")
    found = Memory()
    yield from fetch(raw(path), found, offset=offset, size=size, lines=lines, most=most)
    return b"" if size == 0 else found.file.getvalue()


class ReadsBytes(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


#: Content to write: bytes, text (written as UTF-8), a file that is open for reading bytes, or pieces of bytes.
Content = bytes | bytearray | memoryview | str | ReadsBytes | Iterable[bytes]


def chunks_in(data: Content) -> Iterator[bytes]:
    """*data* in pieces for one request each; at least one piece."""
    read = getattr(data, "read", None)
    if read is not None:
        pieces: Iterable[Any] = iter(lambda: read(CHUNK), b"")
    elif isinstance(data, (bytes, bytearray, memoryview)):
        pieces = (memoryview(data).cast("B"),)
    elif isinstance(data, str):
        pieces = (memoryview(data.encode()),)
    else:
        pieces = cast("Iterable[bytes]", data)
    some = False
    for piece in pieces:
        if isinstance(piece, str):
            raise TypeError("pieces must be bytes, not text")
        view = memoryview(piece)
        for at in range(0, len(view), CHUNK):
            some = True
            yield bytes(view[at:at + CHUNK])
    if not some:
        yield b""


def write(path: Path, data: Content, *, mode: int | None = None, exclusive: bool = False, time: int = -1) -> Call[int]:
    if mode is not None and not 0 <= mode <= 0o777:
        raise ValueError(f"mode has permission bits alone, not {mode:o}")
    fields = {"path": raw(path), "new": exclusive, "mode": -1 if mode is None else mode, "time": time}
    size = handle = 0
    chunks = chunks_in(data)
    piece = next(chunks)
    while True:
        try:
            after = next(chunks, None)
        except BaseException:
            if handle:
                yield "file_close", {"handle": handle}
            raise
        response = yield "file_write", {**fields, "handle": handle, "offset": size, "data": piece,
                                        "more": after is not None}
        size, handle = size + len(piece), response["handle"]
        if after is None:
            return size
        piece = after


def append(path: Path, data: Content) -> Call[int]:
    size = 0
    for piece in chunks_in(data):
        size = (yield "file_append", {"path": raw(path), "data": piece})["size"]
    return size


# --- many files ------------------------------------------------------------------------

#: A path as the caller has given it.
P = TypeVar("P", bound=Path)


def failed_with(number: int, why: str, path: bytes) -> Exception:
    """The error of a call that failed with this errno, 0 if an argument was invalid."""
    return OSError(number, why or os.strerror(number), shown(path)) if number else ValueError(why)


def write_many(files: Mapping[P, bytes | bytearray | memoryview | str], *, mode: int | None = None) -> Call[int]:
    if mode is not None and not 0 <= mode <= 0o777:
        raise ValueError(f"mode has permission bits alone, not {mode:o}")
    errors: dict[P, Exception] = {}
    batch: list[P] = []
    pieces: list[bytes] = []
    size = filled = 0
    for path, data in files.items():
        content = data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else memoryview(data).cast("B")
        name = raw(path)
        one = HEAD.size + len(name) + len(content)
        if batch and (filled + one > CHUNK or len(batch) == MAX_ROWS):
            yield from _send(batch, pieces, errors)
            batch, pieces, filled = [], [], 0
        if one > CHUNK:
            try:
                yield from write(path, content, mode=mode)
            except OSError as error:
                errors[path] = error
        else:
            batch.append(path)
            pieces += file_of(name, -1 if mode is None else mode, bytes(content))
            filled += one
        size += len(content)
    if batch:
        yield from _send(batch, pieces, errors)
    if errors:
        raise FilesFailed(errors, {})
    return size


def _send(batch: list[P], pieces: list[bytes], errors: dict[P, Exception]) -> Call[None]:
    failed = (yield "file_write_many", {"data": b"".join(pieces)})["failed"]
    for number, errno_, why in failed:
        if number >= len(batch):
            raise PeerError("a file call's answer: it is about a file that wasn't sent")
        path = batch[number]
        errors[path] = failed_with(errno_, why, raw(path))


def read_many(paths: Iterable[P], *, limit: int = MOST_READ) -> Call[dict[P, bytes]]:
    left = [(path, raw(path)) for path in dict.fromkeys(paths)]
    found: dict[P, bytes] = {}
    errors: dict[P, Exception] = {}
    left.reverse()
    while left:
        asked = list[bytes]()
        size = 0
        while len(asked) < min(len(left), MAX_ROWS) and size + len(left[-1 - len(asked)][1]) < CHUNK:
            asked.append(left[-1 - len(asked)][1] + b"\0")
            size += len(asked[-1])
        response = yield "file_read_many", {"paths": b"".join(asked)}
        try:
            answers = [*found_in(response["data"])]
        except ValueError as error:
            raise PeerError(f"a file call's answer: {error}") from None
        if not 0 < len(answers) <= len(asked):
            raise PeerError("a file call's answer: files are missing, or too many")
        for number, content in answers:
            path, name = left.pop()
            try:
                if number == errno.EFBIG:
                    content = yield from read(path, most=limit)
                elif number:
                    raise failed_with(number, content.decode("utf-8", "replace"), name)
                elif len(content) > limit:
                    raise OSError(errno.EFBIG, "the files have more bytes than the limit", shown(name))
            except (OSError, ValueError) as error:
                if getattr(error, "errno", 0) == errno.EFBIG:
                    raise
                errors[path] = error
            else:
                found[path] = content
                limit -= len(content)
    if errors:
        raise FilesFailed(errors, found)
    return found


# --- names ----------------------------------------------------------------------------


def page(path: bytes, after: bytes) -> Call[tuple[list[list[Any]], bool]]:
    """The rows of a folder after the name *after*, and whether there are more."""
    response = yield "file_list", {"path": path, "after": after}
    rows, more = response["rows"], response["more"]
    if rows and rows[0][0] <= after:
        raise PeerError("a file call's answer: a page of a folder repeats names")
    return rows, more and bool(rows)


def entries(path: bytes, most: int = MOST_LISTED) -> Call[list[list[Any]]]:
    found: list[list[Any]] = []
    more = True
    while more:
        rows, more = yield from page(path, found[-1][0] if found else b"")
        found += rows
        if len(found) > most:
            raise OSError(errno.E2BIG, f"it has more than {most} entries", shown(path))
    return found


class FileWatch:
    """The state of a folder's tree at the last look."""

    def __init__(self, path: Path) -> None:
        self._path = raw(path)
        self._seen: dict[bytes, list[Any]] = {}

    def look(self) -> Call[list[FileChange]]:
        """The changes since the last look, sorted by path. At the first look everything counts as created."""
        response = yield "file_walk", {"path": self._path}
        now = {row[0]: row[1:] for row in response["rows"]}
        before, self._seen = self._seen, now
        changes = [FileChange("deleted", shown(name)) for name in before if name not in now]
        for name, row in now.items():
            if name not in before:
                changes.append(FileChange("created", shown(name)))
            elif row != before[name] and not ("folder" == row[0] == before[name][0] and row[1] == before[name][1]):
                changes.append(FileChange("modified", shown(name)))
        return sorted(changes, key=lambda change: change.path)

    def has_content(self, path: str) -> bool:
        """Whether *path*, as a change has it, was a file with content at the last look."""
        kind, _, size, *_ = self._seen.get(raw(path), ("", 0, 0))
        return bool(kind == "file" and size)

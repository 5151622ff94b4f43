"""
The files of one chain of the record: a writer that never blocks its callers, and readers.

Runs in:   the program that decides; `read` and `verify` in the CLI.
Threads:   `write` puts a row into a bounded queue; a thread writes it to disk. Rows that can't be queued or written are
           counted, and the next line that is written has the count.
Files:     audit.jsonl; older ones are audit.jsonl.1, .2, ..., the newest with the smallest number. The head, "number
           hash first", is in a file of its own, in this folder or another one; it is written when no row waits.
Torn:      a line that a power cut has left half-written stays, as a bad line, until `mend` moves it to audit.torn.
Holds:     lines that are cut off at the end while no process writes are noticed: the writer continues after the line
           that the head names, so the gap remains.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from leeward.apps.audit.record_lines import BEGINNING, MOST_LINE, AuditRow, ReadLine, chained, read_line, written
from leeward.base.closing import OwnedFd, on_failure
from leeward.base.file_locks import locked
from leeward.base.user_folders import user_folder
from leeward.errors import BadRequest, Busy, reason_of

FILE, HEAD, TORN = "audit.jsonl", "audit.head", "audit.torn"

#: Bytes after which a new file is started; the number of files that are kept; the greatest number of rows that wait for
#: the disk.
ROTATE, KEPT_FILES, MOST_WAITING = 16 << 20, 16, 10_000

_HEAD_LINE = re.compile(rb"([0-9]{1,15}) ([0-9a-f]{64}) ([0-9]{1,15})\n")
_OLD = re.compile(r"audit\.jsonl\.([1-9][0-9]{0,5})")


def default_folder(environ: Mapping[str, str], name: str = "audit") -> str:
    """The folder of the record of this process's user, or *name* beside it, by XDG_STATE_HOME and HOME."""
    return user_folder(environ, "STATE", "leeward", name)


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a check."""

    lines: int
    fault: ReadLine | None  # the first line with a fault; None for none
    head: str = ""  # how the record contradicts its head; "" if it doesn't
    last: int = 0  # the number of the last line; 0 for none

    @property
    def is_whole(self) -> bool:
        return self.fault is None and not self.head


class Journal:
    """
    The writer of a chain, one process at a time: Busy if another one writes it.

    Args:
        folder: of the chain; it is made unless it exists.
        head: the folder of the head; None for the same folder.
        rotate: bytes after which a new file is started.
        kept: the number of files that are kept.

    Attributes:
        lost: the number of rows that weren't written.
        trouble: why the last row wasn't written; "" when rows are written again.
    """

    def __init__(self, folder: str, head: str | None = None, *, rotate: int = ROTATE, kept: int = KEPT_FILES) -> None:
        self.folder, self._head_folder = folder, head or folder
        self._rotate_at, self._kept = rotate, kept
        self.lost, self.trouble = 0, ""
        self._unreported, self._counting = 0, threading.Lock()  # lost rows that no line counts yet
        self._started = False
        self._fd = self._lock = -1
        self._number, self._before, self._size = 0, BEGINNING, 0
        self._first = 1  # the number of the oldest line that rotation has left
        self._rows: queue.Queue[AuditRow | None] = queue.Queue(MOST_WAITING)
        try:
            self._take_lock()
        except OSError as error:  # `_open` tries again; until then rows are counted as lost
            self.trouble = reason_of(error)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def _take_lock(self) -> None:
        for each in (self.folder, self._head_folder):
            os.makedirs(each, mode=0o700, exist_ok=True)
        self._lock = _locked(self.folder)

    def write(self, row: AuditRow) -> bool:
        """Queue *row* for the writing thread. Never waits: False if the queue is full, and the row is counted as lost."""
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._missed("rows come faster than the disk takes them")
            return False
        return True

    def close(self) -> None:
        """Write the queued rows, and end the thread."""
        self._rows.put(None)
        self._thread.join()
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def _missed(self, why: str) -> None:
        with self._counting:
            self.lost += 1
            self._unreported += 1
            self.trouble = why

    def _run(self) -> None:
        while True:
            row = self._rows.get()
            if row is None:
                return
            try:
                self._put(row)
            except OSError as error:
                self._missed(reason_of(error))
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd = -1
                continue
            try:
                if self._rows.empty() or self._rows.queue[0] is None:
                    self._write_head()
                self.trouble = ""
            except OSError as error:
                self.trouble = reason_of(error)

    def _put(self, row: AuditRow) -> None:
        if self._fd < 0:
            self._open()
        if self._size >= self._rotate_at:
            self._rotate()
        if self._unreported:
            unreported = self._unreported
            self._append(AuditRow(row.time, "audit", "write", "failed", metadata={"lost": unreported}))
            with self._counting:
                self._unreported -= unreported
        self._append(row)

    def _open(self) -> None:
        if self._lock < 0:
            try:
                self._take_lock()
            except Busy as error:
                raise OSError(errno.EBUSY, str(error)) from None
        path = os.path.join(self.folder, FILE)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with on_failure(os.close, fd):
            self._size = os.fstat(fd).st_size
            if self._size and os.pread(fd, 1, self._size - 1) != b"\n":
                # A line that a power cut has left half-written stays, and is read as a bad one.
                self._size += os.write(fd, b"\n")
            if not self._started:
                self._find_end()
        self._fd = fd

    def _find_end(self) -> None:
        """Find the line that the next one follows: the line that the head names if the chain lacks it, else the last line."""
        head = read_head(self._head_folder)
        last = next((line for line in map(_alone, _backwards(self.folder)) if line.row is not None), None)
        if last is not None and last.row is not None:
            self._number, self._before = last.row["number"], last.hash
        if head is not None and head.number:
            self._first = head.first
            if not self._has(head):
                self._number, self._before = head.number, head.hash
        self._started = True

    def _has(self, head: RecordHead) -> bool:
        for line in map(_alone, _backwards(self.folder)):
            if line.row is not None and line.row["number"] <= head.number:
                return (head.number, head.hash) == (line.row["number"], line.hash)
        return False

    def _append(self, row: AuditRow) -> None:
        line, digest = written(row, self._number + 1, self._before)
        done = os.write(self._fd, line)
        if done != len(line):
            # Remove the partial line.
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size += done
        self._number, self._before = self._number + 1, digest

    def _write_head(self) -> None:
        temporary = os.path.join(self._head_folder, f".head-{secrets.token_hex(8)}")
        content = f"{self._number} {self._before} {self._first}\n".encode()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with OwnedFd(fd):
                if os.write(fd, content) != len(content):
                    raise OSError(errno.ENOSPC, "the disk is full")
            os.rename(temporary, os.path.join(self._head_folder, HEAD))
        except OSError:
            os.unlink(temporary)
            raise

    def _rotate(self) -> None:
        """Start a new file. Its first line follows the last line of the previous file."""
        os.close(self._fd)
        self._fd = -1
        path = os.path.join(self.folder, FILE)
        going = [f"{FILE}.{number}" for number in reversed(_old(self.folder)) if number >= self._kept - 1]
        going += [FILE] if self._kept == 1 else []
        if going:
            staying = (_alone(line) for name in _files(self.folder) if name not in going
                       for line in _lines(os.path.join(self.folder, name)))
            self._first = next((line.row["number"] for line in staying if line.row is not None), self._number + 1)
            with contextlib.suppress(OSError):
                self._write_head()  # before they go: whatever ends the program in between has cut nothing off
        for name in going:
            os.unlink(os.path.join(self.folder, name))
        for number in reversed(_old(self.folder)):
            os.rename(f"{path}.{number}", f"{path}.{number + 1}")
        if self._kept > 1:
            os.rename(path, f"{path}.1")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size = 0


def _locked(folder: str) -> int:
    try:
        return locked(os.path.join(folder, "audit.lock"))
    except BlockingIOError:
        raise Busy(f"another program writes {folder} now") from None


def _old(folder: str) -> list[int]:
    return sorted(int(match[1]) for match in map(_OLD.fullmatch, os.listdir(folder)) if match)


def _files(folder: str) -> list[str]:
    """The names of the chain's files, the oldest first."""
    named = [f"{FILE}.{number}" for number in reversed(_old(folder))]
    return named + [FILE] * os.path.exists(os.path.join(folder, FILE))


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a file. A line of more than MOST_LINE + 100 bytes is replaced by b"?", so that memory is bounded."""
    with open(path, "rb") as file:
        while line := file.readline(MOST_LINE + 100):
            whole = line.endswith(b"\n") or len(line) < MOST_LINE + 100
            yield line if whole else b"?"
            while not whole and (rest := file.readline(MOST_LINE)):
                whole = rest.endswith(b"\n")


def _alone(line: bytes) -> ReadLine:
    return read_line(line, 0)


def _backwards(folder: str) -> Iterator[bytes]:
    for name in reversed(_files(folder)):
        # A file has about ROTATE bytes, so it fits into memory.
        yield from reversed(list(_lines(os.path.join(folder, name))))


def read(folder: str) -> Iterator[ReadLine]:
    """All lines of a chain, the oldest first, each with its fault."""
    def each() -> Iterator[ReadLine]:
        number = 0
        for name in _files(folder):
            for line in _lines(os.path.join(folder, name)):
                number += 1
                found = read_line(line, number)
                yield ReadLine(number, found.row, found.fault, found.hash, name)
    return chained(each())


@dataclass(frozen=True, slots=True)
class RecordHead:
    """
    The end of a chain, as the head's file has it: the number of the last line (0 if the file can't be read), its hash,
    and the number of the oldest line that rotation has left.
    """

    number: int
    hash: str
    first: int


def read_head(folder: str) -> RecordHead | None:
    """Read the head in *folder*; None if there is none."""
    try:
        with open(os.path.join(folder, HEAD), "rb") as file:
            found = _HEAD_LINE.fullmatch(file.read(200))
    except FileNotFoundError:
        return None
    return RecordHead(int(found[1]), found[2].decode(), int(found[3])) if found else RecordHead(0, "", 0)


def verify(folder: str, head: str | None = None, seen: Callable[[ReadLine], None] | None = None) -> Verified:
    """
    Check that a chain is intact, and has the line that the head in *head* (None: the same folder) names. *seen* gets
    each line.
    """
    lines, fault, named = 0, None, read_head(head or folder)
    first = last = 0
    is_there = False
    for line in read(folder):
        lines += 1
        if seen is not None:
            seen(line)
        if line.fault and fault is None:
            fault = line
        if line.row is not None:
            last = line.row["number"]
            first = first or last
            is_there = is_there or (named is not None and (last, line.hash) == (named.number, named.hash))
    return Verified(lines, fault, _beside_head(named, first, last, is_there), last)


def _beside_head(head: RecordHead | None, first: int, last: int, is_there: bool) -> str:
    """How a chain contradicts its head; "" if it doesn't."""
    if head is None:
        return "there is no head" if last else ""
    if not head.number:
        return "the head can't be read"
    if last < head.number:
        return f"the head names line {head.number}, but the record ends with line {last}"
    if not is_there:
        return f"the head names a line {head.number} that differs from the record's"
    if first > head.first:
        return f"the record begins with line {first}, but by the head with line {head.first}"
    return ""


def is_torn(folder: str) -> bool:
    """Whether the last line of a chain is half-written, before a writer goes on behind it."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
    except OSError:
        return False


def mend(folder: str, head: str | None = None) -> int:
    """
    Take half-written lines out of a chain, and record that; returns how many. Their bytes are kept in TORN. BadRequest
    if the chain has another fault, which isn't mended; Busy if another process writes the chain, or the mending can't
    be recorded.
    """
    with OwnedFd(_locked(folder)):
        found = verify(folder, head)
        torn = [line for line in read(folder) if line.fault]
        if not torn:
            return 0
        wrong = next((line for line in torn if line.row is not None), None)
        if wrong is not None:
            raise BadRequest(f"line {wrong.number}, in {wrong.file}: {wrong.fault}: that is no half-written line")
        if found.head:
            raise BadRequest(f"{found.head}: what is missing isn't only half-written")
        held = b"".join(_parts(os.path.join(folder, name))[1] for name in _files(folder))
        with open(os.path.join(folder, TORN), "ab", opener=_private) as file:
            file.write(held)
            os.fsync(file.fileno())
        for name in dict.fromkeys(line.file for line in torn):
            path = os.path.join(folder, name)
            kept, _ = _parts(path)
            with open(f"{path}.mend", "wb", opener=_private) as file:
                file.write(kept)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}.mend", path)
    writer = Journal(folder, head)
    writer.write(AuditRow(time.time(), "audit", "mend", "mended", by="cli", metadata={
        "lines": len(torn), "bytes": len(held), "sha256": hashlib.sha256(held).hexdigest()}))
    writer.close()
    if writer.lost:
        raise Busy(f"the mending can't be recorded: {writer.trouble}")
    return len(torn)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _parts(path: str) -> tuple[bytes, bytes]:
    """The lines of a file, which has about ROTATE bytes, that are of the record, and the others."""
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    with open(path, "rb") as file:
        for line in file.read().splitlines(keepends=True):
            parts[_alone(line).row is not None].append(line)
    return b"".join(parts[True]), b"".join(parts[False])

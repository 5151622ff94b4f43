"""
The journal of an `apply`: all that is to be written, complete on the disk before the first change of the host's folder.

Holds:     a folder of the user's state has one file for each `apply` that is under way, locked by its program. One that
           is complete and has no lock was left by a program that was killed: `interrupted` gives it to the next one,
           which finishes it. An incomplete one is removed: its program had changed nothing. So is one that isn't as it was
           written, which nobody can finish.
Trust:     the folder is used only if no other user can enter it. Without such a folder the journal is a file without a
           name, and an `apply` that is killed stays half done.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgpack

from leeward.base.closing import OwnedFd
from leeward.base.file_locks import MADE, locked
from leeward.base.user_folders import user_folder
from leeward.client.changes import FolderChange

_ENDING = ".journal"
#: The last bytes of a complete journal, after the sum of the head before it and its length.
_END = b"leeward-apply-2\n"
_SUM, _LENGTH = 32, 8


def state_folder(environ: Mapping[str, str]) -> str:
    """The folder of journals; it need not exist."""
    return user_folder(environ, "STATE", "leeward", "applying")


class ApplyJournal:
    """
    A file with the contents and the list of changes. Use `begun` or `interrupted`.

    Attributes:
        fd: at its end, while contents are added.
        row: the host's folder, as `HostFolder` takes it.
        changes: what is to be applied.
        token: a part of the temporary names, by which they are found again.
        retyped: the paths at which something of another type is replaced, which takes two steps.
    """

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self._path = fd, path
        self.row: Mapping[str, Any] = {}
        self.changes: list[FolderChange] = []
        self.token = secrets.token_hex(8)
        self.retyped: Collection[str] = ()
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, path: str, start: int) -> None:
        """Note that the bytes from *start* to the end are the content of the file *path*."""
        self._places[path] = start, os.fstat(self.fd).st_size - start

    def content(self, path: str, into: int) -> None:
        """Write the content of the file *path* to the descriptor *into*."""
        start, size = self._places[path]
        while size:
            done = os.sendfile(into, self.fd, start, size)
            if not done:
                raise OSError(f"the journal {self._path!a:.200} is shorter than it says")
            start, size = start + done, size - done

    def complete(self, row: Mapping[str, Any], changes: Sequence[FolderChange], retyped: Collection[str]) -> None:
        """Write the list of changes, and wait for the disk: from now on another program can finish this one's work."""
        self.row, self.changes, self.retyped = row, list(changes), retyped
        known = [os.fsencode(row["path"]), row["device"], row["inode"], row["since"]]
        head = msgpack.packb([known, self.token, [_row(change) for change in changes],
                              [[os.fsencode(path), *place] for path, place in self._places.items()],
                              [os.fsencode(path) for path in retyped]])
        rest = memoryview(head + hashlib.sha256(head).digest() + len(head).to_bytes(_LENGTH, "big") + bytes(len(_END)))
        while rest:
            rest = rest[os.write(self.fd, rest):]
        os.fsync(self.fd)
        os.pwrite(self.fd, _END, os.fstat(self.fd).st_size - len(_END))  # not before: a disk may keep the end alone
        os.fsync(self.fd)

    def read(self) -> bool:
        """Read what `complete` has written; returns False if it isn't complete, or not as it was written."""
        size, tail = os.fstat(self.fd).st_size, _SUM + _LENGTH + len(_END)
        end = os.pread(self.fd, tail, max(0, size - tail))
        length = int.from_bytes(end[_SUM:_SUM + _LENGTH], "big")
        if len(end) != tail or not end.endswith(_END) or length > size - tail:
            return False
        head = os.pread(self.fd, length, size - tail - length)
        if hashlib.sha256(head).digest() != end[:_SUM]:
            return False
        (path, device, inode, since), self.token, changes, places, retyped = msgpack.unpackb(head)
        self.row = {"path": os.fsdecode(path), "device": device, "inode": inode, "since": since}
        self.changes = [FolderChange(*map(_text, fields)) for fields in changes]
        self._places = {os.fsdecode(path): (start, count) for path, start, count in places}
        self.retyped = set(map(os.fsdecode, retyped))
        return True

    def remove(self) -> None:
        """Remove the file: nothing is to be finished."""
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def close(self) -> None:
        os.close(self.fd)


def _row(change: FolderChange) -> list[object]:
    """The fields of *change*, in their order. What comes from file names is bytes."""
    return [os.fsencode(change.path), change.kind, change.type, change.mode, change.size, change.sha256, change.large,
            None if change.link is None else os.fsencode(change.link), change.allocated]


def _text(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, bytes) else value


def begun(environ: Mapping[str, str]) -> ApplyJournal:
    """An empty journal, which this program has locked."""
    folder = _own(state_folder(environ))
    if folder is None:
        with tempfile.TemporaryFile() as file:
            return ApplyJournal(os.dup(file.fileno()), "")
    while True:
        path = os.path.join(folder, secrets.token_hex(8) + _ENDING)
        fd = locked(path, MADE | os.O_EXCL, wait=True)
        if os.fstat(fd).st_nlink:
            return ApplyJournal(fd, path)
        os.close(fd)  # before it had the lock, another program has taken it for one that was left


def interrupted(environ: Mapping[str, str]) -> Iterator[ApplyJournal]:
    """The complete journals of programs that were killed, each locked while the caller has it. Others are removed."""
    folder = state_folder(environ)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    if _own(folder) is None:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            fd = locked(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # its program is at work, say
        with OwnedFd(fd):
            found = ApplyJournal(fd, path)
            about = os.fstat(fd)  # without a name, another program has just finished it
            if not (name.endswith(_ENDING) and stat.S_ISREG(about.st_mode) and about.st_nlink):
                continue
            if found.read():
                yield found
            else:
                found.remove()


def _own(folder: str) -> str | None:
    """*folder*, made unless it exists; None if it can't be made, or others can enter it."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        about = os.stat(folder, follow_symlinks=False)
    except OSError:
        return None
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077
    return folder if is_own else None

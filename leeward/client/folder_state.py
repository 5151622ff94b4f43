"""
Records the state of a folder of the host before a sandbox writes to it, and lists what has changed since.

Theory of operation. A state either has the hash of every file, or, if it is *lazy*, no hash: then a file counts as
changed if its size, inode, mtime or ctime has, and only such files are read, for their hashes in the list. Where a file
was changed in this tick of the file systems' clock the tick's end is waited for: what is written later has another ctime.

Trust:     none in the folder: a sandbox that runs may change it at any moment. Everything is opened beneath the folder;
           no link is followed, no other mount is entered, and only regular files are read.

Overlays (overlay.py) don't use this module, because the upper layer of an overlay has all that was written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from leeward.base.closing import OwnedFd
from leeward.client.changes import CHUNK, FOLDER, LARGE, Changes, FolderChange, beneath, next_tick, type_of
from leeward.errors import RequestRejected, Stale, reason_of
from leeward.spec.folders import FILE_CLOCK

#: The greatest number of files and folders that are compared; the list of an overlay's changes has the same bound.
MOST = 100_000
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Errors of an entry that was removed or replaced after it was listed.
_REMOVED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
#: Errors of a folder that can't be entered, which is compared as a folder without content.
_INACCESSIBLE = (errno.EACCES, errno.EXDEV)


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """
    The state of one path in the folder.

    Attributes:
        type: the kind of file, such as "file", "folder" or "link".
        stamp: inode, mtime and ctime, in nanoseconds. A program can set a file's mtime back, but not its ctime.
        allocated: bytes that the file occupies in the file system.
        digest: SHA-256 of a file's content; None for a large, unread or unreadable file, and for every other kind.
        link: the text of a link; b"" for all other kinds.
    """

    type: str
    mode: int
    size: int
    stamp: tuple[int, int, int]
    allocated: int
    digest: bytes | None = None
    link: bytes = b""


class FolderState:
    """
    The state of the folder *fd*, whose files are all read unless it is *lazy*. RequestRejected for more than 100,000
    entries, or bad ones; a lazy one raises it in `diff`.
    """

    def __init__(self, fd: int, *, lazy: bool = False) -> None:
        about = os.fstat(fd)
        self.path, self._identity = os.readlink(f"/proc/self/fd/{fd}"), (about.st_dev, about.st_ino)
        self._lazy, self._error = lazy, ""
        try:
            self._before = look(fd, reads=not lazy)
        except RequestRejected as error:
            if not lazy:
                raise
            self._before, self._error = {}, str(error)
        if max((seen.stamp[-1] for seen in self._before.values()), default=0) >= time.clock_gettime_ns(FILE_CLOCK):
            next_tick()

    def diff(self) -> Changes:
        """The changes since this object was made, sorted by path. Stale if the path has another folder now, or none."""
        if self._error:
            raise RequestRejected(self._error)
        try:
            fd = os.open(self.path, FOLDER | os.O_CLOEXEC)
        except OSError as error:
            raise Stale(f"{self.path!r}: {reason_of(error)}", self.path) from None
        with OwnedFd(fd):
            about = os.fstat(fd)
            if (about.st_dev, about.st_ino) != self._identity:
                raise Stale(f"{self.path!r} is another folder than the one that the sandbox was opened with",
                            self.path)
            return compared(self._before, look(fd, self._before if self._lazy else {}))


class BeforeFirstCall:
    """The state of a folder before the first of several calls, for threads: one of them reads it, and the others wait."""

    def __init__(self, *, lazy: bool = False) -> None:
        self._lazy = lazy
        self._lock = threading.Lock()
        self._state: FolderState | None = None

    def of(self, folder: Callable[[], int]) -> FolderState:
        """The state; the first call reads the folder. Closes the descriptor that *folder* returns. Raises as FolderState."""
        found = self._state
        if found is None:
            with OwnedFd(folder()) as fd, self._lock:
                self._state = found = self._state or FolderState(fd, lazy=self._lazy)
        return found


def look(root: int, known: Mapping[bytes, FolderEntry] = MappingProxyType({}), *, reads: bool = True
         ) -> dict[bytes, FolderEntry]:
    """
    All entries of the folder *root*, a descriptor, at any depth, by their paths. If it *reads*, files get their hashes,
    except those whose stamp is that of their entry in *known*. RequestRejected as FolderState.
    """
    found: dict[bytes, FolderEntry] = {}
    todo = [b""]
    while todo:
        folder = todo.pop()
        try:
            with beneath(root, folder) as fd:
                for path, seen in _listed(fd, folder + b"/" if folder else b"", known, reads):
                    found[path] = seen
                    if seen.type == "folder":
                        todo.append(path)
                    if len(found) > MOST:
                        raise RequestRejected(f"the folder has more than {MOST} files and folders, the most that can be"
                                              " compared; with overlay=True only files that were written are compared")
        except OSError as error:
            if error.errno not in _REMOVED and error.errno not in _INACCESSIBLE:
                raise RequestRejected(f"{os.fsdecode(folder)!r:.200} can't be compared: {error.strerror}") from None
    return found


def _listed(folder: int, above: bytes, known: Mapping[bytes, FolderEntry], reads: bool
            ) -> Iterable[tuple[bytes, FolderEntry]]:
    for name in map(os.fsencode, os.listdir(folder)):
        try:
            yield above + name, _entry(folder, name, known.get(above + name), reads)
        except OSError as error:
            if error.errno not in _REMOVED:
                raise RequestRejected(f"{os.fsdecode(name)!r:.200} can't be compared: {error.strerror}") from None


def _entry(folder: int, name: bytes, known: FolderEntry | None, reads: bool) -> FolderEntry:
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    digest, link = None, b""
    if stat.S_ISLNK(about.st_mode):
        link = os.readlink(name, dir_fd=folder)
    elif stat.S_ISREG(about.st_mode) and reads and not (known and known.stamp == _stamp(about)):
        about, digest = _content(folder, name, about)
    return FolderEntry(type_of(about.st_mode), stat.S_IMODE(about.st_mode), about.st_size, _stamp(about),
                       512 * about.st_blocks, digest, link)


def _stamp(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_ino, about.st_mtime_ns, about.st_ctime_ns


def _content(folder: int, name: bytes, about: os.stat_result) -> tuple[os.stat_result, bytes | None]:
    """The status of the file *name*, which may be another by now, and the hash of its content; None if it can't be read."""
    if about.st_size > LARGE:
        return about, None
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except PermissionError:
        return about, None
    with OwnedFd(fd):
        about, content, size = os.fstat(fd), hashlib.sha256(), 0
        if not stat.S_ISREG(about.st_mode):
            return about, None
        while data := os.read(fd, CHUNK):
            content.update(data)
            size += len(data)
            if size > LARGE:  # the file has grown while it was read
                return about, None
        return about, content.digest()


def compared(before: Mapping[bytes, FolderEntry], after: Mapping[bytes, FolderEntry]) -> Changes:
    """The changes from *before* to *after*, sorted by path."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        kind = _kind(was, now)
        if now is None:
            assert was is not None
            found.append(FolderChange(os.fsdecode(path), kind, was.type, was.mode, was.size))
        elif kind:
            found.append(FolderChange(
                os.fsdecode(path), kind, now.type, now.mode, now.size, now.digest.hex() if now.digest else None,
                now.type == "file" and now.size > LARGE, os.fsdecode(now.link) if now.type == "link" else None,
                now.allocated))
    return found


def _kind(was: FolderEntry | None, now: FolderEntry | None) -> str:
    """The kind of the change from *was* to *now*; "" if nothing differs."""
    if was is None:
        return "created"
    if now is None:
        return "deleted"
    if (was.type, was.link) != (now.type, now.link):
        return "modified"
    if now.type == "file":
        known = was.digest is not None and now.digest is not None
        if was.size != now.size or (was.digest != now.digest if known else was.stamp != now.stamp):
            return "modified"
    return "" if was.mode == now.mode else "mode"

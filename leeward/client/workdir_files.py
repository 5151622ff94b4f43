"""
Reads and writes the files of a work folder, for the program that gave the folder to a sandbox.

Trust:     none in the folder: a sandbox writes there meanwhile. The kernel resolves each path beneath the folder's
           descriptor (openat2(2) RESOLVE_BENEATH, Linux 5.6), so no link and no race leads out of the folder. A FIFO or
           device isn't read or written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leeward._native.beneath import open_beneath
from leeward.client.file_calls import MOST_LISTED, MOST_READ
from leeward.client.workdir_errors import PathTraversal, WorkdirIoError
from leeward.errors import reason_of
from leeward.spec.folders import within

# Imported in functions: what not every start needs; 1 ms of processor time for all of it.

#: Attempts to open a path: openat2(2) fails with EAGAIN if a folder is renamed at the same time.
_TRIES = 64
_CHUNK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
#: With O_NONBLOCK, so that opening a FIFO doesn't wait for a process at its other end.
_READ, _WRITE = os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class WorkdirEntry:
    """An entry of a folder, by its name there. A link is neither a folder nor a file; `size` has the bytes of a file."""

    name: str
    is_dir: bool
    is_file: bool
    size: int


def inside(path: str | os.PathLike[str]) -> str:
    """*path* in normal form; PathTraversal if it is absolute or leads out by `..`, WorkdirIoError if it is no path."""
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise WorkdirIoError(errno.EINVAL, "it is no path", text)
    normal = posixpath.normpath(text)
    if text.startswith("/") or normal == ".." or normal.startswith("../"):
        raise PathTraversal(text)
    return normal


class WorkdirFiles:
    """
    The files beneath a work folder. All raise PathTraversal and WorkdirIoError.

    Args:
        folder: a descriptor of the work folder, which the caller closes.
        protect: nothing is written that programs on the host run at once, and nothing through a link.
        known: with *protect*, paths that a sandbox can't write, for another reason than their names as well.
    """

    def __init__(self, folder: int, protect: bool = False, known: Sequence[str] = ()) -> None:
        self._folder, self._protect, self._known = folder, protect, known

    def read(self, path: str | os.PathLike[str], limit: int = MOST_READ) -> bytes:
        """The content of a regular file; EFBIG if it has more than *limit* bytes."""
        name = inside(path)
        with self._opened(name, _READ) as fd:
            size = self._check(fd, name)
            found = bytearray()
            while size <= limit and (piece := os.read(fd, min(_CHUNK, limit + 1 - len(found)))):
                found += piece
                size = len(found)
            if size > limit:
                raise WorkdirIoError(errno.EFBIG, f"it has more than {limit} bytes", name)
            return bytes(found)

    def write(self, path: str | os.PathLike[str], data: bytes | str) -> int:
        """Replace a file's content by *data*; the folders that lead there are made. Returns the number of bytes."""
        raw = data.encode() if isinstance(data, str) else bytes(memoryview(data))
        name = inside(path)
        if self._protect:
            self.check_obeyed(name)
        self._make_folders(posixpath.dirname(name))
        with self._opened(name, _WRITE, 0o666, links=not self._protect) as fd:
            self._reserve(fd, self._check(fd, name), len(raw))
            left = memoryview(raw)
            while left:
                left = left[os.write(fd, left[:_CHUNK]):]
            os.ftruncate(fd, len(raw))
        return len(raw)

    def list(self, path: str | os.PathLike[str] = ".", limit: int = MOST_LISTED) -> list[WorkdirEntry]:
        """The entries of a folder, sorted by name; EFBIG if there are more than *limit*."""
        name, found = inside(path), list[WorkdirEntry]()
        with self._opened(name) as fd, os.scandir(fd) as entries:
            for entry in entries:
                try:
                    about = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                is_file = stat.S_ISREG(about.st_mode)
                found.append(WorkdirEntry(entry.name, stat.S_ISDIR(about.st_mode), is_file,
                                          about.st_size if is_file else 0))
                if len(found) > limit:
                    raise WorkdirIoError(errno.EFBIG, f"it has more than {limit} names", name)
        return sorted(found, key=lambda entry: entry.name)

    def check_obeyed(self, name: str) -> None:
        """Raise WorkdirIoError if programs on the host run *name* at once, or the setting of a repository."""
        from leeward.spec.obeyed.lookup import obeyed_by
        from leeward.spec.obeyed.repositories import makes_repository
        from leeward.spec.obeyed.table import AT_ONCE

        row = obeyed_by(name)
        refused = (row is not None and row.kind == AT_ONCE) or any(within(name, each) for each in self._known)
        above, _, last = f"/{name}".rpartition("/")
        while not refused:
            try:
                with self._opened(above[1:] or ".", links=False) as fd:
                    refused = makes_repository(last, os.listdir(fd))
            except WorkdirIoError as error:
                if error.errno != errno.ENOENT:
                    raise
            if not above:
                break
            above, _, last = above.rpartition("/")
        if refused:
            raise WorkdirIoError(errno.EROFS, "programs on the host run it at once, so it is write-protected", name)

    def _make_folders(self, path: str) -> None:
        if not path:
            return
        there = ""
        for name in path.split("/"):
            parent, there = there or ".", posixpath.join(there, name)
            with self._opened(parent, links=not self._protect) as above:
                try:
                    os.mkdir(name, 0o777, dir_fd=above)
                except FileExistsError:
                    pass  # if the name is a link that leads out, opening it fails
                except OSError as error:
                    raise io_error(error, there) from None

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int = _FOLDER, mode: int = 0, *, links: bool = True) -> Iterator[int]:
        """A context with a descriptor; an OSError in it becomes a WorkdirIoError."""
        for tries_left in reversed(range(_TRIES)):
            try:
                fd = open_beneath(self._folder, os.fsencode(name), flags, mode, links=links)
                break
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise PathTraversal(name) from None
                if error.errno != errno.EAGAIN or not tries_left:
                    raise io_error(error, name) from None
        try:
            yield fd
        except OSError as error:
            raise io_error(error, name) from None
        finally:
            os.close(fd)

    @staticmethod
    def _reserve(fd: int, size: int, wanted: int) -> None:
        """Take the disk's space for a file of *size* bytes that is to have *wanted*; on a full disk it stays as it is."""
        if wanted <= size or sys.platform != "linux":
            return
        try:
            os.posix_fallocate(fd, 0, wanted)
        except OSError as error:
            os.ftruncate(fd, size)
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                raise

    @staticmethod
    def _check(fd: int, name: str) -> int:
        """The file's size in bytes. Raises WorkdirIoError if *fd* isn't a regular file."""
        about = os.fstat(fd)
        mode = about.st_mode
        if stat.S_ISDIR(mode):
            raise WorkdirIoError(errno.EISDIR, "it is a folder", name)
        if not stat.S_ISREG(mode):
            raise WorkdirIoError(errno.EINVAL, "it is no regular file", name)
        return about.st_size


def io_error(error: OSError, name: str) -> WorkdirIoError:
    if isinstance(error, WorkdirIoError):
        return error
    return WorkdirIoError(error.errno or errno.EIO, reason_of(error), name)

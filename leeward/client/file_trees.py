"""
Copies files and folders from the client's host into a live sandbox, and out of one, by generators as in file_calls.py.

Trust:     none in names, kinds and contents from the sandbox. On the host each name is one component, which
           `wire/file_answers.py` has checked, and is opened in its folder's descriptor without following a link. So
           nothing is written outside the folder that the caller named, even if another program changes it meanwhile;
           that folder itself is found through no other user's link (`host_paths`). A file is renamed when it is
           complete. A symbolic link is made only if it can't lead out of the folder; set-id bits are left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as kinds
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leeward.base.closing import OwnedFd
from leeward.base.dataclass import dataclass, field
from leeward.client.file_calls import Call, Path, Sink, fetch, page, raw, shown, write
from leeward.client.host_paths import end_sparse, is_folder, open_folder, write_sparse
from leeward.client.placing import put_link, temporary_name
from leeward.wire.file_answers import CHUNK

#: Bounds of a download or an export: bytes, unless the caller sets another limit, and entries.
MOST_BYTES, MOST_NAMES = 16 << 30, 1_000_000
#: The greatest depth of nested folders.
MOST_DEEP = 100

#: The reason in `Transfer.left_out` for each errno of an entry that its folder has just listed.
_VANISHED = {errno.ENOENT: "gone", errno.ENOTDIR: "changed", errno.EISDIR: "changed", errno.EINVAL: "changed",
             errno.ELOOP: "changed", errno.ENXIO: "changed"}

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(slots=True)
class Transfer:
    """
    The counts of a copy between a sandbox and the host: regular files, folders, symbolic links, and bytes of all files.

    Attributes:
        left_out: path and reason of each entry that wasn't copied. The reason is "special" for a FIFO, socket or
            device; "link" for a link that could lead out of the folder; "gone" for an entry that was removed meanwhile;
            "changed" for one that became something else, or a file that was cut while it was read; "name" for a name
            that leads out of the folder.
    """

    files: int = 0
    folders: int = 0
    links: int = 0
    size: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)


class Bounds:
    """The bytes and entries that may still be copied; counts down."""

    def __init__(self, limit: int) -> None:
        self.bytes, self.names = limit, MOST_NAMES

    def name(self, path: str) -> None:
        self.names -= 1
        if self.names < 0:
            raise OSError(errno.E2BIG, f"there are more than {MOST_NAMES} entries", path)


def stays_below(target: bytes, depth: int) -> bool:
    """
    Whether a link to *target* stays in a tree. The link is *depth* folders below the tree's top, and all other links in
    the tree have passed this check. `..` is allowed only at the beginning of *target*: there each one leads up from a
    folder that isn't a link.
    """
    parts = target.split(b"/")
    ups = 0
    while ups < len(parts) and parts[ups] in (b"..", b".", b""):
        ups += 1
    return (bool(target) and not target.startswith(b"/") and b".." not in parts[ups:] and b"\0" not in target
            and parts[:ups].count(b"..") <= depth)


def each_entry(path: bytes, done: Transfer, bounds: Bounds, depth: int,
               copy: Callable[[bytes, list[Any]], Call[None]]) -> Call[None]:
    """Copy each entry of the sandbox's folder *path* by its path and its row; one that has vanished is left out."""
    if depth > MOST_DEEP:
        raise OSError(errno.ELOOP, f"folders lie deeper than {MOST_DEEP}", shown(path))
    after, more = b"", True
    while more:
        rows, more = yield from page(path, after)
        for row in rows:
            after = row[0]
            below = os.path.join(path, after)
            bounds.name(shown(below))
            try:
                yield from copy(below, row)
            except OSError as error:
                why = _VANISHED.get(error.errno or 0)
                if why is None or error.filename != shown(below):
                    raise
                done.left_out.append((shown(below), why))


# --- to the host ------------------------------------------------------------------------


class HostFile(Sink):
    """A file that is written in the folder *folder*, a descriptor. It has a temporary name until `finish` renames it."""

    def __init__(self, folder: int, name: bytes) -> None:
        self._folder, self._name = folder, name
        self._beside = temporary_name()
        self._fd = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                           dir_fd=folder)
        self._head: Mapping[str, Any] = {}

    def begin(self, head: Mapping[str, Any], size: int) -> None:
        self._head = head

    def take(self, data: bytes) -> None:
        write_sparse(self._fd, data)

    def finish(self) -> None:
        end_sparse(self._fd)
        os.fchmod(self._fd, self._head["mode"] & 0o777)
        os.utime(self._fd, ns=(self._head["time"], self._head["time"]))
        os.rename(self._beside, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._beside = b""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self._beside:
            with contextlib.suppress(OSError):
                os.unlink(self._beside, dir_fd=self._folder)


def download(inside: Path, host: Path, *, limit: int = MOST_BYTES) -> Call[Transfer]:
    """Copy a file, or a folder with all that is in it, from the path *inside* of the sandbox to the path *host*."""
    path, target = raw(inside), raw(host).rstrip(b"/") or b"/"
    row = (yield "file_stat", {"path": path, "follow": True})["row"]
    done, bounds = Transfer(), Bounds(limit)
    above, name = os.path.split(target)
    if row[1] == "folder":
        with OwnedFd(open_folder(os.fsdecode(target), make=True)) as top:
            yield from _folder(path, top, row, done, bounds, 0)
        return done
    if row[1] != "file":
        raise OSError(errno.EINVAL, "not a regular file or folder", shown(path))
    if name in (b"", b".", b"..") or is_folder(os.fsdecode(target)):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), shown(target))
    with OwnedFd(open_folder(os.fsdecode(above), make=True)) as folder:
        yield from _file(path, folder, name, done, bounds)
    return done


def _folder(path: bytes, fd: int, row: list[Any], done: Transfer, bounds: Bounds, depth: int) -> Call[None]:
    """Copy all that is in the sandbox's folder *path* into the host's folder *fd*, a descriptor."""
    yield from each_entry(path, done, bounds, depth,
                          lambda below, each: _entry(below, fd, each, done, bounds, depth))
    done.folders += 1
    os.fchmod(fd, (row[2] & 0o777) | 0o700)  # so that the caller can enter and remove it
    os.utime(fd, ns=(row[4], row[4]))


def _entry(path: bytes, fd: int, row: list[Any], done: Transfer, bounds: Bounds, depth: int) -> Call[None]:
    """Copy one entry of a folder, *row*, at the sandbox's path *path*, into the host's folder *fd*."""
    name, kind, target = row[0], row[1], row[5]
    if kind == "link" and stays_below(target, depth):
        put_link(fd, temporary_name(), name, target, replaces=True)
        done.links += 1
    elif kind == "folder":
        with _made(fd, name) as inner:
            yield from _folder(path, inner, row, done, bounds, depth + 1)
    elif kind == "file":
        yield from _file(path, fd, name, done, bounds)
    else:
        done.left_out.append((shown(path), "link" if kind == "link" else "special"))


@contextlib.contextmanager
def _made(folder: int, name: bytes) -> Iterator[int]:
    """A descriptor of the subfolder *name* of *folder*; the subfolder is made if it doesn't exist."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    with OwnedFd(os.open(name, _FOLDER, dir_fd=folder)) as fd:
        yield fd


def _file(path: bytes, folder: int, name: bytes, done: Transfer, bounds: Bounds) -> Call[None]:
    file = HostFile(folder, name)
    try:
        size = yield from fetch(path, file, most=bounds.bytes)
        file.finish()
    finally:
        file.close()
    bounds.bytes -= size
    done.files += 1
    done.size += size


# --- from the host ------------------------------------------------------------------------


def upload(host: Path, inside: Path) -> Call[Transfer]:
    """Copy a file, or a folder with all that is in it, from the path *host* to the path *inside* of the sandbox."""
    source, target = raw(host), raw(inside)
    done = Transfer()
    there = os.stat(source)
    if kinds.S_ISDIR(there.st_mode):
        yield from _send_folder(source, os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), target, done, 0)
    elif kinds.S_ISREG(there.st_mode):
        yield from _send_file(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), target, done)
    else:
        raise OSError(errno.EINVAL, "not a regular file or folder", shown(source))
    return done


def _send_folder(path: bytes, fd: int, target: bytes, done: Transfer, depth: int) -> Call[None]:
    """Copy the host's folder *path* to the sandbox's path *target*, and count it in *done*. Closes *fd*, its descriptor."""
    with OwnedFd(fd):
        if depth > MOST_DEEP:
            raise OSError(errno.ELOOP, f"folders lie deeper than {MOST_DEEP}", shown(path))
        there = os.fstat(fd)
        yield "file_mkdir", {"path": target, "parents": True, "there": True}
        for name in sorted(map(os.fsencode, os.listdir(fd))):
            below, to = os.path.join(path, name), os.path.join(target, name)
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if kinds.S_ISLNK(found.st_mode):
                    yield "file_link", {"path": to, "to": os.readlink(name, dir_fd=fd)}
                    done.links += 1
                elif kinds.S_ISDIR(found.st_mode):
                    yield from _send_folder(below, os.open(name, _FOLDER, dir_fd=fd), to, done, depth + 1)
                elif kinds.S_ISREG(found.st_mode):
                    yield from _send_file(os.open(name, _FILE, dir_fd=fd), to, done)
                else:
                    done.left_out.append((shown(below), "special"))
            except FileNotFoundError as error:
                if error.filename != name:  # an error of the sandbox's file
                    raise
                done.left_out.append((shown(below), "gone"))
        yield "file_set", {"path": target, "mode": kinds.S_IMODE(there.st_mode) & 0o777,
                           "time": max(0, there.st_mtime_ns)}
        done.folders += 1


def _send_file(fd: int, target: bytes, done: Transfer) -> Call[None]:
    """Copy a file of the host to the sandbox's path *target*, and count it in *done*. Closes *fd*, a descriptor of it."""
    with open(fd, "rb", buffering=0) as file:
        there = os.fstat(fd)
        if not kinds.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        done.size += yield from write(target, Upto(file, there.st_size), mode=kinds.S_IMODE(there.st_mode) & 0o777,
                                      time=max(0, there.st_mtime_ns))
    done.files += 1


class Upto:
    """Reads *file* up to *size* bytes, which it had when it was opened. The rest of a file that grows is left out."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = CHUNK) -> bytes:
        data: bytes = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


"""
The files of one sandbox in another one: a porter gives all that is in the writable folders, and another makes it anew. Of an
overlay, and of the root of an image, that is the upper folder, whose marks of what is gone are obeyed in the other one's
overlay. What is mounted is left out, and has its place already in the other one.

Runs in:   the porters of both sandboxes, with a pipe between them, while processes of the first one run.
Trust:     none in the content. No link is followed, only regular files are opened, and a path never leads out of its
           folder. What is made has the room of the second sandbox, whose files it is.

The pipe carries rows, each with its length in front: a folder's number, a path below it, the kind of what is there, its
mode, its times, and more by its kind. A file's row is followed by its content without holes. The last row is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgpack

from leeward._native.beneath import open_beneath
from leeward.base.dataclass import dataclass
from leeward.crossing import walk
from leeward.crossing.overlay_states import attributes, dress, pieces, put, times_of
from leeward.crossing.walk import opened
from leeward.errors import LeewardError
from leeward.isolation import mounts
from leeward.spec.folders import within

_LENGTH = struct.Struct(">I")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
#: Bytes of a row, at most: a piece of a file, a path, and 64 KiB of attributes.
_MOST_ROW = 1 << 20
#: What was removed or replaced after it was listed.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

#: Of the names of an overlay's attributes, and of those that it has made of a program's with such names (Linux 6.7).
_MARKS = "user.overlay."
_KEPT = _MARKS + "overlay."

#: By device and inode, the folder's number and the path at which a file with several names was given first.
_Linked = dict[tuple[int, int], tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Top:
    """A folder that gets files: its path, and opened, if it gets any. It *merges* if it is an overlay."""

    path: str
    fd: int
    merges: bool = False


def give(folders: Sequence[int], into: int) -> None:
    """
    Write all that is in *folders*, in this order, to the pipe *into*, as far as it is read: who takes it says why not. One
    that is -1 has nothing.
    """
    linked: _Linked = {}
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(into), "wb", buffering=_MOST_ROW) as file:
        for number, top in enumerate(folders):
            for row in _rows(top, number, linked) if top >= 0 else ():
                _write(file, row)
        _write(file, None)


def _write(file: BinaryIO, row: list[Any] | None) -> None:
    data = msgpack.packb(row, unicode_errors="surrogateescape")  # an attribute's name may be no text
    file.write(_LENGTH.pack(len(data)) + data)


def _rows(top: int, number: int, linked: _Linked) -> Iterator[list[Any]]:
    todo, device = [b""], os.fstat(top).st_dev
    while todo:
        folder = todo.pop()
        try:
            fd = open_beneath(top, folder or b".", _FOLDER)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        with opened(fd):
            if not folder:
                about = os.fstat(fd)
                yield [number, b"", "folder", about.st_mode, [*times_of(about)], attributes(fd)]
            for name in map(os.fsencode, os.listdir(fd)):
                path = folder + b"/" + name if folder else name
                try:
                    about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if about.st_dev != device:
                        continue  # something is mounted there
                    if stat.S_ISDIR(about.st_mode):
                        todo.append(path)
                    yield from _given(top, fd, name, [number, path], about, linked)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
                except walk.Replaced:
                    continue


def _given(top: int, folder: int, name: bytes, place: list[Any], about: os.stat_result, linked: _Linked
           ) -> Iterator[list[Any]]:
    """The rows of one entry, whose path is in *place*."""
    number, path = place
    kind, mode, own = stat.S_IFMT(about.st_mode), about.st_mode, [*times_of(about)]
    file = about.st_dev, about.st_ino
    if kind == stat.S_IFCHR:  # a program can make none: the overlay has marked a lower name, and marks may be one inode
        yield [*place, "gone", 0, [], None]
        return
    if about.st_nlink > 1 and kind != stat.S_IFDIR and file in linked:
        yield [*place, "name", mode, own, [*linked[file]]]
        return
    if kind == stat.S_IFREG:
        with opened(walk.regular(top, path)) as fd:
            found = os.fstat(fd)
            yield [*place, "file", found.st_mode, [*times_of(found)], [found.st_size, attributes(fd)]]
            for at, data in pieces(fd, found.st_size):
                yield [*place, "data", 0, [], [at, data]]
    elif kind == stat.S_IFDIR:
        with opened(open_beneath(top, path, _FOLDER)) as fd:
            yield [*place, "folder", mode, own, attributes(fd)]
    elif kind == stat.S_IFLNK:
        yield [*place, "link", mode, own, os.readlink(name, dir_fd=folder)]
    elif kind in (stat.S_IFIFO, stat.S_IFSOCK):  # a program can make nothing else
        yield [*place, "special", mode, own, None]
    if about.st_nlink > 1 and kind != stat.S_IFDIR:
        linked[file] = number, path


def take(tops: Sequence[Top], source: int, mounted: Sequence[str] = ()) -> int:
    """
    Make in *tops*, which are closed then, what the pipe *source* gives: how many entries that were; LeewardError if it
    doesn't fit. In an overlay something is, which makes room. *mounted* are the paths of the sandbox's mounts.
    """
    made = _Made(tops, mounted)
    try:
        with os.fdopen(os.dup(source), "rb", buffering=_MOST_ROW) as file:
            while (row := _read(file)) is not None:
                made.add(row)
        made.finish()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LeewardError("its files don't fit into the writable folders of the copy") from None
        raise
    finally:
        made.close()
    return made.count


def _read(file: BinaryIO) -> list[Any] | None:
    head = file.read(_LENGTH.size)
    length, = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (_MOST_ROW + 1,)
    if length > _MOST_ROW or len(data := file.read(length)) < length:
        raise LeewardError("its files couldn't be read to their end")
    row: list[Any] | None = msgpack.unpackb(data, unicode_errors="surrogateescape")
    return row


def _without_marks(kind: str, more: Any) -> tuple[bool, Any]:
    """What a row has beside, without the overlay's attributes, and whether they say that a folder hides the lower one."""
    if kind not in ("file", "folder"):
        return False, more
    own = more[1] if kind == "file" else more
    kept = [(each.replace(_KEPT, _MARKS, 1), value) for each, value in own
            if each.startswith(_KEPT) or not each.startswith(_MARKS)]
    return (_MARKS + "opaque", b"y") in map(tuple, own), [more[0], kept] if kind == "file" else kept


def _is_folder(folder: int, name: bytes) -> bool | None:
    """Whether *name* in *folder* is one; None if it isn't there."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _remove_folder(top: int, path: bytes) -> None:
    """Remove a folder with all below, nested to any depth that paths have."""
    todo = [path]
    while todo:
        with opened(open_beneath(top, todo[-1], _FOLDER)) as fd:
            below = []
            for name in map(os.fsencode, os.listdir(fd)):
                if _is_folder(fd, name):
                    below.append(todo[-1] + b"/" + name)
                else:
                    os.unlink(name, dir_fd=fd)
        if below:
            todo += below
            continue
        above, name = os.path.split(todo.pop())
        with opened(open_beneath(top, above or b".", _FOLDER)) as fd:
            os.rmdir(name, dir_fd=fd)


class _Made:
    """What is made below *tops*; `finish` gives folders their modes and times."""

    def __init__(self, tops: Sequence[Top], mounted: Sequence[str]) -> None:
        self._tops, self._mounted = tops, mounted
        self._folders: list[tuple[int, bytes, int, tuple[int, int], list[tuple[str, bytes]]]] = []
        self._file = -1  # that gets its content
        self._dressing: tuple[int, tuple[int, int], list[tuple[str, bytes]]] = (0, (0, 0), [])
        self.count = 0

    def add(self, row: list[Any]) -> None:
        number, path, kind, mode, times, more = row
        if kind == "data":
            if self._file >= 0:
                put(self._file, *more)
            return
        self._end_file()
        top = self._tops[number]
        place = os.path.join(top.path, os.fsdecode(path))
        hides, more = _without_marks(kind, more) if top.merges else (False, more)
        if not path and kind == "folder":
            self._folders += [] if top.path == "/" else [(number, b".", mode, tuple(times), more)]
            return
        if any(within(place, mount) for mount in self._mounted if mount not in (place, top.path)):
            raise LeewardError(f"{place!r:.200} lies where a folder of the host is mounted in the copy")
        if place in self._mounted or (top.path == "/" and place[1:] in mounts.COVERED):
            return
        self.count += 1
        above, name = os.path.split(path)
        if name in (b"", b".", b".."):
            raise LeewardError("a file without a name")
        with opened(open_beneath(top.fd, above or b".", _FOLDER)) as folder:
            is_way = any(within(mount, place) for mount in self._mounted)
            there = _is_folder(folder, name) if top.merges or is_way else None
            if there and kind == "folder" and (is_way or not hides):
                self._folders.append((number, path, mode, tuple(times), more))
                return
            if there and top.merges:
                _remove_folder(top.fd, path)
            elif there is False and top.merges:
                os.unlink(name, dir_fd=folder)
            if kind == "gone":
                return
            if kind == "file":
                size, own = more
                self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                                     dir_fd=folder)
                self._dressing = mode, tuple(times), own
                os.ftruncate(self._file, size)
            elif kind == "folder":
                os.mkdir(name, 0o700, dir_fd=folder)
                self._folders.append((number, path, mode, tuple(times), more))
            elif kind == "name":
                first, earlier = more
                upper, last = os.path.split(earlier)
                with opened(open_beneath(self._tops[first].fd, upper or b".", _FOLDER)) as other:
                    os.link(last, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
            else:
                if kind == "link":
                    os.symlink(more, name, dir_fd=folder)
                else:
                    os.mknod(name, mode, dir_fd=folder)
                    os.chmod(name, stat.S_IMODE(mode), dir_fd=folder)
                os.utime(name, ns=tuple(times), dir_fd=folder, follow_symlinks=False)

    def _end_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with opened(file):
                dress(file, *self._dressing)

    def finish(self) -> None:
        """The innermost folders first: a new entry changes its folder's time."""
        self._end_file()
        for number, path, mode, times, own in reversed(self._folders):
            with opened(open_beneath(self._tops[number].fd, path, _FOLDER)) as fd:
                for name, _ in attributes(fd):
                    os.removexattr(fd, name)
                dress(fd, mode, times, own)

    def close(self) -> None:
        for fd in (self._file, *(top.fd for top in self._tops)):
            if fd >= 0:
                os.close(fd)

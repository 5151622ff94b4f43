"""
The files of one sandbox in another one: a porter gives all that is in the writable folders, and another makes it anew. In an
image that is the upper folder of its root, whose marks of what is gone are obeyed in the other one's root.

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
from leeward.crossing import walk
from leeward.crossing.overlay_states import attributes, dress, pieces, put, times_of
from leeward.crossing.walk import opened
from leeward.errors import LeewardError
from leeward.isolation import mounts

_LENGTH = struct.Struct(">I")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
#: Bytes of a row, at most: a piece of a file, a path, and 64 KiB of attributes.
_MOST_ROW = 1 << 20
#: What was removed or replaced after it was listed.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_COVERED = {os.fsencode(name) for name in mounts.COVERED}
#: Of the names of an overlay's attributes.
_MARKS = "user.overlay."

#: By inode, the folder's number and the path at which a file with several names was given first.
_Linked = dict[int, tuple[int, bytes]]


def give(folders: Sequence[int], into: int) -> None:
    """Write all that is in *folders*, in this order, to the pipe *into*, as far as it is read: who takes it says why not."""
    linked: _Linked = {}
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(into), "wb", buffering=_MOST_ROW) as file:
        for number, top in enumerate(folders):
            for row in _rows(top, number, linked):
                _write(file, row)
        _write(file, None)


def _write(file: BinaryIO, row: list[Any] | None) -> None:
    data = msgpack.packb(row)
    file.write(_LENGTH.pack(len(data)) + data)


def _rows(top: int, number: int, linked: _Linked) -> Iterator[list[Any]]:
    todo = [b""]
    while todo:
        folder = todo.pop()
        try:
            fd = open_beneath(top, folder or b".", _FOLDER)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        with opened(fd):
            for name in map(os.fsencode, os.listdir(fd)):
                path = folder + b"/" + name if folder else name
                try:
                    about = os.stat(name, dir_fd=fd, follow_symlinks=False)
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
    if kind == stat.S_IFCHR:  # a program can make none: the overlay has marked a lower name, and marks may be one inode
        yield [*place, "gone", 0, [], None]
        return
    if about.st_nlink > 1 and kind != stat.S_IFDIR and about.st_ino in linked:
        yield [*place, "name", mode, own, [*linked[about.st_ino]]]
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
        linked[about.st_ino] = number, path


def take(folders: Sequence[str], source: int, *, root: bool = False) -> int:
    """
    Make in *folders* what the pipe *source* gives: how many entries that were; LeewardError if it doesn't fit. *root*: the
    last one is an image's root, where something is, which makes room.
    """
    tops = [os.open(folder, _FOLDER | os.O_CLOEXEC) for folder in folders]
    made = _Made(tops, len(tops) - 1 if root else -1)
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
        for top in tops:
            os.close(top)
    return made.count


def _read(file: BinaryIO) -> list[Any] | None:
    head = file.read(_LENGTH.size)
    length, = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (_MOST_ROW + 1,)
    if length > _MOST_ROW or len(data := file.read(length)) < length:
        raise LeewardError("its files couldn't be read to their end")
    row: list[Any] | None = msgpack.unpackb(data)
    return row


def _without_marks(kind: str, more: Any) -> tuple[bool, Any]:
    """What a row has beside, without the overlay's attributes, and whether they say that a folder hides the lower one."""
    if kind not in ("file", "folder"):
        return False, more
    own = more[1] if kind == "file" else more
    kept = [(each, value) for each, value in own if not each.startswith(_MARKS)]
    return (_MARKS + "opaque", b"y") in map(tuple, own), [more[0], kept] if kind == "file" else kept


def _make_room(folder: int, name: bytes, *, stays: bool) -> bool:
    """Remove *name* in *folder*, with all below; returns whether it stays, since it is a folder."""
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
    if not is_folder:
        os.unlink(name, dir_fd=folder)
    elif not stays:
        with opened(open_beneath(folder, name, _FOLDER)) as inner:  # of an image: so many deep, and no more
            for each in map(os.fsencode, os.listdir(inner)):
                _make_room(inner, each, stays=False)
        os.rmdir(name, dir_fd=folder)
    return is_folder and stays


class _Made:
    """What is made below the folders *tops*, of which *root* is an image's; `finish` gives folders their modes and times."""

    def __init__(self, tops: Sequence[int], root: int) -> None:
        self._tops, self._root = tops, root
        self._folders: list[tuple[int, bytes, int, tuple[int, int], list[tuple[str, bytes]]]] = []
        self._file = -1  # that gets its content
        self._dressing: tuple[int, tuple[int, int], list[tuple[str, bytes]]] = (0, (0, 0), [])
        self.count = 0

    def add(self, row: list[Any]) -> None:
        number, path, kind, mode, times, more = row
        if kind == "data":
            at, data = more
            put(self._file, at, data)
            return
        self._end_file()
        if number == self._root and path in _COVERED:
            return
        self.count += 1
        above, name = os.path.split(path)
        if name in (b"", b".", b".."):
            raise LeewardError("a file without a name")
        with opened(open_beneath(self._tops[number], above or b".", _FOLDER)) as folder:
            if number == self._root:
                hides, more = _without_marks(kind, more)
                if _make_room(folder, name, stays=kind == "folder" and not hides):
                    self._folders.append((number, path, mode, tuple(times), more))
                    return
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
                with opened(open_beneath(self._tops[first], upper or b".", _FOLDER)) as other:
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
            with opened(open_beneath(self._tops[number], path, _FOLDER)) as fd:
                dress(fd, mode, times, own)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

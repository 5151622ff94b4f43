"""
Kept states of an overlay: copies of its upper folder, and restoring one.

Runs in:   the porter. A copy is made while the sandbox's processes run; a state is restored while there are none.
Trust:     none in the content of the upper folder. No link is followed, only regular files are opened, and the size of
           a copy is bounded. The copies lie beside the folder on the scratch file system, where no process of the
           sandbox can reach them.
Source:    the kernel's overlayfs document: a layer isn't changed below a mounted overlay

Whiteouts, marks of opaque folders and all other user attributes, holes and hard links are preserved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence, Set

from leeward._native.beneath import open_beneath
from leeward.crossing import layers, walk
from leeward.crossing.walk import opened
from leeward.errors import LeewardError, reason_of

#: Entries of one copy.
MOST_ENTRIES = walk.MOST_ROWS
#: Names on the scratch file system: a copy of an overlay, a copy that is being made, and what is being removed.
_KEPT, _NEXT, _TRASH = "kept.{}", "next.{}", "trash.{}"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_CHUNK = 1 << 18


Number = int | str  # of an overlay, by which its layers are named


class Lost(Exception):
    """The overlay couldn't be mounted again. The sandbox can't go on."""


class Room:
    """
    Counts the bytes that may still be written to the file system *scratch*, which may hold *most*; or, *weighed*, to the
    folder *scratch* of a disk. OSError if that can't be.
    """

    def __init__(self, scratch: int, most: int, *, weighed: bool = False) -> None:
        about = os.fstatvfs(scratch)
        self._left = most - (walk.weight(scratch) if weighed else (about.f_blocks - about.f_bfree) * about.f_frsize)
        self._entries = 0

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _no_room()

    def entry(self) -> None:
        self._entries += 1
        self.take(1024)  # about the cost of an inode, so that empty files count, too
        if self._entries > MOST_ENTRIES:
            raise LeewardError(f"more has changed than {MOST_ENTRIES} entries")


def keep(scratch: int, number: Number, name: str, room: Room) -> None:
    """
    Copy the upper folder of the overlay *number* as *name*, in place of a copy of that name, if there is *room*.
    LeewardError, OSError if it doesn't fit, or can't be copied: nothing is changed.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(_KEPT.format(number), 0o700, dir_fd=scratch)
    with opened(layers.upper(scratch, number)) as upper:
        following = _copied(scratch, upper, number, room)
    place = f"{_KEPT.format(number)}/{name}"
    _throw_away(scratch, number, place)
    os.rename(following, place, src_dir_fd=scratch, dst_dir_fd=scratch)
    empty(scratch, number)


def copy_of(scratch: int, number: Number, name: str, room: Room) -> str:
    """Copy the state *name*. Returns the copy's name on the scratch file system."""
    with opened(os.open(f"{_KEPT.format(number)}/{name}", _FOLDER, dir_fd=scratch)) as source:
        return _copied(scratch, source, number, room)


def copy_without(scratch: int, number: Number, paths: Sequence[bytes], room: Room) -> str:
    """As `copy_of`, of what the upper folder has now, but for *paths*; of nothing in it if there are none."""
    with opened(layers.upper(scratch, number)) as upper:
        for path in paths:
            _check_there(upper, path)
        with opened(open_beneath(upper, b".", _FOLDER)) as fd:
            return _copied(scratch, upper, number, room, {*(paths or map(os.fsencode, os.listdir(fd)))})


def _copied(scratch: int, source: int, number: Number, room: Room, without: Set[bytes] = frozenset()) -> str:
    """Copy *source* but for the paths *without*. Returns the copy's name."""
    following = _NEXT.format(number)
    empty(scratch, number, following)
    os.mkdir(following, 0o700, dir_fd=scratch)
    try:
        with opened(os.open(following, _FOLDER, dir_fd=scratch)) as into:
            copy(source, into, room, without)
    except BaseException as error:
        empty(scratch, number, following)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # for instance, no inode is left
            raise _no_room() from None
        raise
    return following


def copy(source: int, into: int, room: Room, without: Set[bytes]) -> None:
    """Copy all in the folder *source* but the paths *without*, and its own attributes, to the empty folder *into*."""
    todo, folders, linked = [b"."], [], dict[int, bytes]()
    while todo:
        path = todo.pop()
        try:
            fd = open_beneath(source, path, _FOLDER)
        except FileNotFoundError:
            if path == b".":
                raise
            continue  # the folder was removed meanwhile
        with opened(fd):
            if path != b".":
                os.mkdir(path, 0o700, dir_fd=into)
            folders.append((path, os.fstat(fd), attributes(fd)))
            for name in map(os.fsencode, os.listdir(fd)):
                inner = name if path == b"." else path + b"/" + name
                if inner in without:
                    continue
                try:
                    about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    room.entry()
                    if stat.S_ISDIR(about.st_mode):
                        todo.append(inner)
                    elif about.st_nlink > 1 and about.st_ino in linked:
                        os.link(linked[about.st_ino], inner, src_dir_fd=into, dst_dir_fd=into, follow_symlinks=False)
                    else:
                        _copy_one(source, fd, name, inner, about, into, room)
                        linked.update({about.st_ino: inner} if about.st_nlink > 1 else {})
                except FileNotFoundError:
                    continue
    for path, about, own in reversed(folders):  # the innermost first: a new entry changes its folder's mtime
        with opened(os.open(path, _FOLDER | os.O_CLOEXEC, dir_fd=into)) as fd:
            dress(fd, about.st_mode, times_of(about), own)


def _copy_one(source: int, folder: int, name: bytes, path: bytes, about: os.stat_result, into: int,
              room: Room) -> None:
    mode = about.st_mode
    if stat.S_ISREG(mode):
        with opened(walk.regular(source, path)) as fd:
            out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=into)
            with opened(out):
                _copy_content(fd, out, room)
                found = os.fstat(fd)
                dress(out, found.st_mode, times_of(found), attributes(fd))
    elif stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=folder), path, dir_fd=into)
    else:  # of devices only a whiteout may be made; a FIFO or a socket has no content
        os.mknod(path, mode, about.st_rdev if stat.S_ISCHR(mode) else 0, dir_fd=into)
        if not stat.S_ISCHR(mode):
            os.chmod(path, stat.S_IMODE(mode), dir_fd=into)
    if not stat.S_ISREG(mode):
        os.utime(path, ns=times_of(about), dir_fd=into, follow_symlinks=False)


def _copy_content(fd: int, out: int, room: Room) -> None:
    size = os.fstat(fd).st_size
    os.ftruncate(out, size)
    for at, data in pieces(fd, size):
        room.take(-(-len(data) // 4096) * 4096)
        put(out, at, data)


def pieces(fd: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The content of a file below *size*, without its holes: pieces of at most 256 KiB, each with its place."""
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # the rest of the file is a hole
            raise
        data = os.pread(fd, min(_CHUNK, os.lseek(fd, at, os.SEEK_HOLE) - at, size - at), at)
        if not data:
            break
        yield at, data
        at += len(data)


def put(fd: int, at: int, data: bytes) -> None:
    """Write all of *data* at *at*."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)


def attributes(fd: int) -> list[tuple[str, bytes]]:
    return [(name, os.getxattr(fd, name)) for name in os.listxattr(fd) if name.startswith("user.")]


def dress(fd: int, mode: int, times: tuple[int, int], own: Sequence[tuple[str, bytes]]) -> None:
    """Give a file or folder its mode, its times of access and change in nanoseconds, and its own attributes."""
    for name, value in own:
        os.setxattr(fd, name, value)
    os.fchmod(fd, stat.S_IMODE(mode))
    os.utime(fd, ns=times)


def times_of(about: os.stat_result) -> tuple[int, int]:
    """The times of access and change in nanoseconds, as far as a copy's row holds them."""
    accessed, changed = (max(-walk.MOST_NS, min(time, walk.MOST_NS)) for time in (about.st_atime_ns, about.st_mtime_ns))
    return accessed, changed


def _throw_away(scratch: int, number: Number, path: str | bytes) -> None:
    """Move *path* to the folder that `empty` empties."""
    trash = _TRASH.format(number)
    with contextlib.suppress(FileExistsError):
        os.mkdir(trash, 0o700, dir_fd=scratch)
    with contextlib.suppress(FileNotFoundError), opened(os.open(trash, _FOLDER, dir_fd=scratch)) as fd:
        os.rename(path, f"r{len(os.listdir(fd))}", src_dir_fd=scratch, dst_dir_fd=fd)


def empty(scratch: int, number: Number, *paths: str | bytes) -> None:
    """Remove *paths*, and all that `_throw_away` has moved, nested to any depth: an inner folder is moved up first."""
    for path in paths:
        _throw_away(scratch, number, path)
    try:
        trash = os.open(_TRASH.format(number), _FOLDER, dir_fd=scratch)
    except FileNotFoundError:
        return
    with opened(trash):
        moved = 0
        while names := os.listdir(trash):
            for name in names:
                about = os.stat(name, dir_fd=trash, follow_symlinks=False)
                if not stat.S_ISDIR(about.st_mode):
                    os.unlink(name, dir_fd=trash)
                    continue
                with opened(os.open(name, _FOLDER, dir_fd=trash)) as folder:
                    for inner in map(os.fsencode, os.listdir(folder)):
                        if stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                            moved += 1
                            os.rename(inner, f"m{moved}", src_dir_fd=folder, dst_dir_fd=trash)
                        else:
                            os.unlink(inner, dir_fd=folder)
                os.rmdir(name, dir_fd=trash)


def restore(scratch: int, number: Number, target: str, name: str, most: int) -> None:
    """Mount the overlay with a copy of the state *name* as upper folder; LeewardError, OSError, or Lost."""
    following = copy_of(scratch, number, name, Room(scratch, most))
    place = layers.UPPER.format(number)
    if not layers.uncover(target):
        empty(scratch, number, following)
        raise used()
    try:
        _throw_away(scratch, number, place)
        os.rename(following, place, src_dir_fd=scratch, dst_dir_fd=scratch)
        _cover(scratch, number, target)
    except Exception as error:
        raise Lost(str(error)) from None
    empty(scratch, number)


def discard(scratch: int, number: Number, target: str, paths: Sequence[bytes]) -> None:
    """Remove *paths*, or everything if there are none, from the upper folder; raises as `restore`."""
    with opened(layers.upper(scratch, number)) as upper:
        for path in paths:
            _check_there(upper, path)
        if not layers.uncover(target):
            raise used()
        try:
            with opened(open_beneath(upper, b".", _FOLDER)) as fd:
                for path in paths or map(os.fsencode, os.listdir(fd)):
                    # The path's folders were checked, and no process can change them now.
                    _throw_away(scratch, number, os.fsencode(layers.UPPER.format(number)) + b"/" + path)
            _cover(scratch, number, target)
        except Exception as error:
            raise Lost(str(error)) from None
    empty(scratch, number)


def _check_there(upper: int, path: bytes) -> None:
    folder, name = os.path.split(path)
    try:
        with opened(open_beneath(upper, folder or b".", _FOLDER)) as fd:
            os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        raise LeewardError(f"{os.fsdecode(path)!r:.120} has gone with a folder that held it: discard that"
                           f" ({reason_of(error)})") from None


def _cover(scratch: int, number: Number, target: str) -> None:
    with opened(os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as lower:
        layers.cover(scratch, lower, number, target)


def _no_room() -> LeewardError:
    return LeewardError("the copy doesn't fit: what the sandbox has written, and all copies of it, may have half of its"
                        " memory, and no more files than its writable folders hold")


def used() -> LeewardError:
    return LeewardError("a process of the sandbox is in the overlay, or has a file of it open")

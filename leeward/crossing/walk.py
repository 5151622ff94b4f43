"""
Finds what a sandbox has changed in an overlay, by a walk of the upper folder, and reads a file there.

Runs in:   the porter, while the sandbox's processes run.
Trust:     none in the content. No link is followed, only regular files are opened, names are bytes. The size of the
           report is bounded, and the daemon bounds the time.
Source:    the kernel's overlayfs document: whiteouts, opaque folders, user.overlay.*
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from leeward._native.beneath import open_beneath
from leeward.errors import LeewardError
from leeward.spec.folders import HOLES, NAME

#: Seconds of a walk after which files are reported without a hash; less than the daemon gives it.
HASH_S = 40.0
#: Rows, and bytes of them, at most.
MOST_ROWS, MOST_BYTES = 100_000, 48 << 20
#: Bytes of a file that one order reads.
PIECE = 16 << 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_OPAQUE = "user.overlay.opaque"
_CHUNK = 1 << 18
#: A time beyond it, which a program may give to a file, is told as this: MessagePack has no larger number.
MOST_NS = 2**63 - 1


class Replaced(LeewardError):
    """What was a regular file isn't one any more, or is another one."""


@contextlib.contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close *fd* after the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def rows(upper: int, into: int) -> int:
    """
    Write a row for each entry of *upper* to the file *into*: path, kind ("file", "folder", "link", "gone", "special"),
    mode, size, allocated bytes, mtime in ns, SHA-256 or None, a link's text, and whether a folder hides the lower one.
    A file with large holes has no hash, and no file has one after HASH_S. Returns the number of rows.
    """
    count = size = 0
    todo, until = [b""], time.monotonic() + HASH_S
    with os.fdopen(os.dup(into), "wb") as file:
        while todo:
            folder = todo.pop()
            try:
                fd = open_beneath(upper, folder or b".", _FOLDER)
            except OSError:
                continue  # the folder was removed meanwhile
            with opened(fd):
                for name in sorted(map(os.fsencode, os.listdir(fd))):
                    path = folder + b"/" + name if folder else name
                    row = _row(upper, fd, name, path, until)
                    if row is None:
                        continue
                    if row[1] == "folder":
                        todo.append(path)
                    packed = msgpack.packb(row)
                    count, size = count + 1, size + len(packed)
                    if count > MOST_ROWS or size > MOST_BYTES:
                        raise LeewardError(f"more has changed than {MOST_ROWS} entries, or {MOST_BYTES} bytes of them")
                    file.write(packed)
        file.write(msgpack.packb(None))  # marks the end, so that the reader notices lost rows
    return count


def _row(upper: int, folder: int, name: bytes, path: bytes, until: float) -> list[Any] | None:
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = about.st_mode
        kind, digest, text, hides = "special", None, b"", False
        if stat.S_ISREG(mode):
            kind = "file"
            digest = _digest(upper, path, about, until)
        elif stat.S_ISDIR(mode):
            kind, hides = "folder", _hides(upper, path)
        elif stat.S_ISLNK(mode):
            kind, text = "link", os.readlink(name, dir_fd=folder)
        elif stat.S_ISCHR(mode) and about.st_rdev == 0:
            kind = "gone"
    except OSError:
        return None  # the entry was removed meanwhile
    return [path, kind, stat.S_IMODE(mode), about.st_size, about.st_blocks * 512,
            min(max(0, about.st_mtime_ns), MOST_NS), digest, text, hides]


def _hides(upper: int, path: bytes) -> bool:
    with opened(open_beneath(upper, path, _FOLDER)) as fd:
        try:
            return os.getxattr(fd, _OPAQUE) == b"y"
        except OSError:
            return False


def weight(upper: int) -> int:
    """
    The bytes of *upper*, NAME for each name among them. OSError if something can't be counted, as below paths that are too
    long: where it would be uncounted, a sandbox could hide what it writes.
    """
    # A path in each entry of *todo* would take eight times as much memory as the sandbox may write.
    todo, total, seen = [(b".", b".")], 0, set[tuple[int, int]]()
    while todo:
        folder = b"/".join(todo.pop())
        try:
            fd = open_beneath(upper, folder, _FOLDER)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            continue  # it, or a folder above it, was removed or replaced meanwhile, perhaps by a link
        with opened(fd), os.scandir(fd) as entries:
            for entry in entries:
                try:
                    about = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                total += NAME
                if about.st_nlink == 1 or (about.st_dev, about.st_ino) not in seen:
                    total += about.st_blocks * 512
                if stat.S_ISDIR(about.st_mode):
                    todo.append((folder, os.fsencode(entry.name)))
                elif about.st_nlink > 1:
                    seen.add((about.st_dev, about.st_ino))
    return total


def regular(upper: int, path: bytes) -> int:
    """Open a regular file for reading; Replaced if it isn't one. Its type is checked before it is opened."""
    with opened(open_beneath(upper, path, os.O_PATH | os.O_NOFOLLOW)) as look:
        about = os.fstat(look)
    if not stat.S_ISREG(about.st_mode):
        raise Replaced(f"{os.fsdecode(path)!r:.80} isn't a file any more")
    fd = open_beneath(upper, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (about.st_dev, about.st_ino):
        os.close(fd)
        raise Replaced(f"{os.fsdecode(path)!r:.80} was replaced meanwhile")
    return fd


def _digest(upper: int, path: bytes, about: os.stat_result, until: float) -> bytes | None:
    if about.st_size > about.st_blocks * 512 + HOLES:
        return None
    found = hashlib.sha256()
    with opened(regular(upper, path)) as fd:
        left = about.st_size + 1  # bounded, because a file may grow while it is read
        while left > 0 and time.monotonic() < until and (data := os.read(fd, min(_CHUNK, left))):
            found.update(data)
            left -= len(data)
    return found.digest() if time.monotonic() < until else None


def piece(upper: int, path: bytes, offset: int, into: int) -> int:
    """Write at most PIECE bytes of the file *path*, from *offset* on, to the file *into*. Returns the number of bytes."""
    done = 0
    with opened(regular(upper, path)) as fd:
        while done < PIECE and (data := os.pread(fd, min(_CHUNK, PIECE - done), offset + done)):
            os.write(into, data)
            done += len(data)
    return done


def whole_files(upper: int, paths: Iterable[bytes], into: int) -> int:
    """Write the files *paths*, each as MessagePack, to the file *into*: as many as PIECE bytes hold; returns the number."""
    count, left = 0, PIECE
    for path in paths:
        data = bytearray()
        with opened(regular(upper, path)) as fd:
            while len(data) <= left and (more := os.read(fd, min(_CHUNK, left + 1 - len(data)))):
                data += more
        if len(data) > left:
            break
        os.write(into, msgpack.packb(data))
        count, left = count + 1, left - len(data)
    return count

"""
Lists folders; makes, moves, copies and removes files and folders. Paths are bytes.

A folder may have any number of entries, and get more while it is read: only a bounded number of them is kept at once,
and no link to a folder is followed on the way down.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from leeward.inside.file_content import FileWriting, dropped_on_error, failed, opened
from leeward.wire.file_answers import CHUNK, MAX_PATH, MAX_ROW_BYTES, MAX_ROWS

#: Entries that one call reads, at most.
MOST_ENTRIES = 1_000_000
#: Folders within a folder that are remembered at once while that folder is removed.
_MOST_KEPT = 4096

#: The size of a row without its texts, in bytes, roughly.
_ROW = 40

Row = list[Any]


def row_of(name: bytes, path: bytes, there: os.stat_result) -> Row:
    mode, target = there.st_mode, b""
    if stat.S_ISLNK(mode):
        target = os.readlink(path)[:MAX_PATH]
    kind = ("link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode)
            else "other")
    return [name, kind, stat.S_IMODE(mode), there.st_size, max(0, there.st_mtime_ns), target]


def describe(path: bytes, follow: bool) -> dict[str, Any]:
    return {"row": row_of(path, path, os.stat(path, follow_symlinks=follow))}


def page(path: bytes, after: bytes) -> dict[str, Any]:
    """Rows of the names behind *after*, in order, as many as an answer can hold; and whether more exist."""
    first: list[bytes] = []
    cut = False
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name > after:
                first.append(entry.name)
                if len(first) > 4 * MAX_ROWS:
                    first = sorted(first)[:MAX_ROWS]
                    cut = True
    first.sort()
    rows: list[Row] = []
    size = 0
    for number, name in enumerate(first):
        if number >= MAX_ROWS or size >= MAX_ROW_BYTES:
            return {"rows": rows, "more": True}
        below = os.path.join(path, name)
        try:
            row = row_of(name, below, os.lstat(below))
        except FileNotFoundError:
            continue  # the entry was removed meanwhile
        rows.append(row)
        size += _ROW + len(name) + len(row[5])
    return {"rows": rows, "more": cut and bool(rows)}


def walk(path: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Each entry below the folder *path*, with its relative path. A folder that vanishes or can't be read counts as empty."""
    count = 0
    todo = [b""]
    while todo:
        folder = todo.pop()
        try:
            entries = os.scandir(os.path.join(path, folder) if folder else path)
        except OSError:
            if not folder:
                raise
            continue
        with entries:
            for entry in entries:
                count += 1
                if count > MOST_ENTRIES:
                    raise failed(errno.E2BIG, f"more than {MOST_ENTRIES} entries")
                name = os.path.join(folder, entry.name) if folder else entry.name
                yield name, entry
                if entry.is_dir(follow_symlinks=False):
                    todo.append(name)


def snapshot(path: bytes) -> dict[str, Any]:
    """Rows of everything below *path*; OSError with E2BIG if an answer can't hold them all."""
    rows: list[Row] = []
    size = 0
    for name, entry in walk(path):
        try:
            row = row_of(name, entry.path, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            continue
        rows.append(row)
        size += _ROW + len(name) + len(row[5])
        if len(rows) > MAX_ROWS or size > MAX_ROW_BYTES or len(name) > MAX_PATH:
            raise failed(errno.E2BIG, f"there is more below it than can be watched: {MAX_ROWS} names, {MAX_ROW_BYTES}"
                                      " bytes of them")
    rows.sort(key=lambda row: bytes(row[0]))
    return {"rows": rows}


def make(path: bytes, parents: bool, there: bool) -> dict[str, Any]:
    if parents:
        os.makedirs(path, exist_ok=there)
        return {}
    try:
        os.mkdir(path)
    except FileExistsError:
        if not (there and os.path.isdir(path)):
            raise
    return {}


def set_attributes(path: bytes, mode: int, time: int) -> dict[str, Any]:
    """Set mode and modification time of a file or folder, but not of a link, FIFO or device."""
    there = os.lstat(path)
    if not (stat.S_ISREG(there.st_mode) or stat.S_ISDIR(there.st_mode)):
        raise failed(errno.EINVAL, "not a regular file or folder")
    if mode >= 0:
        os.chmod(path, mode & 0o777)
    if time >= 0:
        os.utime(path, ns=(time, time), follow_symlinks=False)
    return {}


def link(path: bytes, to: bytes) -> dict[str, Any]:
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise failed(errno.EISDIR)
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.symlink(to, path)
    return {}


def move(path: bytes, to: bytes) -> dict[str, Any]:
    os.lstat(path)  # raises before folders are made for the target
    os.makedirs(os.path.dirname(to.rstrip(b"/")) or b".", exist_ok=True)
    try:
        os.rename(path, to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy(path, to, follow=False)
        remove(path, recursive=True, missing=True)
    return {}


def copy(path: bytes, to: bytes, follow: bool = True) -> dict[str, Any]:
    """Copy a file with its mode and time, or a folder with its content. EINVAL for anything else, also in the folder."""
    there = os.stat(path, follow_symlinks=follow)
    if stat.S_ISLNK(there.st_mode):
        return link(to, os.readlink(path))
    if not stat.S_ISDIR(there.st_mode):
        _copy_file(path, to)
        return {}
    if os.path.join(os.path.realpath(to), b"").startswith(os.path.join(os.path.realpath(path), b"")):
        raise failed(errno.EINVAL, "a folder can't be copied into itself")
    os.makedirs(to, exist_ok=True)
    times = [(to, there)]
    for name, entry in walk(path):
        target = os.path.join(to, name)
        if entry.is_symlink():
            link(target, os.readlink(entry.path))
        elif entry.is_dir(follow_symlinks=False):
            os.makedirs(target, exist_ok=True)
            times.append((target, entry.stat(follow_symlinks=False)))
        else:
            _copy_file(entry.path, target)
    for folder, was in reversed(times):
        set_attributes(folder, stat.S_IMODE(was.st_mode), max(0, was.st_mtime_ns))
    return {}


def _copy_file(path: bytes, to: bytes) -> None:
    fd, there = opened(path)
    try:
        one = FileWriting(to, mode=stat.S_IMODE(there.st_mode), time=max(0, there.st_mtime_ns))
        with dropped_on_error(one):
            while one.size < there.st_size and (data := os.read(fd, min(CHUNK, there.st_size - one.size))):
                one.put(one.size, data)
        one.finish()
    finally:
        os.close(fd)


def remove(path: bytes, recursive: bool, missing: bool) -> dict[str, Any]:
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        if missing:
            return {}
        raise
    if not stat.S_ISDIR(there.st_mode):
        os.unlink(path)
    elif recursive:
        _remove_all(path)
    else:
        os.rmdir(path)
    return {}


def _remove_all(path: bytes) -> None:
    todo = [path]
    while todo:
        below = _emptied(todo[-1])
        todo += below
        if not below:
            _gone(todo.pop())


def _emptied(folder: bytes) -> list[bytes]:
    """Remove non-folders from *folder*. Returns the folders in it, at most _MOST_KEPT."""
    below: list[bytes] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
                if len(below) >= _MOST_KEPT:
                    break
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
    return below


def _gone(folder: bytes) -> None:
    while True:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            for below in _emptied(folder):
                _remove_all(below)
        else:
            return

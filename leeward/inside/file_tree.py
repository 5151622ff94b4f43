"""
Lists folders; makes, moves, copies and removes files and folders; searches names and lines. Paths are bytes.

A folder may have any number of entries, and get more while it is read: only a bounded number of them is kept at once,
and no link to a folder is followed on the way down.

Patterns come from the client: a search may take for ever; the call's time limit ends it.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leeward.inside.file_content import FileWriting, failed, opened, time_of
from leeward.wire.file_answers import CHUNK, MAX_LINE, MAX_PATH, MAX_ROW_BYTES, MAX_ROWS

#: Entries that one call reads, at most.
MOST_ENTRIES = 1_000_000
#: Folders within a folder that are remembered at once while that folder is removed.
_MOST_KEPT = 4096

#: The size of a row without its texts, in bytes, roughly.
_ROW = 40

#: Bytes of a line that are searched, at most; the rest of a longer line isn't.
MOST_LINE = 1 << 20
#: Bytes at the start of a file: if there is a NUL among them, the file isn't text.
_LOOKED_AT = 8192
#: Places that are remembered, so that two `**` of a pattern find each name once.
_MOST_SEEN = 200_000

Row = list[Any]


def row_of(name: bytes, path: bytes, there: os.stat_result) -> Row:
    mode, target = there.st_mode, b""
    if stat.S_ISLNK(mode):
        target = os.readlink(path)[:MAX_PATH]
    kind = ("link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode)
            else "other")
    return [name, kind, stat.S_IMODE(mode), there.st_size, time_of(there), target]


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
        set_attributes(folder, stat.S_IMODE(was.st_mode), time_of(was))
    return {}


def _copy_file(path: bytes, to: bytes) -> None:
    fd, there = opened(path)
    try:
        one = FileWriting(to, mode=stat.S_IMODE(there.st_mode), time=time_of(there), long=there.st_size > CHUNK)
        with one:
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


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _is_magic(part: bytes) -> bool:
    return any(letter in part for letter in b"*?[")


def matcher(part: bytes) -> Callable[[bytes], bool]:
    """A test of names against one component of a pattern. A leading dot has to be in both."""
    expression = re.compile(fnmatch.translate(_text(part)))
    hidden = part.startswith(b".")
    return lambda name: (hidden or not name.startswith(b".")) and expression.match(_text(name)) is not None


def names(path: bytes, pattern: bytes, most: int) -> dict[str, Any]:
    """The paths that a recursive `glob.glob` returns, sorted; and whether there are more."""
    if b"\0" in pattern or not pattern.strip(b"/"):
        raise ValueError("the pattern is empty, or has a NUL")
    base = b"/" if pattern.startswith(b"/") else path
    parts = [part for part in pattern.split(b"/") if part not in (b"", b".")]
    found: list[bytes] = []
    size, more = 0, False
    for name in _expand(base, parts):
        if len(found) >= most or size > MAX_ROW_BYTES:
            more = True
            break
        shown = name[2:] if base == b"." and name.startswith(b"./") else name
        if 0 < len(shown) <= MAX_PATH:
            found.append(shown)
            size += len(shown) + 5
    return {"names": sorted(found), "more": more}


def _expand(base: bytes, parts: list[bytes]) -> Iterator[bytes]:
    match = [matcher(part) if _is_magic(part) and part != b"**" else None for part in parts]
    seen: set[tuple[bytes, int]] = set()
    several = parts.count(b"**") > 1
    todo, count = [(base, 0)], 0
    while todo:
        path, at = todo.pop()
        count += 1
        if count > MOST_ENTRIES:
            raise failed(errno.E2BIG, f"the pattern leads to more than {MOST_ENTRIES} places")
        if several:
            if (path, at) in seen:
                continue
            if len(seen) >= _MOST_SEEN:
                raise failed(errno.E2BIG, "the pattern leads to too many places")
            seen.add((path, at))
        if at == len(parts):
            yield path
            continue
        part, last = parts[at], at + 1 == len(parts)
        if part == b"**":
            if not last:
                todo.append((path, at + 1))
            for entry in _entries(path):
                if not entry.name.startswith(b"."):
                    if last:
                        yield entry.path
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, at))
            continue
        one = match[at]
        if one is None:
            below = os.path.join(path, part)
            if os.path.lexists(below):
                todo.append((below, at + 1))
            continue
        todo += [(entry.path, at + 1) for entry in _entries(path) if one(entry.name) and (last or entry.is_dir())]


def _entries(path: bytes) -> Iterator[os.DirEntry[bytes]]:
    try:
        entries = os.scandir(path)
    except OSError:
        return
    with entries:
        for count, entry in enumerate(entries):
            if count > MOST_ENTRIES:
                raise failed(errno.E2BIG, f"a folder has more than {MOST_ENTRIES} entries")
            yield entry


def lines(call: Mapping[str, Any]) -> dict[str, Any]:
    """Lines that match the pattern: path, number and text; and whether there are more."""
    pattern = re.escape(call["pattern"]) if call["literal"] else call["pattern"]
    search = re.compile(pattern, re.IGNORECASE if call["ignore_case"] else 0).search
    included = matcher(call["include"]) if call["include"] else None
    rows: list[list[Any]] = []
    size = 0
    for name in _files(call["path"]):
        if len(name) > MAX_PATH or (included is not None and not included(os.path.basename(name))):
            continue
        try:
            for number, line in _lines_of(name):
                if search(line) is None:
                    continue
                if len(rows) >= call["most"] or size > MAX_ROW_BYTES:
                    return {"rows": rows, "more": True}
                rows.append([name, number, line[:MAX_LINE]])
                size += len(name) + min(len(line), MAX_LINE) + 10
        except TimeoutError:
            raise
        except OSError:
            continue  # the file is gone, can't be read, or is no file any more
    return {"rows": rows, "more": False}


def _files(path: bytes) -> Iterator[bytes]:
    if not os.path.isdir(path):
        os.close(opened(path)[0])  # an error is the call's answer
        yield path
        return
    for name, entry in walk(path):
        if entry.is_file(follow_symlinks=False):
            yield name if path == b"." else os.path.join(path, name)


def _lines_of(path: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines of a file that is text, with their numbers and without their ends."""
    fd, there = opened(path)
    try:
        left = max(there.st_size, CHUNK)
        number, rest, skips = 0, b"", False
        while left > 0 and (chunk := os.read(fd, min(CHUNK, left))):
            if left >= there.st_size and b"\0" in chunk[:_LOOKED_AT] and not number and not rest:
                return
            left -= len(chunk)
            *whole, tail = chunk.split(b"\n")
            for line in whole:
                number += 1
                if not skips:
                    yield number, rest + line
                rest, skips = b"", False
            if not skips:
                rest += tail
                if len(rest) > MOST_LINE:  # only the beginning of the line is reported
                    yield number + 1, rest[:MOST_LINE]
                    rest, skips = b"", True
        if rest:
            yield number + 1, rest
    finally:
        os.close(fd)

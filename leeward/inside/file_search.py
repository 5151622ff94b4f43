"""
Finds names that match a pattern, and lines that match a regular expression.

Patterns come from the client: a search may take for ever; the call's time limit ends it.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leeward.inside.file_content import failed, opened
from leeward.inside.file_tree import MOST_ENTRIES, walk
from leeward.wire.file_answers import CHUNK, MAX_LINE, MAX_PATH, MAX_ROW_BYTES

#: Bytes of a line that are searched, at most; the rest of a longer line isn't.
MOST_LINE = 1 << 20
#: Bytes at the start of a file: if there is a NUL among them, the file isn't text.
_LOOKED_AT = 8192
#: Places that are remembered, so that two `**` of a pattern find each name once.
_MOST_SEEN = 200_000


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

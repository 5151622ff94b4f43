"""
The files of a job: writes them to /workspace before it runs, returns those of its `collect`, and lists what that left out.
The daemon checks all of it again.

A pattern without wildcards names a file, or a folder with everything in it. A pattern with wildcards works as in
glob.glob, `**` included: it matches files, and no name that begins with a dot unless the pattern has that dot. With a
slash at its end it matches folders with everything in them.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from leeward.base.points import point
from leeward.wire import job_frames as wire
from leeward.wire.patterns import WORKSPACE as WORKSPACE
from leeward.wire.patterns import alternatives

#: Bytes that `collect` returns at most; the daemon enforces its own bound.
MAX_BYTES = 256 << 20

#: A name below /workspace; and "" for a regular file, else the outcome.LeftOutReason for which it isn't returned.
Entry = tuple[str, str]


class Wanted(NamedTuple):
    patterns: Sequence[str] = ()
    most: int = wire.MAX_FILES


NOTHING = Wanted()


def wanted(fields: Mapping[str, Any]) -> Wanted:
    return Wanted(fields["collect"], fields["most_files"])


@point("files.lay")
def lay(files: Mapping[str, bytes], below: str = "") -> None:
    """Write *files* below the folder *below*, or the current one, which is /workspace before the first job."""
    for name, content in files.items():
        name = os.path.join(below, name)
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def give_stdin(content: bytes) -> None:
    """Make *content* the standard input; it is /dev/null if *content* is empty."""
    if not content:
        return
    read, write = os.pipe()
    if len(content) <= 65536:  # the size of a new pipe; os.write below must not block
        os.set_blocking(write, False)
        try:
            if len(content) == os.write(write, content):
                os.dup2(read, 0)
                return
        except BlockingIOError:
            pass  # the user has too many pipes, so this one is smaller: use a file
        finally:
            os.close(read)
            os.close(write)
    else:
        os.close(read)
        os.close(write)
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


@point("files.collect")
def collect(patterns: Sequence[str], most: int = wire.MAX_FILES,
            top: str = WORKSPACE) -> tuple[dict[str, bytes], list[tuple[str, str]], bool]:
    """
    The regular files below *top* that match, at most *most*, by name; the names left out, with reasons; and whether the
    file system is full. The sum of bytes is bounded by its size, since sparse files may claim any.
    """
    if not patterns:
        return {}, [], _full(top)
    haul = Haul(top, most)
    for pattern in patterns:
        found = [haul.bring(part) for part in alternatives(pattern)]
        if True not in found:
            haul.leave_out(pattern, "no_match")
    return haul.found, haul.left_out(), _full(top)


class Haul:
    """The files found so far: contents, by name."""

    def __init__(self, top: str, most: int) -> None:
        self._top, self._most = top, most
        space = os.statvfs(top)
        self._left = min(MAX_BYTES, space.f_blocks * space.f_frsize)
        self._entries: list[Entry] | None = None
        self.found: dict[str, bytes] = {}
        self._out: dict[str, str] = {}
        self._more = False

    def bring(self, pattern: str) -> bool:
        """Add the files of *pattern*. Returns whether any exist."""
        if pattern == ".":
            for name, why in self._all():
                if why != "folder":
                    self._take(name, why)
            return True
        folders = pattern.endswith("/")
        if not glob.has_magic(pattern):
            return self._named(pattern.rstrip("/"), folders)
        matched = False
        for name, why in matching(pattern.rstrip("/"), self._all(), folders):
            matched = True
            self._take(name, why)
        return matched

    def _named(self, name: str, folder: bool) -> bool:
        path = os.path.join(self._top, name)
        if not os.path.lexists(path):
            return False
        if path != os.path.realpath(path):
            self._take(name, "link")  # the content would be that of another file
        elif os.path.isdir(path):
            for below, why in self._all():
                if below.startswith(name + "/") and why != "folder":
                    self._take(below, why)
                elif below == name and why != "folder":
                    self._take(name, why)
        elif folder:
            return False
        else:
            self._take(name, "")
        return True

    def _all(self) -> list[Entry]:
        if self._entries is None:
            self._entries = walk(self._top)
        return self._entries

    def _take(self, name: str, why: str) -> None:
        if name in self.found or self._more:
            return
        if not why and not wire.is_plain_name(name):
            why = "name"
        if not why and len(self.found) >= self._most:
            why = "too_many"
        content = why or _regular(os.path.join(self._top, name), self._left)
        if isinstance(content, bytes):
            self.found[name] = content
            self._left -= len(content)
        else:
            self.leave_out(name, content)

    def leave_out(self, name: str, why: str) -> None:
        if len(self._out) < wire.MAX_LEFT_OUT:
            self._out.setdefault(name, why)
        else:
            self._more = self._more or name not in self._out

    def left_out(self) -> list[tuple[str, str]]:
        """The names left out, in printable form, except those that another pattern has found."""
        brought = set(self.found)
        for name in self.found:
            while "/" in name:
                name = name.rpartition("/")[0]
                brought.add(name)
        shown = [(wire.shown_name(name), why) for name, why in self._out.items() if name not in brought]
        return [*shown, ("", "more")] if self._more else shown


def walk(top: str) -> list[Entry]:
    """
    All that is below *top*, in order. No link is followed. Not glob.glob, which recurses: a job that nests a thousand
    folders would exceed the recursion limit. Folders that are deeper than a name may be aren't searched.
    """
    entries: dict[str, str] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            inside = list(os.scandir(os.path.join(top, folder)))
        except OSError:  # no right to read the folder
            entries[folder[:-1]] = "unreadable"
            continue
        for entry in inside:
            name = folder + entry.name
            if entry.is_symlink():
                entries[name] = "link"
            elif entry.is_file(follow_symlinks=False):
                entries[name] = ""
            elif not entry.is_dir(follow_symlinks=False):
                entries[name] = "special"
            elif name.count("/") + 1 < wire.MAX_DEPTH:
                entries[name] = "folder"
                folders.append(name + "/")
            else:
                entries[name] = "name"
    return sorted(entries.items())


def matching(pattern: str, entries: Sequence[Entry], folders: bool = False) -> Iterator[Entry]:
    """
    Those of *entries* that *pattern*, which has wildcards, matches, as glob.glob(pattern, recursive=True) would, or in
    *folders* that it matches; and those to leave out, with reasons.
    """
    wanted = pattern.split("/")
    deep = "**" in wanted
    if wanted[-1] == "**":
        wanted.append("*")  # at the end, ** matches the content of a folder and not the folder
    for name, why in entries:
        parts = name.split("/")
        if folders:
            if why != "folder" and any(_matches(parts[:end], wanted, False) for end in range(1, len(parts))):
                yield name, why
        elif _matches(parts, wanted, False):
            if not (why == "folder" and deep):  # the content of the folder has entries of its own
                yield name, why
        elif (name.startswith(".") or "/." in name) and _matches(parts, wanted, True):
            dot = next(place for place, part in enumerate(parts) if part.startswith("."))
            yield "/".join(parts[:dot + 1]), "hidden"


def _matches(parts: Sequence[str], wanted: Sequence[str], hidden: bool) -> bool:
    places = _past_stars({0}, wanted)  # indexes of *wanted* that may match next
    for part in parts:
        places = _past_stars({place + (wanted[place] != "**") for place in places
                              if place < len(wanted) and _fits(part, wanted[place], hidden)}, wanted)
    return len(wanted) in places


def _past_stars(places: set[int], wanted: Sequence[str]) -> set[int]:
    """Skip `**`, which may match nothing."""
    for place, each in enumerate(wanted):
        if each == "**" and place in places:
            places.add(place + 1)
    return places


def _fits(part: str, wanted: str, hidden: bool) -> bool:
    if part.startswith(".") and not (hidden or wanted.startswith(".")):
        return False
    return wanted == "**" or fnmatch.fnmatchcase(part, wanted)


def _regular(path: str, most: int) -> bytes | str:
    """The content of a regular file; for anything else, and a link, the reason."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone, unreadable, not a file, or no descriptor is left
        return "unreadable"
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > most:
        os.close(fd)
        return "too_large" if stat.S_ISREG(seen.st_mode) else "special"
    with open(fd, "rb") as file:  # only now, because `open` raises for a folder
        return file.read(most)


def _full(top: str) -> bool:
    space = os.statvfs(top)
    return space.f_bavail == 0 or space.f_favail == 0

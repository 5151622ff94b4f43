"""
Files into /workspace before the job, and out of it after.

Runs in:   the job's process, after the last lock: what goes wrong here goes wrong
           inside. The daemon checks names before, and names and sizes again after.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Mapping, Sequence

from leeward.wire import job as wire

WORKSPACE = "/workspace"

#: Bytes that `collect` brings back at most; the daemon has its own bound.
MAX_BYTES = 256 << 20


def lay(files: Mapping[str, bytes], below: str = "") -> None:
    """
    Write *files* below the folder *below*, or the current one, which is /workspace before the first job.
    """
    for name, content in files.items():
        name = os.path.join(below, name)
        if "/" in name:
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)


def give_stdin(content: bytes) -> None:
    """
    Make *content* what descriptor 0 reads; it is /dev/null where there is none.
    """
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
            pass  # the user's pipes are full already, so this one is smaller: a file, then
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


def collect(patterns: Sequence[str]) -> tuple[dict[str, bytes], bool]:
    """
    Regular files below /workspace that match, by name; and whether the file system is full.

    No more bytes than the file system holds: the size of a file that is all holes says nothing.
    """
    if not patterns:
        return {}, _full()
    found: dict[str, bytes] = {}
    space = os.statvfs(WORKSPACE)
    left = min(MAX_BYTES, space.f_blocks * space.f_frsize)
    names = walk(WORKSPACE) if any(map(glob.has_magic, patterns)) else []
    for pattern in patterns:
        for name in matching(pattern, names):
            path = os.path.join(WORKSPACE, name)
            if name in found or not wire.is_plain_name(name) or path != os.path.realpath(path):
                continue  # by a link, it would be another file's content under this name
            if len(found) >= wire.MAX_FILES:
                return found, _full()
            content = _regular(name, left)
            if content is not None:
                found[name] = content
                left -= len(content)
    return found, _full()


def walk(top: str) -> list[str]:
    """
    The names of all regular files below *top*, in order. No link is followed.

    glob.glob would do, but for a job that lays a folder into a folder a thousand times: it recurses
    until the interpreter gives up. What is deeper than a name may be is not looked at.
    """
    names: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(top, folder)))
        except OSError:  # no right to read it
            continue
        for entry in entries:
            name = folder + entry.name
            if entry.is_file(follow_symlinks=False):
                names.append(name)
            elif name.count("/") + 1 < wire.MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                folders.append(name + "/")
    return sorted(names)


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """
    Those of *names* that glob.glob(pattern, recursive=True) would find.
    """
    if not glob.has_magic(pattern):
        return [pattern]
    wanted = pattern.split("/")
    if "**" == wanted[-1]:
        wanted.append("*")  # at the end it stands for what is in a folder, not for the folder
    return [name for name in names if _matches(name.split("/"), wanted)]


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    places = _past_stars({0}, wanted)  # in *wanted*, that the parts so far may have led to
    for part in parts:
        places = _past_stars({place + ("**" != wanted[place]) for place in places
                              if place < len(wanted) and _fits(part, wanted[place])}, wanted)
    return len(wanted) in places


def _past_stars(places: set[int], wanted: Sequence[str]) -> set[int]:
    """
    ** also stands for no folder at all.
    """
    for place, each in enumerate(wanted):
        if "**" == each and place in places:
            places.add(place + 1)
    return places


def _fits(part: str, wanted: str) -> bool:
    if part.startswith(".") and not wanted.startswith("."):
        return False
    return "**" == wanted or fnmatch.fnmatchcase(part, wanted)


def _regular(name: str, most: int) -> bytes | None:
    """
    The content of a regular file, never through a link as last component; None for anything else.
    """
    try:
        fd = os.open(os.path.join(WORKSPACE, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not there, not to be read, not a file, or the job left no descriptor
        return None
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > most:
        os.close(fd)
        return None
    with open(fd, "rb") as file:  # not earlier: it raises for a folder
        return file.read(most)


def _full() -> bool:
    space = os.statvfs(WORKSPACE)
    return 0 == space.f_bavail or 0 == space.f_favail

"""
Which files of a project git shows anyway: those that its index has with their present content.

The file `.git/index` is read as bytes; no git runs, and no configuration counts.
Trust:     none in the index. A file counts if the hash of its content is that of its entry, whatever times or sizes the
           entry has, so an index that lies has to name the content's hash.
In doubt:  a file doesn't count: `.git` is a file or a link, as in a worktree or a submodule, or the index is too large,
           of an unknown version, split, or damaged.
Leaves:    an agent that guesses the whole content of a hidden file and writes its hash into the index sees at the next
           start whether it was right.
Source:    gitformat-index(5)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator

#: Bytes of an index, and of a file that is compared, at most.
MAX_INDEX, MAX_TRACKED = 64 << 20, 4 << 20

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

#: The bytes of an entry before its hash: times, device, inode, mode, owner, size. The mode's place in them.
_STAT, _MODE = 40, 24
_EXTENDED, _STAGE = 0x4000, 0x3000


def tracked_unchanged(project: int, paths: Iterable[str]) -> frozenset[str]:
    """Those of *paths* in the open folder *project* that are regular files with the content that git's index has."""
    wanted = {os.fsencode(path): path for path in paths}
    if not wanted:
        return frozenset()
    try:
        kind, found = blobs(_content(project, ".git/index", MAX_INDEX), wanted)
        return frozenset(wanted[name] for name, blob in found.items() if blob == _blob(project, wanted[name], kind))
    except (OSError, ValueError, struct.error, IndexError):
        return frozenset()


def blobs(index: bytes, wanted: Iterable[bytes]) -> tuple[str, dict[bytes, bytes]]:
    """
    The name of *index*'s hash function, and the hashes of the regular files *wanted*, without those of merges.

    Raises ValueError, struct.error or IndexError if *index* can't be read.
    """
    wanted, found = frozenset(wanted), dict[bytes, bytes]()
    kind = "sha256" if hashlib.sha256(index[:-32]).digest() == index[-32:] else "sha1"
    for name, mode, flags, blob in _entries(index, hashlib.new(kind, usedforsecurity=False).digest_size):
        if name in wanted:
            if name in found:
                raise ValueError("one name twice")
            if stat.S_ISREG(mode) and not flags & _STAGE:
                found[name] = blob
    return kind, found


def _entries(index: bytes, size: int) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Name, mode, flags and hash of each entry; hashes have *size* bytes."""
    signature, version, count = struct.unpack_from("!4sII", index)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("no index that is known")
    at, name = 12, b""
    for _ in range(count):
        begin, (mode,) = at, struct.unpack_from("!I", index, at + _MODE)
        blob = index[at + _STAT:at + _STAT + size]
        (flags,) = struct.unpack_from("!H", index, at + _STAT + size)
        at += _STAT + size + (4 if flags & _EXTENDED else 2)
        if version == 4:  # of the name before, all but so many bytes at its end are the same
            left, at = _number(index, at)
            if left > len(name):
                raise ValueError("a name that begins with more than there is")
            name = name[:len(name) - left]
        else:
            name = b""
        end = index.index(b"\0", at)
        name += index[at:end]
        at = end + 1 if version == 4 else begin + (end - begin + 8) // 8 * 8
        yield name, mode, flags, blob


def _number(index: bytes, at: int) -> tuple[int, int]:
    """A number of variable length at *at*, as in packs' offsets, and where it ends."""
    value = index[at] & 0x7f
    while index[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (index[at] & 0x7f)
    return value, at + 1


def _blob(project: int, path: str, kind: str) -> bytes | None:
    """The hash that git has for the content of *path*; None if it can't be read."""
    with contextlib.suppress(OSError, ValueError):
        content = _content(project, path, MAX_TRACKED)
        return hashlib.new(kind, b"blob %d\0" % len(content) + content, usedforsecurity=False).digest()
    return None


def _content(project: int, path: str, most: int) -> bytes:
    """The content of a regular file of *most* bytes below *project*, through no link; else OSError or ValueError."""
    *folders, name = path.split("/")
    above = os.open(".", _FOLDER, dir_fd=project)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=above)
            os.close(above)
            above = below
        file = os.open(name, _FILE, dir_fd=above)
    finally:
        os.close(above)
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("no regular file")
        content = opened.read(most + 1)
    if len(content) > most:
        raise ValueError("a file that is too large")
    return content

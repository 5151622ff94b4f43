"""
A snapshot in a file: a line, a head, the bytes, and a hash of all that.

Trust: a file may be anybody's: its head is decoded within bounds, and the daemon checks what the head says. The bytes go to a
process behind every lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from leeward.errors import PeerError, SnapshotFailed
from leeward.wire.frames import pack, unpack
from leeward.wire.sandbox_fields import MAX_FACTS, MAX_WRITE

_FIRST = b"leeward snapshot 1\n"
_LENGTH = struct.Struct(">I")
_MOST_HEAD, _MOST_VALUES = MAX_FACTS + (64 << 10), 4096
_KINDS = {"key": (dict,), "sizes": (list,), "facts": (bytes,), "made": (float, int)}


#: Bytes of the hash at a file's end.
DIGEST_SIZE = hashlib.sha256().digest_size
#: What the name of a file begins with that is being written.
WRITTEN = ".leeward-snapshot-"


def told_of(facts: bytes) -> dict[str, Any]:
    """The `python`, `packages` and `lost` of a file's facts; SnapshotFailed if they aren't that."""
    try:
        found = unpack(facts, _MOST_VALUES, _MOST_VALUES)
    except PeerError:
        found = None
    if not isinstance(found, dict) or {"python": str, "packages": dict, "lost": list} != {
            name: type(value) for name, value in found.items()}:
        raise SnapshotFailed("what the file tells of its snapshot can't be read")
    return found


def facts_of(python: str, packages: Mapping[str, str], lost: list[str]) -> bytes:
    """What `snapshot_import` is told of a snapshot."""
    return pack({"python": python, "packages": packages, "lost": lost})


@contextlib.contextmanager
def snapshot_written(path: str | os.PathLike[str], head: Mapping[str, Any]) -> Iterator[Callable[[bytes], None]]:
    """
    Write *path* anew, for its user alone: in this context, by the function that it gives. The file is there when the context
    ends without an exception.
    """
    packed, found = pack(head), hashlib.sha256()
    fd, name = tempfile.mkstemp(dir=os.path.dirname(os.fspath(path)) or ".", prefix=WRITTEN)  # 0600
    try:
        with open(fd, "wb") as file:
            def write(data: bytes) -> None:
                found.update(data)
                file.write(data)

            write(_FIRST + _LENGTH.pack(len(packed)) + packed)
            yield write
            file.write(found.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


class SnapshotReader:
    """Reads the snapshot in *file*: its `head`, and then `pieces`. SnapshotFailed if it holds none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()
        begun = self._read(len(_FIRST) + _LENGTH.size)
        if not begun.startswith(_FIRST):
            raise SnapshotFailed("this file holds no snapshot of leeward's")
        length, = _LENGTH.unpack(begun[len(_FIRST):])
        if length > _MOST_HEAD:
            raise SnapshotFailed("the file's head is too large")
        try:
            self.head: dict[str, Any] = unpack(self._read(length), _MOST_VALUES, _MOST_VALUES)
        except PeerError:
            raise SnapshotFailed("the file's head can't be read") from None
        if not isinstance(self.head, dict) or self.head.keys() != _KINDS.keys() or any(
                type(self.head[name]) not in kinds for name, kinds in _KINDS.items()) or any(
                type(each) is not int for each in self.head["sizes"]):
            raise SnapshotFailed("the file's head isn't that of a snapshot")

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise SnapshotFailed("the file ends too early")
        self._hash.update(data)
        return data

    def pieces(self) -> Iterator[bytes]:
        """The bytes, piece by piece; SnapshotFailed if they aren't those that were written, before the last piece."""
        left = sum(self.head["sizes"])
        while left > 0:
            data = self._read(min(left, MAX_WRITE))
            left -= len(data)
            if left <= 0 and self._file.read(DIGEST_SIZE + 1) != self._hash.digest():
                raise SnapshotFailed("the file was damaged: its hash is another one")
            yield data

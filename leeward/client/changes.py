"""
Lists what a sandbox has changed in its copy of a folder of the host.

Trust:     none in the bytes from the daemon and the sandbox: names, modes, links and content are hostile. Everything is
           opened beneath the folder; no link is followed, there or on the path to it.

A path of the host counts as changed meanwhile when its ctime is not before the sandbox's opening. A ctime can be set
back only by setting the system's clock back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgpack import Unpacker

from leeward._native.beneath import open_beneath
from leeward.base.dataclass import dataclass
from leeward.client.host_paths import PLACE
from leeward.errors import BadReply, RequestRejected, Stale, reason_of
from leeward.spec.folders import FILE_CLOCK

#: Files above this many bytes are called large.
LARGE = 50 << 20
CHUNK = 1 << 18
_LOOK = PLACE | os.O_NOFOLLOW
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
#: Errors of a path that counts as absent. ENAMETOOLONG is the error of a path that can only be made folder by folder.
_NOT_SEEN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.ENAMETOOLONG)
#: Seconds to wait at most until the clock of file systems advances. It takes longer only if the clock was set back.
_TICKS_S = 0.05
_KINDS = ("file", "folder", "link", "gone", "special")


@contextlib.contextmanager
def beneath(folder: int, path: bytes | str, flags: int = FOLDER) -> Iterator[int]:
    """A context with a descriptor of *path* in the folder *folder*, "" for itself, opened as `open_beneath` does."""
    fd = open_beneath(folder, os.fsencode(path) or b".", flags)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class FolderChange:
    """
    One path that differs from the host's folder.

    Attributes:
        path: relative to the folder, as os.fsdecode returns it.
        kind: "created", "modified", "deleted", or "mode" if only the mode differs.
        type: "file", "folder", "link", or "special" for a FIFO, socket or device. A deleted path has its former type.
        mode: permission bits in the sandbox.
        size: bytes.
        sha256: of a file's content, in hexadecimal; None for a file that wasn't compared (`is_compared`) and other
            types.
        large: whether this is a file above 50 MiB.
        link: the text of a link.
        allocated: bytes that a file occupies on the disk.
    """

    path: str
    kind: str
    type: str
    mode: int = 0
    size: int = 0
    sha256: str | None = None
    large: bool = False
    link: str | None = None
    allocated: int = 0

    @property
    def is_compared(self) -> bool:
        """False for a file without a hash: with large holes, not read for lack of time, or with `compare` above 50 MiB."""
        return self.sha256 is not None or not self.writes_content

    @property
    def writes_content(self) -> bool:
        """Whether it is about a file's content."""
        return self.type == "file" and self.kind in ("created", "modified")


#: The result of `Sandbox.diff`, sorted by path.
Changes = list[FolderChange]


@dataclass(frozen=True, slots=True)
class UpperRow:
    """A row of the list of the overlay's upper layer, which crossing/walk.py writes."""

    path: bytes
    type: str
    mode: int
    size: int
    allocated: int
    mtime: int
    digest: bytes | None
    link: bytes
    hides: bool


def entries(data: bytes | memoryview) -> list[UpperRow]:
    """The rows in a memory file; BadReply if it isn't a valid list of them."""
    try:
        *rows, end = Unpacker(_Bytes(data), raw=False, strict_map_key=True)
        if end is not None:
            raise ValueError("its end is missing")
        found = [UpperRow(*row) for row in rows]
    except Exception as error:  # a decoder may raise any exception for malformed bytes
        raise BadReply(f"the list of changes can't be read: {error!s:.80}") from None
    for one in found:
        if type(one.path) is not bytes or any(part in (b"", b".", b"..") for part in one.path.split(b"/")) \
                or b"\0" in one.path or one.type not in _KINDS or type(one.link) is not bytes \
                or any(type(number) is not int for number in (one.mode, one.size, one.allocated, one.mtime)) \
                or not (one.digest is None or (type(one.digest) is bytes and len(one.digest) == 32)):
            raise BadReply("the list of changes can't be read: a row isn't valid")
    return found


def next_tick() -> None:
    """
    Wait until the clock of file systems, which advances in ticks, has passed the present time, so that all that was
    written before this call has an older ctime than all that is written after it. Takes some milliseconds.

    It isn't enough to wait for the next tick: a ctime may be finer than that clock (multigrain timestamps, Linux 6.13).
    """
    before, end = time.time_ns(), time.monotonic() + _TICKS_S
    while time.clock_gettime_ns(FILE_CLOCK) <= before and time.monotonic() < end:
        time.sleep(0.0005)


class _Bytes:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0

    def read(self, size: int) -> bytes:
        piece = bytes(self._data[self._at:self._at + size])
        self._at += len(piece)
        return piece


def type_of(mode: int) -> str:
    for test, name in ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link")):
        if test(mode):
            return name
    return "special"


def digest_of(fd: int) -> bytes:
    """SHA-256 of a file's content, from the descriptor's offset on."""
    found = hashlib.sha256()
    while data := os.read(fd, CHUNK):
        found.update(data)
    return found.digest()


class LowerFolder(Protocol):
    """What lies below an overlay: a folder of the host, or an image's layers."""

    def look(self, path: bytes) -> os.stat_result | None: ...

    def link(self, path: bytes) -> bytes: ...

    def digest(self, path: bytes) -> bytes | None: ...

    def below(self, path: bytes) -> list[bytes]: ...


class HostFolder:
    """The folder of the host below an overlay, by the daemon's row of the mount. Stale if another one is at that path now."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.row = row
        path, self.since = row["path"], row["since"]
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Stale(f"{path!r}: {reason_of(error)}", path) from None
        about = os.fstat(self.fd)
        if (about.st_dev, about.st_ino) != (row["device"], row["inode"]):
            os.close(self.fd)
            raise Stale(f"{path!r} is another folder than the one that the sandbox was opened with", path)

    def close(self) -> None:
        os.close(self.fd)

    def look(self, path: bytes) -> os.stat_result | None:
        """The stat of *path*; None if it doesn't exist, or if a part of the path is a link or another mount."""
        try:
            with beneath(self.fd, path, _LOOK) as fd:
                return os.fstat(fd)
        except OSError as error:
            if error.errno in _NOT_SEEN:
                return None
            raise

    def digest(self, path: bytes) -> bytes | None:
        """SHA-256 of a file's content; None if it can't be read."""
        try:
            with beneath(self.fd, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd:
                return digest_of(fd)
        except OSError:
            return None

    def content(self, path: bytes, most: int) -> bytes:
        """The content of a file; RequestRejected if it has more than *most* bytes or isn't one. OSError if it isn't read."""
        with beneath(self.fd, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd, open(fd, "rb", closefd=False) as file:
            content = file.read(most + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        if content is None or len(content) > most:
            raise RequestRejected(f"{path!r:.120} is no file, or has more than {most} bytes")
        return content

    def link(self, path: bytes) -> bytes:
        parent, name = os.path.split(path)
        with beneath(self.fd, parent) as fd:
            return os.readlink(name, dir_fd=fd)

    def below(self, path: bytes) -> list[bytes]:
        """Everything in the folder *path*, at any depth."""
        found, todo = [], [path]
        while todo:
            folder = todo.pop()
            try:
                with beneath(self.fd, folder) as fd, os.scandir(fd) as entries:
                    listed = [(folder + b"/" + os.fsencode(entry.name), entry.is_dir(follow_symlinks=False))
                              for entry in entries]
            except OSError:
                continue
            found += [inner for inner, _ in listed]
            todo += [inner for inner, is_folder in listed if is_folder]
        return found


def changes(rows: Sequence[UpperRow], host: LowerFolder) -> list[FolderChange]:
    """How *rows* differ from *host*, sorted by path."""
    here = {row.path for row in rows}
    found: dict[bytes, FolderChange] = {}

    for row in rows:
        about = host.look(row.path)
        lost = [row.path] if row.type == "gone" else []
        if about is not None and stat.S_ISDIR(about.st_mode) and (row.hides or row.type != "folder"):
            lost += host.below(row.path)
        for path in lost:
            was = host.look(path)
            if was is not None and (path == row.path or path not in here):
                found[path] = FolderChange(os.fsdecode(path), "deleted", type_of(was.st_mode),
                                           stat.S_IMODE(was.st_mode), was.st_size)
        kind = "" if row.type == "gone" else _kind(row, about, host)
        if kind:
            found[row.path] = FolderChange(
                os.fsdecode(row.path), kind, row.type, row.mode, row.size,
                None if row.digest is None else row.digest.hex(), row.type == "file" and row.size > LARGE,
                os.fsdecode(row.link) if row.type == "link" else None, row.allocated)
    return [found[path] for path in sorted(found)]


def _kind(row: UpperRow, about: os.stat_result | None, host: LowerFolder) -> str:
    """The kind of change of a path; "" if nothing differs."""
    if about is None:
        return "created"
    if type_of(about.st_mode) != row.type or row.type == "special":
        return "modified"
    if row.type == "link":
        return "" if host.link(row.path) == row.link else "modified"
    if row.type == "file" and (row.digest is None or about.st_size != row.size
                               or host.digest(row.path) != row.digest):
        return "modified"
    return "" if stat.S_IMODE(about.st_mode) == row.mode else "mode"

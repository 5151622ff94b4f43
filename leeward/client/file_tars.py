"""
Writes tar archives of files in a live sandbox, and unpacks archives into one, as a stream, member by member.

An archive is made by the client and not inside the sandbox: it has only names that `wire/file_answers.py` has checked,
so unpacking it writes nothing outside the target folder. When an archive is read, names that lead out of the folder are
left out; links are kept, and are followed only inside the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Mapping
from decimal import Decimal
from typing import IO, Any, BinaryIO

from leeward.base.closing import OwnedFd
from leeward.client.file_calls import Call, Path, Sink, fetch, raw, shown, write
from leeward.client.file_trees import MOST_BYTES, Bounds, Transfer, each_entry, stays_below
from leeward.client.host_paths import end_sparse, open_folder, write_sparse
from leeward.client.placing import temporary_name
from leeward.wire.file_answers import CHUNK, MAX_PATH, MAX_TIME

_BLOCK = tarfile.BLOCKSIZE
#: Bytes of the blocks of most file systems.
_GRAIN = 4096
_NS = 1_000_000_000
#: The last second whose nanoseconds since the epoch fit into 63 bits.
_MOST_S = MAX_TIME // _NS - 1


class TarFile(Sink):
    """One file as a member of an archive."""

    def __init__(self, out: IO[bytes], name: bytes) -> None:
        self._out, self._name = out, name
        self.size = 0

    def begin(self, head: Mapping[str, Any], size: int) -> None:
        self.size = size
        self._out.write(_header(self._name, tarfile.REGTYPE, head["mode"], head["time"], size=size))

    def take(self, data: bytes) -> None:
        self._out.write(data)

    def finish(self, got: int) -> None:
        """Pad the member with NULs to its size, if only *got* bytes came, and to a whole block."""
        missing = self.size - got + -self.size % _BLOCK
        while missing > 0:
            missing -= self._out.write(bytes(min(missing, 1 << 20)))


def _header(name: bytes, kind: bytes, mode: int, time: int, *, size: int = 0, target: bytes = b"") -> bytes:
    info = tarfile.TarInfo(shown(name))
    info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode & 0o777, time // _NS, size, shown(target)
    if time % _NS:
        info.pax_headers = {"mtime": f"{time // _NS}.{time % _NS:09}"}  # text, since a float has too few digits
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def export_tar(inside: Path, target: BinaryIO | Path, *, limit: int = MOST_BYTES) -> Call[Transfer]:
    """Write a tar archive of a file, or of a folder with all that is in it; the ending of a path may compress it."""
    if hasattr(target, "write"):
        return (yield from _export(raw(inside), target, limit))
    above, name = os.path.split(raw(target))
    beside = temporary_name()
    with OwnedFd(open_folder(os.fsdecode(above))) as folder:
        made = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666,
                       dir_fd=folder)
        try:
            with open(made, "wb", buffering=0) as file, _packed(file, name) as out:
                done = yield from _export(raw(inside), out, limit)
                if isinstance(out, _SparseFile):
                    out.end()
            os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=folder)
            raise
    return done


class _SparseFile:
    """An archive of the host, which keeps the holes of the files in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._held = file, bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) > CHUNK:
            self._pass_on(len(self._held) // _GRAIN * _GRAIN)
        return len(data)

    def end(self) -> None:
        self._pass_on(len(self._held))
        end_sparse(self._file.fileno())

    def _pass_on(self, size: int) -> None:
        # At multiples of the block, so that a hole isn't filled by the head that precedes a file.
        write_sparse(self._file.fileno(), bytes(self._held[:size]))
        del self._held[:size]


def _packed(file: IO[bytes], name: bytes) -> Any:
    """A context with a file that writes to *file*, and compresses if *name* ends in .gz, .tgz, .xz or .txz."""
    if name.endswith((b".gz", b".tgz")):
        import gzip  # 0.3 ms, and not every Python has it

        return gzip.open(file, "wb")
    if name.endswith((b".xz", b".txz")):
        import lzma  # not every Python has it

        return lzma.open(file, "wb")
    return contextlib.nullcontext(_SparseFile(file))


def _export(path: bytes, out: Any, limit: int) -> Call[Transfer]:
    done, bounds = Transfer(), Bounds(limit)
    row = (yield "file_stat", {"path": path, "follow": True})["row"]
    if row[1] == "folder":
        yield from _members(path, b"", out, done, bounds, 0)
        done.folders += 1
    else:
        yield from _member(path, [os.path.basename(path), *row[1:]], out, done, bounds, b"", 0)
    out.write(bytes(2 * _BLOCK))
    return done


def _members(path: bytes, prefix: bytes, out: Any, done: Transfer, bounds: Bounds, depth: int) -> Call[None]:
    """Write all that is in the folder *path* to the archive; *prefix* precedes the names."""
    yield from each_entry(path, done, bounds, depth,
                          lambda below, row: _member(below, row, out, done, bounds, prefix, depth))


def _member(path: bytes, row: list[Any], out: Any, done: Transfer, bounds: Bounds, prefix: bytes,
            depth: int) -> Call[None]:
    name, kind, mode, _, time, target = row
    full = os.path.join(prefix, name)
    if kind == "folder":
        out.write(_header(full, tarfile.DIRTYPE, mode, time))
        yield from _members(path, full, out, done, bounds, depth + 1)
        done.folders += 1
    elif kind == "link" and stays_below(target, depth):
        out.write(_header(full, tarfile.SYMTYPE, 0o777, time, target=target))
        done.links += 1
    elif kind == "file":
        file = TarFile(out, full)
        got = yield from fetch(path, file, most=bounds.bytes)
        file.finish(got)
        if got < file.size:
            done.left_out.append((shown(path), "changed"))
        bounds.bytes -= got
        done.files += 1
        done.size += got
    else:
        done.left_out.append((shown(path), "link" if kind == "link" else "special"))


def import_tar(source: BinaryIO | Path, inside: Path = ".") -> Call[Transfer]:
    """Unpack an archive, compressed or not, into the folder *inside*, which is made if it doesn't exist."""
    top, done = raw(inside), Transfer()
    try:
        with contextlib.ExitStack() as ours:
            opened: Any = source if hasattr(source, "read") else ours.enter_context(open(raw(source), "rb"))
            yield from _unpack_all(opened, top, done)
    except tarfile.TarError as error:
        raise ValueError(f"the archive can't be read: {error}") from error
    return done


def _unpack_all(opened: Any, top: bytes, done: Transfer) -> Call[None]:
    yield "file_mkdir", {"path": top, "parents": True, "there": True}
    folders = []
    with tarfile.open(fileobj=opened, mode="r|*", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            name = member.name.encode("utf-8", "surrogateescape").strip(b"/")
            parts = [part for part in name.split(b"/") if part not in (b"", b".")]
            if b".." in parts or b"\0" in name or (not parts and not member.isdir()):
                done.left_out.append((member.name, "name"))
                continue
            to = os.path.join(top, *parts)
            yield from _unpack(archive, member, to, top, done)
            if member.isdir():
                folders.append((to, member))
    for to, member in reversed(folders):
        yield "file_set", {"path": to, "mode": member.mode & 0o777, "time": _time(member)}


def _time(member: tarfile.TarInfo) -> int:
    """The member's mtime in nanoseconds since the epoch; 0 if it isn't a valid time."""
    try:
        mtime = Decimal(member.pax_headers.get("mtime", member.mtime))
    except (ArithmeticError, ValueError, TypeError):
        return 0
    return int(mtime * _NS) if 0 <= mtime <= _MOST_S else 0


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, to: bytes, top: bytes, done: Transfer) -> Call[None]:
    if member.isdir():
        yield "file_mkdir", {"path": to, "parents": True, "there": True}
        done.folders += 1
    elif member.isreg():
        done.size += yield from write(to, archive.extractfile(member) or b"", mode=member.mode & 0o777,
                                      time=_time(member))
        done.files += 1
    elif member.issym():
        target = member.linkname.encode("utf-8", "surrogateescape")
        if not 0 < len(target) <= MAX_PATH or b"\0" in target:
            done.left_out.append((member.name, "link"))
            return
        yield "file_link", {"path": to, "to": target}
        done.links += 1
    elif member.islnk():
        parts = [part for part in member.linkname.encode("utf-8", "surrogateescape").split(b"/") if part not in (
            b"", b".")]
        if b".." in parts or not parts:
            done.left_out.append((member.name, "link"))
            return
        yield "file_copy", {"path": os.path.join(top, *parts), "to": to}
        done.files += 1
    else:
        done.left_out.append((member.name, "special"))

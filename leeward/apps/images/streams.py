"""A layer's bytes as they are read: decompressed in pieces, hashed in both forms, and bounded."""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import importlib
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from leeward.errors import BadRequest, LeewardError, Unsupported

#: Bytes that are read, decompressed or written at a time.
PIECE = 1 << 20
#: Bytes of which no ratio is asked: small layers may be zeros.
_FREE = 64 << 20
#: Bytes of the headers of one member, and of those that stand for all members behind them, at most.
_MOST_HEADERS, _MOST_GLOBAL = 1 << 20, 64 << 10
#: Types of headers with records; a number that is none of a header's.
_PAX, _LONG_NUMBER = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE), re.compile(rb"[0-9]{64}")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class BadImage(BadRequest):
    """An image's bytes aren't what they should be, or ask for more than an image may."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Forward(Readable, Protocol):
    def tell(self) -> int: ...

    def seek(self, position: int, /) -> object: ...


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """
    What one image may ask for.

    Attributes:
        size: bytes of its layers, decompressed.
        names: files, folders and links.
        depth: folders in each other.
        ratio: bytes for each compressed one, beyond the first 64 MiB.
    """

    size: int = 20 << 30
    names: int = 2_000_000
    depth: int = 256
    ratio: int = 200

    @property
    def too_large(self) -> BadImage:
        return BadImage(f"the image takes more than {self.size} bytes, all that other images leave of images_size")


class _Headers:
    """A file for tarfile, which reads headers from it alone, goes forward, and has a bound on those of one member."""

    def __init__(self, file: Forward) -> None:
        self._file, self.left = file, _MOST_HEADERS
        self._has_records = False  # the next bytes

    def member(self) -> type[tarfile.TarInfo]:
        """A class for tarfile, by which it says which of the blocks that it reads are headers: data may look like them."""
        class TarMember(tarfile.TarInfo):
            def _proc_member(member, archive: tarfile.TarFile) -> tarfile.TarInfo:  # tarfile's way in for subclasses
                self._has_records = member.type in _PAX
                made: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # the stubs lack it
                return made

        return TarMember

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise BadImage(f"a member of an archive has headers longer than {_MOST_HEADERS} bytes")
        self.left -= size
        data, has_records = self._file.read(size), self._has_records
        self._has_records = False
        if has_records and not _is_pax(data):
            raise BadImage("a member of an archive has an extended header that is broken")
        return data

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> None:
        if position < self._file.tell():
            raise BadImage("an archive leads back to what was read already")
        self._file.seek(position)


def _is_pax(data: bytes) -> bool:
    """
    Whether *data* is records "LENGTH KEY=VALUE\\n". Of others, and of long numbers, tarfile's regular expressions take a
    time that grows with the square of their length: a quarter of an hour for 1 MiB (CVE-2024-6232).
    """
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 8)
        end = at + int(data[at:space]) if space > at and data[at:space].isdigit() else 0
        if not space < end <= len(data) or data[end - 1] != ord("\n") or data.find(b"=", space, end) < 0:
            return False
        at = end
    return not _LONG_NUMBER.search(data)


@contextlib.contextmanager
def as_archive(what: str) -> Iterator[None]:
    """BadImage for whatever tarfile, and what uses its members, makes of bytes that are no archive; *what* is one of it."""
    try:
        yield
    except LeewardError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError, KeyError, IndexError, TypeError,
            AttributeError) as error:
        raise BadImage(f"{what} is no tar archive that can be read ({type(error).__name__})") from None


def members(file: Forward) -> Iterator[tarfile.TarInfo]:
    """The members of the archive that *file* has from where it is, which isn't kept in memory; within `as_archive`."""
    headers = _Headers(file)
    archive = tarfile.TarFile(fileobj=headers, mode="r", tarinfo=headers.member(), encoding="utf-8",  # type: ignore[arg-type]  # what it calls
                              errors="surrogateescape")
    while (member := archive.next()) is not None:
        archive.members, headers.left = [], _MOST_HEADERS  # type: ignore[attr-defined]  # it keeps them all
        if sum(len(name) + len(value) for name, value in archive.pax_headers.items()) > _MOST_GLOBAL:
            raise BadImage(f"an archive has headers for all members longer than {_MOST_GLOBAL} bytes")
        yield member


class _Gzip:
    """zlib's decompressor, with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self.needs_input = True

    def decompress(self, data: bytes, most: int) -> bytes:
        made = self._inner.decompress(self._inner.unconsumed_tail + data, most)
        self.needs_input = not self._inner.unconsumed_tail and len(made) < most
        return made

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _zstd() -> Any:
    for module in ("compression.zstd", "backports.zstd"):  # Python 3.14; else optional, and part of no extra
        with contextlib.suppress(ImportError):
            return importlib.import_module(module).ZstdDecompressor()
    raise Unsupported("layers in zstd", have="a Python without the module", need="Python 3.14 or backports.zstd",
                      cure="`skopeo copy --dest-compress-format gzip`, or pip install backports.zstd")


_DECODERS: dict[str, Callable[[], Any]] = {"gzip": _Gzip, "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor,
                                           "zstd": _zstd}


class Plain:
    """
    The decompressed bytes of *source*, which may be compressed or not. Can be read forward only, in pieces; any
    `read` and `seek` raises BadImage if the bytes are broken, or more than *bounds* allows.

    Args:
        source: gives the stored bytes.
        bounds: those of the image.
        passed: called with the number of stored bytes of each piece.
    """

    def __init__(self, source: Readable, bounds: ImageBounds, passed: Callable[[int], object] = int) -> None:
        self._source, self._bounds, self._passed = source, bounds, passed
        self._stored, self._made = hashlib.sha256(), hashlib.sha256()
        self._taken = self._given = self._position = 0
        self._piece, self._at = b"", 0
        self.last = b""  # what `read` gave last
        self._first = self._take()
        kind = next((name for magic, name in _MAGIC.items() if self._first.startswith(magic)), "")
        self._make = _DECODERS.get(kind)
        self._decoder = self._make() if self._make is not None else None
        self.compressed = self._decoder is not None

    @property
    def digest(self) -> str:
        """The SHA-256 of the stored bytes that were read, in hexadecimal digits; `diff_id` is that of the plain ones."""
        return self._stored.hexdigest()

    @property
    def diff_id(self) -> str:
        return self._made.hexdigest()

    @property
    def size(self) -> int:
        return self._given

    # --- as a file for tarfile ------------------------------------------------------

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        while self._position < position:
            if not self.piece(position - self._position):
                raise BadImage("an archive ends early")

    def read(self, size: int) -> bytes:
        """*size* bytes, fewer at the end."""
        found = self.piece(size)
        if len(found) < size:
            parts = [found]
            while size > sum(map(len, parts)) and (more := self.piece(size - sum(map(len, parts)))):
                parts.append(more)
            found = b"".join(parts)
        self.last = found
        return found

    def piece(self, most: int) -> bytes:
        """At least one byte and at most *most*; none at the end."""
        if self._at == len(self._piece):
            self._piece, self._at = self._next(), 0
            self._given += len(self._piece)
            self._made.update(self._piece)
            if self._given > self._bounds.size:
                raise self._bounds.too_large
            if self.compressed and self._given > _FREE + self._bounds.ratio * self._taken:
                raise BadImage(f"a layer unpacks to more than {self._bounds.ratio} times its size")
        found = self._piece[self._at:self._at + most]
        self._at += len(found)
        self._position += len(found)
        return found

    def drain(self) -> None:
        """Read to the end, so that the hashes are of all of it."""
        while self.piece(PIECE):
            pass

    # --- decompressing --------------------------------------------------------------

    def _take(self) -> bytes:
        data = self._source.read(PIECE)
        self._stored.update(data)
        self._taken += len(data)
        self._passed(len(data))
        return data

    def _next(self) -> bytes:
        data, self._first = self._first, b""
        if self._decoder is None or self._make is None:
            return data or self._take()
        try:
            while True:
                if self._decoder.eof:  # another member may follow, or zeros that fill a block
                    data = self._decoder.unused_data + data
                    while not (data := data.lstrip(b"\0")):
                        if not (data := self._take()):
                            return b""
                    self._decoder = self._make()
                elif self._decoder.needs_input and not (data := data or self._take()):
                    raise BadImage("a compressed layer ends early")
                made: bytes = self._decoder.decompress(data, PIECE)
                data = b""
                if made:
                    return made
        except LeewardError:
            raise
        except Exception as error:  # each decompressor has its own
            raise BadImage(f"a layer can't be decompressed ({type(error).__name__})") from None

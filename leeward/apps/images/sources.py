"""
Finds the layers and the configuration of an image in a file or folder: an OCI layout, an archive of `docker save`, or
the root file system itself.

Trust:     none in the file's bytes. Sizes of what is read as JSON are bounded; a digest that is named is checked by
           whoever reads the layer to its end.
Source:    OCI image-spec (image-layout.md, manifest.md, config.md); moby image/spec
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from leeward.apps.images.streams import BadImage, ImageBounds, Plain, Readable, as_archive, members
from leeward.errors import BadRequest, Unsupported, quoted
from leeward.spec.images import MOST_LAYERS, ImageConfig, config_of

#: Bytes of a manifest, an index or a configuration, at most; names in an archive that holds layers.
MOST_JSON, _MOST_FILES = 4 << 20, 100_000
#: This machine, as images name it.
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
_INDEX = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_LAYER = re.compile(r"application/vnd\.(oci\.image\.layer(\.nondistributable)?\.v1\.tar(\+gzip|\+zstd)?"
                    r"|docker\.image\.rootfs\.(foreign\.)?diff\.tar(\.gzip|\.zstd)?)")
_REF = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Packed:
    """
    A layer that isn't unpacked.

    Attributes:
        open: a context with its stored bytes.
        size: how many these are, for a progress bar; 0 if nobody knows.
        digest: their SHA-256 in hexadecimal digits, and that of the plain bytes; "" if nothing names it.
    """

    open: Callable[[], AbstractContextManager[Readable]]
    size: int = 0
    digest: str = ""
    diff_id: str = ""


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image: its layers, the lowest first, and its configuration."""

    layers: tuple[Packed, ...]
    config: ImageConfig = field(default_factory=ImageConfig)


class Blobs(Protocol):
    """Files by their names, of a folder, an archive or a registry."""

    def open(self, name: str) -> AbstractContextManager[Readable]: ...

    def size(self, name: str) -> int:
        """Bytes of the file *name*; -1 if there is none."""


@contextlib.contextmanager
def find(path: str, bounds: ImageBounds, tag: str = "", spool: str | None = None) -> Iterator[FoundImage]:
    """
    The image in the file or folder *path*, within the context; BadImage, OSError.

    Args:
        path: on the host.
        bounds: those of the image.
        tag: which one, where it holds several.
        spool: a folder for a temporary file, if the file is compressed.
    """
    with contextlib.ExitStack() as held:
        if os.path.isdir(path):
            blobs: Blobs = _FolderBlobs(path)
            plain = Packed(lambda: _tarred(path))
        else:
            file: BinaryIO = held.enter_context(open(path, "rb"))
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadRequest(f"{quoted(path)} is no file or folder")
            start = Plain(file, bounds)
            file.seek(0)
            if start.compressed:
                file = held.enter_context(_decompressed(file, bounds, spool))
            blobs, plain = _ArchiveBlobs(file), Packed(lambda: _from_start(file), os.fstat(file.fileno()).st_size)
        yield _find(blobs, plain, tag)


def _find(blobs: Blobs, plain: Packed, tag: str) -> FoundImage:
    if blobs.size("oci-layout") >= 0 and blobs.size("index.json") >= 0:
        return of_manifest(blobs, _chosen(blobs, tag), blob)
    if blobs.size("manifest.json") >= 0:
        return _of_docker(blobs, tag)
    if tag:
        raise BadRequest("a tag chooses an image of several, and this is a root file system")
    return FoundImage((plain,))


def blob(digest: str) -> str:
    """The file of an OCI layout with the content *digest*, as manifests name it."""
    return f"blobs/sha256/{hexadecimal(digest)}"


def hexadecimal(digest: object) -> str:
    """The digits of a `sha256:` digest; BadImage for any other text."""
    if isinstance(digest, str) and (found := re.fullmatch(r"sha256:([0-9a-f]{64})", digest)):
        return found[1]
    raise BadImage("an image names a digest that isn't sha256's")


# --- OCI ----------------------------------------------------------------------------


def _chosen(blobs: Blobs, tag: str) -> dict[str, Any]:
    rows = rows_of(document(blobs, "index.json").get("manifests"))
    named = [row for row in rows if tag in ("", _annotations(row).get(_REF))]
    if not named:
        raise BadRequest(f"there is no image {tag!r:.80}; there are: {_refs(rows)}")
    if len(named) > 1 and len({repr(row.get("digest")) for row in named if suits(row)}) != 1:
        raise BadRequest(f"there are several images, choose one by --tag: {_refs(rows)}")
    return next(filter(suits, named), named[0])


def of_manifest(blobs: Blobs, row: dict[str, Any], name: Callable[[str], str]) -> FoundImage:
    """
    The image of an index's *row*, or of one index below it, with the files *name(digest)* of *blobs*; BadImage;
    Unsupported for another machine.
    """
    manifest = checked(blobs, row, name)
    if manifest.get("mediaType") in _INDEX or "manifests" in manifest:
        below = [each for each in rows_of(manifest.get("manifests")) if suits(each)]
        if not below:
            raise _other_machine("no image for it")
        manifest = checked(blobs, below[0], name)
    about = _mapping(manifest.get("config"))
    config = checked(blobs, about, name)
    _check_machine(config)
    diff_ids = _diff_ids(config)
    rows = rows_of(manifest.get("layers"))
    if len(rows) != len(diff_ids):
        raise BadImage(f"{len(rows)} layers, and {len(diff_ids)} digests of them")
    layers = []
    for each, diff_id in zip(rows, diff_ids, strict=True):
        kind = each.get("mediaType")
        if not isinstance(kind, str) or not _LAYER.fullmatch(kind):
            why = "is encrypted" if "encrypted" in str(kind)[:200] else "isn't a file system's"
            raise BadImage(f"a layer {why}: {quoted(str(kind)[:100])}")
        digest = hexadecimal(each.get("digest"))
        at = name(f"sha256:{digest}")
        if blobs.size(at) < 0:
            raise BadImage(f"the layer {digest} isn't there")
        layers.append(Packed(_opening(blobs, at), blobs.size(at), digest, diff_id))
    return FoundImage(tuple(layers), _config(config))


def checked(blobs: Blobs, row: dict[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """The document that *row* names, whose digest is right."""
    digest = hexadecimal(row.get("digest"))
    found: dict[str, Any] = document(blobs, name(f"sha256:{digest}"), digest)
    return found


def suits(row: dict[str, Any]) -> bool:
    """Whether the row of an index is for this machine, or says nothing of it."""
    about = row.get("platform")
    return not isinstance(about, dict) or (about.get("os") in ("linux", None)
                                           and about.get("architecture") in (ARCHITECTURE, None))


def _opening(blobs: Blobs, name: str) -> Callable[[], AbstractContextManager[Readable]]:
    return lambda: blobs.open(name)


def _annotations(row: dict[str, Any]) -> dict[str, Any]:
    found = row.get("annotations")
    return found if isinstance(found, dict) else {}


def _refs(rows: list[dict[str, Any]]) -> str:
    return ", ".join(quoted(str(_annotations(row).get(_REF, "?"))[:80]) for row in rows[:20]) or "none"


# --- docker save --------------------------------------------------------------------


def _of_docker(blobs: Blobs, tag: str) -> FoundImage:
    rows = rows_of(document(blobs, "manifest.json", whole=list))
    named = [row for row in rows if not tag or tag in _tags(row)]
    if len(named) != 1:
        tags = [quoted(str(each)[:80]) for row in rows[:20] for each in _tags(row)[:4]]
        raise BadRequest(f"{len(named)} images have the tag {tag!r:.80}; choose one by --tag: {', '.join(tags) or 'none'}")
    config = document(blobs, _name(named[0].get("Config")))
    _check_machine(config)
    files = named[0].get("Layers")
    diff_ids = _diff_ids(config)
    if not isinstance(files, list) or len(files) != len(diff_ids):
        raise BadImage("the layers and their digests aren't equally many")
    layers = []
    for each, diff_id in zip(map(_name, files), diff_ids, strict=True):
        if blobs.size(each) < 0:
            raise BadImage(f"the layer {quoted(each)[:100]} isn't there")
        layers.append(Packed(_opening(blobs, each), blobs.size(each), "", diff_id))
    return FoundImage(tuple(layers), _config(config))


def _tags(row: dict[str, Any]) -> list[Any]:
    found = row.get("RepoTags")
    return found if isinstance(found, list) else []


def _name(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or ".." in value.split("/") or value.startswith("/"):
        raise BadImage("a manifest names no file")
    return value


# --- documents ------------------------------------------------------------------------


def document(blobs: Blobs, name: str, digest: str = "", whole: type = dict) -> Any:
    """The JSON in the file *name*, whose SHA-256 is *digest*, if that is given; BadImage."""
    if not 0 <= blobs.size(name) <= MOST_JSON:
        raise BadImage(f"{quoted(name)[:100]} isn't there, or is longer than {MOST_JSON} bytes")
    with blobs.open(name) as file:
        data = b"".join(iter(lambda: file.read(1 << 16), b"")) if blobs.size(name) else b""
    if digest and digest != hashlib.sha256(data).hexdigest():
        raise BadImage(f"{quoted(name)[:100]} has another digest than its name")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise BadImage(f"{quoted(name)[:100]} is no JSON") from None
    if not isinstance(found, whole):
        raise BadImage(f"{quoted(name)[:100]} is JSON of another kind")
    return found


def rows_of(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > 1024 or not all(isinstance(each, dict) for each in value):
        raise BadImage("a manifest lacks its list")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadImage("a manifest lacks a part")
    return value


def _diff_ids(config: dict[str, Any]) -> list[str]:
    found = _mapping(config.get("rootfs")).get("diff_ids")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_LAYERS:
        raise BadImage(f"an image has 1 to {MOST_LAYERS} layers, and their digests")
    return [hexadecimal(each) for each in found]


def _config(config: dict[str, Any]) -> ImageConfig:
    try:
        return config_of(config)
    except (ValueError, TypeError):
        raise BadImage("the image's configuration has values that it can't have") from None


def _check_machine(config: dict[str, Any]) -> None:
    machine, system = config.get("architecture", ARCHITECTURE), config.get("os", "linux")
    if (machine, system) != (ARCHITECTURE, "linux"):
        raise _other_machine(quoted(f"{system}/{machine}"[:80]))


def _other_machine(have: str) -> Unsupported:
    return Unsupported("an image of another machine", have=have, need=f"linux/{ARCHITECTURE}",
                       cure="import the image for this machine: `skopeo copy --override-arch`, or another tag")


# --- files ----------------------------------------------------------------------------


class _FolderBlobs:
    def __init__(self, path: str) -> None:
        self._path = path

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with open(os.path.join(self._path, name), "rb") as file:
            yield file

    def size(self, name: str) -> int:
        try:
            about = os.lstat(os.path.join(self._path, name))
        except OSError:
            return -1
        return about.st_size if stat.S_ISREG(about.st_mode) else -1


class _Part:
    """A part of an archive, from its beginning to its end."""

    def __init__(self, fd: int, at: int, size: int) -> None:
        self._fd, self._at, self._left = fd, at, size

    def read(self, size: int, /) -> bytes:
        data = os.pread(self._fd, min(size, self._left), self._at)
        self._at += len(data)
        self._left -= len(data)
        return data


class _ArchiveBlobs:
    """The files of a tar archive that can be read at any place. Links to files are these files."""

    def __init__(self, file: BinaryIO) -> None:
        self._fd = file.fileno()
        self._places: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        size = os.fstat(self._fd).st_size
        file.seek(0)
        with as_archive("the file"):
            for member in members(file):
                name = os.path.normpath(member.name)
                if member.isreg() and 0 <= member.size <= size - member.offset_data and len(self._places) < _MOST_FILES:
                    self._places[name] = member.offset_data, member.size
                elif member.issym() and len(links) < _MOST_FILES:
                    links[name] = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
        self._places |= {name: self._places[to] for name, to in links.items() if to in self._places}

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[_Part]:
        yield _Part(self._fd, *self._places[os.path.normpath(name)])

    def size(self, name: str) -> int:
        return self._places.get(os.path.normpath(name), (0, -1))[1]


@contextlib.contextmanager
def _from_start(file: BinaryIO) -> Iterator[BinaryIO]:
    file.seek(0)
    yield file


@contextlib.contextmanager
def _decompressed(file: BinaryIO, bounds: ImageBounds, spool: str | None) -> Iterator[BinaryIO]:
    """The plain bytes of *file*, which is compressed, in a file without a name: the parts of an archive have any order."""
    plain = Plain(file, bounds)
    with tempfile.TemporaryFile(dir=spool) as made:
        while piece := plain.piece(1 << 20):
            made.write(piece)
        made.flush()
        made.seek(0)
        yield made


@contextlib.contextmanager
def _tarred(path: str) -> Iterator[Readable]:
    """The archive of the folder *path*, without what is mounted in it, as another thread writes it into a pipe."""
    out, into = os.pipe()
    failed: list[BaseException] = []

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(into, "wb") as pipe:
            try:
                with tarfile.open(mode="w|", fileobj=pipe, format=tarfile.PAX_FORMAT) as archive:
                    _add(archive, path)
            except BrokenPipeError:
                raise
            except Exception as error:  # given to the reader
                failed.append(error)

    class _FolderPipe(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size) or b""
            if not data and failed:
                raise BadRequest(f"the folder can't be read: {failed[0]}")
            return data

    writer = threading.Thread(target=write, name="leeward image folder", daemon=True)
    writer.start()
    with _FolderPipe(out) as reader:
        yield reader
    writer.join()


def _add(archive: tarfile.TarFile, root: str) -> None:
    device = os.stat(root).st_dev
    todo = [""]
    while todo:
        below = todo.pop()
        at = os.path.join(root, below) if below else root
        about = os.lstat(at)
        other = about.st_dev != device
        if stat.S_ISSOCK(about.st_mode) or (other and not stat.S_ISDIR(about.st_mode)):  # no archive has one; mounted
            continue
        info = archive.gettarinfo(at, arcname=below or ".")
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with open(at, "rb") as file:
                archive.addfile(info, file)
        else:
            archive.addfile(info)
        if info.isdir() and not other:
            todo += [os.path.join(below, name) for name in sorted(os.listdir(at), reverse=True)]

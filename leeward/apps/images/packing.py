"""Packs unpacked layers into an archive of an OCI layout, which every container engine reads."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from leeward.apps.images.sources import ARCHITECTURE
from leeward.apps.images.unpacking import OPAQUE, OPAQUE_MARK, WHITEOUT
from leeward.spec.images import ImageConfig


def write(path: str, layers: Sequence[str], config: ImageConfig, tag: str) -> None:
    """Write the archive *path*, which is new; FileExistsError, OSError."""
    with open(path, "xb") as out:
        try:
            with tarfile.open(mode="w", fileobj=out, format=tarfile.PAX_FORMAT) as archive:
                _archive(archive, layers, config, tag, os.path.dirname(os.path.abspath(path)))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise


def _archive(archive: tarfile.TarFile, layers: Sequence[str], config: ImageConfig, tag: str, spool: str) -> None:
    rows, diff_ids = [], []
    for folder in ("blobs", "blobs/sha256"):
        _put(archive, folder, None, 0, tarfile.DIRTYPE)
    for layer in layers:
        with tempfile.TemporaryFile(dir=spool) as file:
            _pack(layer, file)
            size = file.tell()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            if f"sha256:{digest}" not in diff_ids:
                _put(archive, f"blobs/sha256/{digest}", file, size)
        diff_ids.append(f"sha256:{digest}")
        rows.append({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": size})

    def document(about: dict[str, Any], kind: str) -> dict[str, Any]:
        data = json.dumps(about).encode()
        digest = hashlib.sha256(data).hexdigest()
        _put(archive, f"blobs/sha256/{digest}", io.BytesIO(data), len(data))
        return {"mediaType": f"application/vnd.oci.image.{kind}.v1+json", "digest": f"sha256:{digest}", "size": len(data)}

    own: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in config.env], "WorkingDir": config.cwd,
                           "User": config.user, "Entrypoint": config.entrypoint, "Cmd": config.cmd}
    own = {key: value for key, value in own.items() if value}
    about = document({"architecture": ARCHITECTURE, "os": "linux", "config": own,
                      "rootfs": {"type": "layers", "diff_ids": diff_ids}}, "config")
    manifest = document({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": about,
                         "layers": rows}, "manifest")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag}
    for name, content in (("oci-layout", {"imageLayoutVersion": "1.0.0"}),
                          ("index.json", {"schemaVersion": 2, "manifests": [manifest]})):
        data = json.dumps(content).encode()
        _put(archive, name, io.BytesIO(data), len(data))


def _put(archive: tarfile.TarFile, name: str, file: Any, size: int, kind: bytes = tarfile.REGTYPE) -> None:
    """As the caller's: an ordinary user's skopeo gives each file to its owner, and folders that aren't named to root."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, size, 0o644 if kind == tarfile.REGTYPE else 0o755
    info.uid, info.gid = os.geteuid(), os.getegid()
    archive.addfile(info, file)


def _pack(layer: str, file: BinaryIO) -> None:
    with tarfile.open(mode="w", fileobj=file, format=tarfile.PAX_FORMAT, encoding="utf-8",
                      errors="surrogateescape") as archive:
        _add(archive, layer, "")


def _add(archive: tarfile.TarFile, layer: str, below: str) -> None:
    """Add the name *below* of the layer, and all that is in it: no more folders lie in each other than an import allows."""
    at = os.path.join(layer, below) if below else layer
    above, name = os.path.split(below)
    mode = os.lstat(at).st_mode
    if stat.S_ISCHR(mode):
        archive.addfile(tarfile.TarInfo(os.path.join(above, os.fsdecode(WHITEOUT) + name)))
        return
    info = archive.gettarinfo(at, arcname=below or ".")
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    with _readable(at, mode):
        if info.isreg():
            with open(at, "rb") as content:
                archive.addfile(info, content)
        else:
            archive.addfile(info)
        if info.isdir():
            if OPAQUE in os.listxattr(at):
                archive.addfile(tarfile.TarInfo(os.path.join(below, os.fsdecode(OPAQUE_MARK))))
            for each in sorted(os.listdir(at)):
                _add(archive, layer, os.path.join(below, each))


@contextlib.contextmanager
def _readable(path: str, mode: int) -> Iterator[None]:
    """A context in which the owner of *path* may read it, whatever its mode is."""
    needs = 0o500 if stat.S_ISDIR(mode) else 0o400
    closed = os.geteuid() != 0 and not stat.S_ISLNK(mode) and mode & needs != needs
    if closed:
        os.chmod(path, stat.S_IMODE(mode) | needs)
    try:
        yield
    finally:
        if closed:
            os.chmod(path, stat.S_IMODE(mode))

"""Images for tests: layers, archives, and a store to import them into."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leeward.apps.images.sources import ARCHITECTURE, find
from leeward.apps.images.store import Images, Progress
from leeward.apps.images.streams import Bounds
from leeward.spec.images import Image

#: A member: its name, its type, and what `tarfile.TarInfo` has beside; "data" is a file's content.
Row = tuple[str, bytes, dict[str, Any]]


def file(name: str, data: bytes = b"", **more: Any) -> Row:
    return name, tarfile.REGTYPE, {"data": data, "mode": 0o644, **more}


def folder(name: str, **more: Any) -> Row:
    return name, tarfile.DIRTYPE, {"mode": 0o755, **more}


def link(name: str, to: str) -> Row:
    return name, tarfile.SYMTYPE, {"linkname": to, "mode": 0o777}


def hard(name: str, to: str) -> Row:
    return name, tarfile.LNKTYPE, {"linkname": to}


def layer(*rows: Row) -> bytes:
    """A layer's archive, as it is written: nothing is normalised."""
    out = io.BytesIO()
    with tarfile.open(mode="w", fileobj=out, format=tarfile.PAX_FORMAT, encoding="utf-8",
                      errors="surrogateescape") as archive:
        for name, kind, about in rows:
            info = tarfile.TarInfo(name)
            data = about.get("data", b"")
            info.type, info.size = kind, about.get("size", len(data))
            for key, value in about.items():
                if key not in ("data", "size"):
                    setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data) if data else None)
    return out.getvalue()


def oci(path: Path, layers: Iterable[bytes], config: dict[str, Any] | None = None, *, tag: str = "latest",
        architecture: str = ARCHITECTURE, zipped: bool = True, kind: str = "tar+gzip") -> Path:
    """An OCI layout in the folder *path*."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes) -> tuple[str, int]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}", len(data)

    plain = list(layers)
    rows = []
    for data in plain:
        digest, size = put(gzip.compress(data, mtime=0) if zipped else data)
        rows.append({"mediaType": f"application/vnd.oci.image.layer.v1.{kind if zipped else 'tar'}", "digest": digest,
                     "size": size})
    diff_ids = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in plain]
    digest, size = put(json.dumps({"architecture": architecture, "os": "linux", "config": config or {},
                                   "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode())
    digest, size = put(json.dumps({"schemaVersion": 2, "layers": rows, "config": {
        "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": size}}).encode())
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size,
         "annotations": {"org.opencontainers.image.ref.name": tag}}]}))
    return path


def tarred(path: Path, to: Path, mode: str = "w") -> Path:
    """The folder *path* as an archive, as `skopeo copy` and `docker save` write one."""
    with tarfile.open(to, mode) as archive:  # type: ignore[call-overload]  # modes with a compression
        for each in sorted(path.rglob("*")):
            archive.add(each, each.relative_to(path), recursive=False)
    return to


def imported(store: Images, source: Path, name: str = "image", bounds: Bounds | None = None, tag: str = "") -> Image:
    bounds = bounds or Bounds()
    with find(str(source), bounds, tag) as found:
        return store.add(name, found, str(source), Progress(), bounds)[0]

"""Images for tests: layers, archives, and a store to import them into."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kit import features, points
from leeward.apps.images.sources import ARCHITECTURE, find
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import ImageBounds
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


def imported(store: Images, source: Path, name: str = "image", bounds: ImageBounds | None = None, tag: str = "") -> Image:
    bounds = bounds or ImageBounds()
    with find(str(source), bounds, tag) as found:
        return store.add(name, found, str(source), ImportProgress(), bounds)[0]


def prepare() -> None:
    """Let a daemon (daemon_build.py) have what sandboxes write on a disk, as on a kernel before 6.6."""
    import leeward.daemon.images  # noqa: F401  # which has the point

    points.fill("images.on-tmpfs", lambda: False)


def of_busybox(folder: Path) -> Path:
    """A root with the host's busybox, the libraries that it needs, and users: as small as roots are."""
    program = shutil.which("busybox")
    assert program is not None
    needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for source in (program, *re.findall(r"(/\S+) \(0x", needs)):
        to = folder / ("bin/busybox" if source == program else source.lstrip("/"))
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
    names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in {*names} - {"busybox"}:
        (folder / "bin" / name).symlink_to("busybox")
    for name in ("etc", "srv", "home/web", "usr/share/doc", "sbin", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nweb:x:33:44::/home/web:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\nweb:x:44:\nother:x:55:\n")
    (folder / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    (folder / "usr/share/doc/manual").write_text("read me")
    return folder


def add_python(root: Path, python: str) -> str:
    """Add the interpreter *python* of the host's to an image's *root*, with the libraries that it needs. Returns "3.x"."""
    tells = "import os, sys; print(os.path.realpath(sys.executable), sys.base_prefix, '%d.%d' % sys.version_info[:2])"
    said = subprocess.run([python, "-c", tells], capture_output=True, text=True, check=True).stdout
    program, prefix, version = said.split()
    modules = root / f"usr/local/lib/python{version}"
    shutil.copytree(f"{prefix}/lib/python{version}", modules, ignore=shutil.ignore_patterns(
        "test", "tests", "__pycache__", "site-packages", "dist-packages", "idlelib", "tkinter", "ensurepip", "config-*"),
                    ignore_dangling_symlinks=True)
    (root / "usr/local/bin").mkdir()
    shutil.copy(program, root / "usr/local/bin/python3")
    needs = subprocess.run(["ldd", program, *modules.glob("lib-dynload/*.so")], capture_output=True, text=True,
                           check=False).stdout
    for source in {*re.findall(r"(/\S+)(?: =>| \(0x)", needs)}:  # a loader of its own is on the left
        to = root / source.lstrip("/")
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to)
    return version


def other_pythons() -> list[str]:
    """The host's interpreters of an image's age, where `dev` looks for them, but for this one's version."""
    found = dict[str, str]()
    for minor in (minor for minor in range(9, 15) if minor != sys.version_info[1]):
        for each in (f"python3.{minor}", *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")),
                     f"{features.ROOT}/.venv-testing3.{minor}/bin/python3.{minor}"):
            with contextlib.suppress(OSError):
                said = subprocess.run([each, "-c", "import sys; print(sys.executable, sys.version_info[1])"],
                                      capture_output=True, text=True, check=False).stdout.split()
                if said[1:] == [str(minor)]:
                    found.setdefault(said[1], said[0])
    return [*found.values()]


def with_needs(*names: str, without: tuple[str, ...] = ()) -> list[str]:
    """Packages of the host's own, and those that they need, as dpkg knows them; *without* those that begin so."""
    told = subprocess.run(["dpkg-query", "-W", "-f=${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"],
                          capture_output=True, text=True, check=True).stdout
    needs: dict[str, str] = {}
    for name, provides, more in (line.split("\t") for line in told.splitlines()):
        needs |= dict.fromkeys(re.findall(r"(?:^|, )([a-z0-9.+-]+)", provides), name)
        needs[name] = more
    found: dict[str, None] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name not in needs or name.startswith(without):
            continue
        found[name] = None
        todo += re.findall(r"[a-z0-9.+-]+(?= \(| \||:any|,|$)", needs[name])
    return list(found)


def of_debian(folder: Path, *more: str, without: tuple[str, ...] = ()) -> Path:
    """
    A root with files of the host's own packages, which must be Debian's, and the links between / and /usr; of *more* as
    well, and what these need, but for those that begin as one of *without*. What we may not read is left out.
    """
    packages = ("base-files", "base-passwd", "bash", "coreutils", "dash", "dpkg", "findutils", "grep", "perl-base", "sed",
                "tar", "libc6", "libc-bin", "libacl1", "libattr1", "libselinux1", "libpcre2-8-0", "libgmp10", "libcrypt1",
                "libtinfo6", "libmd0", "zlib1g", "libbz2-1.0", "liblzma5", "libzstd1", "libssl3",
                *with_needs(*more, without=without))
    told = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout.splitlines()
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for line in told:
        source = Path(line)
        if not line.startswith("/") or line.startswith(("/usr/share/doc", "/usr/share/locale", "/usr/share/man",
                                                        "/usr/include")):
            continue
        to = folder / line.lstrip("/")
        if os.path.isdir(source) and not os.path.islink(source):
            to.mkdir(parents=True, exist_ok=True)
        elif os.access(source, os.R_OK) and not os.path.lexists(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to, follow_symlinks=False)
    for name in ("etc", "root", "srv", "var/lib/dpkg"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copy(f"/usr/share/base-passwd/{name}.master", folder / "etc" / name)
    (folder / "var/lib/dpkg/status").write_text("Package: base-files\nStatus: install ok installed\nMaintainer: x\n"
                                                "Architecture: amd64\nVersion: 12\nDescription: x\n")
    return folder


def with_users(outside: Path) -> Path:
    """A store in *outside* with the image `debian`, which has users, `su` and bash."""
    root = of_debian(outside / "root", "login", "util-linux")
    for name in ("pam.d", "nsswitch.conf"):  # which packages make when they are installed
        subprocess.run(["cp", "-r", f"/etc/{name}", root / "etc"], check=True)
    (root / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")
    imported(Images(str(outside / "store")), root, "debian")
    return outside / "store"

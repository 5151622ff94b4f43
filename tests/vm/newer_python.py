"""
A Python of Debian's testing, on a machine of an older release: `python -m vm.newer_python VERSION FOLDER`.

Runs in:   the host, as anybody. Needs apt-get, dpkg-deb and patchelf.

Unpacked, never installed, with the C library that it wants beside it. `./dev test` makes one for its long form.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vm import kernels

#: Of the packages that it depends on, those with its parts and shared libraries.
_PARTS = re.compile(r"(?:lib|python3\.|zlib1g)\S*")


def settle(python: Path) -> None:
    """Have the interpreter *python* use the loader and the libraries in the folder lib beside its own."""
    library = python.parents[1] / "lib"
    kernels.tool(["patchelf", "--set-interpreter", str(next(library.glob("ld-linux-*"))), "--force-rpath", "--set-rpath",
                  str(library), str(python)])


def get(version: str, folder: Path) -> Path:
    """
    Unpack Python *version* into *folder*, which isn't there yet; its interpreter. Some 60 MB.

    Raises:
        Unavailable: a tool is missing, or the packages can't be had.
    """
    package = f"python{version}"
    kernels.CACHE.mkdir(exist_ok=True)
    environment = kernels.apt_settings("testing", package)
    said = kernels.tool(["apt-cache", "depends", "--recurse", "--important", package], environment)
    names = sorted({name for name in re.findall(r"^(\S+)$", said, re.MULTILINE) if _PARTS.fullmatch(name)})
    with tempfile.TemporaryDirectory(dir=kernels.CACHE) as name:
        root, made = Path(name), Path(name, "made")
        kernels.tool(["apt-get", "-q", "download", *names], environment, root)
        for deb in root.glob("*.deb"):
            kernels.tool(["dpkg-deb", "--extract", str(deb), str(root)])
        (made / "bin").mkdir(parents=True)
        shutil.copytree(root / f"usr/lib/{package}", made / "lib" / package, symlinks=True)
        for path in root.glob("usr/lib/*-linux-gnu/*.so*"):
            shutil.copy(path, made / "lib", follow_symlinks=False)
        shutil.copy(root / "usr/bin" / package, made / "bin")
        made.rename(folder)
    settle(folder / "bin" / package)
    return folder / "bin" / package


if __name__ == "__main__":
    made = get(sys.argv[1], Path(sys.argv[2]))
    print(subprocess.run([made, "-V"], check=True, capture_output=True, text=True).stdout.strip())

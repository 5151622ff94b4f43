"""Wheels of a few lines, for tests of what installs packages."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str | bytes]) -> Path:
    """
    Make a wheel of pure Python in *folder*.

    Args:
        files: paths in the wheel, and the files' contents. `NAME-VERSION.data/scripts/x` goes to bin/x.
    """
    about = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {
                **files, f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{about}/RECORD": ""}.items():
            archive.writestr(file, text)
    return path


def source(folder: Path, name: str, version: str, builds: str) -> Path:
    """A source archive in *folder*, whose build is the function `build_wheel` of the code *builds*, and needs nothing."""
    path, top = folder / f"{name}-{version}.tar.gz", f"{name}-{version}"
    project = '[build-system]\nrequires = []\nbuild-backend = "builds"\nbackend-path = ["."]\n'
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {"pyproject.toml": project, "builds.py": builds,
                           "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}.items():
            about = tarfile.TarInfo(f"{top}/{file}")
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text.encode()))
    return path

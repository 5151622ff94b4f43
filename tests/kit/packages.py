"""
An environment of real packages, in a folder that a sandbox can show.

Runs in:   the tests' process. `./dev test` makes the packages' folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit import features
from leeward.errors import BadRequest
from leeward.isolation import interpreter

PACKAGES = (features.ROOT / ".venv-realpackages").resolve()

#: The environment of libraries to import before jobs.
PRELOAD = (features.ROOT / ".venv-preloadpackages").resolve()


def shown(python: Path, folder: Path, packages: Path = PACKAGES) -> Path:
    """
    *packages*, or an environment of *python* with the same in *folder* if a sandbox can't show that: in a checkout
    below /tmp, or in one that others may write or that is somebody else's.
    """
    try:
        interpreter.find(str(packages))
    except BadRequest:
        return environment_for(python, folder, packages)
    return packages


outside_tmp = features.outside_tmp


@contextmanager
def shown_folder() -> Iterator[Path]:
    """A folder that everybody can look into and that a sandbox can show; it has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="leeward-tests-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def environment_for(python: Path, folder: Path, packages: Path = PACKAGES) -> Path:
    """An environment of *python* with the same packages; copied, where they fit."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    version = _version(python)
    site = packages / "lib" / f"python{version}" / "site-packages"
    if site.is_dir():
        shutil.copytree(site, folder / "lib" / f"python{version}" / "site-packages", dirs_exist_ok=True, copy_function=linked)
    else:
        install(folder / "bin" / "python", "-r", packages / "requirements.txt")
    return folder


def linked(source: str, target: str) -> None:
    """Make a hard link to the file if both are on one file system, because some files have hundreds of megabytes."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def install(python: Path, *what: str | Path) -> None:
    """
    Install *what* into the environment of *python*: by uv, which takes a tenth of pip's time, or where it can't by pip, whose
    configuration may name the only index in reach.
    """
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *what]
    if not uv[0].exists() or subprocess.run(uv, check=False, capture_output=True).returncode:  # type: ignore[union-attr]
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check",
                        *what], check=True, capture_output=True)


def _version(python: str | Path) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-I", "-c", ask], check=True, capture_output=True, text=True).stdout.strip()

"""
An environment of real packages, in a folder that a sandbox can show.

Runs in:   the tests' process. `./dev test` makes the packages' folder.
"""

from __future__ import annotations

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
        shutil.copytree(site, folder / "lib" / f"python{version}" / "site-packages", dirs_exist_ok=True)
    else:
        subprocess.run([sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet",
                        "--disable-pip-version-check", "-r", packages / "requirements.txt"],
                       check=True, capture_output=True)
    return folder


def _version(python: str | Path) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-I", "-c", ask], check=True, capture_output=True, text=True).stdout.strip()

"""
`./dev npm`: the npm package as an archive, with the C client of each wheel in a folder.

    python packaging/npm.py FOLDER-OF-WHEELS INTO
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from leeward import __version__

PACKAGE = Path(__file__).resolve().parent.parent / "leeward/clients/node"


def fill(folder: Path, wheels: Path) -> None:
    """Copy the package into *folder*, of this version, with clients for the machines that *wheels* are for."""
    shutil.copytree(PACKAGE, folder, dirs_exist_ok=True)
    about = json.loads((folder / "package.json").read_text())
    (folder / "package.json").write_text(json.dumps({**about, "version": __version__}, indent=2) + "\n")
    starter = folder / "bin/leeward-python"
    starter.write_text(starter.read_text().replace("wanted=leeward #", f"wanted=leeward=={__version__} #"))
    # One linked with musl is the last, and runs on any Linux.
    for wheel in sorted(wheels.glob(f"leeward-{__version__}-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            program = archive.read(f"leeward-{__version__}.data/scripts/leeward")
        if program.startswith(b"\x7fELF"):
            beside = folder / "bin" / f"linux-{re.search(r'linux(?:_[0-9]+)*_(.+)$', wheel.stem)[1]}"  # type: ignore[index]
            beside.mkdir(exist_ok=True)
            (beside / "leeward").write_bytes(program)
            (beside / "leeward").chmod(0o755)
            shutil.copy(starter, beside)


def pack(wheels: Path, into: Path) -> Path:
    """The archive in *into*."""
    with tempfile.TemporaryDirectory(prefix="leeward-npm-") as work:
        fill(Path(work), wheels)
        done = subprocess.run(["npm", "pack", "--silent", "--pack-destination", into.resolve()], cwd=work, check=True,
                              capture_output=True, text=True)
    return into / done.stdout.strip()


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2])))

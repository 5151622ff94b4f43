"""packaging/image: the image is made of a wheel without an engine, read by leeward's own import, and started by runc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kit import installing
from kit.container import Container
from kit.features import ROOT
from leeward.apps.host.profiles import text as profile_text
from leeward.apps.images.sources import find
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import ImageBounds


@pytest.mark.timeout(300)
@pytest.mark.needs("root", "runc", "debian", "installers", "compiler", "user-namespaces", "landlock")
def test_the_image_runs_a_daemon_with_the_documented_flags(wheel: Path, open_folder: Path) -> None:
    archive = open_folder / "image.tar"
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(installing.FOLDER / "wheels")}
    subprocess.run([sys.executable, ROOT / "packaging/image/make_image.py", wheel, archive], env=env, check=True)
    store, bounds = Images(str(open_folder / "images"), 4 << 30), ImageBounds()
    with store.locked(shared=True):
        pass
    with find(str(archive), bounds, spool=store.folder) as found:
        image, _ = store.add("leeward", found, str(archive), ImportProgress(), bounds)
    container = started(image.config, archive, open_folder)

    with container.running([*image.config.entrypoint, *image.config.cmd], "ready") as _:
        done = container.exec("leeward exec 'import sys; print(6 * 7, sys.prefix)'; id -u; command -v pip apt-get")

    assert (["leeward"], "leeward") == (list(image.config.entrypoint), image.config.user)
    assert "42 /usr\n1000\n" == done.stdout, done.stderr


def started(config: Any, archive: Path, place: Path) -> Container:
    """A container of the image's layers, as an engine unpacks them, instead of this machine's /usr."""
    folder = Path(tempfile.mkdtemp(prefix="image-", dir=place))
    folder.chmod(0o755)
    container = Container(folder, Path("/usr"), seccomp=json.loads(profile_text("seccomp", "leeward")), masked=False,
                          cgroups=True, uid=1000)
    path, root = folder / "config.json", folder / "image"
    root.mkdir()
    index = json.loads(subprocess.run(["tar", "-xOf", archive, "index.json"], check=True, capture_output=True).stdout)

    def blob(digest: str) -> bytes:
        return subprocess.run(["tar", "-xOf", archive, f"blobs/sha256/{digest.partition(':')[2]}"], check=True,
                              capture_output=True).stdout

    for layer in json.loads(blob(index["manifests"][0]["digest"]))["layers"]:
        subprocess.run(["tar", "-x", "-C", root], input=blob(layer["digest"]), check=True)
    about = json.loads(path.read_text())
    about["root"]["path"] = "image"
    about["mounts"] = [mount for mount in about["mounts"] if "/usr" != mount["destination"]]
    about["process"] |= {"cwd": config.cwd,
                         "env": [*(f"{name}={value}" for name, value in config.env), "XDG_RUNTIME_DIR=/tmp"]}
    path.write_text(json.dumps(about))
    return container

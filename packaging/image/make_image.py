"""
`./dev image`: an OCI image with leeward in it, of the newest wheel in dist/ and of this Debian's own Python, without a
container engine and without root: dist/leeward-VERSION-image.tar, an archive of an OCI layout.

    python packaging/image/make_image.py WHEEL ARCHIVE [EXTRA...]

    docker load -i ARCHIVE, podman load -i ARCHIVE, or leeward image import ARCHIVE --name leeward

The lower layer is what Debian's packages below have installed here, and what they depend on; the upper one is leeward
with what it needs, by pip. docs/containers.md has the flags with which it is started.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from leeward.apps.images.packing import write
from leeward.spec.images import ImageConfig

#: Debian's packages, each with what it depends on.
PACKAGES = ("base-files", "base-passwd", "dash", "coreutils", "libc-bin", "python3", "ca-certificates")
#: What nobody reads in an image.
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|info|lintian|bug)/|/var/|/etc/(?!ssl|ca-cert|debian_version|nsswitch)")
_ACCOUNTS = (("passwd", "root:x:0:0::/root:/bin/sh\nleeward:x:1000:1000::/home/leeward:/bin/sh\n"),
             ("group", "root:x:0:\nleeward:x:1000:\n"))
PYTHON = "/usr/bin/python3"


def _told(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _files() -> Iterator[str]:
    """What the packages and those they depend on have installed."""
    asked = ("--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances")
    found = _told("apt-cache", "depends", "--recurse", "--installed", *asked, *PACKAGES)
    names = sorted(set(re.findall(r"^([a-z0-9][^\s<>|]*)$", found, re.MULTILINE)))
    for path in _told("dpkg", "-L", *names).splitlines():
        if path.startswith("/") and not _LEFT_OUT.match(path):
            yield path


def base(root: Path) -> None:
    """Fill *root* with the files of this Debian, and with the folders and files that every system has."""
    for name in ("bin", "lib", "lib32", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / f"usr/{name}").mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    for path in _files():
        above, name = os.path.split(path)
        source, to = Path(path), root / os.path.realpath(above).lstrip("/") / name
        if source.is_symlink() or source.is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(to):
                shutil.copy2(source, to, follow_symlinks=False)
    for name in ("dev", "etc", "home/leeward", "proc", "root", "run", "sys", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp", "run", "home/leeward"):
        (root / name).chmod(0o1777)  # all files belong to root in an archive of ours
    if not os.path.lexists(root / "bin/sh"):
        (root / "usr/bin/sh").symlink_to("dash")
    for name, text in _ACCOUNTS:
        (root / "etc" / name).write_text(text)
    shutil.copy("/etc/os-release", root / "etc/os-release")
    shutil.copy("/etc/ld.so.cache", root / "etc/ld.so.cache")


def program(root: Path, wheel: str, extras: list[str]) -> None:
    """Fill *root* with leeward, where Debian's Python looks for what isn't Debian's."""
    version = _told(PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    packages = root / f"usr/local/lib/python{version}/dist-packages"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile",
                    "--only-binary", ":all:", "--python-version", version, "--target", packages,
                    f"{wheel}[{','.join(extras)}]" if extras else wheel], check=True)
    programs = root / "usr/local/bin"
    programs.mkdir(parents=True)
    for name, module in (("leeward-python", "main"), ("leeward-shell-prefix", "shell_prefix")):
        (programs / name).write_text(f"#!{PYTHON}\nimport sys\nfrom leeward_cli.{module} import main\nsys.exit(main())\n")
    shutil.copy(packages / "bin/leeward", programs / "leeward")
    for path in programs.iterdir():
        path.chmod(0o755)
    shutil.rmtree(packages / "bin")


def make(wheel: str, archive: str, extras: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="leeward-image-") as work:
        lower, upper = Path(work, "lower"), Path(work, "upper")
        for folder in (lower, upper):
            folder.mkdir()
            folder.chmod(0o755)
        base(lower)
        program(upper, wheel, extras)
        env = (("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/home/leeward"), ("LANG", "C.UTF-8"))
        config = ImageConfig(env=env, cwd="/home/leeward", user="leeward", entrypoint=("leeward",), cmd=("daemon", "run"))
        write(archive, [str(lower), str(upper)], config, "leeward")


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], sys.argv[3:])

"""
Runs programs as a user who isn't root: a user, and an installation that this user can reach.

Runs in:   pytest, as a plugin of conftest.py.

root's interpreter may lie in root's home, mode 0700. So the user gets an environment of the system's interpreter with
leeward's wheel in it. It belongs to root and is read-only for the user, as an administrator would install it. A run
that isn't root's uses the interpreter that it runs on.
"""

from __future__ import annotations

import importlib
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import features, packages
from kit.skip_policy import require

#: A variable that the second lane of a whole run has: kit/lanes.py.
LANE = "LEEWARD_TESTS_LANE"

#: A variable with the path of leeward's wheel, where it was made already.
WHEEL = "LEEWARD_TEST_WHEEL"

#: Made when it is missing, and kept: another run on the same machine may be using it. Each lane has one of its own,
#: since what the kernel counts by user must stay apart.
NAME = "lwtest" + os.environ.get(LANE, "")
#: The one who repeats the tests beside root's run, one for each lane as well.
BESIDE = "lwbeside" + os.environ.get(LANE, "")


@dataclass(frozen=True)
class OrdinaryUser:
    """
    A user without privileges, and the user's folders in this run.

    Attributes:
        home: the user's HOME, mode 0700.
        runtime: the user's XDG_RUNTIME_DIR, mode 0700.
    """

    name: str
    uid: int
    gid: int
    home: Path
    runtime: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the user's processes; it has no variable of ours."""
        return {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "LANG": "C.UTF-8",
                "PATH": "/usr/local/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(self.runtime)}

    def _options(self, env: Mapping[str, str] | None, options: dict[str, Any]) -> dict[str, Any]:
        options = {"cwd": self.home, "stdin": subprocess.DEVNULL, **options}
        if "input" in options:
            del options["stdin"]
        if 0 == os.geteuid():
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return {**options, "env": {**self.environment, **(env or {})}}

    def run(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None,
            **options: Any) -> subprocess.CompletedProcess[Any]:
        """
        `subprocess.run` as this user, with output captured and an empty stdin.

        Args:
            env: on top of `environment`.
            options: as subprocess.run has them.
        """
        options = {"capture_output": True, "text": True, "check": False, **options}
        return subprocess.run(command, **self._options(env, options))

    def popen(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None,
              **options: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` as this user."""
        return subprocess.Popen(command, **self._options(env, options))


@dataclass(frozen=True)
class Installation:
    """An environment with leeward in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def leeward(self) -> Path:
        return self.folder / "bin" / "leeward"


def _make_user(name: str = NAME) -> pwd.struct_passwd:
    """With the shell of who comes by ssh; nobody else can log in, without a password and a home."""
    shell = ["--shell", "/bin/sh", name]
    try:
        if pwd.getpwnam(name).pw_shell != shell[1]:
            subprocess.run(["usermod", *shell], check=True, capture_output=True)
    except KeyError:
        # --system: no ranges in /etc/subuid, so nothing beyond his own uid.
        subprocess.run(["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", *shell], check=True,
                       capture_output=True)
    return pwd.getpwnam(name)


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """Make a folder of this run that every user can read, because pytest's own folders have mode 0700."""
    folder = Path(tempfile.mkdtemp(prefix="leeward-tests-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    # Installations and all that the tests have written: most of a minute, for which no lane waits.
    subprocess.run(["sh", "-c", 'rm -rf "$0" &', folder], check=False)


@pytest.fixture(scope="session")
def ordinary_user(open_folder: Path) -> OrdinaryUser:
    """A user who isn't root: the user of this run, or one that root makes."""
    require("ordinary-user")
    return _settle(_make_user() if 0 == os.geteuid() else pwd.getpwuid(os.geteuid()), open_folder)


@pytest.fixture(scope="session")
def user_beside(open_folder: Path) -> OrdinaryUser:
    """Another ordinary user, whom root makes."""
    require("root", "ordinary-user")
    return _settle(_make_user(BESIDE), open_folder, "2")


def _settle(entry: pwd.struct_passwd, place: Path, number: str = "") -> OrdinaryUser:
    home, runtime = place / f"home{number}", place / f"run{number}"  # short: a socket's path has 107 bytes
    for folder in (home, runtime):
        folder.mkdir(mode=0o700)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    return OrdinaryUser(entry.pw_name, entry.pw_uid, entry.pw_gid, home, runtime)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """leeward's wheel, built from this checkout; in a guest (vm/matrix.py) and in a whole run (lanes.py) it is there."""
    if given := os.environ.get(WHEEL):
        return Path(given)
    require("compiler")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
                   cwd=features.ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


#: What leeward imports beside the standard library, and what runs its tests.
NEEDED = ("_cffi_backend*", "cffi", "click", "msgpack", "structlog")
EGRESS = ("pyroute2", "cryptography", "h11", "typing_extensions*")
APPROVALS = ("publicsuffixlist", "starlette", "uvicorn", "websockets", "anyio", "idna", "jinja2", "markupsafe")
TESTERS = ("_pytest", "pytest*", "py.py", "pluggy*", "iniconfig", "packaging", "pygments", "hypothesis*", *EGRESS,
           *APPROVALS, "_hypothesis*", "sortedcontainers", "landlock", "pyseccomp*")


def copied(folder: Path, modules: Sequence[str] = NEEDED) -> Installation:
    """
    An environment with what is imported here: in a guest there is nobody to fetch anything from.

    Args:
        folder: where it shall be.
        modules: patterns of what to copy beside leeward.
    """
    installation = Installation(folder)
    subprocess.run([features.system_python() or sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("leeward", "leeward_cli"):
        (place,) = (Path(path) for path in importlib.import_module(name).__path__)
        shutil.copytree(place, packages / name, ignore=shutil.ignore_patterns("__pycache__", "src"))
    for path in (path for pattern in modules for path in Path(sysconfig.get_path("platlib")).glob(pattern)):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, packages / path.name)
    shutil.copy(Path(sysconfig.get_path("scripts"), "leeward"), installation.leeward)  # hands over to what is beside it
    for program, imported in (("leeward-python", "leeward_cli.main"), ("pytest", "pytest")):
        script = folder / "bin" / program
        script.write_text(f"#!{installation.python}\nimport sys\nfrom {imported} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    return installation


@pytest.fixture(scope="session")
def user_install(request: pytest.FixtureRequest, open_folder: Path) -> Installation:
    """An installation of leeward that an ordinary user can run, on an interpreter that this user can reach."""
    if 0 != os.geteuid() or Path(leeward.__file__).is_relative_to(sys.prefix):  # it is such an installation
        return Installation(Path(sys.prefix))
    if features.IN_GUEST:
        return copied(open_folder / "installation", NEEDED + TESTERS)
    require("system-python", "compiler")
    installation = Installation(open_folder / "installation")
    subprocess.run([str(features.system_python()), "-m", "venv", "--without-pip", installation.folder],
                   check=True, capture_output=True)
    packages.install(installation.python, f"{request.getfixturevalue('wheel')}[egress,approvals,web,mcp]")
    return installation

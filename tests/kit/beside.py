"""
The integration and escape tests by somebody without any privilege, beside root's own run of them.

Runs in:   pytest, as a plugin of conftest.py.

Both leave most of a processor idle, and one after the other they took twice as long. So this run begins before the
first test, and the test that asks how it went comes last: integration/test_as_ordinary_user.py.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit import features
from kit.ordinary_user import Installation, OrdinaryUser

#: The test that asks.
LAST = "test_the_same_holds_for_an_ordinary_user"
#: Of a run with fewer tests it isn't worth the trouble.
MANY = 500

#: About the checkout, root's own set-up, what bench/ has, native code and decoders that ask for no user, what root's
#: run repeats as such a user, or this very test: they say nothing about one.
NOT_HIS = ("test_packaging.py", "test_releases.py", "test_flake.py", "test_readme.py", "test_sanitizers.py",
           "test_races.py", "test_warnings.py", "test_bench.py", "test_soak.py", "test_many_sandboxes.py",
           "test_real_packages.py", "test_preloaded_libraries.py", "test_decoders.py", "test_as_ordinary_user.py")

#: Modules of CPython's tests that are the same for every user; root's run has them.
FOR_ALL_USERS = () if os.environ.get("LEEWARD_LONG") else (
    "asyncio", "sqlite3", "hashlib", "zipfile", "pickle", "decimal", "datetime", "json", "re", "math", "collections",
    "itertools", "functools", "csv", "unicodedata", "statistics")

#: Half an hour after root's first lane (kit/lanes.py), which has fewer tests than this run: the machine may be slow,
#: and this is many tests in one. Hours for their long forms.
DEADLINE_S = 4 * 3600 if os.environ.get("LEEWARD_LONG") else 1800


#: Tells its own number, and in the end the status of the command that it is given.
_TELLER = """
import os, subprocess, sys
told = int(sys.argv[1])
os.write(told, f"{os.getpid()} ".encode())
os.write(told, f"{subprocess.call(sys.argv[2:])} ".encode())
"""


class Run:
    """
    A pytest that runs, no child of ours: tests count what is below this process.

    Attributes:
        said: the file that it writes to.
    """

    def __init__(self, user: OrdinaryUser, python: Path, command: Sequence[str | Path], said: Path,
                 **options: Any) -> None:
        self.said = said
        self._user, self._command, self._options = user, command, options
        self._words: list[str] = []
        self._told, told = os.pipe()
        with said.open("wb") as file:
            starter = user.popen(["setsid", "--fork", python, "-c", _TELLER, str(told), *command], pass_fds=[told],
                                 stdout=file, stderr=subprocess.STDOUT, **options)
        os.close(told)
        starter.wait()

    def wait(self, seconds: float) -> int | None:
        """
        Its exit status; None if it isn't over by then.
        """
        until = time.monotonic() + seconds
        while len(self._words) < 2 and select.select([self._told], [], [], max(0.0, until - time.monotonic()))[0]:
            data = os.read(self._told, 100)
            if not data:
                return -1  # it was killed
            self._words += data.decode().split()
        return int(self._words[1]) if len(self._words) > 1 else None

    def again(self, seconds: float) -> tuple[int, str]:
        """
        Run what failed once more, now that the other run is over; its exit status and what it says.
        """
        ended = self._user.run([*self._command, "--last-failed", "--last-failed-no-failures=none"], timeout=seconds,
                               **self._options)
        return ended.returncode, ended.stdout

    def end(self) -> None:
        """
        Kill it if it still runs.
        """
        if self.wait(0) is None and self._words:
            os.killpg(int(self._words[0]), signal.SIGKILL)
        os.close(self._told)


def _linked(source: str, target: str) -> None:
    """
    Another name for the file, where both are on one file system: some have hundreds of megabytes.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _checkout(folder: Path, installation: Installation) -> Path:
    """
    The tests and what they read, where everybody may read them; with the shim that is installed,
    for those that start children in the checkout.
    """
    for name in ("tests", "examples", "docs", "leeward", "cli", "packaging"):
        shutil.copytree(features.ROOT / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__", "*.so", "sdk"))
    (shim,) = installation.folder.glob("lib/python*/site-packages/leeward/_native/_shim*.so")
    shutil.copy(shim, folder / "leeward" / "_native")
    for name in ("pyproject.toml", "README.md", "build_client.py"):
        shutil.copy(features.ROOT / name, folder / name)
    for name, ours in ((".venv-node", ()), (".venv-realpackages", ("bin", "lib64")),  # an interpreter is root's alone
                       (".venv-preloadpackages", ("bin", "lib64")), (".venv-agents", ()),
                       (".venv-agentprograms", ("bin", "lib64"))):
        if (features.ROOT / name).exists():
            shutil.copytree(features.ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ours),
                            copy_function=_linked)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    return folder


@pytest.fixture(scope="session")
def open_checkout(user_install: Installation, open_folder: Path) -> Path:
    """
    A checkout for whoever can't look into this one, and in his installation what runs its tests.
    """
    wanted = ("pytest", "pytest-timeout", "hypothesis", "landlock", "pyseccomp", "httpx2", "playwright")
    if not features.IN_GUEST:  # there it has them
        subprocess.run([sys.executable, "-m", "pip", "--python", user_install.python, "install", "--quiet",
                        "--disable-pip-version-check", *wanted], check=True, capture_output=True)
    return _checkout(open_folder / "checkout", user_install)


@pytest.fixture(scope="session")
def outside_tmp(user_beside: OrdinaryUser) -> Iterator[Path]:
    """
    A folder of his that a sandbox can show; his home is below /tmp.
    """
    with tempfile.TemporaryDirectory(prefix="leeward-tests-", dir="/opt") as folder:
        os.chown(folder, user_beside.uid, user_beside.gid)
        yield Path(folder)


@pytest.fixture(scope="session")
def run_beside(user_beside: OrdinaryUser, user_install: Installation, open_checkout: Path,
               open_folder: Path, outside_tmp: Path) -> Iterator[Run]:
    """
    The run, which begins when somebody asks for this.
    """
    # The suite over the other transport: root's run has what a daemon takes by itself.
    settings = user_beside.home / ".config" / "leeward" / "config.toml"
    user_beside.run(["mkdir", "-p", settings.parent], check=True)
    user_beside.run(["tee", settings], input='io = "socket"\n', check=True)
    run = Run(
        user_beside, user_install.python,
        # Not `python -m pytest`, which puts the checkout on sys.path, before what is installed.
        [user_install.folder / "bin" / "pytest", "-q", "-o", f"cache_dir={user_beside.home}/cache", "tests/integration",
         "tests/escapes",
         *(f"--ignore=tests/integration/{name}" for name in NOT_HIS),
         *("--deselect=tests/integration/test_cpython_suite.py::test_tests_that_pass_outside_pass_inside"
           f"[test_{name}]" for name in FOR_ALL_USERS),
         # The same bytes for everybody.
         "--deselect=tests/integration/test_c_client.py::test_c113_no_bytes_do_harm"],
        open_folder / "said", cwd=open_checkout,
        env={"PATH": f"{user_install.folder}/bin:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(user_beside.home),
             "LEEWARD_TESTS_OUTSIDE_TMP": str(outside_tmp),
             **({"LEEWARD_LONG": "1"} if os.environ.get("LEEWARD_LONG") else {})})
    yield run
    run.end()


@pytest.fixture(scope="session", autouse=True)
def _begin_beside(request: pytest.FixtureRequest) -> None:
    """
    Begin early with what takes longest.
    """
    items = request.session.items
    if len(items) >= MANY and LAST == items[-1].name and 0 == os.geteuid():
        request.getfixturevalue("run_beside")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Put last what is waited for.
    """
    items.sort(key=lambda item: LAST == item.name)

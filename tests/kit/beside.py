"""
Runs root's integration and escape tests as an ordinary user, at the same time as root's own run of them.

Runs in:   pytest, as a plugin of conftest.py.

Each of the two runs leaves most of a processor idle, and one after the other they took twice as long. So this run
begins before root's first test, and the test that checks its result comes last: integration/test_as_ordinary_user.py.

It has the files that root's run has, and those that ALSO names. So two lanes of a whole run (kit/lanes.py) have one beside
them with their own files: one run with the files of all lanes ended ten minutes after all else.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kit import features, packages
from kit.ordinary_user import Installation, OrdinaryUser

#: The test that checks the result of this run.
LAST = "test_the_same_holds_for_an_ordinary_user"
#: The second run isn't begun early beside a run with fewer tests than this.
MANY = 200

#: About the checkout, root's own set-up, what bench/ has, native code and decoders that ask for no user, what root's
#: run repeats as such a user, or this very test: they say nothing about one.
NOT_HIS = ("test_packaging.py", "test_releases.py", "test_flake.py", "test_readme.py", "test_sanitizers.py",
           "test_races.py", "test_warnings.py", "test_bench.py", "test_soak.py", "test_many_sandboxes.py",
           "test_real_packages.py", "test_preloaded_libraries.py", "test_decoders.py", "test_serve_packaging.py",
           "test_verdicts.py",
           "test_as_ordinary_user.py")

#: What is above the client and the same for every user, or many inputs to it, random ones or other people's: root's run has
#: it. His has it as well in its long form.
ONCE = () if os.environ.get("LEEWARD_LONG") else (
    "test_agent_example.py", "test_agent_programs.py", "test_approvals_many.py", "test_approvals_page.py",
    "test_approvals_races.py", "test_approved_example.py", "test_as_a_file.py", "test_c_client.py", "test_conformance.py",
    "test_cookbook.py", "test_doc_examples.py", "test_egress_clients.py", "test_fleet_on_ray.py",
    "test_fleet_page.py",
    "test_frameworks.py", "test_functions.py", "test_installs.py", "test_kernels_at_random.py",
    "test_kubernetes.py", "test_languages.py", "test_llm.py", "test_mcp.py", "test_mcp_clients.py", "test_moving.py",
    "test_node_client.py", "test_oci_image.py", "test_sandbox_docs.py", "test_sessions_at_random.py", "test_site.py",
    "test_ui.py", "test_wire_answers.py")

#: A variable with files, and folders of files, that he has as well, when another lane has them as root.
ALSO = "LEEWARD_TESTS_ALSO"

#: A variable with a whole run's own number: modulo TURNS it is his part of the files; of the attacks he has a third.
TURN, TURNS = "LEEWARD_TESTS_TURN", 12

#: The folders of the tests that are his, and in how many parts.
FOLDERS = {"tests/integration": TURNS, "tests/escapes": 3}

#: Half an hour after root's own tests: the machine may be slow, and this is many tests in one. Hours for their long
#: forms.
DEADLINE_S = 4 * 3600 if os.environ.get("LEEWARD_LONG") else 1800


#: A program that prints its own pid, runs the command in its arguments, and prints the command's status at the end.
_TELLER = """
import os, subprocess, sys
told = int(sys.argv[1])
os.write(told, f"{os.getpid()} ".encode())
os.write(told, f"{subprocess.call(sys.argv[2:])} ".encode())
"""


def his(paths: Iterable[Path]) -> list[str]:
    """
    What he runs of the files of tests *paths*, which root runs; all that is his where none of these is. The attacks
    come last, when root's are over: both at once would want the memory and the processors of their controls. In a whole
    run each of them has the files whose turn it is.
    """
    turn = os.environ.get(TURN)
    named = sorted({path.relative_to(features.ROOT).as_posix() for path in paths})
    of = {folder: [name for name in named if name.startswith(folder) and not name.endswith((*NOT_HIS, *ONCE))]
          for folder in FOLDERS}
    found = [*itertools.chain(*of.values())]
    if turn is not None:
        found = [name for folder, parts in FOLDERS.items() for name in of[folder][int(turn) % parts::parts]] or found[:1]
    return found or [*FOLDERS, *(f"--ignore=tests/integration/{name}" for name in (*NOT_HIS, *ONCE))]


class Run:
    """
    A running pytest that is no child of ours, because tests count the processes below this one.

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
        """Wait for the end. Returns the exit status; None if the run isn't over in time."""
        until = time.monotonic() + seconds
        while len(self._words) < 2 and select.select([self._told], [], [], max(0.0, until - time.monotonic()))[0]:
            data = os.read(self._told, 100)
            if not data:
                return -1  # it was killed
            self._words += data.decode().split()
        return int(self._words[1]) if len(self._words) > 1 else None

    def again(self, seconds: float) -> tuple[int, str]:
        """Run the tests that failed once more, now that the other run is over. Returns the exit status and the output."""
        ended = self._user.run([*self._command, "--last-failed", "--last-failed-no-failures=none"], timeout=seconds,
                               **self._options)
        return ended.returncode, ended.stdout

    def end(self) -> None:
        """Kill the run if it still goes on."""
        if self.wait(0) is None and self._words:
            os.killpg(int(self._words[0]), signal.SIGKILL)
        os.close(self._told)


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
    for name, ours in ((".venv-node", ()), (".venv-node24", ()), (".venv-axe", ()),
                       (".venv-realpackages", ("bin", "lib64")),  # an interpreter is root's alone
                       *(() if ONCE else ((".venv-preloadpackages", ("bin", "lib64")),)),  # for one file of those
                       (".venv-agents", ()), (".venv-agentprograms", ("bin", "lib64"))):
        if (features.ROOT / name).exists():
            shutil.copytree(features.ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ours),
                            copy_function=packages.linked)
    if not ONCE:
        for client in features.ROOT.glob(".venv-client-*"):
            _client(client, folder / client.name)
    for path in (each for each in (folder, *folder.rglob("*")) if not each.is_symlink()):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    return folder


def _client(source: Path, target: Path) -> None:
    """The environment of a client; one of Python with an interpreter that he may run, if there is one of its version."""
    own = {"bin", "lib64", "pyvenv.cfg"} if (source / "pyvenv.cfg").exists() else set[str]()
    shutil.copytree(source, target, symlinks=True, copy_function=packages.linked,
                    ignore=lambda at, _names: own if Path(at) == source else ())
    if own:
        subprocess.run([str(features.system_python()), "-m", "venv", "--without-pip", target], check=True)
        if len([*target.glob("lib/python3*")]) > 1:
            shutil.rmtree(target)


@pytest.fixture(scope="session")
def open_checkout(user_install: Installation, open_folder: Path) -> Path:
    """Make a checkout for a user who can't read this one, and install what runs its tests into the user's installation."""
    wanted: tuple[str, ...] = ("pytest", "pytest-timeout", "hypothesis", "landlock", "pyseccomp", "httpx2", "playwright")
    if os.environ.get("LEEWARD_LONG"):
        wanted += ("h11", "protobuf", "python-multipart", "starlette", "uvicorn", "websockets")  # the extra `serve`
    if not features.IN_GUEST:  # there it has them
        packages.install(user_install.python, *wanted)
    return _checkout(open_folder / "checkout", user_install)


@pytest.fixture(scope="session")
def outside_tmp(user_beside: OrdinaryUser) -> Iterator[Path]:
    """
    Return a folder of the user's that a sandbox can show. The user's home is below /tmp, of which sandboxes show
    nothing.
    """
    with tempfile.TemporaryDirectory(prefix="leeward-tests-", dir="/opt") as folder:
        os.chown(folder, user_beside.uid, user_beside.gid)
        yield Path(folder)


@pytest.fixture(scope="session")
def run_beside(request: pytest.FixtureRequest, user_beside: OrdinaryUser, user_install: Installation,
               open_checkout: Path, open_folder: Path, outside_tmp: Path) -> Iterator[Run]:
    """Return the run, which begins when it is asked for first."""
    # The suite over the other transport: root's run has what a daemon takes by itself.
    settings = user_beside.home / ".config" / "leeward" / "config.toml"
    user_beside.run(["mkdir", "-p", settings.parent], check=True)
    user_beside.run(["tee", settings], input='io = "socket"\n', check=True)
    run = Run(
        user_beside, user_install.python,
        # Not `python -m pytest`, which puts the checkout on sys.path, before what is installed.
        [user_install.folder / "bin" / "pytest", "-q", "-o", f"cache_dir={user_beside.home}/cache",
         *his([*(item.path for item in request.session.items),
               *(path for also in map(features.ROOT.joinpath, os.environ.get(ALSO, "").split())
                 for path in (also.glob("test_*.py") if also.is_dir() else [also]))]),
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
    """Start the run early, because it takes longest."""
    items = request.session.items
    if len(items) >= MANY and LAST == items[-1].name and 0 == os.geteuid():
        request.getfixturevalue("run_beside")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that waits for the run last."""
    items.sort(key=lambda item: LAST == item.name)

"""
The tests that frameworks have for sandboxes, and scripted runs, against the adapters in leeward/apps/integrations.

Each runs in an environment of its own, made by ./dev test, with a real daemon: of whoever runs the tests, and by
root some also of an ordinary user. The environments of some frameworks are large: LEEWARD_LONG=1 makes these as well.
Of those that show the same a whole run has one, another one with each commit. With LEEWARD_RECORD=1 docs/runs has what
passed, for README.md's table.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from kit import entry_points, features, images, packages, runs
from kit.beside import TURN
from kit.live_daemon import command, environment
from kit.ordinary_user import Installation, OrdinaryUser
from kit.skip_policy import require

#: Seconds for one suite.
_PATIENCE = 300

SUITES = features.ROOT / "tests/frameworks"

#: Asynchronous tests need no mark.
_AUTO = ["-o", "asyncio_mode=auto"]
_NONE: list[str] = []
#: Otherwise what takes tens of seconds is left out.
_LONG = bool(os.environ.get("LEEWARD_LONG"))

_Rows: TypeAlias = tuple[tuple[str, str, list[str], dict[str, int]], ...]
#: Framework, its environment, options of pytest, and how many of its tests pass and fail as expected. These have tests of
#: their own for any sandbox's commands and files.
FRAMEWORKS: _Rows = (
    ("langchain", "framework-langchain", _AUTO, {"passed": 86}),
    ("pydantic-ai", "framework-pydantic-ai", [], {"passed": 40}),
    ("inspect-ai", "framework-inspect-ai", [], {"passed": 45, "xfailed": 1}),
)
#: In these a scripted model runs commands and code, as the examples have it.
SCRIPTED: _Rows = (
    ("openai-agents", "client-openai-agents", *((_NONE, {"passed": 10}) if _LONG else (["-k", "not own"], {"passed": 9}))),
    ("autogen", "framework-autogen", _AUTO, {"passed": 7}),
    ("strands", "framework-strands", _AUTO, {"passed": 6}),
)
MORE: _Rows = (
    ("jupyter", "framework-jupyter", *((_NONE, {"passed": 19}) if _LONG else (["-k", "not completion"], {"passed": 18}))),
    ("smolagents", "client-smolagents", [], {"passed": 20}),
    ("swe-rex", "framework-swe-rex", *((_AUTO, {"passed": 51, "xfailed": 1}) if _LONG
                                       else ([*_AUTO, "-k", "ended or cannot or page or own"], {"passed": 4}))),
    ("mini-swe-agent", "framework-mini-swe-agent", [], {"passed": 7}),
    ("nemo-gym", "framework-nemo-gym", _AUTO, {"passed": 9}),
    ("harbor", "framework-harbor", _AUTO, {"passed": 15}),
    ("dspy", "framework-dspy", [], {"passed": 11}),
    ("google-adk", "framework-google-adk", _AUTO, {"passed": 6}),
    ("ag2", "framework-ag2", _AUTO, {"passed": 5}),
    ("agent-framework", "framework-agent-framework", _AUTO, {"passed": 5}),
    ("crewai", "framework-crewai", [], {"passed": 4}),
    ("verifiers", "framework-verifiers", _AUTO, {"passed": 4}),
)
#: Those whose packages sandboxes have as well, in the daemon's environments of these names; and what is imported there
#: again and again, without being able to keep what was compiled.
INSIDE = {"jupyter": "ipykernel.kernelapp, ipykernel.ipkernel, matplotlib.pyplot", "smolagents": "numpy",
          "swe-rex": "swerex.server"}


def of_turn(rows: _Rows) -> _Rows:
    """One of the rows in a whole run; all by hand, and in the long form."""
    return rows if _LONG or TURN not in os.environ else (rows[int(os.environ[TURN]) % len(rows)],)


#: Whose daemon runs which of them. The other suites of an ordinary user's are the long form.
WHO = {"whoever runs this": of_turn(FRAMEWORKS) + of_turn(SCRIPTED) + MORE,
       "an ordinary user": FRAMEWORKS if _LONG else of_turn(FRAMEWORKS)[:1]}

pytestmark = pytest.mark.timeout(2 * _PATIENCE)


def config(folder: Path, outside: Path) -> Path:
    """A configuration with the environments of INSIDE that there are; what a sandbox can't show is copied *outside*."""
    rows = []
    for name, needed, *_ in MORE:
        if name in INSIDE and features.TABLE[needed]():
            subprocess.run([features.ROOT / f".venv-{needed}/bin/python", "-c", f"import {INSIDE[name]}"], check=True)
            shown = packages.shown(Path(sys.executable), outside / name, (features.ROOT / f".venv-{needed}").resolve())
            rows.append(f'[environments.{name}]\npath = "{shown}"\n')
    if features.TABLE["framework-harbor"]():
        rows.insert(0, f'images_folder = "{images.with_users(outside)}"\n')
    made = folder / "config.toml"
    made.write_text("".join(rows))
    made.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def socket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a daemon."""
    with packages.shown_folder() as outside:
        yield from _started(request, tmp_path_factory, outside)


def _started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, outside: Path) -> Iterator[Path]:
    if "whoever runs this" == request.param:
        folder = tmp_path_factory.mktemp("frameworks")
        path = folder / "leeward.sock"
        settings = ["--config", str(config(folder, outside))]

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(command(*more), env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False, timeout=60)
    else:
        require("root", "ordinary-user")
        user: OrdinaryUser = request.getfixturevalue("ordinary_user")
        installation: Installation = request.getfixturevalue("user_install")
        path = user.runtime / "frameworks.sock"
        settings = []
        words = [str(installation.python), "-P", "-m", "leeward_cli"]

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            done: subprocess.CompletedProcess[str] = user.run([*words, *more], timeout=60)
            return done
    started = run("daemon", "start", "--socket", str(path), *settings)
    assert 0 == started.returncode, started.stderr
    yield path
    run("daemon", "stop", "--socket", str(path))


def package_of(framework: str) -> str:
    """The framework's package: the first of the extra of its name."""
    with open(features.ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return re.split(r"[\[>=]", extras[framework][0])[0]


@pytest.mark.parametrize(("socket", "framework", "environment_name", "options", "counts"), [
    pytest.param(who, *row, id=f"{who}-{row[0]}", marks=pytest.mark.needs(row[1]))
    for who, rows in WHO.items() for row in rows], indirect=["socket"], scope="module")
def test_the_frameworks_own_tests_pass(socket: Path, tmp_path: Path, framework: str, environment_name: str,
                                       options: list[str], counts: dict[str, int]) -> None:
    folder = features.ROOT / f".venv-{environment_name}"
    suite = SUITES / f"{framework.replace('-', '_')}_suite.py"
    env = environment(socket, LEEWARD_TESTS_SOURCES=str(folder / "source"))
    env["PYTHONPATH"] += f"{os.pathsep}{entry_points.written(tmp_path / 'leeward')}"

    with tempfile.TemporaryDirectory(prefix="fw-") as env["PYTEST_DEBUG_TEMPROOT"]:  # else it tidies what others' tests left
        done = subprocess.run(
            [folder / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path,
             *options, suite],
            env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_PATIENCE)

    last = done.stdout.strip().splitlines()[-1]
    found = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|xfailed)", last)}
    if counts == found or runs.is_newest(framework):
        runs.record_package(framework, package_of(framework), folder, **found)
    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr
    assert counts == found, last


@pytest.mark.needs("framework-jupyter", "jupyterlab", "chromium")
@pytest.mark.parametrize("socket", ["whoever runs this"], indirect=True)
def test_a_notebook_runs_in_jupyterlab(socket: Path, tmp_path: Path) -> None:
    """In a browser, with a kernel in a sandbox."""
    from kit.jupyterlab import PYTHON, shown

    env = environment(socket, HOME=str(tmp_path), JUPYTER_PATH=str(tmp_path / "share/jupyter"))
    env["PYTHONPATH"] += f"{os.pathsep}{entry_points.written(tmp_path / 'leeward')}"
    subprocess.run([PYTHON, "-m", "leeward.apps.integrations.jupyter", "--name", "leeward", "--prefix", tmp_path,
                    "environment=jupyter", "memory=1G"], env=env, check=True, capture_output=True)
    shown(tmp_path, env, "leeward")
    runs.record_package("jupyterlab", "jupyterlab", PYTHON.parents[1], passed=1)

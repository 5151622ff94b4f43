"""
The tests that LangChain, Pydantic AI and Inspect have for sandboxes, against the adapters in leeward/apps/integrations.

Each runs in an environment of its own, made by ./dev test, with a real daemon: of whoever runs the tests, and by
root also of an ordinary user.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import features
from kit.live_daemon import command, environment
from kit.ordinary_user import Installation, OrdinaryUser
from kit.skip_policy import require

#: Seconds for one suite.
_PATIENCE = 300

SUITES = features.ROOT / "tests/frameworks"

#: Framework, its suite, options of pytest, and how many of its tests pass and fail as expected.
FRAMEWORKS = (
    ("langchain", ["-o", "asyncio_mode=auto"], {"passed": 86}),
    ("pydantic-ai", [], {"passed": 40}),
    ("inspect-ai", [], {"passed": 43, "xfailed": 1}),
)

#: Whose daemon runs which of them. The other suites of an ordinary user's are the long form.
WHO = {"whoever runs this": FRAMEWORKS,
       "an ordinary user": FRAMEWORKS if os.environ.get("LEEWARD_LONG") else FRAMEWORKS[1:2]}

pytestmark = pytest.mark.timeout(2 * _PATIENCE)


@pytest.fixture(scope="module")
def socket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a daemon."""
    if "whoever runs this" == request.param:
        path = tmp_path_factory.mktemp("frameworks") / "leeward.sock"

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(command(*more), env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False, timeout=60)
    else:
        require("root", "ordinary-user")
        user: OrdinaryUser = request.getfixturevalue("ordinary_user")
        installation: Installation = request.getfixturevalue("user_install")
        path = user.runtime / "frameworks.sock"
        words = [str(installation.python), "-P", "-m", "leeward_cli"]

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            done: subprocess.CompletedProcess[str] = user.run([*words, *more], timeout=60)
            return done
    started = run("daemon", "start", "--socket", str(path))
    assert 0 == started.returncode, started.stderr
    yield path
    run("daemon", "stop", "--socket", str(path))


@pytest.mark.parametrize(("socket", "framework", "options", "counts"), [
    pytest.param(who, *row, id=f"{who}-{row[0]}", marks=pytest.mark.needs(f"framework-{row[0]}"))
    for who, rows in WHO.items() for row in rows], indirect=["socket"])
def test_the_frameworks_own_tests_pass(socket: Path, tmp_path: Path, framework: str, options: list[str],
                                       counts: dict[str, int]) -> None:
    python = features.ROOT / f".venv-framework-{framework}/bin/python"
    suite = SUITES / f"{framework.replace('-', '_')}_suite.py"

    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path, *options,
         suite],
        env=environment(socket, PYTHONDONTWRITEBYTECODE="1"), cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=_PATIENCE)

    assert 0 == done.returncode, done.stdout[-8000:] + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    found = re.findall(r"(\d+) (passed|failed|skipped|xfailed)", last)
    assert counts == {what: int(count) for count, what in found}, last

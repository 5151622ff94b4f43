"""The commands and programs of docs/fleet.md, and examples/rollouts.py, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.live_daemon import PATIENCE, command, environment

PAGE = (ROOT / "docs/fleet.md").read_text()
SHELL, TOML, PYTHON = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("sh", "toml", "python"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the page has /tmp/fleet-: three daemons are started there, as the page says."""
    folder = tmp_path_factory.mktemp("page")
    yield folder
    for name in "abc":
        subprocess.run(command("daemon", "stop", "--socket", f"{folder}/fleet-{name}/leeward.sock"), env=environment(),
                       check=False, timeout=PATIENCE, capture_output=True)


@pytest.fixture(scope="module")
def started(place: Path) -> subprocess.CompletedProcess[str]:
    return ran(place, ["sh", "-e", "-c", SHELL[0].replace("/tmp/", f"{place}/")])


def ran(place: Path, argv: list[str], fleet: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(argv, env=environment(PATH=path, LEEWARD_FLEET=fleet), cwd=place, capture_output=True, text=True,
                          check=False, timeout=4 * PATIENCE, stdin=subprocess.DEVNULL)


def nodes(place: Path) -> str:
    return " ".join(f"unix:{place}/fleet-{name}/leeward.sock" for name in "abc")


def test_three_daemons_are_a_fleet(place: Path, started: subprocess.CompletedProcess[str]) -> None:
    assert 0 == started.returncode, started.stderr
    for name in "abc":
        assert f"{place}/fleet-{name}/leeward.sock: runs jobs" in started.stdout


def test_the_program_runs(place: Path, started: subprocess.CompletedProcess[str]) -> None:
    done = ran(place, [sys.executable, "-c", PYTHON[0]], nodes(place))

    assert ("42\n\nhere\n\n", "") == (done.stdout, done.stderr)


def test_the_file_is_read(place: Path, started: subprocess.CompletedProcess[str]) -> None:
    folder = place / "config/leeward"
    folder.mkdir(parents=True)
    (folder / "fleet.toml").write_text(TOML[0].replace("/tmp/", f"{place}/"))
    (folder / "fleet.toml").chmod(0o600)
    done = subprocess.run(command("fleet", "status"), env=environment(XDG_CONFIG_HOME=f"{place}/config"), check=False,
                          capture_output=True, text=True, timeout=PATIENCE)

    assert 0 == done.returncode, done.stderr
    assert re.search(r"^a +up +\d+ .* arch:x86_64 gpu=8$", done.stdout, re.MULTILINE), done.stdout


def test_rollouts(place: Path, started: subprocess.CompletedProcess[str]) -> None:
    done = ran(place, [sys.executable, str(ROOT / "examples/rollouts.py"), "1"], nodes(place))

    assert 0 == done.returncode, done.stderr
    assert re.fullmatch(r"step 0: best reward \d+\.\d\d, 0 without a verdict\n", done.stdout), done.stdout
    assert "64 of 64" in done.stderr

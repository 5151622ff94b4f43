"""A daemon in the background: whose cgroups it gets, and what is left where it can't be started."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from leeward_cli import background
from leeward_cli.background import scope, temporary


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host where systemd runs; the program systemd-run, which is still to be written."""
    monkeypatch.setattr(background, "_SYSTEMD", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "systemd-run"


def written(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_a_scope_of_its_own(systemd: Path) -> None:
    """Of the user's manager, or as root of the system's; tried before it is used."""
    written(systemd, f'echo "$@" > {systemd}.asked')
    words = scope()

    assert [str(systemd), *(["--user"] if os.geteuid() else []), "--scope", "--quiet", "--collect",
            "--property=Delegate=yes", "--"] == words
    assert f"{' '.join(words[1:])} true\n" == Path(f"{systemd}.asked").read_text()


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 60"])
def test_a_manager_that_makes_none(text: str, systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts without, also where systemd doesn't answer."""
    monkeypatch.setattr(background, "SCOPE_S", 0.2)
    written(systemd, text)

    assert [] == scope()


def test_no_process_is_asked_without_systemd(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command of systemd's is run."""
    written(systemd, f"touch {systemd}.asked")
    monkeypatch.setattr(background, "_SYSTEMD", str(systemd / "none"))

    assert [] == scope()
    assert not Path(f"{systemd}.asked").exists()


def test_a_daemon_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its folder nor a descriptor."""
    def fail(*_words: object, **_options: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(background.subprocess, "Popen", fail)
    purpose, before = secrets.token_hex(4), os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError), temporary(purpose):
        pytest.fail("it began")

    assert [] == list(Path("/tmp").glob(f"leeward-{purpose}.*"))
    assert len(before) == len(os.listdir("/proc/self/fd"))

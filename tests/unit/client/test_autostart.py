"""Whether a client may start a daemon, and what it says when that fails. tests/integration/test_autostart.py starts some."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import leeward
from leeward.client import autostart, connection
from leeward.errors import DaemonAway
from leeward.spec.paths import OwnSocket


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("_SYSTEM_UNITS", "_USER_UNITS"):
        monkeypatch.setattr(autostart, name, (str(tmp_path / "units"),))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LEEWARD_AUTOSTART", raising=False)


def test_only_on_the_own_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that somebody has named, even the same, starts nothing; nor does the variable's 0, or another's rights."""
    assert autostart.may_start(OwnSocket("/x"))
    assert not autostart.may_start("/x")
    monkeypatch.setenv("LEEWARD_AUTOSTART", "0")
    assert not autostart.may_start(OwnSocket("/x"))
    monkeypatch.setenv("LEEWARD_AUTOSTART", "1")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert not autostart.may_start(OwnSocket("/x"))


@pytest.mark.parametrize("own", [False, True])
def test_not_where_a_service_has_the_socket(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is installed, whether or not it runs now; an ordinary user's own, too, wherever his settings are."""
    folder = tmp_path / ("settings/systemd/user" if own else "units")
    folder.mkdir(parents=True)
    (folder / "leeward.socket").symlink_to("/nowhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))

    assert str(folder / "leeward.socket") == autostart.unit(system=not own)
    assert own or not autostart.may_start(OwnSocket("/x"))


@pytest.mark.parametrize("op", ["ping", "status", "shutdown"])
def test_a_query_starts_no_daemon(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking whether a daemon is there doesn't start one."""
    monkeypatch.setattr(autostart, "start", lambda path: pytest.fail("started"))

    assert not connection.started(OwnSocket("/x"), op)


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write(tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There another could put a socket of his."""
    monkeypatch.setattr("leeward.spec.writers._has_owner_alone", lambda group, owner: False)
    folder = tmp_path / "leeward"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(DaemonAway, match="must be yours, and writable by nobody else"):
        autostart.start(OwnSocket(folder / "leeward.sock"))


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    """In /tmp whoever comes first has made it."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "leeward").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DaemonAway, match="none could be started"):
        autostart.start(OwnSocket(tmp_path / "leeward" / "leeward.sock"))


def test_an_error_of_the_start_reaches_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of `daemon start` is in the error, and that no code has run."""
    def failing(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"leeward: landlock: have none\nleeward: cause: a cure\n")

    monkeypatch.setattr(subprocess, "run", failing)
    client = leeward.Client()
    client._connection.path = OwnSocket(tmp_path / "leeward" / "leeward.sock")
    with pytest.raises(DaemonAway, match="landlock: have none; cause: a cure; `leeward doctor` says") as raised:
        client.execute("1")

    assert not raised.value.may_have_run


@pytest.mark.parametrize(("number", "text"), [
    (errno.EAGAIN, "raise it (ulimit -u"), (errno.EMFILE, "raise it (ulimit -n"),
    (errno.EPERM, "none could be started: operation not permitted;"),
])
def test_a_limit_that_prevents_a_start_is_named(number: int, text: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(command: list[str], **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(DaemonAway, match=re.escape(text)):
        autostart.start(OwnSocket(tmp_path / "leeward" / "leeward.sock"))

"""What /proc says of a daemon: who started it, and with which options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.fake_daemon import FakeDaemon
from leeward.errors import DaemonAway, LeewardError
from leeward_cli import daemon_commands as control
from leeward_cli.daemon import log_file
from leeward_cli.daemon_commands import Running, arguments_of, logs, restart, unit_of


@pytest.mark.parametrize(("text", "unit"), [
    ("0::/system.slice/leeward.service/daemon\n", "leeward.service"),
    ("3:memory:/\n1:name=systemd:/user.slice/user@1.service/app.slice/leeward.service\n", "leeward.service"),
    ("0::/user.slice/user-1.slice/user@1.service/app.slice/run-1.scope\n", ""), ("", ""),
])
def test_the_unit_of_a_process(text: str, unit: str) -> None:
    """Both cgroup versions; a scope isn't a service."""
    assert unit == unit_of(text)


@pytest.mark.parametrize(("words", "found"), [
    (("python", "-P", "-m", "leeward_cli", "daemon", "run", "--ready-fd=5", "--pool-size=2"), ["--pool-size=2"]),
    (("leeward", "daemon", "run", "--pool-size=2"), None), (("vi", "daemon"), None), ((), None),
])
def test_the_options_of_a_daemon_in_the_background(words: tuple[str, ...], found: list[str] | None) -> None:
    """Of any other process there are none."""
    assert found == arguments_of("".join(f"{word}\0" for word in words))


def test_a_daemon_in_the_foreground(tmp_path: Path) -> None:
    """This process is one: it is named, and not started again."""
    path = tmp_path / "s"
    with FakeDaemon(path):
        daemon = Running(str(path))
        daemon.close()
        assert (os.getpid(), "", None, "its standard error") == (daemon.pid, daemon.unit, daemon.arguments, daemon.log)
        with pytest.raises(LeewardError, match="wasn't started by `leeward daemon start`"):
            restart(str(path), [], False)


def test_no_daemon_and_no_log_are_reported(tmp_path: Path) -> None:
    """No daemon, and no log of one that has been."""
    with pytest.raises(DaemonAway):
        Running(str(tmp_path / "s"))
    with pytest.raises(LeewardError, match="there is no log"):
        logs(str(tmp_path / "s.sock"), 5, False)


def test_the_last_lines_of_a_log(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Also of a daemon that has ended."""
    path = str(tmp_path / "s.sock")
    Path(log_file(path)).write_bytes(b"1\n2\n3\n")
    assert 0 == logs(path, 2, False)
    assert b"2\n3\n" == capfdbinary.readouterr().out
    assert 0 == logs(path, 0, False)
    assert b"" == capfdbinary.readouterr().out


def test_a_mistake_is_found_before_the_daemon_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs goes on."""
    monkeypatch.setattr(control, "arguments_of", lambda _: [f"--config={tmp_path / 'none.toml'}"])
    monkeypatch.setattr(control, "stop", lambda *_: pytest.fail("stopped"))
    with FakeDaemon(tmp_path / "s"), pytest.raises(LeewardError, match=r"none\.toml"):
        restart(str(tmp_path / "s"), [], False)

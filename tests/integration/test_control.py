"""A daemon in the background, looked after by commands: status, logs, reload, restart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.live_daemon import LiveDaemon, run
from kit.ordinary_user import Installation, OrdinaryUser


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Path]:
    """The socket of a daemon with two workers and a configuration of its own."""
    config, socket = tmp_path / "x.toml", tmp_path / "d.sock"
    config.write_text("queue_size = 5\n")
    config.chmod(0o600)
    done = run(socket, "daemon", "start", "--pool-size", "2", "--config", str(config))
    assert 0 == done.returncode, done.stderr
    yield socket
    run(socket, "daemon", "stop", "--now")


def about(socket: Path) -> dict[str, object]:
    done = run(socket, "daemon", "status", "--json")
    assert 0 == done.returncode, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_status_logs_and_a_restart(background: Path) -> None:
    """The process, who started it, its log; after a restart another process with the same options."""
    before = about(background)
    text = run(background, "daemon", "status")
    assert "`leeward daemon start`" == before["started_by"]
    assert str(background.with_suffix(".log")) == before["log"]
    assert f"process         {before['pid']}\n".encode() in text.stdout
    assert b"2 total" in text.stdout
    assert b" ready " in run(background, "daemon", "logs").stdout
    done = run(background, "daemon", "restart")
    after = about(background)

    assert 0 == done.returncode, done.stderr
    assert before["pid"] != after["pid"]
    assert before["workers"]["total"] == after["workers"]["total"] == 2  # type: ignore[index]
    assert b"1\n" == run(background, "exec", "print(1)").stdout


def test_a_restart_with_other_options(background: Path) -> None:
    """These, and a mistake among them leaves the daemon alone."""
    pid = about(background)["pid"]
    assert 1 == run(background, "daemon", "restart", "--config", "/nowhere/x.toml").returncode
    assert pid == about(background)["pid"]
    assert 0 == run(background, "daemon", "restart", "--pool-size=1").returncode
    assert 1 == about(background)["workers"]["total"]  # type: ignore[index]


def test_a_reload_reports_its_outcome(background: Path) -> None:
    """Taken, taken in part, refused."""
    config = background.parent / "x.toml"
    config.write_text("queue_size = 6\nspares = 2\n")
    done = run(background, "daemon", "reload")
    assert 0 == done.returncode, done.stderr
    assert b"configuration reloaded" in done.stdout
    assert b"spares" in done.stdout
    config.write_text("queue_sise = 6\n")
    done = run(background, "daemon", "reload")
    assert 1 == done.returncode
    assert b"queue_sise" in done.stdout
    assert b"queue_sise" in run(background, "daemon", "logs", "-n1").stdout


def test_a_reload_of_a_daemon_in_the_foreground_reports_its_outcome(tmp_path: Path) -> None:
    """Whose log this command can't read. The last file would exhaust a parser that recurses."""
    config = tmp_path / "x.toml"
    config.write_text("")
    (tmp_path / "d").mkdir(mode=0o700)
    with LiveDaemon(tmp_path / "d", "--pool-size", "1", "--config", str(config)) as daemon:
        for text, status in (("queue_size = 6\n", 0), ("queue_sise = 6\n", 1), ("queue_size = 7\n", 0),
                             (f"preload = {'[' * 5000}{']' * 5000}\n", 1), ("queue_size = 8\n", 0)):
            config.write_text(text)
            done = run(Path(daemon.socket), "daemon", "reload")
            assert status == done.returncode, done.stderr
            assert (b"has refused its configuration" in done.stderr) is bool(status)


@pytest.mark.parametrize("command", ["status", "reload"])
def test_commands_say_that_no_daemon_runs(command: str, tmp_path: Path) -> None:
    """Exit 1, and one line."""
    done = run(tmp_path / "s", "daemon", command)

    assert (1, b"", 1) == (done.returncode, done.stdout, done.stderr.count(b"\n"))


@pytest.mark.needs("root", "ordinary-user")
@pytest.mark.parametrize("program", ["leeward", "leeward-python"])
def test_a_user_without_access_is_told_whose_socket_it_is(program: str, open_folder: Path, ordinary_user: OrdinaryUser,
                                                          user_install: Installation) -> None:
    """
    Not "start one": the error names the socket's owner, and the way to be let in, by the C program and the Python
    one.
    """
    folder = open_folder / f"locked-{program}"
    folder.mkdir(mode=0o755)
    socket = folder / "leeward.sock"
    assert 0 == run(socket, "daemon", "start", "--pool-size=1").returncode
    try:
        command = [user_install.folder / "bin" / program, "exec", "1", f"--socket={socket}"]
        done = ordinary_user.run(command, timeout=60)
        assert 1 == done.returncode
        assert "permission denied" in done.stderr
        assert "who alone may" in done.stderr
        assert "start one" not in done.stderr
        os.chown(socket, 0, 0)
        socket.chmod(0o660)
        done = ordinary_user.run(command, timeout=60)
        assert "whose members may connect" in done.stderr
        assert "usermod -aG" in done.stderr
    finally:
        assert 0 == run(socket, "daemon", "stop").returncode

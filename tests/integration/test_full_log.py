"""A daemon whose log can't be written: the file system under it is full."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from kit.live_daemon import PATIENCE, command, environment
from leeward import Client, Outcome

KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


def answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("form", [(), ("--log-json",)])
def test_a_log_without_room_costs_its_lines_alone(tmp_path: Path, form: tuple[str, ...]) -> None:
    """Jobs that would be logged are answered, and the daemon ends in order."""
    path = tmp_path / "leeward.sock"
    with open("/dev/full", "w") as full:
        daemon = subprocess.Popen(command("daemon", "run", *form, "--socket", str(path)), env=environment(),
                                  stdin=subprocess.DEVNULL, stderr=full)
    try:
        until = time.monotonic() + PATIENCE
        while not answers(path):  # nobody hears that it is ready
            assert daemon.poll() is None
            assert time.monotonic() < until
        with Client(str(path)) as client:
            for _ in range(3):
                assert Outcome.SIGNALLED is client.execute(KILLED).outcome  # a line of the log
                assert "2\n" == client.execute("print(2)").text
            assert 0 == client.status()["faults"]
    finally:
        daemon.terminate()
        assert 0 == daemon.wait(PATIENCE)

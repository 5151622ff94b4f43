"""
`leeward daemon install` with a real systemd: what it writes serves, and `uninstall` leaves nothing.

Only in a guest. As root it is the system's service, else the user's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.ordinary_user import copied
from leeward_cli.install import SYSTEM_FOLDER
from leeward_cli.units import SERVICE, SOCKET, SYSTEM_SOCKET

pytestmark = pytest.mark.needs("guest", "systemd")

ROOT = 0 == os.geteuid()

#: Where a service, its user or its socket leaves something, if it does.
KEPT = [Path("/etc"), Path("/run/systemd"), Path("/run/leeward"), Path("/var/lib"), Path("/var/log"), Path("/var/cache")
        ] if ROOT else [Path.home(), Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent"))]

#: systemd's own: what its units are at, from one moment to the next, and the journal's and D-Bus' files.
MOVING = ("/run/systemd/units", "/run/systemd/journal", "/run/systemd/transient", "/run/systemd/propagate",
          "/run/systemd/inaccessible", "/run/systemd/sessions", "/run/systemd/users", "/run/systemd/dynamic-uid",
          "/var/log/journal", *(f"{os.environ.get('XDG_RUNTIME_DIR', '')}/{name}" for name in ("systemd", "dbus-1")))


@pytest.fixture
def python() -> Iterator[str]:
    """
    An interpreter with leeward that the service's user can run: the system's has a /tmp of its own, and so not this
    checkout.
    """
    if not ROOT:
        yield sys.executable
        return
    folder = Path("/opt/leeward")
    yield str(copied(folder).python)
    shutil.rmtree(folder)


def run(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "PYTHONPATH" != name}
    return subprocess.run(command, env={**environment, **options}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)


def systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    return run("systemctl", *([] if ROOT else ["--user"]), "--no-pager", *words)


def manager(*words: str) -> str:
    """What systemctl says, which did as it was told; else what the journal has of it."""
    done = systemctl(*words)
    assert 0 == done.returncode, done.stderr + journal()
    return done.stdout


def journal() -> str:
    return run("journalctl", "--no-pager", "-o", "short-monotonic", "-n", "50").stdout


def left() -> set[str]:
    """The files that are there now, and the units and users that are known."""
    files = {str(path) for folder in KEPT if folder.exists() for path in (folder, *folder.rglob("*"))
             if not str(path).startswith(tuple(filter(None, MOVING)))}
    units = {*systemctl("list-units", "--all", "--plain", "--no-legend", "leeward*").stdout.splitlines(),
             *systemctl("list-unit-files", "--no-legend", "leeward*").stdout.splitlines()}
    return files | units | set(run("getent", "passwd", "leeward").stdout.splitlines())


def test_install_serves_and_uninstall_restores_the_machine(python: str) -> None:
    """
    A job by the socket that systemd keeps, with limits held by the service's own groups; the configuration read anew; a
    restart; and then the machine is as it was.
    """
    program = [python, "-P", "-m", "leeward_cli"]
    folder = Path("/", SYSTEM_FOLDER) if ROOT else Path.home() / ".config/systemd/user"
    socket = SYSTEM_SOCKET if ROOT else f"{os.environ['XDG_RUNTIME_DIR']}/leeward/leeward.sock"
    before = left()

    done = run(*program, "daemon", "install")

    assert 0 == done.returncode, done.stderr + journal()
    assert {folder / SERVICE, folder / SOCKET} <= set(folder.iterdir())
    try:
        answer = run(*program, "exec", "print(6 * 7)")
        assert ("42\n", "") == (answer.stdout, answer.stderr), journal()
        status = json.loads(run(*program, "status", "--json").stdout)
        assert "v2" == status["layers"]["cgroup"]["driver"]
        first = manager("show", "--property=MainPID", "--value", SERVICE)
        manager("reload", SERVICE)
        assert first == manager("show", "--property=MainPID", "--value", SERVICE)
        manager("restart", SERVICE)
        answer = run(*program, "exec", "print(6 * 7)")
        assert ("42\n", "") == (answer.stdout, answer.stderr), journal()
        assert first != manager("show", "--property=MainPID", "--value", SERVICE)
        assert os.path.exists(socket)
    finally:
        done = run(*program, "daemon", "uninstall")

    assert 0 == done.returncode, done.stderr
    assert before == left()
    assert not os.path.exists(socket)
    assert "no daemon answers" in run(*program, "exec", "1", LEEWARD_AUTOSTART="0").stderr  # nothing has started again
    assert before == left()
    assert "clients of yours start a daemon by themselves" in done.stderr
    try:
        answer = run(*program, "exec", "print(6 * 7)")
        assert ("42\n", "") == (answer.stdout, answer.stderr)
    finally:
        run(*program, "daemon", "stop")

"""`leeward selftest` on this machine; and over sandboxes that lack a lock, where exactly the rows of that lock fail."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
from pathlib import Path

import pytest

from kit.box import Box
from kit.live_daemon import LiveDaemon, command, environment
from kit.locks import LOCKS
from kit.selftest_box import InBox
from leeward_cli.selftest.attacks import ATTACKS
from leeward_cli.selftest.canaries import Canaries
from leeward_cli.selftest.command import VARIABLE
from leeward_cli.selftest.trial import HELD, MISSING, OPEN, Finding, attempt

#: Rows that something else may hold: a single or a busy processor.
ALSO_HELD = {attack.name for attack in ATTACKS if attack.needs}
#: Held by a machine that has no other interface itself.
INTERFACE = next(attack.name for attack in ATTACKS if "network interface" in attack.name)


def findings(monkeypatch: pytest.MonkeyPatch, **lacking: object) -> list[Finding]:
    """Of every row, in a sandbox made so."""
    token = secrets.token_hex(8)
    monkeypatch.setenv(VARIABLE, token)
    with Box(pool_size=2, **lacking) as box:  # type: ignore[arg-type]  # its own names
        sandbox = InBox(box)
        with Canaries("", {}, token, 100, sandbox.until) as canaries:
            found = list(attempt(sandbox, ATTACKS, canaries))
    # What got through wrote into the host's folders.
    folders = (Path(folder) for folder in ("/tmp", "/var/tmp", "/dev/shm"))
    assert [] == [str(path) for folder in folders for path in folder.glob(f"*{canaries.mark[::-1]}*")]
    return found


def opened(found: list[Finding]) -> set[str]:
    assert not [finding for finding in found if finding.state not in (HELD, OPEN)], found
    names = {finding.attack.name for finding in found if finding.state == OPEN}
    return names - ALSO_HELD - ({INTERFACE} if len(socket.if_nameindex()) < 2 else set())


def named(lock: str) -> set[str]:
    """The rows that this lock alone holds."""
    names = {attack.name for attack in ATTACKS if lock == attack.only}
    return names - ({INTERFACE} if len(socket.if_nameindex()) < 2 else set())


@pytest.mark.parametrize("lock", ["seccomp", "mounts", "namespaces", "privileges", "rlimits", "descriptors",
                                  "environment", "randomness"])
def test_a_lock_that_is_off_is_seen(lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the rows that it alone holds get through; all others are held by the locks that are left."""
    found = findings(monkeypatch, locks=LOCKS - {lock})

    assert named(lock)
    assert named(lock) == opened(found)


def test_limits_that_are_off_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in one process and in several, and tasks."""
    found = findings(monkeypatch, lacks={"limits"})

    assert named("limits") == opened(found)


def test_landlock_holds_where_the_mounts_dont(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the second lock of many rows and the first of none: without both, what it held gets through."""
    both = opened(findings(monkeypatch, locks=LOCKS - {"mounts", "landlock"}))
    one = opened(findings(monkeypatch, locks=LOCKS - {"mounts"}))

    assert one < both
    assert "read a file of the host by its path" in both - one


def selftest(*words: str, socket: Path | None = None) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(command("selftest", "--json", *words), env=environment(socket), capture_output=True,
                          timeout=180, check=False, stdin=subprocess.DEVNULL)
    shown: dict[str, object] = json.loads(done.stdout) if done.stdout else {}
    return done.returncode, shown, done.stderr.decode()


def check(status: int, shown: dict[str, object], errors: str) -> None:
    rows = shown["rows"]
    assert isinstance(rows, list)
    states = {row["state"] for row in rows}
    assert {HELD} <= states <= {HELD, MISSING}, [row for row in rows if row["state"] != HELD] + [errors]
    assert len(ATTACKS) == len(rows)
    assert (status, shown["held"]) == ((0, True) if {HELD} == states else (1, False))
    assert all(row["cure"] for row in rows if row["state"] == MISSING)


def test_the_selftest_passes_with_a_private_daemon() -> None:
    """Every row, but for what no controllers hold where there are none."""
    status, shown, errors = selftest("--private")

    check(status, shown, errors)
    assert shown["daemon"]["private"] is True  # type: ignore[index]


def test_the_selftest_passes_with_a_running_daemon(tmp_path: Path) -> None:
    """That daemon is the one that is tested, and it serves afterwards."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        status, shown, errors = selftest(socket=daemon.socket)
        check(status, shown, errors)
        assert {"private": False, "socket": str(daemon.socket)}.items() <= shown["daemon"].items()  # type: ignore[attr-defined]
        assert b"1\n" == daemon.run("exec", "print(1)").stdout


def test_the_selftest_starts_a_daemon_where_none_answers(tmp_path: Path) -> None:
    """And the text says which daemon it was."""
    done = subprocess.run(command("selftest"), env=environment(tmp_path / "none"), capture_output=True, timeout=180,
                          check=False, stdin=subprocess.DEVNULL, text=True)

    assert done.stdout.startswith("leeward selftest, against a daemon of its own\n"), done.stderr
    assert f" of {len(ATTACKS)} attacks were held\n" in done.stdout
    assert done.returncode in (0, 1)

"""
`bench/sandboxes.py` in its short form: many live sandboxes at once and in turn, each of which answers, and none of
which leaves anything. And that it finds what is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leeward
from bench import sandboxes
from kit.live_daemon import LiveDaemon

LONG = bool(os.environ.get("LEEWARD_LONG"))


def measured(count: int, turns: int) -> dict[str, Any]:
    ended = subprocess.run([sys.executable, "-P", str(Path(sandboxes.__file__)), "--count", str(count), "--turns",
                            str(turns), "--json"], capture_output=True, text=True, timeout=3600 if LONG else 240,
                           check=False)
    assert (0, "") == (ended.returncode, ended.stderr), ended.stdout
    found: dict[str, Any] = json.loads(ended.stdout)
    assert (count, turns) == (found["at once"]["count"], found["in turn"]["turns"])
    return found


def test_many_sandboxes_at_once_and_in_turn_do_not_leak() -> None:
    """And each takes less than 1.2 MiB, beside what the first ones bring into the daemon."""
    count, turns = (170, 10_000) if LONG else (16, 60)
    few, many = measured(4, 1)["at once"], measured(count, turns)["at once"]
    assert (many["MiB"] - few["MiB"]) / (count - 4) < 1.2


def test_the_check_finds_a_wrong_answer_and_a_leaked_sandbox(monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    """A sandbox that isn't ended is, and one that gives another answer."""
    ask, said = sandboxes.SandboxConnection.ask, []

    def forgetful(connection: sandboxes.SandboxConnection, op: str, **fields: object) -> dict[str, object]:
        said.append(op)
        if "sandbox_kill" == op and 7 == said.count(op):
            return {}
        return ask(connection, op, **fields)

    monkeypatch.setattr(sandboxes.SandboxConnection, "ask", forgetful)
    monkeypatch.setattr(sandboxes, "REST_S", 2.0)
    monkeypatch.setattr(sandboxes.SandboxConnection, "answers", lambda _connection, _box, number: 3 != number)
    monkeypatch.setattr(sys, "argv", ["sandboxes.py", "--count", "0", "--turns", "10"])
    assert 1 == sandboxes.main()
    wrong = json.loads(capsys.readouterr().out)["wrong"]
    assert "turn 3 gave another answer" in wrong
    assert [one for one in wrong if "processes after 10 turns" in one]


def test_groups_that_are_kept_for_later_are_counted_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """How many are kept depends on the load. A group that has a process in any hierarchy, or below, counts."""
    monkeypatch.setattr(sandboxes, "GROUPS", str(tmp_path))

    def group(path: str, processes: str = "") -> None:
        for hierarchy in ("memory", "pids"):
            folder = tmp_path / hierarchy / "leeward-7-1" / path
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(processes if "pids" == hierarchy else "")

    group("w0.1", "12\n")
    group("w0.2")
    group("w0.2/p1", "13\n")
    before = sandboxes.groups(7)
    assert (2 * 1 + 2 * 3, set()) == before
    for place in ("w0.3", "w0.4", "w1.3"):
        group(place)
    assert (before[0], {"w0.3", "w0.4", "w1.3"}) == sandboxes.groups(7)
    group("left over")
    assert before[0] + 2 == sandboxes.groups(7)[0]


def test_a_sandbox_that_stays_has_its_worker_alone(tmp_path: Path) -> None:
    """The other runners of its worker go, whose memory nobody needs; they are there again when it is over."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        def stocked(status: dict[str, Any], count: int) -> bool:
            return [count, count, 0] == [status[f"runners_{what}"] for what in ("armed", "kept", "arming")]

        daemon.until(lambda status: stocked(status, 4))
        with leeward.Sandbox(socket=daemon.socket) as box:
            assert b"1\n" == box.run(["echo", "1"]).stdout
            daemon.until(lambda status: stocked(status, 2))
            assert b"2\n" == box.run(["echo", "2"]).stdout
            assert 6 == box.execute("import os; os._exit(6)").exit_code
        daemon.until(lambda status: stocked(status, 4))
        for _ in range(4):
            with leeward.Sandbox(socket=daemon.socket) as box:
                assert b"3\n" == box.run(["echo", "3"]).stdout


def test_more_sandboxes_than_have_room_awake(tmp_path: Path) -> None:
    """
    Where descriptors are scarce most of them rest, and each answers all the same. When they are over their workers go
    at once, but for a few.
    """
    count = 20
    (tmp_path / "config").write_text(f"pool_size = 2\nmax_sessions = {count}\n")
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config"), descriptors=2900) as daemon:
        def held() -> int:
            return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

        before = held()
        boxes = [leeward.Sandbox(socket=daemon.socket) for _ in range(count)]
        for _ in range(2):
            for number, box in enumerate(boxes):
                assert b"%d\n" % number == box.run(["echo", str(number)]).stdout
                assert box.info()["memory_peak"] > 0
        assert held() - before < 17 * count + 2 * 107 + count  # and a connection each
        with leeward.Sandbox(socket=daemon.socket, retry_busy=False) as further, pytest.raises(leeward.Busy):
            further.run(["true"])
        for box in boxes:
            box.close()
        daemon.until(lambda status: status["workers"]["total"] <= 2 + 1 + 16)

"""What a command line has started ends with it, by whatever signal; and what the daemon says of it is true."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import live_daemon
from kit.live_daemon import PATIENCE, LiveDaemon, command, descendants, environment
from kit.waiting import poll_until

#: Why these tests look again: the daemon tells nobody of it.
WHY = "the daemon ends a sandbox by itself"
SIGNALS = [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]
LINE = "echo started; sleep 1234"

DAEMON = ("--pool-size", "4")


def _started(daemon: LiveDaemon, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A program that talks to the daemon, when its first line is here."""
    made = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                            env=environment(daemon.socket), cwd="/usr", **options)
    assert made.stdout is not None
    assert b"started\n" == made.stdout.readline()
    return made


def _ended(made: subprocess.Popen[bytes], number: int) -> None:
    made.send_signal(number)
    made.wait(PATIENCE)
    for file in (made.stdin, made.stdout):
        assert file is not None
        file.close()


def _sleepers(daemon: LiveDaemon) -> list[int]:
    """The processes of LINE that live."""
    found = []
    for pid in descendants(daemon.process.pid):
        try:
            if b"sleep\x001234\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("words", [
    ("exec", "--profile", "shell", "--", LINE), ("exec", "--profile", "workdir", "--", LINE),
    ("shell", "--no-terminal", "--", "sh", "-c", LINE), ("python",),
], ids=lambda words: " ".join(words[:3]))
def test_a_killed_command_leaves_nothing(daemon: LiveDaemon, words: tuple[str, ...], number: signal.Signals) -> None:
    made = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                            env=environment(daemon.socket), cwd="/usr")
    assert made.stdin is not None
    assert made.stdout is not None
    if "python" == words[0]:  # it reads all of its input before it runs anything
        made.stdin.write(b"print('started', flush=True)\nimport time\ntime.sleep(1234)\n")
        made.stdin.close()
        poll_until(lambda: any(row["calls"] for row in leeward.Sandbox.list(socket=daemon.socket)), WHY)
    else:
        assert b"started\n" == made.stdout.readline()
        poll_until(lambda: _sleepers(daemon), "the shell starts a program")
    assert [True] == [row["held"] for row in leeward.Sandbox.list(socket=daemon.socket)]
    _ended(made, number)

    poll_until(lambda: not leeward.Sandbox.list(socket=daemon.socket) and not _sleepers(daemon), WHY)


def test_a_killed_commands_changed_copy_stays_for_a_while(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Without processes, and `leeward diff` and `leeward apply` take it; one without changes ends."""
    (tmp_path / "work").mkdir()
    for line in ("echo mine > work/made; ", ""):
        made = subprocess.Popen(command("shell", "--no-terminal", "--overlay", "--workdir", str(tmp_path), "--", "sh", "-c",
                                        line + LINE), stdout=subprocess.PIPE, stdin=subprocess.PIPE,
                                env=environment(daemon.socket), cwd="/usr")
        assert made.stdout is not None
        assert b"started\n" == made.stdout.readline()
        [row] = leeward.Sandbox.list(socket=daemon.socket)
        assert row["held"]
        _ended(made, signal.SIGKILL)
        poll_until(lambda: not _sleepers(daemon), WHY)
        if not line:
            poll_until(lambda: not leeward.Sandbox.list(socket=daemon.socket), WHY)
            continue
        box = str(row["sandbox"])
        poll_until(lambda: 0 == leeward.Sandbox.list(socket=daemon.socket)[0]["calls"], WHY)
        [row] = leeward.Sandbox.list(socket=daemon.socket)
        assert (box, False, 0) == (row["sandbox"], row["held"], row["processes"])
        assert 0 < row["idle"] <= 600
        assert b"work/made" in live_daemon.run(daemon.socket, "diff", box).stdout
        assert 0 == live_daemon.run(daemon.socket, "apply", box).returncode
        assert "mine\n" == (tmp_path / "work/made").read_text()
        leeward.Sandbox.attach(box, socket=daemon.socket).close()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_named_sandbox_stays_without_what_a_killed_command_ran_in_it(daemon: LiveDaemon,
                                                                       number: signal.Signals) -> None:
    with leeward.Sandbox(socket=daemon.socket) as box:
        box.start(["sleep", "4321"])
        _ended(_started(daemon, command("shell", "--no-terminal", box.id, "--", "sh", "-c", LINE)), number)
        poll_until(lambda: 1 == box.info()["processes"], WHY)
        assert not _sleepers(daemon)


@pytest.mark.needs("extra-mcp")
def test_a_killed_server_of_tools_leaves_nothing(daemon: LiveDaemon) -> None:
    """While one of its tools runs a program."""
    made = subprocess.Popen(command("mcp"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(daemon.socket),
                            cwd="/usr")
    assert made.stdin is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    for row in ({"id": 1, "method": "initialize", "params": hello}, {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/call", "params": {"name": "run_shell", "arguments": {"command": LINE}}}):
        made.stdin.write(json.dumps({"jsonrpc": "2.0", **row}).encode() + b"\n")
    made.stdin.flush()
    poll_until(lambda: _sleepers(daemon), "the program of the tool")

    _ended(made, signal.SIGKILL)

    poll_until(lambda: not leeward.Sandbox.list(socket=daemon.socket) and not _sleepers(daemon), WHY)


PROGRAM = """
import sys, leeward
box = leeward.Sandbox(held={held})
process = box.start("sleep 1234")
assert process.pid
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("held", [True, False])
def test_a_sandbox_of_a_program_is_held_if_it_asks_for_that(daemon: LiveDaemon, held: bool) -> None:
    _ended(_started(daemon, [sys.executable, "-c", PROGRAM.format(held=held)]), signal.SIGKILL)
    if held:
        poll_until(lambda: not leeward.Sandbox.list(socket=daemon.socket), WHY)
        return
    row, = leeward.Sandbox.list(socket=daemon.socket)
    leeward.Sandbox.attach(row["sandbox"], socket=daemon.socket).close()


def test_a_detached_sandbox_outlives_its_program(daemon: LiveDaemon) -> None:
    box = leeward.Sandbox(socket=daemon.socket, held=True)
    box.files.write("kept", b"here")
    with leeward.Sandbox.attach(box.detach(), socket=daemon.socket) as again:
        assert b"here" == again.files.read("kept")
        assert not again.info()["held"]


@pytest.mark.parametrize("held", [True, False])
def test_what_an_attached_client_for_asyncio_starts_is_held_if_it_asks_for_that(daemon: LiveDaemon, held: bool) -> None:
    """As that of the blocking client, whose command line does so."""
    async def go(box: leeward.Sandbox) -> None:
        other = await leeward.AsyncSandbox.attach(box.id, socket=daemon.socket, held=held)
        await other.start("sleep 1234")
        await other.kernel()
        await other.detach()

    with leeward.Sandbox(socket=daemon.socket) as box:
        asyncio.run(go(box))
        if held:
            poll_until(lambda: 0 == box.info()["processes"], WHY)
        else:
            assert 2 == box.info()["processes"]


def test_a_closed_connection_is_named_as_the_reason(daemon: LiveDaemon) -> None:
    box = leeward.Sandbox(socket=daemon.socket, held=True)
    assert box.id
    box._connections.close()
    other = leeward.Sandbox(socket=daemon.socket)
    other._id = box.id

    def reason() -> str:
        try:
            other.info()
        except leeward.SandboxOver as over:
            return str(over.reason)
        return ""

    poll_until(lambda: "parted" == reason(), WHY)
    other._connections.close()


def test_counters_and_refusals_say_what_is_open(daemon: LiveDaemon) -> None:
    """The numbers of the pool that refuses, in the refusal and in the status; four killed commands block nothing."""
    made = [_started(daemon, command("exec", "--profile", "shell", "--", LINE)) for _ in range(4)]
    rows = leeward.Sandbox.list(socket=daemon.socket)
    with daemon.client() as client:
        status = client.status()
    pool, = [row for row in status["pools"] if "shell" == row["profile"]]
    assert (4, 4, 0) == (len(rows), status["sandboxes"], status["sessions"])
    assert (4, 4) == (pool["sandboxes"], pool["max_sessions"])
    assert b"4 of 4 sessions and sandboxes" in daemon.run("status").stdout
    box = leeward.Sandbox(socket=daemon.socket, profile="shell")
    with pytest.raises(leeward.Busy) as refused:
        box._connections._lasting.call("sandbox_open", {"profile": "shell"}, retry_busy=False)
    assert ("0 sessions and 4 sandboxes are open already in the pool 'shell', all that there may be (`max` of the"
            " profile 'shell')") in str(refused.value)
    box._connections.close()
    for one in made:
        _ended(one, signal.SIGKILL)

    assert b"free\n" == daemon.run("exec", "--profile", "shell", "--", "echo free", cwd="/usr").stdout
    with daemon.client() as client:
        poll_until(lambda: 0 == client.status()["sandboxes"], WHY)

"""`leeward logs` and `leeward explain` of a job: how jobs, sandboxes and what runs in them ended."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon, command, environment
from leeward.client.connection import BlockingConnection

DAEMON = ("--pool-size", "2")


def told(daemon: LiveDaemon, *words: str) -> list[dict[str, Any]]:
    done = daemon.run("logs", "--json", *words)
    assert 0 == done.returncode, done.stderr
    return [json.loads(row) for row in done.stdout.splitlines()]


def test_ends_limits_and_denied_calls_are_logged(daemon: LiveDaemon) -> None:
    """Of jobs, and of programs, interpreters and kernels in a sandbox, and of the sandbox; the daemon alone says so."""
    before = max([0, *(row["number"] for row in told(daemon))])
    with daemon.client() as client:
        client.execute("print(1)", label="fine")
        client.execute("while True: pass", timeout=0.3, label="late")
        client.execute("import socket\ntry: socket.socket()\nexcept OSError: pass", label="curious")
    box = leeward.Sandbox(socket=daemon.socket)
    box.run(["sleep", "100"], timeout=0.2)
    box.execute("import os; os._exit(3)")
    with box.kernel() as kernel:
        kernel.execute("1/0")
    name = box.id
    box.close()
    rows = [row for row in told(daemon) if row["number"] > before]
    assert ["job", "job", "job", "process", "process", "process", "sandbox"] == [row["kind"] for row in rows]
    fine, late, curious, program, code, raised, over = rows
    assert ("fine", "finished", None, {}) == tuple(fine[field] for field in ("title", "outcome", "limit", "denied"))
    assert ("late", "timed_out", 124, "time") == tuple(late[field] for field in ("title", "outcome", "exit_code",
                                                                               "limit"))
    assert "curious" == curious["title"]
    assert curious["denied"]["network"] >= 1
    assert ("timed_out", 1, "sleep") == (program["outcome"], program["process"], program["title"])
    assert (3, "ZeroDivisionError") == (code["exit_code"], raised["error"])
    assert (name, "killed") == (over["sandbox"], over["reason"])
    assert [program, code, raised, over] == told(daemon, name)
    assert [late] == told(daemon, str(late["job"]))
    lines = daemon.run("logs").stdout.decode()
    assert f"job {late['job']}  timed_out  exit 124  limit time" in lines

    said = daemon.run("explain", str(late["job"])).stdout.decode()
    assert "was ended when its time was up, exit status 124" in said
    assert "--timeout" in said
    said = daemon.run("explain", str(curious["job"]), "ptrace").stdout.decode()
    assert "denied          network" in said
    assert "loopback = true" in said
    assert "ptrace: refused with EACCES" in said
    last = daemon.run("explain").stdout.decode()
    assert f"sandbox {name} process 1: was ended when its time was up" in last
    none = daemon.run("explain", "999999999")
    assert (True, True) == (0 != none.returncode, b"remembers no job" in none.stderr)


def test_new_lines_are_followed(daemon: LiveDaemon) -> None:
    """At once, until Ctrl-C; a job's own name is shown escaped."""
    with daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box:
        follower = subprocess.Popen(command("logs", "-f"), env=environment(daemon.socket), stdout=subprocess.PIPE,
                                    text=True)
        try:
            assert follower.stdout is not None
            client.execute("pass", label="followed")
            while "followed" not in follower.stdout.readline():
                pass
            box.shell("exit 7 # \x1b[2Jclear\njob 1  forged")
            found = follower.stdout.readline()
            assert "  exit 7  " in found
            assert "\\x1b[2Jclear\\njob 1  forged" in found
        finally:
            follower.send_signal(2)
            assert 0 == follower.wait(10)
            if follower.stdout is not None:
                follower.stdout.close()


def test_a_follower_that_leaves_is_forgotten(daemon: LiveDaemon) -> None:
    """One that was cancelled, one whose connection has ended, one whose time is up."""
    daemon.idle()
    connection = BlockingConnection(str(daemon.socket))
    reply, _ = connection.call("recall", {})
    assert reply.ok is not None
    last = reply.ok["last"]
    reply, _ = connection.call("recall", {"after": last, "wait": 0.05})
    assert {"events": [], "last": last} == reply.ok
    with pytest.raises(leeward.NoAnswer):
        connection.call("recall", {"after": last, "wait": 100}, time.monotonic() + 0.1)
    connection.close()
    with daemon.client() as client:
        assert 0 == client.execute("pass").exit_code

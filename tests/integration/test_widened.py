"""`loopback` and `terminal` of the configuration, through the command line: what works with them, and how it is without."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon, command, environment

PATIENCE_S = 60

SERVES = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    client.sendall(b"over lo")
    print(server.accept()[0].recv(9).decode())
"""

TALKS = """
import pty
pty.spawn(["sh", "-c", "tty"])
"""

SHOWN = """
import json, os
print(json.dumps({"processors": os.cpu_count(), "term": os.environ.get("TERM", ""),
                  "total": open("/proc/meminfo").readline().split()[1],
                  "memory": open("/sys/fs/cgroup/memory.max").read().strip(),
                  "processes": open("/sys/fs/cgroup/pids.max").read().strip(), "root": sorted(os.listdir("/"))}))
"""


def run(folder: Path, config: str, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`leeward run` of *code* with *config* as its file."""
    path = folder / "leeward.toml"
    path.write_text(config)
    path.chmod(0o600)
    return subprocess.run(command("run", "--config", str(path), code), env=environment(**more), capture_output=True,
                          text=True, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(("switch", "code", "says", "without"), [
    ("loopback", SERVES, "over lo\n", "PermissionError"),
    ("terminal", TALKS, "/dev/pts/0\n", "out of pty devices"),
])
def test_a_switch_is_off_until_it_is_set(tmp_path: Path, switch: str, code: str, says: str, without: str) -> None:
    """And the one doesn't bring the other."""
    for config in ("", f"{'terminal' if 'loopback' == switch else 'loopback'} = true\n"):
        off = run(tmp_path, config, code)
        assert 0 != off.returncode
        assert without in off.stderr

    on = run(tmp_path, f"{switch} = true\n", code)
    assert (0, says) == (on.returncode, on.stdout.replace("\r", "")), on.stderr


def test_a_job_sees_a_machine_as_large_as_the_configuration(tmp_path: Path) -> None:
    """Its limits, and the TERM of who runs it."""
    done = run(tmp_path, "[limits]\nmemory = 300_000_000\n", SHOWN, TERM="vt220")

    assert 0 == done.returncode, done.stderr
    said = json.loads(done.stdout)
    assert (1, "vt220", "292968", "300000000") == (said["processors"], said["term"], said["total"], said["memory"])
    assert {"etc", "home", "proc", "sys", "usr", "workspace"} <= set(said["root"])


def test_a_job_with_limits_of_its_own_sees_a_machine_as_large_as_those(tmp_path: Path) -> None:
    """The next one on the fast path sees the configuration's again, and so does one after a session or a sandbox."""
    def told(of: Any, **limits: Any) -> tuple[str, str, str]:
        said = json.loads(of.execute(SHOWN, **limits).stdout)
        return said["total"], said["memory"], said["processes"]

    usual, asked = ("262144", "268435456", "32"), ("524288", "536870912", "64")
    with_its_first = (*asked[:2], "65")  # the process that a sandbox stands on is counted, too
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, daemon.client() as client:
        for _ in range(3):
            assert usual == told(client)
            assert asked == told(client, memory="512M", processes=64)
        with client.session(memory="512M", processes=64) as session:
            assert asked == told(session)
        assert usual == told(client)
        with leeward.Sandbox(socket=str(daemon.socket), memory="512M", processes=64) as box:
            assert with_its_first == told(box)
        assert usual == told(client)


def test_a_pinned_job_has_one_processor_whomever_it_asks(tmp_path: Path) -> None:
    """
    Also a program that asks the kernel, and one in a sandbox; none can take another. Without the switch, and with a
    controller that holds the limit, a job may run on each of the host's.
    """
    code = ("import os, subprocess\nprint(os.cpu_count(), len(os.sched_getaffinity(0)), flush=True)\n"
            "subprocess.run(['nproc'])\n"
            "try:\n    os.sched_setaffinity(0, range(1024))\n"
            "except PermissionError:\n    print('refused')")
    config = tmp_path / "leeward.toml"
    for pinned in (True, False):
        config.write_text(f"pinned = {str(pinned).lower()}\n")
        config.chmod(0o600)
        with LiveDaemon(tmp_path, "--pool-size", "2", "--config", str(config)) as daemon, daemon.client() as client:
            results = [client.execute(code) for _ in range(3)]
            with leeward.Sandbox(socket=str(daemon.socket)) as box:
                results.append(box.execute(code))
            alone = "cgroup" in results[0].degraded
        one = "1 1\n1\nrefused\n"
        host = len(os.sched_getaffinity(0))
        assert [one if pinned or alone else f"1 {host}\n1\n"] * 4 == [result.text for result in results]


def test_a_switch_takes_a_word_and_no_other(tmp_path: Path) -> None:
    done = run(tmp_path, 'loopback = "yes"\n', "print(1)")

    assert 0 != done.returncode
    assert "loopback" in done.stderr

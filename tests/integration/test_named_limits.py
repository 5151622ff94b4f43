"""A result's advice: the limit that hurts a program, whether or not it ends it, and what to do where a package is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon, environment
from leeward.base.hints import MISSING
from leeward.spec.outcome import Limit, Outcome

DAEMON = ("--pool-size", "2")


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket, memory="96M", processes=12) as made:
        yield made


def test_memory_of_a_child(box: leeward.Sandbox) -> None:
    """Where no controller counts, Python itself is refused the memory, and says so."""
    got = box.shell("python3 -c 'b = bytearray(1 << 30); b[::4096] = b\"x\" * len(b[::4096])'; echo went on")

    assert (Outcome.FINISHED, b"went on\n", Limit.MEMORY) == (got.outcome, got.stdout, got.limit)
    assert "--memory" in got.hint


def test_processes(box: leeward.Sandbox) -> None:
    got = box.shell("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 5 & done; kill 0")
    after = box.shell("true")

    assert Limit.PROCESSES is got.limit
    assert "--processes" in got.hint
    assert (None, "") == (after.limit, after.hint)


@pytest.mark.parametrize(("code", "limit"), [
    ("import os\nwhile True: os.fork() or __import__('time').sleep(60)", Limit.PROCESSES),
    ("import subprocess as s\nwhile True: s.Popen(['sleep', '60'])", Limit.PROCESSES),
    ("import os; r, w = os.pipe(); os.set_blocking(r, False); os.read(r, 1)", None),
    ("import fcntl; a, b = open('a', 'w'), open('a', 'w'); fcntl.flock(a, 6); fcntl.flock(b, 6)", None)])
def test_what_would_block_is_no_limit(daemon: LiveDaemon, box: leeward.Sandbox, code: str, limit: Limit | None) -> None:
    """It has the error of a process that is refused."""
    with daemon.client() as client, client.session(processes=12) as session:
        for execute in (client.execute, session.execute, box.execute):
            got = execute(code)
            assert (Outcome.RAISED, "BlockingIOError", limit) == (got.outcome, got.error and got.error.type, got.limit)


def test_a_full_disk_is_not_the_limit_that_ended_a_job(box: leeward.Sandbox) -> None:
    fill = box.execute("f = open('full', 'wb', 0)\ntry:\n    while True: f.write(bytes(1 << 20))\nexcept OSError: pass")
    got = box.execute("import os\nwhile True: os.dup(0)")

    assert (Limit.FILES, Limit.DESCRIPTORS) == (fill.limit, got.limit)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_disk(box: leeward.Sandbox, streamed: bool) -> None:
    line = "head -c 90000000 /dev/zero > large; echo went on"
    got = box.start(line).result() if streamed else box.shell(line)

    assert (Outcome.FINISHED, b"went on\n") == (got.outcome, got.stdout)
    assert got.limit in (Limit.FILES, Limit.MEMORY)  # its files count as memory, and that may be up before
    assert got.hint


@pytest.mark.parametrize(("words", "code", "line"), [
    (["--timeout", "0.5", "while True: pass"], 124, b"limit time: "),
    (["--output", "10", "print('x' * 100)"], 153, b"limit output: "),
    (["--processes", "1", "import os\ntry: os.fork()\nexcept OSError: pass"], 0, b"limit processes: "),
    (["--profile", "python", "--output", "10", "--", "echo 123456789012"], 153, b"limit output: ")])
def test_exec_prints_one_line_of_advice(daemon: LiveDaemon, words: list[str], code: int, line: bytes) -> None:
    done = daemon.run("exec", *words)

    assert code == done.returncode
    assert 1 == done.stderr.count(line)
    assert b"; to allow more: --" in done.stderr


#: Opens files until it is refused, and prints how many it has, and whether it can get more by itself.
_OPENS = """
import os, resource
opened, soft = [], resource.getrlimit(resource.RLIMIT_NOFILE)[0]
try:
    while len(opened) < 10000:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    refused = error
most = max(opened) + 1
for fd in opened:
    os.close(fd)
for more in (soft + 1, 1 << 20):
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (more, more))
        print("raised", flush=True)
    except (ValueError, OSError):
        pass
print(most, flush=True)
raise refused
"""


@pytest.mark.parametrize(("asked", "most"), [({}, 1024), ({"descriptors": 3000}, 3000), ({"descriptors": 64}, 64)])
def test_descriptors_as_asked_for_in_each_way_of_running(daemon: LiveDaemon, asked: dict[str, int], most: int) -> None:
    """In fresh jobs, sessions, and a live sandbox's code, kernels, branches and programs; no process raises its limit."""
    code: Any = {**asked}
    with leeward.Client(daemon.socket) as client, client.session(**code) as session, \
            leeward.Sandbox(socket=daemon.socket, **code) as box:
        kernel = box.kernel()
        kernel.execute("1")
        branch = kernel.fork()
        for _ in range(4):  # then one waits, and is given to the fast path
            assert box.execute("1").ok
        found = [client.execute(_OPENS, **code), client.execute(_OPENS, args=["not by the fast path"], **code),
                 session.execute(_OPENS), session.execute(_OPENS), box.execute(_OPENS),
                 box.execute(_OPENS, stdin=b"not by the fast path"), kernel.execute(_OPENS),
                 branch.execute(_OPENS), box.run(["python3", "-c", _OPENS]), box.terminal(["python3", "-c", _OPENS]).result()]

    assert [b"%d" % most] * len(found) == [got.stdout.splitlines()[0] for got in found]
    assert [Limit.DESCRIPTORS] * len(found) == [got.limit for got in found]
    assert "--descriptors" in found[0].hint
    assert not [got for got in found if b"raised" in got.stdout]


_SIZES = """
import os
for place in ("/workspace", "/tmp", "/dev/shm"):
    of = os.statvfs(place)
    print(of.f_blocks * of.f_frsize, of.f_files)
"""


@pytest.mark.parametrize(("asked", "size"), [
    ({"memory": "1G"}, 256 << 20), ({"memory": "1G", "files": "300M"}, 300 << 20), ({"files": "1M"}, 1 << 20),
    ({}, 64 << 20)])
def test_files_as_asked_for(daemon: LiveDaemon, asked: dict[str, Any], size: int) -> None:
    """In all three folders together. Without a word they grow with the memory, and names with both."""
    with leeward.Sandbox(socket=daemon.socket, **asked) as box:
        seen = box.run(["python3", "-c", _SIZES])
        full = box.shell(f"head -c {size // 2} /dev/zero > /workspace/a && head -c {size} /dev/zero > /tmp/b; rm a")
        fits = box.execute(f"with open('/workspace/c', 'wb') as f: f.truncate({size // 2})")

    assert [f"{size} {max(16384, size // 4096)}"] * 3 == seen.stdout_text.splitlines()
    assert (Limit.FILES, True) == (full.limit, "--files" in full.hint)
    assert fits.ok


def test_files_of_jobs_and_beyond_the_ceiling_are_refused(daemon: LiveDaemon) -> None:
    with pytest.raises(leeward.RequestRejected, match="above this daemon's ceiling"), \
            leeward.Sandbox(socket=daemon.socket, files="5G") as box:
        box.shell("true")
    refused = daemon.run("exec", "--files", "128M", "1")
    assert (True, True) == (0 != refused.returncode, b"a live sandbox" in refused.stderr)


@pytest.mark.parametrize("overlay", [False, True])
def test_files_of_a_sandbox_with_a_folder_of_the_host(daemon: LiveDaemon, tmp_path: Path, overlay: bool) -> None:
    """The tmpfs gets the size, whatever lies on /workspace."""
    before = os.statvfs(tmp_path).f_blocks
    with leeward.Sandbox(socket=daemon.socket, files="200M", memory="512M", workdir=tmp_path, overlay=overlay) as box:
        seen = box.run(["python3", "-c", _SIZES]).stdout_text.splitlines()

    assert [f"{200 << 20} {200 << 8}"] * 2 == seen[1:]
    assert overlay is (seen[0] == seen[1])  # the copy of a file that was written has room there
    assert before == os.statvfs(tmp_path).f_blocks


def test_a_missing_package_in_a_job_a_session_and_a_kernel(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    with daemon.client() as client, client.session() as session, box.kernel() as kernel:
        for execute in (client.execute, session.execute, kernel.execute, box.execute):
            assert MISSING == execute("import a_package_of_nobodys.part").hint
            assert "" == execute("import xml.a_module_of_nobodys").hint


def test_exec_prints_what_to_do_for_a_package(daemon: LiveDaemon, c_build: Path) -> None:
    in_python = daemon.run("exec", "import a_package_of_nobodys")
    in_c = subprocess.run([c_build / "leeward", "exec", "import a_package_of_nobodys"], env=environment(daemon.socket),
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)

    for done in (in_python, in_c):
        assert 1 == done.returncode
        assert f"leeward: {MISSING}\n".encode() == done.stderr.splitlines(keepends=True)[-1]

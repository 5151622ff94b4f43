"""A result's advice: the limit that hurts a program, whether or not it ends it, and what to do where a package is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, environment
from leeward.base.hints import MISSING
from leeward.spec.outcome import Limit, Outcome


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "2") as made:
        yield made


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

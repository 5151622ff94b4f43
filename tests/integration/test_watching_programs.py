"""
Programs that wait for changes of files, in a live sandbox: they hear of each by inotify, and nothing was refused.

In its own folder, in a folder of the host that is written in place, where changes of the host's show too, and in an
overlay of one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, first_line
from kit.skip_policy import require
from leeward.client.process import Process

pytestmark = pytest.mark.needs("inotify")

#: Prints the names for which inotify reports a change of `.`.
NAMES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init()
assert 1 == libc.inotify_add_watch(fd, b".", 0x188), os.strerror(ctypes.get_errno())
print("ready", flush=True)
while True:
    event = os.read(fd, 4096)
    print(event[16:].rstrip(b"\\0").decode(), flush=True)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[LiveDaemon]:
    with tempfile.TemporaryDirectory(prefix="lw-watch-") as place:
        Path(place).chmod(0o755)
        with LiveDaemon(Path(place), "--pool-size", "2") as made:
            yield made


@pytest.fixture(params=["its own", "in place", "overlay"])
def box(request: pytest.FixtureRequest, daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with tempfile.TemporaryDirectory(prefix="lw-watch-") as folder:
        Path(folder).chmod(0o755)
        modes: dict[str, dict[str, Any]] = {"its own": {}, "in place": {"workdir": folder},
                                 "overlay": {"workdir": folder, "overlay": True}}
        with leeward.Sandbox(socket=daemon.socket, **modes[request.param]) as made:
            yield made


def reads(process: Process, text: bytes) -> None:
    got = b""
    while text not in got:
        chunks = process.read(PATIENCE)
        assert chunks, got
        got += b"".join(chunk.data for chunk in chunks)


def denied(process: Process) -> dict[str, int]:
    process.kill()
    result = process.wait()
    assert result is not None
    return dict(result.denied)


def test_tail_follows(box: leeward.Sandbox) -> None:
    box.shell("echo one >log")
    tail = box.start(["tail", "-f", "log"])
    reads(tail, b"one\n")
    box.shell("echo two >>log")
    reads(tail, b"two\n")
    assert {} == denied(tail)


def test_node_starts_anew(box: leeward.Sandbox) -> None:
    require("node")
    box.files.write("one.mjs", "import './two.mjs'\n")
    box.files.write("two.mjs", "console.log('before')\n")
    node = box.start(["node", "--watch", "one.mjs"])
    reads(node, b"before\n")
    # Again and again: it prints before it watches.
    box.start(["sh", "-c", "while sleep 0.3; do echo \"console.log('after')\" >two.mjs; done"])
    reads(node, b"after\n")
    assert {} == denied(node)


def test_names_are_told(box: leeward.Sandbox) -> None:
    """As watchdog and watchfiles ask, which have descriptors of their own for a folder."""
    names = box.start(["python3", "-c", NAMES])
    assert b"ready\n" == first_line(names)
    box.shell("echo x >made")
    reads(names, b"made\n")
    assert {} == denied(names)


def test_changes_of_the_hosts_are_told(daemon: LiveDaemon) -> None:
    with tempfile.TemporaryDirectory(prefix="lw-watch-") as folder:
        Path(folder).chmod(0o755)
        with leeward.Sandbox(socket=daemon.socket, workdir=folder) as box:
            names = box.start(["python3", "-c", NAMES])
            assert b"ready\n" == first_line(names)
            Path(folder, "made").touch()
            reads(names, b"made\n")

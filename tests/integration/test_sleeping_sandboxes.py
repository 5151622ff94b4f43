"""Sandboxes that sleep: no process is left, and with the next call their kernels and files are as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("x86-64")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "3") as made:
        yield made


def test_it_wakes_as_it_was(daemon: LiveDaemon) -> None:
    """More than once; with kernels that have another process, and files at their positions."""
    with leeward.Sandbox(socket=daemon.socket, env={"NAME": "value"}) as box:
        one, two = box.kernel(), box.kernel()
        one.execute("import os, random\nrandom.seed(1)\nlog = open('log', 'w')\nlog.write('abc')\nlog.flush()\nx = [1]")
        two.execute("def count():\n n = 0\n while True:\n  n += 1\n  yield n\nc = count()\nnext(c)")
        box.run(["sh", "-c", "mkdir -p /tmp/a; echo b >/tmp/a/b; chmod 700 /tmp/a; ln /tmp/a/b /tmp/again"])
        for turn in range(2, 5):
            box.pause()
            box.pause()
            told = box.info()
            assert (True, 0) == (told["asleep"], told["memory"])
            assert str(turn) == two.execute("next(c)").value
            assert "value" in str(one.execute("os.environ['NAME']").value)
            assert one.execute("log.write('d')\nlog.flush()").ok
            assert b"abc" + b"d" * (turn - 1) == box.files.read("log")
            look = "cat /tmp/a/b /tmp/again; stat -c %a /tmp/a; stat -c %h /tmp/again"
            assert b"b\nb\n700\n2\n" == box.run(["sh", "-c", look]).stdout
            assert not box.info()["asleep"]
        assert [] == leeward.Snapshot.list(socket=daemon.socket)


def test_an_idle_one_sleeps_if_it_shall(daemon: LiveDaemon) -> None:
    """And ends where it can't."""
    boxes = [leeward.Sandbox(socket=daemon.socket, sleeps=True, idle=0.2) for _ in range(2)]
    kernel = boxes[0].kernel()
    kernel.execute("x = 1")
    boxes[1].start(["sleep", "1000"])

    def asleep() -> list[bool]:
        return [row["asleep"] for row in leeward.Sandbox.list(socket=daemon.socket)]

    poll_until(lambda: [True] == asleep(), "nobody is told that a sandbox sleeps")
    assert "1" == kernel.execute("x").value
    with pytest.raises(leeward.SandboxOver, match="idle"):
        boxes[1].info()
    for box in boxes:
        box.close()


def test_what_cannot_sleep_says_so(daemon: LiveDaemon, tmp_path: Path) -> None:
    """And is as it was."""
    with leeward.Sandbox(socket=daemon.socket) as box, box.kernel() as kernel:
        process = box.start(["sleep", "1000"])
        with pytest.raises(leeward.RequestRejected, match=r"process 1 .sleep"):
            box.pause()
        process.kill()
        process.wait()
        kernel.execute("import threading\nx = 1\nrun = threading.Event().wait\n"
                       "threading.Thread(target=run, daemon=True, name='waits').start()")
        with pytest.raises(leeward.SnapshotFailed, match=r"kernel 1.*waits"):
            box.pause()
        assert "1" == kernel.execute("x").value
    with leeward.Sandbox(socket=daemon.socket, workdir=tmp_path) as box:
        box.run(["true"])
        with pytest.raises(leeward.RequestRejected, match="folders of the host"):
            box.pause()


def test_a_sleeping_one_has_no_worker_and_ends_as_any(daemon: LiveDaemon) -> None:
    """More sleep than there may be awake; a lost kernel stays lost."""
    boxes = [leeward.Sandbox(socket=daemon.socket) for _ in range(6)]
    for number, box in enumerate(boxes):
        kernel = box.kernel()
        kernel.execute(f"x = {number}")
        if not number:
            lost = box.kernel()
            lost.execute("import os; os._exit(1)")
        box.pause()
    with pytest.raises(leeward.SessionOver):
        lost.execute("1")
    threads = [threading.Thread(target=box.run, args=(["true"],)) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    boxes[0].pause()
    for box in boxes:
        box.close()
    assert [] == leeward.Sandbox.list(socket=daemon.socket)

"""Sandboxes that sleep: no process is left, and with the next call their kernels and files are as they were."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until
from leeward.client.process import Kernel
from leeward.client.sandbox import Sandbox
from leeward.errors import RequestRejected

pytestmark = pytest.mark.needs("x86-64")

DAEMON = ("--pool-size", "3")


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
            assert box.extend(lifetime=100)["left"] > 50
            with pytest.raises(RequestRejected, match="it is asleep"):
                box.extend(metadata={"a": "b"})
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


@pytest.mark.parametrize(("config", "sleeps", "ends"), [
    ('idle = "sleep"\n[profiles.short]\nbase = "python"\nidle = "end"\n', "python", "short"),
    ('[profiles.long]\nbase = "workdir"\nidle = "sleep"\n', "long", "python")])
def test_idle_ones_sleep_where_the_operator_wants_it(tmp_path: Path, config: str, sleeps: str, ends: str) -> None:
    """In all profiles or in one, and go on by the next call; what can't sleep ends, and says why."""
    (tmp_path / "config.toml").write_text(f"pool_size = 3\n{config}")
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon:
        boxes = [leeward.Sandbox(socket=daemon.socket, profile=profile, idle=0.2) for profile in (sleeps, sleeps, ends)]
        kernel = boxes[0].kernel()
        kernel.execute("x = 1")
        boxes[1].start(["sleep", "1000"])
        assert boxes[2].id

        def asleep() -> list[bool]:
            return [row["asleep"] for row in leeward.Sandbox.list(socket=daemon.socket)]

        poll_until(lambda: [True] == asleep(), "one sleeps, and the others have ended")
        with pytest.raises(leeward.SandboxOver, match=r"idle.*can't sleep: process 1 .sleep"):
            boxes[1].info()
        with pytest.raises(leeward.SandboxOver, match="idle"):
            boxes[2].info()
        assert "1" == kernel.execute("x").value
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


Start = Callable[..., LiveDaemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon on the same socket, with the same folder for what sleeps."""
    tmp_path.chmod(0o700)
    made: list[LiveDaemon] = []

    def run(size: str = "1G", config: str = "", **options: object) -> LiveDaemon:
        (tmp_path / "config.toml").write_text(
            f'sleep_folder = "{tmp_path}/sleep"\nsleep_size = "{size}"\npool_size = 3\n{config}')
        made.append(LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml"), **options))  # type: ignore[arg-type]
        return made[-1].__enter__()

    yield run
    for each in made:
        each.end()


def test_an_upgrade_loses_no_kernel(start: Start, tmp_path: Path) -> None:
    """
    The next daemon is of another version, in another place, and has another zygote. What slept already, a fork, a branch
    of a branch, and what is used from a connection that it had held, is there as well; what runs programs has ended, and
    says why.
    """
    before = start()
    places = before.socket
    box, asleep, held = Sandbox(socket=places, metadata={"name": "x"}), Sandbox(socket=places), Sandbox(
        socket=places, held=True)
    busy = Sandbox(socket=places)
    kernels = [box.kernel(), box.kernel(), asleep.kernel(), held.kernel()]
    for number, kernel in enumerate(kernels):
        kernel.execute(f"import json\ndef count():\n n = {number}\n while True:\n  n += 1\n  yield n\nc = count()\nnext(c)")
    (fork, copies), = box.fork(1, kernels[:1])
    kernels += [kernels[0].fork().fork(), *copies]
    lost = box.kernel()
    lost.execute("import os\nos._exit(1)")
    box.files.write("file", b"kept")
    asleep.pause()
    busy.start(["sleep", "1000"])
    assert 0 == before.end()
    place = tmp_path / "upgraded"
    for package in ("leeward", "leeward_cli"):
        source = Path(__import__(package).__path__[0])
        shutil.copytree(source, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    version = place / "leeward" / "__init__.py"
    version.write_text(version.read_text().replace("__version__ = ", '__version__ = "99.0" or ', 1))
    after = start(env={"PYTHONPATH": str(place)})
    assert any("99.0" == row.get("version") for row in after.log)
    rows = Sandbox.list(socket=places)
    assert ([True] * 4, {"name": "x"}) == ([row["asleep"] for row in rows], box.info()["metadata"])
    for number, kernel in zip((0, 1, 2, 3, 0, 0), kernels, strict=True):
        assert str(number + 2) == kernel.execute("next(c)").value
    assert (b"kept", "4") == (box.files.read("file"), kernels[1].fork().execute("next(c)").value)
    with pytest.raises(leeward.SessionOver):
        lost.execute("1")
    lost.reset()
    assert lost.execute("1").ok
    with pytest.raises(leeward.SandboxOver):
        busy.info()
    for each in (box, asleep, held, busy, fork):
        each.close()
    after.end()
    assert ["lock"] == [name for _, _, names in os.walk(tmp_path / "sleep") for name in names]


def test_where_no_group_holds_a_kernel_its_branches_do_not_count_as_its_codes_children(start: Start) -> None:
    """It is their parent: it sleeps, forks, and keeps nothing of a branch that is closed; its code's own child counts."""
    before = start(build={"kit.stalling": {"cgroup": "none"}})
    box = Sandbox(socket=before.socket)
    kernel = box.kernel()
    kernel.execute("import json\nx = [1]")
    branch = kernel.fork()
    deep, brief = branch.fork(), branch.fork()
    brief.execute("import subprocess\nsubprocess.run(['sh', '-c', 'sleep 1000 &'])")

    def closed(branch: Kernel) -> None:
        branch.close()
        poll_until(lambda: 3 == box.info()["processes"], "nothing of it is left")

    closed(brief)
    poll_until(lambda: b"sleep" not in box.run(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout, "its program ends, too")
    for _ in range(40):  # more than it may have processes
        branch.snapshot().remove()
        closed(branch.fork())
    kernel.execute("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])")
    with pytest.raises(leeward.SnapshotFailed, match=r"children: \d+ 'sleep'$"):
        box.pause()
    kernel.execute("child.kill()\nchild.wait()")
    with kernel.snapshot() as snapshot:
        assert [] == snapshot.lost
    (fork, (copy,)), = box.fork(1, [kernel])
    for turn in range(2):
        for each in (kernel, branch, deep, copy):
            each.execute(f"x.append({turn})")
        if turn == 0:
            box.pause()
            last = branch.fork()
            asleep = threading.Thread(target=box.pause)
            asleep.start()
            last.close()
            asleep.join()
        else:
            before.end()
            start()
    for each in (kernel, branch, deep, copy):
        assert "[1, 0, 1]" == each.execute("x").value
    box.close()
    fork.close()


def test_a_crash_brings_back_what_slept_and_nothing_that_has_gone_on(start: Start, tmp_path: Path) -> None:
    before = start()
    boxes = [Sandbox(socket=before.socket) for _ in range(2)]
    kernels = [box.kernel() for box in boxes]
    for box, kernel in zip(boxes, kernels, strict=True):
        kernel.execute("x = []")
        box.pause()
    kernels[0].execute("x.append(1)")
    before.process.kill()
    before.process.wait()
    after = start()
    with pytest.raises(leeward.SandboxOver, match="started anew"):
        kernels[0].execute("x")
    assert "[]" == kernels[1].execute("x").value
    for box in boxes:
        box.close()
    after.end()
    assert ["lock"] == [name for _, _, names in os.walk(tmp_path / "sleep") for name in names]


def test_what_runs_at_the_end_is_interrupted_and_sleeps(start: Start) -> None:
    """Its request is answered; one that comes meanwhile goes to the next daemon."""
    before = start(build={"kit.stalling": {"drain": 0.2}})
    box = Sandbox(socket=before.socket)
    kernel = box.kernel()
    kernel.execute("import time\nx = []")
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(
        kernel.execute("x.append(1)\nopen('begun', 'w').close()\ntime.sleep(1000)")))
    thread.start()
    poll_until(lambda: box.run(["test", "-e", "begun"]).ok, "the request runs")
    before.end()
    thread.join()
    start()
    assert "KeyboardInterrupt" in str(results[0])
    assert "[1]" == kernel.execute("x").value
    box.close()


def test_what_is_spoiled_costs_itself_alone(start: Start, tmp_path: Path) -> None:
    """A state that was cut off loses its kernel, a head that is none its sandbox."""
    before = start()
    boxes = [Sandbox(socket=before.socket) for _ in range(3)]
    kernels = [box.kernel() for box in boxes]
    for number, kernel in enumerate(kernels):
        kernel.execute(f"x = {number}")
    before.end()
    for box, name in ((boxes[0], "1"), (boxes[1], "head")):
        path, = (tmp_path / "sleep").glob(f"*/{box.id}.sleeper/{name}")
        os.truncate(path, 100)
    after = start()
    with pytest.raises(leeward.SessionOver, match="can't be loaded"):
        kernels[0].execute("x")
    assert boxes[0].run(["true"]).ok
    with pytest.raises(leeward.SandboxOver):
        kernels[1].execute("x")
    assert "2" == kernels[2].execute("x").value
    for box in boxes:
        box.close()
    assert 1 == sum("a sandbox of an earlier daemon can't be used" == row.get("event") for row in after.log)


#: Heads as only the daemon's own user can write them.
FORGED = [
    {"metadata": {"a": 1}}, {"metadata": {"a": "\ud800"}}, {"metadata": {"a": "x" * (1 << 20)}}, {"user": "7"}, {"user": [7]},
    {"until": 10 ** 400}, {"until": float("nan")}, {"idle": -1}, {"env": {"A": "\0"}}, {"last": [1]},
    {"kernels": [[1, 2]]}, {"denied": {"open": "1"}}, {"used": {"cpu_time": "1"}}, {"used": {"other": 1}}, {"cwd": 1},
    {"key": {"profile": ["python"]}}, {"limits": {"memory": "1"}}, {"limits": {"processes": None}}, {"egress": [1, 2]},
    {"made_on": []}]


def forge(folder: Path, record: dict[str, Any]) -> None:
    head = json.loads((folder / "head").read_bytes()[32:])
    head["record"].update(record)
    told = json.dumps(head).encode()
    (folder / "head").write_bytes(hashlib.sha256(told).digest() + told)


def test_a_forged_head_costs_its_sandbox_alone(start: Start, tmp_path: Path) -> None:
    """Whatever is wrong in it: no other is missing in what their user lists. Nor does a daemon wait for what is no file."""
    before = start()
    boxes = [Sandbox(socket=before.socket) for _ in range(len(FORGED) + 3)]
    kernels = [box.kernel() for box in boxes[-3:]]
    for box in boxes:
        box.pause()
    for number, kernel in enumerate(kernels):
        kernel.execute(f"x = {number}")
    before.end()
    place, = (tmp_path / "sleep").iterdir()
    folders = [place / f"{box.id}.sleeper" for box in boxes]
    for folder, record in zip(folders, [*FORGED, {}, {}, {"metadata": {"a": "b"}}], strict=True):  # the last is the control
        forge(folder, record)
    for name, folder in (("files", folders[-3]), ("1", folders[-2])):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    (place / ("memory-" + "0" * 64)).symlink_to("nowhere")
    (place / "kept").mkdir()
    (place / "kept" / "file").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (place / "link").symlink_to(outside)
    after = start()
    assert {box.id for box in boxes[-3:]} == {row["sandbox"] for row in Sandbox.list(socket=after.socket)}
    for kernel in kernels[:2]:
        with pytest.raises(leeward.SandboxOver, match="can't be read"):
            kernel.execute("x")
    assert ("2", {"a": "b"}) == (kernels[2].execute("x").value, boxes[-1].info()["metadata"])
    assert len(FORGED) == sum("a sandbox of an earlier daemon can't be used" == row.get("event") for row in after.log)
    assert [outside / "file"] == [*outside.iterdir()]
    for box in boxes:
        box.close()


def test_it_wakes_within_what_its_daemon_allows_by_then(start: Start) -> None:
    """One that has more sleeps on, and loses nothing by that; the other is the control."""
    before = start()
    boxes = [Sandbox(socket=before.socket, memory=size) for size in ("512M", "256M")]
    kernels = [box.kernel() for box in boxes]
    for number, kernel in enumerate(kernels):
        kernel.execute(f"x = {number}")
    before.end()
    between = start(config='sandbox_lifetime = 60.0\nsandbox_idle = 50.0\n[ceilings]\nmemory = "300M"\n')
    with pytest.raises(leeward.RequestRejected, match="memory=512MiB is above this daemon's ceiling 300MiB"):
        kernels[0].execute("x")
    assert "1" == kernels[1].execute("x").value
    told = [box.info() for box in boxes]
    assert [(True, 50.0), (False, 50.0)] == [(each["asleep"], each["idle"]) for each in told]
    assert all(each["left"] <= 60.0 for each in told)
    between.end()
    start()
    assert ["0", "1"] == [kernel.execute("x").value for kernel in kernels]
    for box in boxes:
        box.close()


def test_without_room_on_disk_it_sleeps_in_memory(start: Start) -> None:
    """And ends with the daemon."""
    before = start(size="0")
    box = Sandbox(socket=before.socket)
    kernel = box.kernel()
    kernel.execute("x = 1")
    box.pause()
    assert "1" == kernel.execute("x").value
    box.pause()
    assert any("a sandbox sleeps in memory: it can't be written" == row.get("event") for row in before.log)
    assert 0 == before.run("daemon", "stop", "--now").returncode
    start()
    with pytest.raises(leeward.SandboxOver):
        kernel.execute("x")
    box.close()

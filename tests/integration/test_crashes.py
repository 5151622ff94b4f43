"""
Sudden deaths: of the daemon at any moment, and of its zygote. Catalogue cases 106, 107 and 109.

What a death of each other process spoils, stage by stage, is in test_pool.py; a daemon that is killed
at rest, or starts twice, in test_daemon_life.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import points
from kit.box import PATIENCE_S, Box
from kit.live_daemon import LiveDaemon, descendants, watched
from leeward.client import conversation
from leeward.daemon.worker.worker import WorkerState
from leeward.daemon.worker.zygote import Zygote
from leeward.isolation.cgroup import hierarchy

#: Moments at which a daemon is killed. The long run has enough for a rare one to be met.
MOMENTS = 50 if os.environ.get("LEEWARD_LONG") else 6

#: Jobs that leave something to clear up: output in a memory file, children, files, refused calls.
LOAD = (
    "print('x' * 200_000)",
    "import os, signal\nfor _ in range(3):\n    if not os.fork():\n        while True: signal.pause()\nprint(1)",
    "open('/tmp/file', 'wb').write(bytes(1 << 20))",
    "import ctypes\nfor _ in range(100): ctypes.CDLL(None).unshare(0x10000000)",
    "while True: pass",
)


# --- the daemon ---------------------------------------------------------------


@contextlib.contextmanager
def load(path: Path) -> Iterator[list[leeward.Result]]:
    """Clients that have jobs run there, one after the other, whether or not anybody answers; the answers so far."""
    over = threading.Event()
    answers: list[leeward.Result] = []

    def ask(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(leeward.DaemonAway, leeward.NoAnswer, leeward.Refused, leeward.BadReply), \
                    leeward.Client(str(path)) as client:
                while not over.is_set():
                    answers.append(client.execute(LOAD[number % len(LOAD)], timeout=0.2))
                    number += 1
            over.wait(0.01)  # nobody there yet, or any more

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def homes_of(pid: int) -> list[str]:
    """The cgroups that a daemon made for all that is its own."""
    return [f"{folder}/{name}" for each in hierarchy.here() for folder, names, _ in os.walk(each.mount)
            for name in names if name.startswith(f"leeward-{pid}-")]


def in_sessions(sessions: set[int]) -> set[int]:
    """All processes of these sessions: keepers and jobs are in their zygote's, unless they left it."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) in sessions and state not in "ZX":
                found.add(int(entry.parent.name))
    return found


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def test_c106_a_daemon_killed_at_any_moment_does_not_hinder_the_next(tmp_path: Path) -> None:
    """
    SIGKILL while it starts and while it works: its processes are dead within a second, its groups are swept
    when the next one starts, on the same socket, and that one answers.
    """
    chooser = random.Random(106)
    answered, grouped = 0, False
    for number in range(MOMENTS):
        daemon = LiveDaemon(tmp_path, "--pool-size", "2")
        with load(daemon.socket) as answers:
            if number % 3:
                with contextlib.suppress(AssertionError):
                    daemon.__enter__()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(chooser.uniform(0.0, 0.7))
            assert daemon.process.poll() is None, daemon.log
            workers = descendants(daemon.process.pid)
            sessions = {session_of(pid) for pid in (*workers, daemon.process.pid)} - {0, os.getsid(0)}
            with watched(workers) as wait:
                daemon.process.kill()

                assert [] == wait(1.0)
        daemon.end()
        answered += len(answers)
        with watched(list(in_sessions(sessions))) as wait:  # made while we looked
            assert [] == wait(1.0)
        left = homes_of(daemon.process.pid)
        grouped = grouped or bool(left)

        with LiveDaemon(tmp_path, "--pool-size", "1") as following:
            assert [] == homes_of(daemon.process.pid), left
            with following.client() as client:
                assert "1\n" == client.execute("print(1)").stdout_text
                driver = client.status()["layers"]["cgroup"]["driver"]
    assert answered > 0  # control: there was a load
    assert grouped == (driver != "none")  # control: there was something to sweep
    assert [tmp_path / "leeward.log"] >= list(tmp_path.iterdir())


def test_c109_a_client_of_another_version_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error with a name and both versions in it; the daemon serves on, and so does it the client's own kind."""
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, daemon.client() as client:
        monkeypatch.setattr(conversation, "VERSION", 99)
        for ask in (client.status, lambda: client.execute("print(1)")):
            with pytest.raises(leeward.VersionMismatch, match=r"version 99 of the wire, this daemon 1; after"):
                ask()
        monkeypatch.undo()

        assert "1\n" == client.execute("print(1)").stdout_text


# --- the zygote ---------------------------------------------------------------


def zygote_of(box: Box) -> Zygote:
    assert box.engine.main.zygotes.current is not None
    return box.engine.main.zygotes.current


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def serve_from_another(box: Box, old: Zygote, during: Callable[[], object] = lambda: None) -> None:
    """Jobs are answered one after the other, until one was by a keeper of another zygote's."""
    makers = {old.pid}
    while makers <= {old.pid, os.getpid()}:  # ours: what a dead zygote leaves comes to us
        while not box.engine.main.pool.any_free:
            box.reactor.turn()
            during()
        (worker,) = box.engine.main.pool.workforce.workers
        makers = {parent_of(worker.keeper.pid)}
        assert b"1\n" == box.run("print(1)").stdout
    assert {zygote_of(box).pid} == makers


def test_c107_a_killed_zygote_is_replaced_under_load(tmp_path: Path) -> None:
    """Every job that runs, waits or comes meanwhile is answered as it should be; nobody's is lost with it."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon:
        answers: list[str] = []

        def ask() -> None:
            with daemon.client() as client:
                answers.extend(client.execute(f"print({number})").stdout_text for number in range(100))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(2):
            while len(answers) < 100 * number + 20 and any(thread.is_alive() for thread in threads):
                pass
            (zygote,) = zygotes(daemon)
            os.kill(zygote, signal.SIGKILL)
            daemon.until(lambda _, zygote=zygote: zygotes(daemon) not in ([], [zygote]))  # type: ignore[misc]  # a bound default
        for thread in threads:
            thread.join(PATIENCE_S)

        assert sorted(answers) == sorted(f"{number}\n" for number in range(100) for _ in range(3))
        assert 2 == sum("zygote is gone" == row["event"] for row in daemon.log)


def zygotes(daemon: LiveDaemon) -> list[int]:
    """The daemon's children that lead a session of their own, but for its opener; keepers that lost their zygote don't."""
    return [pid for pid in descendants(daemon.process.pid)
            if session_of(pid) == pid and daemon.process.pid == parent_of(pid)
            and b"import opener" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_c107_a_stopped_zygote_is_replaced_when_a_keeper_is_wanted() -> None:
    """Until then nothing depends on it; from then on it has its time, is killed, and the next one makes the keeper."""
    with Box(pool_size=1, recycle_after=3) as box:
        old = zygote_of(box)
        os.kill(old.pid, signal.SIGSTOP)
        with watched([old.pid]) as wait:
            for _ in range(2):
                assert b"1\n" == box.run("print(1)").stdout
            assert "T" == state_of(old.pid)  # control: it is stopped, and nobody minds

            box.engine.patience.zygote = 0.05

            def restore() -> None:
                if box.log.of("zygote doesn't answer"):
                    box.engine.patience.zygote = PATIENCE_S

            serve_from_another(box, old, restore)

            assert [] == wait(PATIENCE_S)
        assert {old.pid} == {row["pid"] for row in box.log.of("zygote doesn't answer")}


def test_c107_a_zygote_stopped_before_it_is_ready_is_replaced() -> None:
    """One that is stuck in its imports, say, has the time of a start."""
    with Box(pool_size=1, recycle_after=1) as box:
        first = zygote_of(box)
        box.engine.patience.start = 0.05
        os.kill(first.pid, signal.SIGKILL)
        box.reactor.run(lambda: box.engine.main.zygotes.current not in (None, first))
        stuck = zygote_of(box)
        os.kill(stuck.pid, signal.SIGSTOP)
        box.engine.patience.start = PATIENCE_S
        with watched([stuck.pid]) as wait:
            serve_from_another(box, first)

            assert [] == wait(PATIENCE_S)
        assert stuck.pid in [row["pid"] for row in box.log.of("zygote doesn't answer")]


def test_c107_a_zygote_that_takes_no_orders_is_replaced() -> None:
    """It is stopped and its queue is full: the order that finds no room goes to the next one."""
    with Box(pool_size=1, recycle_after=1) as box:
        old = zygote_of(box)
        os.kill(old.pid, signal.SIGSTOP)
        with contextlib.suppress(BlockingIOError):
            while True:
                old._channel.socket.send(b"never read")
        box.engine.patience.zygote = 0.05
        assert b"1\n" == box.run("print(1)").stdout
        box.reactor.run(lambda: bool(box.log.of("zygote doesn't answer")))
        box.engine.patience.zygote = PATIENCE_S

        assert box.log.of("zygote takes no orders")
        serve_from_another(box, old)


def test_c107_a_zygote_without_descriptors_is_replaced() -> None:
    """It can't take the ones of an order: it goes, and the next one can."""
    with Box(pool_size=1, recycle_after=1) as box:
        old = zygote_of(box)
        _, most = resource.prlimit(old.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(old.pid, resource.RLIMIT_NOFILE, (4, most))

        serve_from_another(box, old)


def test_c107_without_a_zygote_workers_go_on_past_their_number_of_jobs() -> None:
    """One that ends as soon as it starts: no job waits for it. When one stands again the workers are renewed."""
    with Box(pool_size=2, recycle_after=20) as box:
        pool = box.engine.main.pool
        box.reactor.run(lambda: 2 == len([worker for worker in pool.workforce.workers if worker.free]))
        before = pool.workforce.workers
        with points.filled("zygote.entry", lambda _: "raise SystemExit(1)\n"):
            os.kill(zygote_of(box).pid, signal.SIGKILL)
            box.reactor.run(lambda: len(box.log.of("zygote is gone")) >= 2)

            for number in range(300):
                assert f"{number}\n".encode() == box.run(f"print({number})").stdout

            assert before == pool.workforce.workers  # none ended for want of a zygote, and none was waited for
            assert 1 == len(box.log.of("no zygote: workers go on past their number of jobs"))
            assert max(worker.jobs for worker in before) > 20  # control

        box.reactor.run(lambda: not set(before) & set(pool.workforce.workers) and 2 == pool.workforce.states()["idle"])
        assert b"1\n" == box.run("print(1)").stdout
        assert all(worker.jobs <= 20 for worker in pool.workforce.workers)


def test_c107_without_a_zygote_a_doomed_worker_goes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose job left sockets has no other job, whether or not there is another worker: that is a lock."""
    with Box(pool_size=1, recycle_after=2) as box:
        (worker,) = box.engine.main.pool.workforce.workers
        with points.filled("zygote.entry", lambda _: "raise SystemExit(1)\n"):
            os.kill(zygote_of(box).pid, signal.SIGKILL)
            box.reactor.run(lambda: len(box.log.of("zygote is gone")) >= 2)
            for _ in range(3):
                assert b"1\n" == box.run("print(1)").stdout
            box.reactor.run(lambda: worker.free)
            assert worker.overdue

            monkeypatch.setattr(worker.keeper, "sockets", lambda: 1)  # what such a job leaves is gone a moment later
            assert b"1\n" == box.run("print(1)").stdout
            box.reactor.run(lambda: WorkerState.SERVING is not worker.state)
            assert not worker.free
        monkeypatch.undo()
        assert b"1\n" == box.run("print(1)").stdout
        assert worker not in box.engine.main.pool.workforce.workers

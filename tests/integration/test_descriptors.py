"""A daemon that may have few descriptors, or has none left for a moment."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon, descendants

#: Rounds at which a daemon runs out of descriptors; each begins with another number of those that are left.
LEFT = range(40) if os.environ.get("LEEWARD_LONG") else (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 17, 25)

#: What a job may end by where a descriptor was missing for it, beside what it should.
EXCUSED = (leeward.Busy, leeward.QueueTimeout, leeward.SessionOver, leeward.DaemonAway)


def used(daemon: LiveDaemon) -> list[int]:
    return sorted(int(fd) for fd in os.listdir(f"/proc/{daemon.process.pid}/fd"))


@contextlib.contextmanager
def idle_clients(daemon: LiveDaemon, count: int) -> Iterator[None]:
    """As many connect and say nothing; those that are sent away stay, too."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(daemon.socket))
        yield


@pytest.mark.parametrize("limit", [300, 1024])
@pytest.mark.parametrize("io", ["socket", "auto"])
def test_idle_clients_leave_jobs_their_descriptors(tmp_path: Path, limit: int, io: str) -> None:
    """
    All defaults, and more clients that say nothing than there are descriptors: every job of the owner's is run, and
    the owner gets in. When they are gone all is as before.
    """
    with LiveDaemon(tmp_path, f"--io={io}", descriptors=limit) as daemon, daemon.client() as client:
        places = client.status()["max_connections"]
        assert places < limit
        assert [places] == [row["connections"] for row in daemon.log if "fewer connections than max_connections" ==
                            row["event"]]
        daemon.until(lambda status: 4 == status["workers"]["idle"])
        for _ in range(2):
            with idle_clients(daemon, limit + 50):
                outcomes = Counter(client.execute(code).outcome.value for code in (
                    "print(1)", "print('x' * 300_000)", "import os\nos._exit(0)") * 20)
                assert {"finished": 60} == outcomes
                with daemon.client() as late:
                    assert late.status()["connections"] <= places
                    assert "2\n" == late.execute("print(2)").stdout_text
            daemon.until(lambda status: status["connections"] <= 2 and 4 == status["workers"]["idle"])
        assert not [row for row in daemon.log if row["event"] in ("cannot accept", "worker failed")]


def test_a_limit_too_low_for_the_workers_is_refused(tmp_path: Path) -> None:
    """With the value, what is needed, and the cure."""
    with pytest.raises(AssertionError), LiveDaemon(tmp_path, "--pool-size", "64", descriptors=256) as daemon:
        pass
    daemon = LiveDaemon(tmp_path, "--pool-size", "64", descriptors=256)
    assert 1 == daemon.process.wait(30)
    daemon.end()
    text = " ".join(str(row["event"]) for row in daemon.log)

    for word in ("256", "RLIMIT_NOFILE", "64 workers", "ulimit -Hn", "pool_size"):
        assert word in text


def lowered(daemon: LiveDaemon, left: int) -> Callable[[], object]:
    """From now on the daemon can make *left* more descriptors; returns what ends that."""
    before = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    taken = set(used(daemon))
    limit = 0
    while left >= 0 or limit in taken:
        left -= limit not in taken
        limit += 1
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (limit - 1 if left < 0 else limit, before[1]))
    return lambda: resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, before)


def test_any_descriptor_may_be_missing(tmp_path: Path) -> None:
    """
    While jobs, large outputs, collected files, sessions, metrics and renewed workers go on: whatever is asked is
    answered, or its connection ends; the daemon lives; and when there are descriptors again nothing is left over.
    """
    config = tmp_path / "c.toml"
    config.write_text(f'recycle_after = 3\nmetrics = "{tmp_path}/metrics"\n')
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "2", "--config", str(config)) as daemon:
        daemon.until(lambda status: 2 == status["workers"]["idle"])
        answered: Counter[str] = Counter()
        over = threading.Event()

        def plain() -> None:
            with daemon.client() as client:
                answered[client.execute("print('x' * 300_000)").outcome.value] += 1
                answered[client.execute("open('a', 'wb').write(bytes(2 << 20))", collect=["a"]).outcome.value] += 1
                answered[client.execute("import os\nos._exit(0)").outcome.value] += 1

        def in_session() -> None:
            with daemon.client() as client, client.session() as session:
                answered[session.execute("x = 1").outcome.value] += 1
                answered[session.execute("print(x * 'y' * 200_000)").outcome.value] += 1

        def large() -> None:
            with daemon.client() as client:
                answered[client.execute("#" + "x" * (1 << 20)).outcome.value] += 1

        def scrape() -> None:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(10)
                sock.connect(f"{tmp_path}/metrics")
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answered[sock.recv(12).decode()] += 1

        def ask(work: Callable[[], None]) -> None:
            while not over.is_set():
                try:
                    work()
                except (*EXCUSED, OSError) as error:
                    answered[type(error).__name__] += 1
                    over.wait(0.01)

        threads = [threading.Thread(target=ask, args=(work,)) for work in (plain, in_session, large, scrape)]
        for thread in threads:
            thread.start()
        try:
            for left in LEFT:
                restore = lowered(daemon, left)
                over.wait(0.7)
                restore()
                before = answered["finished"]
                daemon.until(lambda _, before=before: answered["finished"] > before + 5)  # type: ignore[misc]  # a bound default
                assert daemon.process.poll() is None
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert [row for row in daemon.log if row["event"] in ("worker failed", "no worker can be made", "cannot accept",
                                                              "zygote can't be started")]  # control
        assert not [row for row in daemon.log if row["event"] in ("a bug", "a request failed")], daemon.log
        daemon.until(lambda status: 2 == status["workers"]["idle"] and status["connections"] <= 1)
        settled = len(used(daemon))
        with daemon.client() as client:
            for _ in range(12):
                assert "1\n" == client.execute("print(1)").stdout_text
        daemon.until(lambda status: 2 == status["workers"]["idle"] and status["connections"] <= 1)
        assert len(used(daemon)) <= settled + 24  # two groups that are kept, at most
        zombies = [pid for pid in descendants(daemon.process.pid)
                   if "Z" == Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]]
        assert [] == zombies


@pytest.mark.parametrize("left", [0, 1, 2])
def test_ends_in_a_sandbox_need_no_descriptor(tmp_path: Path, left: int) -> None:
    """Kills, limits on time and processor time, and signals work while none is left, and nobody loses a sandbox."""
    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, leeward.Sandbox(socket=daemon.socket) as box:
        killed, late, busy = (box.start("sleep 1000 & sleep 1000"), box.start("sleep 1000 & sleep 1000", timeout=1.0),
                              box.start("while :; do :; done", cpu_time=0.5))
        for process in (killed, late, busy):
            assert process.pid
        restore = lowered(daemon, left)
        try:
            killed.kill()
            outcomes = [process.wait(60) for process in (killed, late, busy)]
        finally:
            restore()
        assert ["signalled", "timed_out", "timed_out"] == [each and each.outcome.value for each in outcomes], outcomes
        assert b"lives\n" == box.run(["echo", "lives"]).stdout
        daemon.until(lambda _: 0 == box.info()["processes"])

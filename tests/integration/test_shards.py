"""A daemon with shards: which process serves what, moves of connections, and ends of each process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import features
from kit.guests import GUESTS, WireClient, guest_house
from kit.live_daemon import PATIENCE, LiveDaemon, descendants, held, watched
from kit.waiting import poll_until
from leeward.wire.frames import encode


@contextlib.contextmanager
def sharded(folder: Path, *options: str, shards: int = 2, config: str = "", build: Any = None) -> Iterator[LiveDaemon]:
    """A daemon whose shards are ready."""
    path = folder / "shards.toml"
    path.write_text(f"shards = {shards}\n{config}")
    path.chmod(0o600)
    with LiveDaemon(folder, "--config", str(path), *options, build=build) as daemon:
        daemon.until(lambda status: all("serving" == shard["state"] for shard in status["shards"]))
        yield daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with sharded(tmp_path_factory.mktemp("shards")) as daemon:
        yield daemon


def shard_pid(daemon: LiveDaemon, number: int = 1) -> int:
    with daemon.client() as client:
        return int(client.status()["shards"][number - 1]["pid"])


def in_shards(daemon: LiveDaemon) -> int:
    """Connections that shards have."""
    with daemon.client() as client:
        return sum(shard["connections"] for shard in client.status()["shards"])


@contextlib.contextmanager
def on_the_shard(daemon: LiveDaemon) -> Iterator[WireClient]:
    """A connection that the shard serves: the first one that asks for a fresh job."""
    daemon.until(lambda status: not status["shards"][0]["connections"])
    with WireClient(daemon.socket) as client:
        assert "finished" == client.ask("execute", code="0")["ok"]["outcome"]
        assert 1 == in_shards(daemon)
        yield client


def test_fresh_jobs_are_divided(daemon: LiveDaemon) -> None:
    """Clients with fresh jobs are dealt to the processes in turn, and the status has the sums."""
    with daemon.client() as client:
        before = client.status()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(6)]
        for client in clients:
            assert "1\n" == client.execute("print(1)").stdout_text
        assert 3 == in_shards(daemon)
        for client in clients:
            assert "1\n" == client.execute("print(1)").stdout_text
    daemon.until(lambda status: not status["shards"][0]["connections"] and 1 == status["connections"])
    with daemon.client() as client:
        after = client.status()

    assert 12 == after["jobs"]["done"] - before["jobs"]["done"]
    assert 6 == after["shards"][0]["jobs"]["done"] - before["shards"][0]["jobs"]["done"]
    assert 4 == after["workers"]["total"]
    assert 2 == after["shards"][0]["workers"]["total"]


def test_a_connection_moves_back(daemon: LiveDaemon) -> None:
    """Sessions, sandboxes and status come after fresh jobs on one connection, in any order."""
    with on_the_shard(daemon) as client:
        session = client.ask("session_open")["ok"]["session"]
        assert 0 == in_shards(daemon)
        assert client.ask("execute", session=session, code="x = 5")["ok"]
        assert b"5\n" == client.ask("execute", session=session, code="print(x)")["ok"]["stdout"]
        box = client.ask("sandbox_open")["ok"]["sandbox"]
        assert b"2\n" == client.ask("execute", code="print(2)")["ok"]["stdout"]
        assert 0 == in_shards(daemon), "a connection that has moved back stays"
        client.ask("sandbox_kill", sandbox=box)


def test_a_request_waits_for_jobs_in_flight(daemon: LiveDaemon) -> None:
    """
    A session is asked for while the shard runs a job of that connection: it opens when the job is over. A cancel of
    the job, which comes later, isn't held up.
    """
    with on_the_shard(daemon) as client:
        job = client.send("execute", code="import time; time.sleep(600)", limits={"time": 500.0})
        opened = client.send("session_open")
        fresh = client.send("execute", code="print(3)")
        cancelled = client.send("cancel", target=job)

        assert client.answer(cancelled)["ok"]["cancelled"]
        assert "cancelled" == client.answer(job)["error"]["kind"]
        assert client.answer(opened)["ok"]
        assert b"3\n" == client.answer(fresh)["ok"]["stdout"]
        assert 0 == in_shards(daemon)


def test_no_byte_is_lost_or_served_twice(daemon: LiveDaemon) -> None:
    """Requests of all kinds, cut into pieces of random lengths: each has one answer, whichever process reads which piece."""
    chance = random.Random(7)
    for _ in range(12):
        with WireClient(daemon.socket) as client:
            stream, expected = b"", {}
            for number in range(1, 30):
                kind = chance.choice(("code", "code", "files", "status", "ping", "events", "cancel"))
                fields: dict[str, Any] = {
                    "code": {"op": "execute", "code": f"print({number})"},
                    "files": {"op": "execute", "code": "print(len(open('a').read()))",
                              "files": {"a": b"x" * chance.choice((1, 70_000))}},
                    "status": {"op": "status"}, "ping": {"op": "ping"}, "events": {"op": "recall", "after": 0},
                    "cancel": {"op": "cancel", "target": 4000}}[kind]
                stream += encode({"v": 1, "id": number, **fields})
                expected[number] = kind
            while stream:
                size = chance.choice((1, 3, 50, 1000, 200_000))
                client.raw(stream[:size])
                stream = stream[size:]
            answers = {number: client.answer(number) for number in expected}
            assert not client.replies
        for number, kind in expected.items():
            assert "ok" in answers[number], (kind, answers[number])
            if "code" == kind:
                assert f"{number}\n".encode() == answers[number]["ok"]["stdout"]


def test_many_clients_move_at_once(daemon: LiveDaemon) -> None:
    """Threads with a client each, which go from jobs to sessions and on. Nothing is left of them."""
    failures: list[BaseException] = []

    def one(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(6):
                with daemon.client() as client:
                    for _ in range(chance.randrange(4)):
                        assert "1\n" == client.execute("print(1)").stdout_text
                    if chance.random() < 0.5:
                        with client.session() as session:
                            assert "2\n" == session.execute("print(2)").stdout_text
        except BaseException as error:
            failures.append(error)

    pid = shard_pid(daemon)
    daemon.idle()
    before = held(daemon.process.pid), held(pid)
    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    daemon.idle()
    daemon.until(lambda status: 1 == status["connections"])
    poll_until(lambda: held(daemon.process.pid) <= before[0] + 2 and held(pid) <= before[1] + 2, "closed descriptors")


def test_a_large_request_goes_back_with_its_bytes(daemon: LiveDaemon) -> None:
    """More unread bytes than a message of the channel has room for."""
    with on_the_shard(daemon) as client:
        opened = client.send("sandbox_open")
        number = client.send("execute", code="print(len(input()))", stdin=b"y" * 3_000_000)
        box = client.answer(opened)["ok"]["sandbox"]
        assert b"3000000\n" == client.answer(number)["ok"]["stdout"]
        client.ask("sandbox_kill", sandbox=box)
        assert 0 == in_shards(daemon)


@pytest.mark.parametrize("target", ["the job", "none"])
def test_a_flood_behind_a_move_is_not_kept(daemon: LiveDaemon, target: str) -> None:
    """
    While a connection waits for its move, the shard takes a bounded amount of what comes behind: of requests about the
    job in flight, which it serves, and of others, which it sets aside. All of it is answered in the end.
    """
    with on_the_shard(daemon) as client:
        job = client.send("execute", code="import time; time.sleep(600)", limits={"time": 4.0})
        opened = client.send("session_open")
        last = 150_000
        flood = b"".join(encode({"v": 1, "id": number, "op": "kept_read", "arena": 0, "offset": 0, "size": 1,
                                 "target": job if "the job" == target else 99}) for number in range(100, last + 1))
        sent, taken = 0, time.monotonic()
        while sent < len(flood) and time.monotonic() - taken < 0.5:  # the socket has no room for that long
            with contextlib.suppress(BlockingIOError):
                sent += client.sock.send(flood[sent:sent + 65536])
                taken = time.monotonic()
        assert sent < len(flood) / 2, "the shard keeps what it can't serve"
        writer = threading.Thread(target=lambda: client.sock.sendall(flood[sent:]))
        client.sock.setblocking(True)
        writer.start()
        answers = {}
        while len(answers) < last - 99 + 2:
            client.take()
            answers |= {number: "ok" in reply for number, reply in client.replies.items()}
            client.replies.clear()
        writer.join()
        assert answers.pop(job)
        assert answers.pop(opened)
        assert {False} == set(answers.values())


def test_a_large_frame_behind_a_move_stays_with_the_kernel(daemon: LiveDaemon) -> None:
    """The move copies what was read, in the loop, so the shard doesn't read tens of megabytes before it."""
    with on_the_shard(daemon) as client:
        job = client.send("execute", code="import time; time.sleep(600)", limits={"time": 2.0})
        opened = client.send("session_open")
        large = encode({"v": 1, "id": 100, "op": "execute", "code": "print(len(input()))", "stdin": b"y" * 30_000_000})
        sent, taken = 0, time.monotonic()
        while sent < len(large) and time.monotonic() - taken < 0.5:  # the socket has no room for that long
            with contextlib.suppress(BlockingIOError):
                sent += client.sock.send(large[sent:sent + 65536])
                taken = time.monotonic()
        assert sent < 8_000_000, "the shard reads a frame that it won't serve"
        client.raw(large[sent:])
        assert "time" == client.answer(job)["ok"]["limit"]
        assert client.answer(opened)["ok"]
        assert b"30000000\n" == client.answer(100)["ok"]["stdout"]


def test_functions_and_live_output_in_a_shard(daemon: LiveDaemon) -> None:
    with daemon.client() as client:
        result = client.execute("print(double(21))", functions={"double": lambda number: 2 * number})
        assert "42\n" == result.stdout_text
        assert 1 == in_shards(daemon)


def test_a_shard_that_dies_is_replaced(tmp_path: Path) -> None:
    """Its clients' connections end, others stay; the next shard serves; and the counts don't go back."""
    with sharded(tmp_path) as daemon:
        pid = shard_pid(daemon)
        with on_the_shard(daemon) as lost, daemon.client() as kept, kept.session() as session:
            session.execute("x = 1")
            job = lost.send("execute", code="import time; time.sleep(600)", limits={"time": 500.0})
            with watched([child for child in descendants(pid) if child != pid]) as ended:
                os.kill(pid, signal.SIGKILL)
                assert not ended(PATIENCE), "processes of a killed shard are left"
            with pytest.raises(AssertionError):
                lost.answer(job)
            assert lost.over
            assert "1\n" == session.execute("print(x)").stdout_text
            daemon.until(lambda status: pid != status["shards"][0]["pid"] and "serving" == status["shards"][0]["state"])
            assert "2\n" == kept.execute("print(2)").stdout_text
        with on_the_shard(daemon):
            pass


def test_a_killed_daemon_leaves_nothing(tmp_path: Path) -> None:
    """A shard and all its processes end with the daemon."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(sharded(tmp_path))
        everyone = descendants(daemon.process.pid)
        assert shard_pid(daemon) in everyone
        with watched(everyone) as ended:
            daemon.process.kill()
            assert not ended(PATIENCE)


def test_a_drain_waits_for_jobs_of_shards(tmp_path: Path) -> None:
    """A job that ends within the drain is answered; the process and the control groups are gone afterwards."""
    with sharded(tmp_path) as daemon:
        pid = shard_pid(daemon)
        with on_the_shard(daemon) as client:
            number = client.send("execute", code="import time; time.sleep(1.0); print('done')")
            daemon.until(lambda status: 1 == status["shards"][0]["workers"]["busy"])
            daemon.process.terminate()
            assert b"done\n" == client.answer(number)["ok"]["stdout"]
        assert 0 == daemon.end()
        assert not os.path.exists(f"/proc/{pid}")
    groups = [folder for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names if f"leeward-{pid}-" in name]
    assert not groups


def test_a_stop_without_delay_ends_jobs_of_shards(tmp_path: Path) -> None:
    with sharded(tmp_path) as daemon, on_the_shard(daemon) as client:
        client.send("execute", code="import time; time.sleep(600)", limits={"time": 500.0})
        daemon.until(lambda status: 1 == status["shards"][0]["workers"]["busy"])
        started = time.monotonic()
        assert 0 == daemon.run("daemon", "stop", "--now").returncode
        assert 0 == daemon.end()
        assert time.monotonic() - started < 3.5 * features.SLOWER


@pytest.mark.needs("root")
def test_users_with_quotas_are_served_by_the_daemon() -> None:
    """A quota is counted in one process, so guests aren't dealt; the bound on connections counts those of shards."""
    with guest_house("max_connections = 12\npool_size = 4\nshards = 2\n[quota]\njobs = 1\n") as (folder, config), \
            LiveDaemon(folder, "--config", str(config)) as daemon:
        daemon.until(lambda status: "serving" == status["shards"][0]["state"])
        with contextlib.ExitStack() as stack:
            guests = [stack.enter_context(WireClient(daemon.socket, GUESTS[0])) for _ in range(3)]
            for guest in guests:
                assert guest.ask("execute", code="0").get("ok")
            assert 0 == in_shards(daemon)
            mine = [stack.enter_context(WireClient(daemon.socket)) for _ in range(4)]
            for client in mine:
                assert client.ask("execute", code="0").get("ok")
            assert in_shards(daemon)
            more = [stack.enter_context(WireClient(daemon.socket, GUESTS[1])) for _ in range(8)]
            refused = 0
            for guest in more:
                with contextlib.suppress(AssertionError, BrokenPipeError, ConnectionResetError):
                    if guest.ask("execute", code="0").get("ok"):
                        continue
                refused += 1
            assert refused >= 8 + 3 + 4 - 12


def test_the_owner_connects_while_a_shards_connections_are_idle(tmp_path: Path) -> None:
    """Idle connections of a shard make room as those of the daemon do."""
    with sharded(tmp_path, config="max_connections = 4\n") as daemon, contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(WireClient(daemon.socket))
            assert client.ask("execute", code="0").get("ok")
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(leeward.LeewardError), daemon.client() as another:
                assert "1\n" == another.execute("print(1)").stdout_text
                break
            assert time.monotonic() < deadline


def test_ends_and_records_of_shards(tmp_path: Path) -> None:
    """`leeward logs` knows jobs of shards by numbers of their own, and the security log has what was denied to them."""
    security = tmp_path / "security.jsonl"
    with sharded(tmp_path, config=f'security_log = "{security}"\n') as daemon, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(4)]
        for client in clients:
            assert client.execute("import os\ntry: os.chroot('/')\nexcept OSError: pass").denied
        expected = set(range(1, 5))

        def seen() -> bool:
            with daemon.client() as client:
                status = client.status()
            rows = [json.loads(line) for line in security.read_text().splitlines()] if security.exists() else []
            denied = {row["job"] for row in rows if "system call denied" == row["event"]}
            return len(denied) == len(expected) and 4 == status["jobs"]["done"]

        poll_until(seen, "records that a shard sends later")
        rows = [json.loads(line) for line in security.read_text().splitlines()]
        assert {1} == {row.get("shard", 1) for row in rows}
        assert 2 == sum("shard" in row for row in rows if "system call denied" == row["event"])
        poll_until(lambda: {1, 2, 3, 4} <= {
            json.loads(line)["job"] for line in daemon.run("logs", "--json").stdout.splitlines()}, "ends, too")


def test_a_reload_reaches_shards(tmp_path: Path) -> None:
    """Limits that the configuration changes hold in each process."""
    with sharded(tmp_path) as daemon, on_the_shard(daemon) as client:
        (tmp_path / "shards.toml").write_text("shards = 2\n[limits]\noutput = 1000\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.logged(lambda rows: any("configuration reloaded" == row.get("event") for row in rows))
        poll_until(lambda: "output" == client.ask("execute", code="print('x' * 5000)")["ok"]["limit"],
                   "the shard's copy of the configuration")
        assert 1 == in_shards(daemon)


def test_metrics_are_sums(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with sharded(tmp_path, config=f'metrics = "127.0.0.1:{port}"\n') as daemon, contextlib.ExitStack() as stack:
        for client in [stack.enter_context(daemon.client()) for _ in range(6)]:
            client.execute("print(1)")

        def text() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                return str(answer.read().decode())

        poll_until(lambda: "\nleeward_executions_total 6\n" in text(), "the text is made once a second")
        rows = dict(line.rsplit(" ", 1) for line in text().splitlines() if not line.startswith("#"))
        assert 4 == sum(int(rows[f'leeward_workers_total{{state="{state}"}}']) for state in ("idle", "busy", "arming"))
        assert 4 == len([name for name in rows if name.startswith("leeward_memory_usage_bytes")])
        assert "6" == rows["leeward_execution_duration_seconds_count"]
        os.kill(shard_pid(daemon), signal.SIGKILL)
        daemon.until(lambda status: not status["shards"][0]["connections"])
        assert "\nleeward_executions_total 6\n" in text()


@pytest.mark.needs("root")
def test_workers_of_two_processes_share_no_user(daemon: LiveDaemon) -> None:
    """The host's uids of all keepers differ, in whichever process of the daemon they are."""
    owners = [os.stat(f"/proc/{pid}").st_uid for pid in descendants(daemon.process.pid)]
    keepers = {uid for uid in owners if uid >= 2_000_000_000}
    assert 2 == sum(uid >= 2_000_004_096 for uid in keepers)
    assert 2 == sum(uid < 2_000_004_096 for uid in keepers)


def test_more_shards_than_workers(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_text("shards = 5\npool_size = 4\n")
    with pytest.raises(AssertionError, match="shards=5 is above pool_size=4"), \
            LiveDaemon(tmp_path, "--config", str(path)):
        pass

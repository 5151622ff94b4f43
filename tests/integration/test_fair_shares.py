"""Users beside each other on one daemon, of whom some are hostile: workers and connections for everybody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kit import reactors
from kit.flood import Flood
from kit.guests import GUESTS, WireClient, as_user, guest_house
from kit.live_daemon import PATIENCE, LiveDaemon, open_files
from kit.waiting import poll_until

# Imported whole, while the interpreter's modules can be read: a guest can't.
from leeward.client.blocking import Client
from leeward.wire.frames import encode

pytestmark = pytest.mark.needs("root")

#: Runs until it is cancelled.
FOREVER = b"import signal\nwhile True: signal.pause()"
LONG = {"time": 60.0}


@contextmanager
def served(*options: str, config: str = "") -> Iterator[LiveDaemon]:
    with guest_house(config) as (folder, path), LiveDaemon(folder, "--config", str(path), *options) as daemon:
        yield daemon


def runs(client: WireClient) -> bool:
    """Does a job of this client's run at once?"""
    return "finished" == client.ask("execute", code=b"print(1)")["ok"]["outcome"]


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c195_one_guests_long_jobs_leave_a_worker_to_each_one_else(way: str) -> None:
    with served("--pool-size", "4", *reactors.OPTIONS[way]) as daemon, ExitStack() as clients:
        def client(uid: int = 0) -> WireClient:
            return clients.enter_context(WireClient(daemon.socket, uid))

        root, hog, other = client(), client(GUESTS[0]), client(GUESTS[1])
        for _ in range(40):
            hog.send("execute", code=FOREVER, limits=LONG)
        daemon.until(lambda status: 2 == status["workers"]["busy"] and 38 == status["queued"])
        assert runs(other)
        others = [other.send("execute", code=FOREVER, limits=LONG) for _ in range(10)]
        daemon.until(lambda status: 3 == status["workers"]["busy"] and 47 == status["queued"])

        assert runs(root)  # the last one is the owner's
        assert not set(others) & other.replies.keys()
        assert "ok" in root.ask("shutdown", now=True)
        assert 0 == daemon.process.wait(30)


def test_the_owner_may_have_all_workers_while_no_other_user_waits() -> None:
    """Control: the reserve is the owner's to use."""
    with served("--pool-size", "2") as daemon, WireClient(daemon.socket) as root:
        for _ in range(2):
            root.send("execute", code=FOREVER, limits=LONG)
        daemon.until(lambda status: 2 == status["workers"]["busy"])


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c196_connections_of_guests_lock_no_user_out(way: str) -> None:
    """Neither the owner nor another guest, and what the owner asks of the daemon itself is answered."""
    with served(*reactors.OPTIONS[way], config="max_connections = 64\n") as daemon, ExitStack() as clients:
        for guest in GUESTS[:4]:
            for _ in range(64):
                with suppress(OSError):  # it was turned away
                    clients.enter_context(WireClient(daemon.socket, guest)).raw(b"\0\0\1")  # not idle: half a frame

        fifth = clients.enter_context(WireClient(daemon.socket, GUESTS[4]))
        assert runs(fifth)
        root = clients.enter_context(WireClient(daemon.socket))
        assert {"ok"} <= root.ask("ping").keys()
        assert {"ok"} <= root.ask("status").keys()
        assert runs(root)
        assert {"ok"} <= root.ask("shutdown", now=True).keys()
        assert 0 == daemon.process.wait(30)


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c197_the_owner_is_served_beside_a_flood(way: str) -> None:
    """64 connections of a guest's, full of requests whose answers he doesn't read; and what he is let have of the answers."""
    ping = encode({"v": 1, "id": 1, "op": "ping"})
    with served(*reactors.OPTIONS[way]) as daemon, ExitStack() as clients:
        flood = [clients.enter_context(WireClient(daemon.socket, GUESTS[0])) for _ in range(64)]
        for client in flood:
            with suppress(BlockingIOError):
                while client.sock.send(ping * 1000):
                    pass
        root = clients.enter_context(WireClient(daemon.socket))
        assert runs(root)
        assert "ok" in root.ask("status")
        assert all(client.sock.recv(1 << 16) for client in flood if client.sock.setblocking(True) is None)
        assert "ok" in root.ask("shutdown", now=True)
        assert 0 == daemon.process.wait(30)


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c311_a_flood_of_a_guests_jobs_has_no_other_users_jobs_refused(way: str) -> None:
    """Neither the owner's nor another guest's: the fast path refuses the flood, and asks nobody whose turn it is."""
    with served("--pool-size", "4", *reactors.OPTIONS[way]) as daemon, ExitStack() as clients:
        flood = clients.enter_context(Flood(WireClient(daemon.socket, GUESTS[0]).sock, 100))
        poll_until(lambda: flood.answers["busy"] > 2000, "the fast path refuses by itself")
        refused = flood.answers["busy"]
        for uid in (0, GUESTS[1]) * 5:
            client = clients.enter_context(WireClient(daemon.socket, uid))
            assert all(runs(client) for _ in range(3))
        assert flood.answers["busy"] > refused


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c198_the_daemon_sees_when_a_guest_lets_go_of_results(way: str) -> None:
    """Of a real client, that maps them; meanwhile the daemon has a watch of each and no descriptor, then none."""
    def watched() -> int:
        found = 0
        for told in Path(f"/proc/{daemon.process.pid}/fdinfo").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                found += told.read_text().count("inotify wd:")
        return found

    def await_watched(count: int) -> None:
        until = time.monotonic() + PATIENCE
        while count != watched():
            assert time.monotonic() < until
            daemon.run("ping")

    with served(*reactors.OPTIONS[way]) as daemon:
        with as_user(GUESTS[0]):
            client = Client(str(daemon.socket))
            results = [client.execute("print('x' * 1_000_000)") for _ in range(3)]
        assert [b"x" * 1_000_000 + b"\n"] * 3 == [bytes(result.stdout) for result in results]
        await_watched(3)
        poll_until(lambda: not any("leeward_results" in name for name in open_files(daemon.process.pid)), "it closes them")
        client.close()
        daemon.run("ping")
        assert 3 == watched()
        results.clear()
        await_watched(0)
        with Client(str(daemon.socket)) as owner:
            kept = owner.execute("print('x' * 1_000_000)")
            await_watched(0)  # control: the owner's aren't counted
        assert 1_000_001 == len(kept.stdout)

"""Large requests of both Python clients: by the arena where there is one and a free slot, else by the socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.fake_daemon import PATIENCE, FakeDaemon, Rogue, finished
from kit.waiting import poll_until
from leeward.client.conversation import Conversation
from leeward.client.slots import LARGE, Slots, bulk
from leeward.daemon.serving import inbox
from leeward.errors import Busy, NoAnswer
from leeward.spec.job import Job
from leeward.wire.frames import FrameReader, decode, encode


def length(job: Job) -> Any:
    return finished(str(len(job.code or b"") + len(job.stdin)).encode())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "s", length) as daemon:
        yield daemon


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots that the daemon reads, in order."""
    seen: list[int] = []
    take = inbox.RequestArena.take

    def look(self: inbox.RequestArena, slot: int, size: int) -> memoryview:
        seen.append(slot)
        return take(self, slot, size)

    monkeypatch.setattr(inbox.RequestArena, "take", look)
    return seen


def arenas() -> int:
    """Of the client and the daemon, both in this process."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the daemon has closed it meanwhile
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("leeward_requests" in link for link in links)


@pytest.mark.parametrize(("op", "fields", "size"), [
    ("ping", {}, 0), ("execute", {"code": b"12"}, 2), ("execute", {"module": "m"}, 0),
    ("execute", {"code": b"1", "stdin": b"23", "files": {"a": b"456", "b": b"7"}}, 7)])
def test_large_fields_are_counted(op: str, fields: dict[str, Any], size: int):
    assert size == bulk(op, fields)


@pytest.mark.parametrize(("size", "slots"), [
    (LARGE - 1, 0), (LARGE, 1), (inbox.SLOT - 100, 1), (inbox.SLOT, 0)])
def test_a_request_goes_by_a_slot_if_it_is_large_and_fits(daemon: FakeDaemon, taken: list[int], size: int, slots: int):
    with leeward.Client(daemon.path) as client:
        for _ in range(3):
            assert str(size).encode() == client.execute(bytes(size)).stdout
        if slots:
            assert 2 == arenas()

    assert 3 * slots == len(taken)
    poll_until(lambda: not arenas(), "the daemon sees the end of a connection a little later")


def test_many_at_once_have_a_slot_each_and_the_others_the_socket(tmp_path: Path, taken: list[int]):
    held: list[Job] = []

    def hold(job: Job) -> Any:
        held.append(job)
        return None

    async def run(path: str) -> None:
        async with leeward.AsyncClient(path) as client:
            calls = [asyncio.create_task(client.execute(bytes([number]) * LARGE)) for number in range(6)]
            while len(held) < 6:
                await client.ping()
            assert set(range(inbox.SLOTS)) == set(taken)
            assert sorted(bytes([number]) * LARGE for number in range(6)) == sorted(job.code or b"" for job in held)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            again = asyncio.create_task(client.execute(b"7" * LARGE))  # into one that is free again
            while len(held) < 7:
                await client.ping()
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    with FakeDaemon(tmp_path / "s", hold) as daemon:
        asyncio.run(run(daemon.path))
    assert inbox.SLOTS + 1 == len(taken)


def test_without_an_arena_it_goes_by_the_socket(daemon: FakeDaemon, taken: list[int], monkeypatch: pytest.MonkeyPatch):
    """And isn't asked for again by this connection."""
    monkeypatch.setattr(inbox, "TOTAL", 0)

    async def run() -> None:
        async with leeward.AsyncClient(daemon.path) as client:
            for _ in range(2):
                assert str(LARGE).encode() == (await client.execute(bytes(LARGE))).stdout

    with leeward.Client(daemon.path) as client:
        assert str(LARGE).encode() == client.execute(bytes(LARGE)).stdout
        monkeypatch.undo()
        assert str(LARGE).encode() == client.execute(bytes(LARGE)).stdout
    asyncio.run(run())
    assert [] == taken


def test_a_refused_request_gives_its_slot_back(daemon: FakeDaemon, taken: list[int]):
    with leeward.Client(daemon.path) as client:
        for _ in range(2 * inbox.SLOTS):
            with pytest.raises(leeward.RequestRejected):
                client.execute(bytes(LARGE), output=-1)

    assert 2 * inbox.SLOTS == len(taken)


def test_a_new_connection_has_an_arena_of_its_own(tmp_path: Path, taken: list[int]):
    """The daemon was started again: the request whose connection was found closed has a slot of the new one."""
    client = leeward.Client(str(tmp_path / "s"))
    for number in range(2):
        with FakeDaemon(tmp_path / "s", length):
            for _ in range(3):
                assert str(LARGE).encode() == client.execute(bytes(LARGE)).stdout
            assert 3 + 3 * number == len(taken)
    client.close()


def test_a_child_has_another_arena(daemon: FakeDaemon, taken: list[int]):
    client = leeward.Client(daemon.path)
    client.execute(bytes(LARGE))
    pid = os.fork()
    if not pid:
        os._exit(0 if client.execute(b"1" * LARGE).stdout == str(LARGE).encode() else 1)

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert str(LARGE).encode() == client.execute(bytes(LARGE)).stdout
    assert 3 == len(taken)
    client.close()


def test_a_file_without_memory_is_no_slot():
    """The host may have no memory for it."""
    read, write = os.pipe()  # pwrite(2) fails on a pipe
    slots = Slots(write, 2, LARGE)

    assert slots.put(b"x") is None
    assert slots.put(bytes(LARGE + 1)) is None
    slots.close()
    os.close(read)


def test_a_daemon_that_is_silent_when_asked_for_an_arena_meets_the_deadline(tmp_path: Path):
    def silent(sock: socket.socket) -> None:
        while sock.recv(1 << 16):
            pass

    async def run(path: str) -> None:
        async with leeward.AsyncClient(path) as client:
            with pytest.raises(NoAnswer):
                await client.execute(bytes(LARGE), deadline=0.1)

    with Rogue(tmp_path / "s", silent) as rogue:
        with leeward.Client(rogue.path) as client, pytest.raises(NoAnswer):
            client.execute(bytes(LARGE), deadline=0.1)
        asyncio.run(run(rogue.path))


def test_the_whole_connection_may_be_refused_instead(tmp_path: Path):
    def busy(sock: socket.socket) -> None:
        reader = FrameReader()
        while not reader.feed(sock.recv(1 << 16)):
            pass
        sock.sendall(encode({"id": 0, "error": {"kind": "busy", "message": "no room", "retry_after": 3600.0}}))

    with Rogue(tmp_path / "s", busy) as rogue, leeward.Client(rogue.path) as client, \
            pytest.raises(Busy, match="no room"):
        client.execute(bytes(LARGE), deadline=PATIENCE)


def test_the_frame_that_stands_for_a_request():
    conversation = Conversation()
    number, _ = conversation.request("execute", {"code": b"x"})

    said = decode(conversation.by_slot(number, 3, 17)[4:])
    assert {"v": 1, "id": number, "op": "slot", "slot": 3, "length": 17} == said

"""Request arenas: what the server gives, what it takes out of them, and what it never does."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit import reactors
from kit.no_pool import NoPool
from leeward.daemon.config import Config
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.run.report import Report
from leeward.daemon.serving import inbox
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.rounds import GUEST_SHARE
from leeward.daemon.serving.server import Server
from leeward.errors import Busy
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire.frames import FrameReader, decode, encode

NAME = "/memfd:leeward_requests"


class Ticket:
    def cancel(self) -> None:
        return


class Box(NoPool):
    """A server whose pool keeps the jobs and ends them at once."""

    def __init__(self, reactor: str) -> None:
        self.reactor = reactors.reactor(reactor)
        self.jobs: list[Job] = []
        self.server = Server(self.reactor, self, Config(), status=dict, shut_down=lambda now: None,
                             users=ServedUsers(os.geteuid()))
        self.peers: list[Peer] = []

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: ReplyAddress | None = None) -> Ticket:
        self.jobs.append(job)
        done(Report(result=Result(b"done", b"", 0, Outcome.FINISHED)))
        return Ticket()

    def peer(self, user: int | None = None) -> Peer:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs, user)
        self.peers.append(Peer(self, ours))
        return self.peers[-1]

    def close(self) -> None:
        self.server.close()
        self.reactor.close()
        for peer in self.peers:
            peer.close()


class Peer:
    """A client, frame by frame."""

    def __init__(self, box: Box, sock: socket.socket) -> None:
        self.box, self.sock, self.reader, self.fd = box, sock, FrameReader(), -1
        sock.setblocking(False)

    def send(self, *messages: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(encode({"v": 1, **message}) for message in messages))

    def take(self) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []
        for _ in range(6):
            self.box.reactor.turn(0.0)
        try:
            while True:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 4)
                for fd in fds:
                    assert self.fd < 0
                    self.fd = fd
                if not data:
                    return replies
                replies += map(decode, self.reader.feed(data))
        except BlockingIOError:
            return replies

    def ask(self, **message: Any) -> dict[str, Any]:
        self.send(message)
        replies = self.take()
        assert 1 == len(replies), replies
        return replies[0]

    def refusal(self, **message: Any) -> str:
        reply = self.ask(**message)
        return f"{reply['error']['kind']}: {reply['error']['message']}"

    def put(self, slot: int, /, **message: Any) -> int:
        """Write a request into a slot; its length."""
        payload = encode({"v": 1, **message})[4:]
        assert len(payload) == os.pwrite(self.fd, payload, slot * inbox.SLOT)
        return len(payload)

    def close(self) -> None:
        self.sock.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture(params=reactors.ALL)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    box = Box(request.param)
    yield box
    box.close()


@pytest.fixture
def peer(box: Box) -> Peer:
    peer = box.peer()
    assert peer.ask(id=1, op="arena")["ok"] == {
        "slots": inbox.SLOTS, "size": inbox.SLOT, "arenas": [inbox.SLOTS * inbox.SLOT]}
    return peer


def ours() -> int:
    """Arenas that this process has open."""
    connections = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            connections.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of the listing
            continue
    return sum(connection.startswith(NAME) for connection in connections)


def test_a_request_lies_in_a_slot(box: Box, peer: Peer):
    """In any of them, again and again, beside others that come by the socket."""
    for number, slot in enumerate((0, 3, 0, 1), 2):
        code = os.urandom(1 << 20)
        length = peer.put(slot, id=number, op="execute", code=code, stdin=b"in")

        assert b"done" == peer.ask(id=number, op="slot", slot=slot, length=length)["ok"]["stdout"]
        assert (code, b"in") == (box.jobs[-1].code, box.jobs[-1].stdin)
    assert "ok" in peer.ask(id=9, op="execute", code=b"x")


def test_a_slot_is_taken_to_its_last_byte(box: Box, peer: Peer):
    code = bytes(inbox.SLOT - 40)
    length = peer.put(inbox.SLOTS - 1, id=2, op="execute", code=code)
    assert inbox.SLOT - 20 < length <= inbox.SLOT

    assert "ok" in peer.ask(id=2, op="slot", slot=inbox.SLOTS - 1, length=length)
    assert code == box.jobs[0].code


def test_the_file_is_sealed_and_named(peer: Peer):
    assert os.readlink(f"/proc/self/fd/{peer.fd}").startswith(NAME)
    assert inbox.SEALS == inbox.SEALS & fcntl.fcntl(peer.fd, fcntl.F_GET_SEALS)
    assert not fcntl.fcntl(peer.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    assert inbox.SLOTS * inbox.SLOT == os.fstat(peer.fd).st_size


def test_the_daemons_own_descriptor_cannot_write(box: Box, peer: Peer):
    """And it is an open file of its own: nothing that the client sets on his reaches it."""
    reader = next(iter(box.server.connections.values()))._operations._arena._reader  # type: ignore[union-attr]  # it has one

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reader, b"x")
    fcntl.fcntl(peer.fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
    assert not fcntl.fcntl(reader, fcntl.F_GETFL) & (os.O_APPEND | os.O_NONBLOCK)


def test_only_an_execute_lies_in_a_slot(box: Box, peer: Peer):
    for number, inner in enumerate(({"op": "ping"}, {"op": "shutdown"}, {"op": "arena"},
                                    {"op": "slot", "slot": 0, "length": 10}), 2):
        length = peer.put(0, id=number, **inner)

        assert "no execute request" in peer.refusal(id=number, op="slot", slot=0, length=length)
    assert "unknown" in peer.refusal(id=9, op="slot", slot=0, length=peer.put(0, id=9, op="dance"))
    assert not box.jobs


def test_arenas_are_bounded_over_all_and_freed(box: Box, monkeypatch: pytest.MonkeyPatch):
    size = inbox.RequestArena.size
    monkeypatch.setattr(inbox, "TOTAL", 3 * size)
    before = ours()
    peers = [box.peer() for _ in range(4)]
    answers = [peer.ask(id=1, op="arena") for peer in peers]

    assert [True] * 3 + [False] == ["ok" in answer for answer in answers]
    assert "busy" == answers[3]["error"]["kind"]
    assert 3 * size == box.server.requests
    assert before + 6 == ours()
    assert "ok" in peers[3].ask(id=2, op="execute", code=b"x")  # which goes by the socket

    peers[0].close()
    for _ in range(6):
        box.reactor.turn(0.0)
    assert (2 * size, before + 4) == (box.server.requests, ours())
    assert "ok" in peers[3].ask(id=3, op="arena")
    for peer in peers[1:]:
        peer.close()
    for _ in range(6):
        box.reactor.turn(0.0)
    assert (0, before, {}) == (box.server.requests, ours(), box.server.shares)


def test_a_guest_has_a_share_of_arenas(box: Box, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox, "TOTAL", GUEST_SHARE * inbox.RequestArena.size)
    guests = [box.peer(4711) for _ in range(2)]

    assert "ok" in guests[0].ask(id=1, op="arena")
    assert "of yours" in guests[1].refusal(id=1, op="arena")
    assert "ok" in box.peer().ask(id=1, op="arena")


def test_a_daemon_that_cannot_make_an_arena_answers_busy(box: Box, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inbox, "memory_file", refuse)
    peer = box.peer()

    assert "busy: no arena can be made: Too many open files" == peer.refusal(id=1, op="arena")
    assert 0 == box.server.requests
    monkeypatch.undo()
    assert "ok" in peer.ask(id=2, op="arena")


def test_a_turn_takes_few_large_requests_out_of_the_arena(box: Box, peer: Peer):
    """A request's few bytes stand for many: other senders have their turn in between."""
    other = box.peer()
    length = peer.put(0, id=2, op="execute", code=bytes(1 << 18))
    peer.send(*({"id": number, "op": "slot", "slot": 0, "length": length} for number in range(2, 22)))
    box.reactor.turn(0.0)
    other.send({"id": 1, "op": "ping"})
    for _ in range(4):
        box.reactor.turn(0.0)

    assert next(iter(box.server.connections.values()))._inbox.more
    assert 1 == len(other.take())
    seen: list[dict[str, Any]] = []
    while len(seen) < 20:
        seen += peer.take()
    assert [2] == [reply["id"] for reply in seen if "ok" in reply]  # the others have another id than what lies there


def test_a_full_connection_is_refused_before_the_copy(box: Box, peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inbox.RequestArena, "take", lambda *_: pytest.fail("it was copied"))
    monkeypatch.setattr(box.server, "arenas", 1 << 20)

    assert peer.refusal(id=2, op="slot", slot=0, length=10).startswith("busy")


def test_a_job_that_would_wait_for_too_long_is_refused_in_the_arena(peer: Peer, box: Box,
                                                                    monkeypatch: pytest.MonkeyPatch):
    """Fifteen megabytes aren't copied to be refused; a session's job and another connection's slot aren't concerned."""
    copied: list[int] = []
    take = inbox.RequestArena.take

    def noted(self: inbox.RequestArena, slot: int, length: int) -> memoryview:
        copied.append(length)
        return take(self, slot, length)

    monkeypatch.setattr(inbox.RequestArena, "take", noted)
    box.crowded, box.late = True, Busy("later")
    length = peer.put(0, id=5, op="execute", code=b"", stdin=bytes(15 << 20))
    assert "busy: later" == peer.refusal(id=5, op="slot", slot=0, length=length)
    assert [] == copied
    assert "slot 0 holds request 5, not 6" in peer.refusal(id=6, op="slot", slot=0, length=length)
    short = peer.put(1, id=7, op="execute", session=3, code=b"")
    assert "session_over" in peer.refusal(id=7, op="slot", slot=1, length=short)
    assert "none of the" in peer.refusal(id=8, op="slot", slot=9, length=5)
    assert [length, short] == copied

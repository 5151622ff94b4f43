"""
Escapes by the request arena: a client's memory that the daemon reads.

Here it is the client that attacks: nothing of a job's is near an arena. Case 67 with a client in the place of the
worker, case 68 for what a slot frame says, case 69 for bytes that change while they are read, case 73 for arenas
without number, case 102 for those of others.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.box import control
from kit.fake_daemon import PATIENCE, FakeDaemon, finished
from kit.waiting import poll_until
from leeward.daemon.serving import inbox
from leeward.spec.job import Job
from leeward.wire.frames import FrameReader, decode, encode
from leeward.wire.job_frames import is_plain_name

#: Why these are about no lock of a job's.
pytestmark = pytest.mark.no_single_lock("it is a client's, and the daemon's own reading")

ROUNDS = 5000 if os.environ.get("LEEWARD_LONG") else 300
SIZE = inbox.SLOTS * inbox.SLOT


class Peer:
    """A client that says what it likes."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(path)
        self.reader, self.replies, self.fds = FrameReader(), list[dict[str, Any]](), list[int]()

    def send(self, **message: Any) -> None:
        self.sock.sendall(encode({"v": 1, **message}))

    def ask(self, **message: Any) -> dict[str, Any]:
        self.send(**message)
        return self.next()

    def next(self) -> dict[str, Any]:
        while not self.replies:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 4)
            self.fds += fds
            assert data, "the daemon closed the connection"
            self.replies += map(decode, self.reader.feed(data))
        return self.replies.pop(0)

    def arena(self) -> int:
        assert "ok" in self.ask(id=1, op="arena")
        return self.fds[0]

    def works(self) -> bool:
        return b"fine" == self.ask(id=1 << 40, op="execute", code=b"fine")["ok"]["stdout"]

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(tmp_path / "s") as daemon:
        yield daemon


@pytest.fixture
def peer(daemon: FakeDaemon) -> Iterator[Peer]:
    peer = Peer(daemon.path)
    yield peer
    peer.close()


def payload(**message: Any) -> bytes:
    return encode({"v": 1, **message})[4:]


@pytest.mark.smoke
def test_c067_a_client_cannot_end_the_daemon_by_its_arena(peer: Peer):
    """Neither shrink nor grow nor seal it. A hole is zeros, which are no request."""
    fd = peer.arena()
    other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, SIZE)
    with control():  # a file without seals is shrunk
        os.ftruncate(other, 0)
        assert 0 == os.fstat(other).st_size
    os.close(other)
    written = payload(id=2, op="execute", code=b"x")
    os.pwrite(fd, written, 0)

    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        os.posix_fallocate(fd, SIZE, 4096)
    for seal in (fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL, fcntl.F_SEAL_GROW):
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    with mmap.mmap(fd, SIZE) as mapped:
        mapped.madvise(mmap.MADV_REMOVE, 0, inbox.SLOT)  # FALLOC_FL_PUNCH_HOLE by another name

    refused = peer.ask(id=2, op="slot", slot=0, length=len(written))
    assert "bad_request" == refused["error"]["kind"]
    assert peer.works()


@pytest.mark.smoke
@pytest.mark.parametrize(("slot", "length"), [
    (inbox.SLOTS, 1), (2**53 - 1, 1), (2**32, 1), (-1, 1), (2**63, 1), (0.0, 1), (True, 1), ("0", 1), (None, 1),
    ([0], 1),
    (0, 0), (0, -1), (0, inbox.SLOT + 1), (0, SIZE), (0, 2**53 - 1), (0, 2**63), (0, 1.0), (0, None), (0, b"1"),
])
def test_c068_cannot_read_beyond_a_slot(daemon: FakeDaemon, peer: Peer, slot: object, length: object):
    """One refusal, and both this request's and the daemon's memory stay as they are."""
    written = payload(id=2, op="execute", code=b"fine")
    os.pwrite(peer.arena(), written, 0)

    assert "bad_request" == peer.ask(id=2, op="slot", slot=slot, length=length)["error"]["kind"]
    with control():  # there is something to be read
        assert "ok" in peer.ask(id=2, op="slot", slot=0, length=len(written))
    assert b"fine" == daemon.jobs.get(timeout=PATIENCE).code  # the only one


@pytest.mark.parametrize("content", [
    b"\xc1" * 40, b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81\xa1a\xdd\xff\xff\xff\xff", bytes(64),
    payload(op="execute", code=b"x"), payload(id=3, op="execute", code=b"x"),
    payload(id=2, op="execute", code=b"x")[:-1],
    payload(id=2, op="execute", code=b"x") + b"\0", payload(id=2, op="execute", code=b"x", files={"../x": b""}),
    encode({"v": 2, "id": 2, "op": "execute", "code": b"x"})[4:],
], ids=range(11))
def test_c068_cannot_confuse_the_daemon_by_the_content_of_a_slot(daemon: FakeDaemon, peer: Peer, content: bytes):
    """The slot is decoded as a frame is, and a bad one costs that request alone."""
    fd = peer.arena()
    os.pwrite(fd, content, 0)

    assert peer.ask(id=2, op="slot", slot=0, length=len(content))["error"]["kind"] in ("bad_request", "version")
    good = payload(id=2, op="execute", code=b"fine")
    os.pwrite(fd, good, 0)
    with control():  # the slot is read
        assert "ok" in peer.ask(id=2, op="slot", slot=0, length=len(good))
    assert b"fine" == daemon.jobs.get(timeout=PATIENCE).code


def test_c069_cannot_change_a_request_after_it_was_checked(tmp_path: Path):
    """A name that is good at one moment and bad at the next: no job ever has the bad one."""
    seen: list[str] = []

    def answer(job: Job) -> Any:
        seen.extend(job.files)
        return finished(job.code or b"")

    good, bad = (payload(id=2, op="execute", code=b"x", files={name: b""}) for name in ("a/b/c/d", "../../e"))
    assert len(good) == len(bad)
    over = threading.Event()

    def flip(fd: int) -> None:
        with mmap.mmap(fd, SIZE) as mapped:
            for each in itertools.cycle((good, bad)):
                mapped[:len(each)] = each
                if over.is_set():
                    return

    outcomes = set()
    with FakeDaemon(tmp_path / "s", answer) as daemon:
        peer = Peer(daemon.path)
        fd = peer.arena()
        flipper = threading.Thread(target=flip, args=[fd])
        flipper.start()
        try:
            with control():  # who looks a second time sees something else, sooner or later
                assert any(os.pread(fd, len(good), 0) != os.pread(fd, len(good), 0) for _ in itertools.count())
            for _ in range(ROUNDS):
                outcomes.add("ok" if "ok" in peer.ask(id=2, op="slot", slot=0, length=len(good)) else "refused")
        finally:
            over.set()
            flipper.join()
        assert peer.works()
        peer.close()
    assert {"ok", "refused"} >= outcomes
    assert all(map(is_plain_name, seen)), set(seen)


def test_c102_cannot_use_the_arena_of_another_connection(daemon: FakeDaemon, peer: Peer):
    """A slot is of the connection's own arena, or of none."""
    written = payload(id=2, op="execute", code=b"mine")
    os.pwrite(peer.arena(), written, 0)
    other = Peer(daemon.path)

    assert "no arena" in other.ask(id=2, op="slot", slot=0, length=len(written))["error"]["message"]
    other.arena()
    assert "bad_request" == other.ask(id=2, op="slot", slot=0, length=len(written))["error"]["kind"]
    with control():
        assert b"mine" == peer.ask(id=2, op="slot", slot=0, length=len(written))["ok"]["stdout"]
    other.close()


def test_c102_two_requests_in_one_slot(daemon: FakeDaemon, peer: Peer):
    """Each is the one that lies there when it is read, or is refused; none is another's."""
    fd = peer.arena()
    written = payload(id=2, op="execute", code=b"two")
    os.pwrite(fd, written, 0)
    for number in (2, 3):
        peer.send(id=number, op="slot", slot=0, length=len(written))

    first, second = peer.next(), peer.next()

    with control():  # it is a request
        assert (2, b"two") == (first["id"], first["ok"]["stdout"])
    assert (3, "slot 0 holds request 2, not 3") == (second["id"], second["error"]["message"])
    assert b"two" == daemon.jobs.get(timeout=PATIENCE).code
    assert peer.works()


def held() -> int:
    """Arenas that are open in this process, which is the clients' and the daemon's."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the daemon has closed it meanwhile
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("leeward_requests" in link for link in links)


def test_c073_cannot_have_arenas_without_number(daemon: FakeDaemon):
    """5,000 are asked for, or some hundreds: a connection has one, all together what they may have; and none is left."""
    most = inbox.TOTAL // SIZE
    peers = [Peer(daemon.path) for _ in range(most + 8)]
    kinds: dict[str, int] = {}
    for number in range(1, ROUNDS // len(peers) + 2):
        for peer in peers:
            answer = peer.ask(id=number, op="arena")
            kind = answer["error"]["kind"] if "error" in answer else "ok"
            kinds[kind] = kinds.get(kind, 0) + 1

    assert most == kinds["ok"] == sum(len(peer.fds) for peer in peers)
    with control():  # some were given
        assert {"ok", "bad_request", "busy"} == set(kinds)
    assert 2 * most == held()  # the client's and the daemon's
    for peer in peers:
        peer.close()
    last = Peer(daemon.path)
    poll_until(lambda: not held(), "the daemon sees the ends of connections a little later")
    assert last.works()
    last.arena()
    assert last.works()  # the daemon has closed what it has sent
    assert 2 == held()
    last.close()


def test_c103_a_client_that_vanishes_leaves_no_arena(daemon: FakeDaemon):
    """With a request in its slot, and with the file kept open."""
    written = payload(id=2, op="execute", code=b"x")
    kept = []
    for number in range(ROUNDS // 10):
        peer = Peer(daemon.path)
        os.pwrite(peer.arena(), written, 0)
        with control():  # here it is, once for each of them
            assert held() >= 2
        peer.send(id=2, op="slot", slot=0, length=len(written))
        if not number % 10:
            kept.append(peer.fds.pop())
        peer.close()

    last = Peer(daemon.path)
    poll_until(lambda: held() <= len(kept), "the daemon sees the ends of connections a little later")
    assert last.works()
    for fd in kept:
        os.close(fd)
    last.arena()
    last.close()

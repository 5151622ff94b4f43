"""The server over real sockets with a pool that does nothing until it is told."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kit import reactors
from kit.no_pool import NoPool
from kit.waiting import PATIENCE_S, poll_until
from leeward._native.memfd import SEALS
from leeward.daemon.config import Config
from leeward.daemon.descriptors import RESULTS
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import READ, JobStart, Ran
from leeward.daemon.pool.quotas import Quota, Quotas
from leeward.daemon.run.report import Arena, Report
from leeward.daemon.serving import connection as limits
from leeward.daemon.serving import inbox, operations, server
from leeward.daemon.serving.parcel import seal
from leeward.daemon.serving.peers import ServedUsers, admitted
from leeward.daemon.serving.rounds import GUEST_SHARE
from leeward.daemon.serving.server import Server
from leeward.daemon.telling.events import EventBook
from leeward.daemon.telling.metrics import Metrics
from leeward.errors import Busy
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result
from leeward.wire.egress_control import Ask, AskAnswer, Listening
from leeward.wire.frames import MAX_REPLY, FrameReader, decode, encode, frame

HELLO = Result(b"hello\n", b"", 0, Outcome.FINISHED)


class FakeTicket:
    def __init__(self, job: Job, done: Callable[[Report], None]) -> None:
        self.job, self.done, self.cancelled = job, done, False

    def cancel(self) -> None:
        self.cancelled = True


class FakePool(NoPool):
    def __init__(self) -> None:
        self.tickets: list[FakeTicket] = []
        self.users: list[int] = []
        self.error: Exception | None = None
        self.at_once: Report | None = None
        self.then: Exception | None = None  # is raised after the answer
        self.asked: list[tuple[int, int]] = []
        self.closed: list[int] = []

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: ReplyAddress | None = None) -> FakeTicket:
        self.users.append(user)
        if self.error is not None:
            raise self.error
        ticket = FakeTicket(job, done)
        self.tickets.append(ticket)
        if self.at_once is not None:
            done(self.at_once)
        if self.then is not None:
            raise self.then
        return ticket

    def refusal(self, user: int, connection: int, now: float) -> Busy | None:
        self.asked.append((user, connection))
        return self.late

    def connection_closed(self, connection: int) -> None:
        self.closed.append(connection)


class Box:
    """A server, its pool, and clients that are one end of a socketpair."""

    def __init__(self, reactor: str = reactors.REFERENCE, **config: Any) -> None:
        self.reactor = reactors.reactor(reactor)
        self.pool = FakePool()
        self.ends: list[bool] = []  # for each that was asked for, whether it was to be at once
        self.seen: list[tuple[str, str, int]] = []
        self.metrics, self.events = Metrics(), EventBook()
        self.server = Server(self.reactor, self.pool, Config(**config), status=lambda: {"workers": {"total": 4}},
                             shut_down=self._end, users=ServedUsers(os.geteuid()), watcher=self)
        self.clients: list[socket.socket] = []

    def _end(self, now: bool) -> None:
        self.ends.append(now)

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        self.seen += [("request", kind, user)] * count

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        assert os.getpid() == pid
        self.seen.append(("peer", reason, user))

    def client(self, user: int | None = None) -> Peer:
        ours, theirs = socket.socketpair()
        self.server.adopt(theirs, user)
        self.clients.append(ours)
        return Peer(self, ours)

    def turns(self, count: int = 4) -> None:
        for _ in range(count):
            self.reactor.turn(0.0)

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until *condition* holds; so many seconds are for a machine that is busy elsewhere."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, "it never came"
            self.reactor.turn(0.05)

    def close(self) -> None:
        self.server.close()
        self.reactor.close()
        for client in self.clients:
            client.close()


class Peer:
    """A client, byte by byte."""

    def __init__(self, box: Box, sock: socket.socket) -> None:
        self.box, self.sock = box, sock
        self.reader = FrameReader()
        self.fds: list[int] = []
        sock.setblocking(False)

    def send(self, **message: Any) -> None:
        self.raw(encode({"v": 1, **message}))

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)
        self.box.turns()

    def take(self) -> list[dict[str, Any]]:
        """The replies that are there."""
        self.box.turns()
        replies: list[dict[str, Any]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 16)
            except (BlockingIOError, ConnectionResetError):
                return replies
            self.fds += fds
            if not data:
                return replies
            replies += [decode(payload) for payload in self.reader.feed(data)]

    def closed(self) -> bool:
        self.take()
        try:
            return self.sock.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


@pytest.fixture(params=reactors.ALL)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    box = Box(request.param)
    yield box
    box.close()


def test_ping_and_status(box: Box) -> None:
    """Answers without the pool."""
    client = box.client()
    client.send(id=1, op="ping")
    client.send(id=2, op="status")
    client.send(id=3, op="status", form="json")
    client.send(id=4, op="status", form="toml")
    pong, status, text, unknown = client.take()

    assert (1, 1) == (pong["id"], pong["ok"]["wire"])
    assert {"id": 2, "ok": {"workers": {"total": 4}}} == status
    assert {"id": 3, "ok": {"json": '{"workers": {"total": 4}}'}} == text
    assert (4, "bad_request") == (unknown["id"], unknown["error"]["kind"])


def test_execute_gives_the_job_and_the_result(box: Box) -> None:
    """Fields go in, the report comes out."""
    client = box.client()
    client.send(id=5, op="execute", code=b"print('hello')", args=["a"], limits={"time": 2.5, "memory": 64 << 20})
    job = box.pool.tickets[0].job

    assert (b"print('hello')", ("a",), "<string>") == (job.code, job.args, job.name)
    assert (2.5, 64 << 20, 32) == (job.limits.time, job.limits.memory, job.limits.processes)
    assert [] == client.take()  # nothing before the report

    box.pool.tickets[0].done(Report(result=HELLO))
    [reply] = client.take()

    assert 5 == reply["id"]
    assert (b"hello\n", "finished", 0) == tuple(reply["ok"][name] for name in ("stdout", "outcome", "exit_code"))


def test_a_pool_that_answers_at_once(box: Box) -> None:
    """`done` may be called before `submit` returns."""
    box.pool.at_once = Report(result=HELLO)
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    client.send(id=1, op="execute", code=b"")  # the id is free again

    assert [1, 1] == [reply["id"] for reply in client.take()]


@pytest.mark.faults("a bug is what this is about")
@pytest.mark.parametrize("then", [RuntimeError("a bug"), Busy("too late")])
def test_a_pool_that_answers_and_then_fails_has_answered(box: Box, then: Exception) -> None:
    """The client has one answer, the number is free again, and the bug is counted."""
    client = box.client()
    box.pool.at_once, box.pool.then = Report(result=HELLO), then
    client.send(id=1, op="execute", code=b"")
    first = client.take()
    box.pool.then = None
    client.send(id=1, op="execute", code=b"")

    assert ([1], [1]) == ([reply["id"] for reply in first], [reply["id"] for reply in client.take()])
    assert "ok" in first[0]
    assert 1 == box.reactor.barrier.faults



def test_c102_answers_come_in_any_order(box: Box) -> None:
    """By id, whichever is ready first; each connection has ids of its own."""
    one, other = box.client(), box.client()
    for number in (1, 2, 3):
        one.send(id=number, op="execute", code=b"%d" % number)
    other.send(id=2, op="execute", code=b"other")
    for index in (2, 0, 3, 1):
        ticket = box.pool.tickets[index]
        ticket.done(Report(result=Result(ticket.job.code or b"", b"", 0, Outcome.FINISHED)))

    assert [(3, b"3"), (1, b"1"), (2, b"2")] == [(reply["id"], reply["ok"]["stdout"]) for reply in one.take()]
    assert [(2, b"other")] == [(reply["id"], reply["ok"]["stdout"]) for reply in other.take()]


def test_c102_an_id_in_flight_cannot_be_used_again(box: Box) -> None:
    """Two answers to one id would be a riddle; only that client suffers."""
    good, bad = box.client(), box.client()
    good.send(id=1, op="execute", code=b"")
    bad.send(id=1, op="execute", code=b"")
    bad.send(id=1, op="execute", code=b"")

    assert [(0, "bad_request")] == [(reply["id"], reply["error"]["kind"]) for reply in bad.take()]
    assert bad.closed()
    assert [False, True] == [ticket.cancelled for ticket in box.pool.tickets]


def test_cancel_ends_a_request_of_this_connection(box: Box) -> None:
    """One answer for the request, one for the cancel."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    client.send(id=2, op="cancel", target=1)
    first, second = client.take()

    assert box.pool.tickets[0].cancelled
    assert (1, "cancelled") == (first["id"], first["error"]["kind"])
    assert {"id": 2, "ok": {"cancelled": True}} == second


def test_c102_cancel_reaches_no_other_client(box: Box) -> None:
    """An unknown id, or one of another connection, is nobody's."""
    one, other = box.client(), box.client()
    one.send(id=1, op="execute", code=b"")
    other.send(id=9, op="cancel", target=1)

    assert [{"id": 9, "ok": {"cancelled": False}}] == other.take()
    assert not box.pool.tickets[0].cancelled


@pytest.mark.parametrize("message", [
    {"op": "execute", "code": b"", "limits": {"time": float("nan")}},
    {"op": "execute", "code": b"", "limits": {"time": -1}},
    {"op": "execute", "code": b"", "limits": {"time": True}},
    {"op": "execute", "code": b"", "limits": {"memory": 1 << 60}},
    {"op": "execute", "code": b"", "limits": {"cpu": 1}},
    {"op": "launch"},
    {"op": "execute"},
])
def test_c101_one_refusal_each_and_the_connection_lives(box: Box, message: dict[str, Any]) -> None:
    """A request that makes no sense costs itself."""
    client = box.client()
    client.send(id=1, **message)
    client.send(id=2, op="ping")
    refusal, pong = client.take()

    assert (1, "bad_request") == (refusal["id"], refusal["error"]["kind"])
    assert 2 == pong["id"]
    assert [] == box.pool.tickets


def test_c109_another_version_is_refused_with_a_reason(box: Box) -> None:
    """By a kind of its own, with the id of the request."""
    client = box.client()
    client.raw(encode({"v": 99, "id": 4, "op": "ping"}))

    assert [(4, "version")] == [(reply["id"], reply["error"]["kind"]) for reply in client.take()]


def test_the_pools_refusals_are_passed_on(box: Box) -> None:
    """Raised at once, or reported later."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    box.pool.tickets[0].done(Report(refusal=Busy("later")))
    box.pool.error = Busy("full")
    client.send(id=2, op="execute", code=b"")

    assert [(1, "busy", "later"), (2, "busy", "full")] == [
        (reply["id"], reply["error"]["kind"], reply["error"]["message"]) for reply in client.take()]


def test_a_job_that_would_wait_for_too_long_is_refused_undecoded(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sessionless job, before it is decoded; all other requests are served, and so are all if none waits."""
    decoded: list[int] = []

    def noted(payload: bytes, text: int) -> dict[str, Any]:
        decoded.append(len(payload))
        return decode(payload, text)

    monkeypatch.setattr(operations, "decode", noted)
    box.pool.late = Busy("a worker would come free in about 3 s only")
    client = box.client()
    client.send(id=1, op="execute", code=b"", stdin=b"small")
    assert (1, 1) == (len(box.pool.tickets), len(decoded))  # control
    box.pool.crowded = True
    client.send(id=2, op="execute", code=b"", stdin=bytes(100_000))
    client.send(id=3, op="ping")
    client.send(id=4, op="execute", session=1, code=bytes(5000))
    kinds = [(reply["id"], reply.get("error", {}).get("kind")) for reply in client.take()]

    assert [(2, "busy"), (3, None), (4, "session_over")] == kinds
    assert (1, 3) == (len(box.pool.tickets), len(decoded))
    assert 1 == len(box.pool.asked)
    assert [("request", "busy", os.geteuid()), ("request", "session_over", os.geteuid())] == box.seen
    box.pool.late = None
    client.send(id=5, op="execute", code=b"")
    assert 2 == len(box.pool.tickets)


def test_the_pool_hears_which_number_a_connection_gives_back(box: Box) -> None:
    client = box.client()
    box.pool.crowded, box.pool.late = True, Busy("later")
    client.send(id=1, op="execute", code=b"", stdin=bytes(100_000))
    client.take()
    assert [] == box.pool.closed
    client.sock.close()
    box.turns()

    assert [number for _, number in box.pool.asked] == box.pool.closed


@pytest.mark.parametrize(("data", "message"), [
    (frame(b"\x85\xa1v\x01\xa2id\x05\xa2op\xa7execute\xa5stdin\xc5\x20\x00" + bytes(8192) + b"\xa4code"), "cut short"),
    (encode({"v": 1, "id": 1, "op": "execute", "code": bytes(5000)}), "request 1 is still in flight"),
    (encode({"v": 1, "id": 0, "op": "execute", "code": bytes(5000)}), "id must be a whole number"),
    (frame(encode({"v": 1, "id": 5, "op": "execute", "code": bytes(5000)})[4:] + b"\0"), "the map ends"),
])
def test_an_overload_hides_no_broken_frame(box: Box, data: bytes, message: str) -> None:
    """The connection ends for it as ever."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    box.pool.crowded, box.pool.late = True, Busy("later")
    client.raw(data)
    reply = client.take()[0]

    assert (0, "bad_request") == (reply["id"], reply["error"]["kind"])
    assert message in reply["error"]["message"]
    assert client.closed()


@pytest.mark.faults("a bug is what this is about")
def test_a_bug_costs_one_request(box: Box) -> None:
    """What nobody thought of is told to who asked; the daemon serves on."""
    client = box.client()
    box.pool.error = RuntimeError("oh")
    client.send(id=1, op="execute", code=b"")
    box.server.status = lambda: {"layers": object()}
    client.send(id=2, op="status")
    client.send(id=3, op="ping")

    assert [(1, "internal"), (2, "internal"), (3, None)] == [
        (reply["id"], reply.get("error", {}).get("kind")) for reply in client.take()]


@pytest.mark.parametrize("data", [
    struct.pack(">I", 2**31), struct.pack(">I", 2**32 - 1), frame(b""), frame(b"\x01"), frame(b"\x81\xa1a"),
    frame(b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0"), frame(b"\x81\xa1a\xdd\xff\xff\xff\xff"),
    encode({"v": 1, "op": "ping"}), encode({"v": 1, "id": 0, "op": "ping"}),
])
def test_c099_c100_broken_frames_end_the_connection(box: Box, data: bytes) -> None:
    """One word of why, and no other client notices."""
    good, bad = box.client(), box.client()
    bad.send(id=1, op="execute", code=b"")
    bad.raw(data)

    assert [(0, "bad_request")] == [(reply["id"], reply["error"]["kind"]) for reply in bad.take()]
    assert bad.closed()
    assert box.pool.tickets[0].cancelled
    good.send(id=1, op="ping")
    assert 1 == good.take()[0]["id"]
    assert 0 == box.server.held


def test_c099_one_frame_in_many_reads_and_many_in_one(box: Box) -> None:
    """However the stream is cut."""
    client = box.client()
    for byte in encode({"v": 1, "id": 1, "op": "ping"}):
        client.raw(bytes([byte]))
    client.raw(b"".join(encode({"v": 1, "id": number, "op": "ping"}) for number in range(2, 102)))
    box.turns(20)

    assert list(range(1, 102)) == [reply["id"] for reply in client.take()]


@pytest.mark.parametrize("how", ["connected", "in the middle of a frame", "while its job runs", "with shutdown"])
def test_c103_a_client_that_vanishes_takes_its_jobs_along(box: Box, how: str) -> None:
    """Tickets are cancelled, nothing is kept."""
    client = box.client()
    if how != "connected":
        client.send(id=1, op="execute", code=b"")
    if how == "in the middle of a frame":
        client.raw(encode({"v": 1, "id": 2, "op": "ping"})[:-3])
        assert box.server.held > 0
    if how == "with shutdown":
        client.sock.shutdown(socket.SHUT_WR)
    else:
        client.sock.close()
    box.turns()

    assert {} == box.server.connections
    assert all(ticket.cancelled for ticket in box.pool.tickets)
    assert 0 == box.server.held


def test_c103_a_report_after_its_client_went_is_dropped(box: Box) -> None:
    """Its memory file is closed."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    client.sock.close()
    box.turns()
    arena = seal([b"late"])
    box.pool.tickets[0].done(Report(result=HELLO, arena=arena))

    assert -1 == arena.fd
    assert 0 == box.server.arenas


def sealed(client: Peer) -> bytes:
    fd = client.fds.pop(0)
    try:
        assert SEALS == fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS
        return os.pread(fd, 1 << 26, 0)
    finally:
        os.close(fd)


def test_a_large_result_goes_by_descriptor(box: Box) -> None:
    """The pool's memory file goes with its frame, sealed, and is closed here."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    arena = seal([b"o" * 100_000, b"e" * 50_000])
    arena.stdout, arena.stderr = (0, 100_000), (100_000, 50_000)
    box.pool.tickets[0].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena))
    [reply] = client.take()

    assert [150_000] == reply["ok"]["arenas"]
    assert [[0, 0, 100_000], [0, 100_000, 50_000]] == [reply["ok"]["stdout"], reply["ok"]["stderr"]]
    assert b"o" * 100_000 + b"e" * 50_000 == sealed(client)
    assert -1 == arena.fd
    assert 0 == box.server.arenas


def test_many_collected_bytes_go_by_descriptor(box: Box) -> None:
    """Beside the memory file of the output; few bytes stay in the frame."""
    client = box.client()
    for number, files in ((1, {"a": b"1", "b": b""}), (2, {"a": b"A" * (3 << 20), "d/b": b"B" * 5, "empty": b""})):
        client.send(id=number, op="execute", code=b"")
        box.pool.tickets[-1].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED, files=files)))
    small, large = client.take()

    assert {"a": b"1", "b": b""} == small["ok"]["files"]
    assert {"a": [0, 0, 3 << 20], "d/b": [0, 3 << 20, 5], "empty": b""} == large["ok"]["files"]
    assert b"A" * (3 << 20) + b"B" * 5 == sealed(client)


def test_a_result_that_cannot_be_packed_is_answered_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE when the memory file is made, and no room in a reply: the request has its one answer all the same."""
    client = box.client()
    client.send(id=1, op="execute", code=b"")

    def full(*_: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    result = Result(b"", b"", 0, Outcome.FINISHED, files={"a": bytes(MAX_REPLY)})
    box.pool.tickets[0].done(Report(result=result))

    assert [(1, "internal")] == [(reply["id"], reply["error"]["kind"]) for reply in client.take()]


def test_a_client_that_sends_descriptors_is_closed(box: Box) -> None:
    """What came before is answered; nothing is taken of the rest, and the daemon's table doesn't grow."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        client = box.client()
        client.send(id=1, op="ping")
        box.turns(2)
        fds = array.array("i", [0, 0, 0, 0])
        client.sock.sendmsg([encode({"v": 1, "id": 2, "op": "ping"})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        box.turns(2)

        assert [1] == [reply["id"] for reply in client.take()]
        assert not box.server.connections
        client.sock.close()
    poll_until(lambda: before == len(os.listdir("/proc/self/fd")) and box.reactor.closer._thread is None,
               "the closer's thread has passed all on")
    assert 10 == box.reactor.closer.passed_on


# --- clients that don't behave ------------------------------------------------


def flood(client: Peer, most: int) -> int:
    """Send jobs without reading until nothing more is taken; how many went."""
    for number in range(1, most + 1):
        try:
            client.sock.send(encode({"v": 1, "id": number, "op": "execute", "code": b"#" * 1000}))
        except BlockingIOError:
            return number - 1
        client.box.turns(1)
    return most


@pytest.fixture
def clock(box: Box, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the reactor's time on."""
    offset = [0.0]
    monkeypatch.setattr(box.reactor, "now", lambda: time.monotonic() + offset[0])

    def forward(seconds: float) -> None:
        offset[0] += seconds

    return forward


def test_c098_half_a_frame_has_a_deadline(box: Box, clock: Callable[[float], None]) -> None:
    """A byte now and then doesn't renew it."""
    good, slow = box.client(), box.client()
    message = encode({"v": 1, "id": 1, "op": "ping"})
    slow.raw(message[:1])
    for byte in message[1:4]:
        clock(inbox.FRAME_S / 4)
        slow.raw(bytes([byte]))
        box.server._look()
    assert not slow.closed()
    clock(inbox.FRAME_S / 3)
    box.server._look()

    assert slow.closed()
    assert not good.closed()


def test_c098_whole_frames_renew_the_deadline(box: Box, clock: Callable[[float], None]) -> None:
    """Control: a client that sends a frame and the start of the next is not slow."""
    client = box.client()
    message = encode({"v": 1, "id": 1, "op": "ping"})
    client.raw(message[:3])
    for _ in range(5):
        clock(inbox.FRAME_S / 2)
        client.raw(message[3:] + message[:3])
        box.server._look()

    assert 5 == len(client.take())
    assert not client.closed()


def test_c098_a_client_that_never_reads_stops_being_served(box: Box, clock: Callable[[float], None]) -> None:
    """Its replies pile up to a bound, nothing more is read from it, and then it is closed."""
    box.pool.at_once = Report(result=Result(bytes(60_000), b"", 0, Outcome.FINISHED))
    client = box.client()
    assert flood(client, 100_000) < 100_000
    connection = next(iter(box.server.connections.values()))

    assert connection._output.size < limits.OUTPUT + 100_000
    assert len(connection._inbox.pending) < 100

    clock(limits.UNREAD_S + 1)
    box.server._look()
    assert {} == box.server.connections


def test_c098_a_client_that_reads_late_gets_everything(box: Box) -> None:
    """Control: the bound holds replies back, it drops none."""
    box.pool.at_once = Report(result=Result(bytes(60_000), b"", 0, Outcome.FINISHED))
    client = box.client()
    sent = flood(client, 500)
    got: list[int] = []

    def read() -> bool:
        got.extend(reply["id"] for reply in client.take())
        return len(got) == sent

    box.until(read)
    assert list(range(1, sent + 1)) == got


def test_idle_connections_are_closed_and_busy_ones_not(box: Box, clock: Callable[[float], None]) -> None:
    """A job may take longer than the idle time."""
    idle, busy = box.client(), box.client()
    busy.send(id=1, op="execute", code=b"")
    clock(box.server.config.idle_timeout + 1)
    box.server._look()

    assert idle.closed()
    assert not busy.closed()


def test_requests_in_flight_are_bounded(box: Box) -> None:
    """One connection can't hold more; it is told, and lives."""
    client = box.client()
    most = box.server.config.connection_requests
    for number in range(1, most + 2):
        client.send(id=number, op="execute", code=b"")

    assert most == len(box.pool.tickets)
    assert [(most + 1, "busy")] == [(reply["id"], reply["error"]["kind"]) for reply in client.take()]


def test_unfinished_frames_are_bounded_over_all(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes over the sum is refused; who finished is served."""
    monkeypatch.setattr(inbox, "INPUT", 300_000)
    first, second = box.client(), box.client()
    half = encode({"v": 1, "id": 1, "op": "execute", "code": bytes(400_000)})[:200_000]
    for client in (first, second):
        client.sock.setblocking(True)
        for start in range(0, len(half), 10_000):
            try:
                client.raw(half[start:start + 10_000])
            except (BrokenPipeError, ConnectionResetError):
                break
        client.sock.setblocking(False)

    assert not first.closed()
    assert ["busy"] == [reply["error"]["kind"] for reply in second.take()]
    assert second.closed()
    assert 200_000 == box.server.held


def test_unread_memory_files_are_bounded(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an open descriptor of the daemon: new jobs are refused while too many wait."""
    client, other = box.client(), box.client()
    monkeypatch.setattr(box.server, "arenas", RESULTS)
    other.send(id=1, op="execute", code=b"")

    assert ["busy"] == [reply["error"]["kind"] for reply in other.take()]
    box.server.arenas = 0
    client.send(id=1, op="execute", code=b"")
    assert 1 == len(box.pool.tickets)


def test_one_client_cannot_keep_the_others_waiting(box: Box) -> None:
    """A flood of requests in one read is served in turns."""
    greedy, other = box.client(), box.client()
    greedy.sock.sendall(b"".join(encode({"v": 1, "id": number, "op": "ping"}) for number in range(1, 1001)))
    other.sock.sendall(encode({"v": 1, "id": 1, "op": "ping"}))
    box.turns(2)
    served = len(greedy.take())

    assert 1 == len(other.take())
    assert served < 500
    box.until(lambda: len(greedy.take()) == 0)


# --- accepting ----------------------------------------------------------------


@pytest.fixture
def listening(box: Box, tmp_path: Any) -> Iterator[str]:
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    box.server.listen(listener)
    yield path
    box.server.stop_listening()
    listener.close()


def connected(box: Box, path: str) -> Peer:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    box.clients.append(sock)
    box.turns()
    return Peer(box, sock)


def test_connections_are_bounded(listening: str, box: Box) -> None:
    """One too many is told why; when one goes, another may come."""
    box.server.config = Config(max_connections=2)
    first, second = (connected(box, listening) for _ in range(2))
    for peer in (first, second):  # or they would make room: who says nothing is idle soon
        peer.send(id=1, op="ping")
        assert 1 == len(peer.take())
    third = connected(box, listening)
    box.until(lambda: bool(box.seen))  # it waited at the door

    assert [(0, "busy")] == [(reply["id"], reply["error"]["kind"]) for reply in third.take()]
    assert third.closed()
    first.sock.close()
    box.turns()
    fourth = connected(box, listening)
    fourth.send(id=1, op="ping")
    assert 1 == len(fourth.take())
    assert not second.closed()


def test_c104_only_the_own_user_and_root_are_served() -> None:
    """As root, root alone."""
    served = {(peer, own): admitted(peer, own) for peer in (0, 1000, 1001) for own in (0, 1000)}

    assert {(0, 0), (0, 1000), (1000, 1000)} == {pair for pair, yes in served.items() if yes}


def test_c104_a_foreign_user_is_refused_and_closed(listening: str, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who it is, not the peer."""
    box.server.uid = os.geteuid() + 1
    monkeypatch.setattr(server.peers, "admitted", lambda peer, own, *_: peer == own)  # root would be served by anybody's
    client = connected(box, listening)

    assert [(0, "forbidden")] == [(reply["id"], reply["error"]["kind"]) for reply in client.take()]
    assert client.closed()
    assert {} == box.server.connections
    assert [("peer", "forbidden", os.geteuid())] == box.seen


def test_c104_members_of_the_group_are_served() -> None:
    """And nobody is asked for his groups where there is no group to be in."""
    def never() -> tuple[int, ...]:
        raise AssertionError

    assert admitted(1001, 1000, 50, lambda: (7, 50))
    assert not admitted(1001, 1000, 50, lambda: (7, 51))
    assert not admitted(1001, 1000, None, never)
    assert admitted(1000, 1000, 50, never)


def test_c104_the_kernel_tells_the_groups(listening: str, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the peer's process had when it connected, its first one too."""
    asked: list[tuple[int, ...]] = []
    box.server.group = 7
    monkeypatch.setattr(server.peers, "admitted", lambda peer, own, group, groups: not asked.append(groups()))
    connected(box, listening)

    assert [sorted({os.getegid(), *os.getgroups()})] == [sorted(set(groups)) for groups in asked]


def test_a_users_connections(listening: str, box: Box) -> None:
    """His quota, not another's; and a place that he leaves is free again."""
    own = os.geteuid()
    box.server.quotas = Quotas(users={own: Quota(connections=2)})
    box.client(user=4711)
    first, second = connected(box, listening), connected(box, listening)
    third = connected(box, listening)
    [refusal] = third.take()

    assert f"user {own} has 2 connections" in refusal["error"]["message"]
    assert [("peer", "busy", own)] == box.seen
    for client in (first, third):
        client.sock.close()
    box.until(lambda: 2 == len(box.server.connections))
    again = connected(box, listening)
    again.send(id=1, op="ping")
    assert [1] == [reply["id"] for reply in again.take()]
    second.sock.close()


def test_a_guest_cannot_end_the_daemon(box: Box) -> None:
    """The rest is his as anybody's, and jobs go by his name."""
    guest = box.client(user=4711)
    guest.send(id=1, op="shutdown")
    guest.send(id=2, op="status")
    guest.send(id=3, op="execute", code=b"")

    assert [(1, "forbidden"), (2, None)] == [
        (reply["id"], reply.get("error", {}).get("kind")) for reply in guest.take()]
    assert [] == box.ends
    assert [4711] == box.pool.users
    assert [("request", "forbidden", 4711)] == box.seen


def test_c343_a_guests_job_has_no_agents_network(box: Box) -> None:
    """The policy `agent` that nobody has to write is the daemon's own user's, whatever kind of request asks for it."""
    places: list[Any] = []
    box.server.place = places.append  # type: ignore[assignment]  # none is made
    guest = box.client(user=4711)
    guest.send(id=1, op="execute", code=b"", profile="agent", egress="agent")
    guest.send(id=2, op="session_open", profile="agent", egress="agent")

    assert [(1, "forbidden"), (2, "forbidden")] == [(reply["id"], reply["error"]["kind"]) for reply in guest.take()]
    assert [] == places


@pytest.mark.parametrize("message", [
    {"op": "execute", "code": b""}, {"op": "session_open"}, {"op": "sandbox_open", "profile": "python"},
])
def test_c098_a_guest_pays_for_the_rules_of_a_policy(box: Box, message: dict[str, Any]) -> None:
    """A request of 40 kB with a thousand of them takes as long as a thousand small ones."""
    guest = box.client(user=4711)
    budget = box.server.rounds.budget(4711, True)
    before = budget.requests
    guest.send(id=1, egress="web", policy={"allow": [f"a{number}.example" for number in range(1000)]}, **message)

    assert 1 == len(guest.take())
    assert before - budget.requests > 900


def test_a_guest_answers_no_ask(box: Box) -> None:
    """Nor is one told of any: not of his own sandboxes' either, since the policy that asks is the operator's."""
    asks = box.server.asks
    guest = box.client(user=4711)
    guest.send(id=1, op="egress_asks", wait=5)
    guest.send(id=2, op="egress_answer", ask=1, allow=True)

    assert [(1, "forbidden"), (2, "forbidden")] == [(reply["id"], reply["error"]["kind"]) for reply in guest.take()]
    assert 0 == asks.listening.on


def test_a_connection_listens_until_it_is_closed(box: Box) -> None:
    """Asks come while it waits, or at once; one that only looks doesn't listen."""
    asks, told = box.server.asks, []
    asks.tell = told.append
    box.server.egress.leased(5, "web")
    client = box.client()
    client.send(id=1, op="egress_asks")
    assert [[]] == [reply["ok"]["events"] for reply in client.take()]
    assert 0 == asks.listening.on
    client.send(id=2, op="egress_asks", wait=60)
    box.until(lambda: asks.listening.on)
    asks.hear(Ask(5, 9, {"name": "a.example.org", "address": "", "port": 80, "protocol": "http", "method": "GET",
                         "path": "/", "rule": "*", "seconds": 60.0}))
    [row] = client.take()[0]["ok"]["events"]
    client.send(id=3, op="egress_answer", ask=row["ask"], allow=True)
    assert [{"taken": True}] == [reply["ok"] for reply in client.take()]
    assert [Listening(1), AskAnswer(9, 1, "")] == told
    client.sock.close()
    box.until(lambda: not box.server.connections)
    assert asks._grace.is_set


def test_c098_a_guest_has_a_share_of_all_buffers(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished frames and unread results: one guest's don't keep another user from having some."""
    monkeypatch.setattr(inbox, "INPUT", 1 << 20)
    monkeypatch.setattr(box.server, "most_results", 4)
    half = struct.pack(">I", 600_000) + bytes(131_500)
    guests = [box.client(user=4711) for _ in range(3)]
    other, own = box.client(user=4712), box.client()
    for client in (guests[0], guests[1], other, own):
        for start in range(0, len(half), 50_000):
            client.raw(half[start:start + 50_000])
            box.turns()

    assert [[], [(0, "busy")], [], []] == [
        [(reply["id"], reply["error"]["kind"]) for reply in client.take()]
        for client in (guests[0], guests[1], other, own)]
    guest = guests[2]
    guest.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for number in range(1, 40):
        guest.send(id=number, op="execute", code=b"")
        if len(box.pool.tickets) < number:
            break
        box.pool.tickets[-1].done(Report(result=Result(bytes(60_000), b"", 0, Outcome.FINISHED), arena=seal([b"x"])))
    assert 1 == box.server.shares[4711].arenas == box.server.arenas
    assert ("request", "busy", 4711) in box.seen
    fresh = box.client(user=4712)
    fresh.send(id=1, op="execute", code=b"")
    assert 4712 == box.pool.users[-1]
    for client in [*guests, other, own, fresh]:
        client.sock.close()
    box.until(lambda: not box.server.connections)
    assert ({}, 0, 0) == (box.server.shares, box.server.held, box.server.arenas)


def test_every_refusal_is_sent_once(box: Box) -> None:
    """Whoever refused: the pool at once or later, the server, or the client itself."""
    client = box.client(user=4711)
    client.send(id=1, op="execute", code=b"")
    client.send(id=2, op="execute", code=b"")
    client.send(id=3, op="execute", limits={"apples": 1}, code=b"")
    box.pool.tickets[0].done(Report(refusal=Busy("later")))
    client.send(id=4, op="cancel", target=2)
    box.pool.error = Busy("now")
    client.send(id=5, op="execute", code=b"")
    client.raw(frame(b""))
    client.take()

    assert [("request", "bad_request", 4711), ("request", "busy", 4711), ("request", "cancelled", 4711),
            ("request", "busy", 4711), ("peer", "protocol", 4711)] == box.seen
    assert 6 == box.server.watcher.metrics.requests  # what could not be read as one, too


def test_a_parting_daemon_loses_no_request(box: Box) -> None:
    """
    A request that was sent is answered, a later client finds the listener closed before a byte was taken, and a
    client in the middle of a request may end it.
    """
    idle, busy, halfway, fresh = box.client(), box.client(), box.client(), box.client()
    idle.send(id=1, op="ping")
    idle.take()
    busy.send(id=1, op="execute", code=b"")
    request = encode({"v": 1, "id": 1, "op": "execute", "code": b"2"})
    halfway.raw(request[:5])
    late = box.client()
    late.sock.send(encode({"v": 1, "id": 1, "op": "ping"}))  # in the kernel, not read
    box.server.part()
    halfway.raw(request[5:])
    box.turns()
    with pytest.raises(BrokenPipeError):
        idle.sock.send(b"x")
    with pytest.raises(BrokenPipeError):
        busy.sock.send(b"x")

    fresh.send(id=1, op="ping")

    assert idle.closed()
    assert [1] == [reply["id"] for reply in fresh.take()]
    assert fresh.closed()
    assert [1] == [reply["id"] for reply in late.take()]
    assert late.closed()
    assert 2 == len(box.pool.tickets)
    assert not any(ticket.cancelled for ticket in box.pool.tickets)
    for ticket in box.pool.tickets:
        ticket.done(Report(result=HELLO))
    for client in (busy, halfway):
        assert [b"hello\n"] == [reply["ok"]["stdout"] for reply in client.take()]
        assert client.closed()
    assert {} == box.server.connections


def test_an_ending_daemon_answers_sent_requests_without_waiting(box: Box) -> None:
    """
    Requests in the kernel's buffers are answered; a client that sends later, though it has only just connected, finds
    its connection closed before a byte was taken.
    """
    halfway, fresh, late = box.client(), box.client(), box.client()
    halfway.raw(encode({"v": 1, "id": 1, "op": "ping"})[:5])
    box.server.part()
    box.turns()
    assert 3 == len(box.server.connections)
    late.sock.send(encode({"v": 1, "id": 1, "op": "ping"}))
    box.server.part(all_of_them=True)
    for client in (fresh, halfway):
        with pytest.raises(BrokenPipeError):
            client.sock.send(b"x")
    box.until(lambda: not box.server.connections)

    assert [1] == [reply["id"] for reply in late.take()]
    assert fresh.closed()
    assert halfway.closed()


def test_c108_without_descriptors_clients_wait(listening: str, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """EMFILE at accept: no spin, no lost client; it is served when there is room."""
    tries: list[str] = []
    monkeypatch.setattr(server, "log", SimpleNamespace(warning=lambda event, **_: tries.append(event)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sock = socket.socket(socket.AF_UNIX)
    box.clients.append(sock)
    sock.connect(listening)
    resource.setrlimit(resource.RLIMIT_NOFILE, (sock.fileno() + 1, hard))
    try:
        start = time.monotonic()
        box.turns(1000)
        # Not one for each turn: one at first, and one after each pause that these turns took, however long they did.
        assert 1 <= tries.count("cannot accept") <= 1 + (time.monotonic() - start) / server._PAUSE_S
        assert {} == box.server.connections
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    box.until(lambda: len(box.server.connections) == 1)
    client = Peer(box, sock)
    client.send(id=1, op="ping")
    assert 1 == len(client.take())


def test_shutdown_is_answered_and_passed_on(box: Box) -> None:
    """The answer is on its way before the daemon ends."""
    client = box.client()
    client.send(id=1, op="shutdown")
    client.send(id=2, op="shutdown", now=True)
    client.send(id=3, op="shutdown", now=1)
    replies = client.take()

    assert [{"id": 1, "ok": {}}, {"id": 2, "ok": {}}] == replies[:2]
    assert "bad_request" == replies[2]["error"]["kind"]
    assert [False, True] == box.ends


def test_a_client_that_connects_while_the_daemon_parts_is_served_or_left_in_the_backlog(box: Box,
                                                                                        tmp_path: Any) -> None:
    """By this daemon, or by the next one that listens; no client is accepted and dropped."""
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    told, tell = os.pipe()
    box.reactor.watch(told, READ, lambda _: (os.read(told, 1), box.server.part()))
    box.server.listen(listener)
    clients = []
    for _ in range(5):
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        clients.append(client)
    os.write(tell, b"x")  # in the same turn: what comes first is the kernel's to say
    for client in clients:
        client.send(encode({"v": 1, "id": 1, "op": "ping"}))
        client.setblocking(False)
    box.turns(6)
    left = []
    with contextlib.suppress(BlockingIOError):
        while True:
            left.append(listener.accept()[0])
    answered = 0
    for client in clients:
        with contextlib.suppress(BlockingIOError):
            answered += decode(client.recv(1 << 16)[4:])["id"]

    assert 5 == answered + len(left)
    box.reactor.forget(told)
    os.close(told)
    os.close(tell)
    for sock in (*clients, *left, listener):
        sock.close()


def test_flushed_reports_the_last_reply_sent(box: Box) -> None:
    """Requests in flight and replies unsent both count."""
    client = box.client()
    seen = [box.server.flushed]
    client.send(id=1, op="execute", code=b"")
    seen.append(box.server.flushed)
    box.pool.tickets[0].done(Report(result=HELLO))
    box.turns()
    seen.append(box.server.flushed)

    assert [True, False, True] == seen


def test_closing_cancels_and_leaves_no_descriptor() -> None:
    """After close the process has the descriptors that it had before."""
    before = sorted(os.listdir("/proc/self/fd"))
    box = Box()
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    box.close()

    assert box.pool.tickets[0].cancelled
    assert before == sorted(os.listdir("/proc/self/fd"))


def test_c103_an_arena_of_the_pool_is_never_left_open(box: Box) -> None:
    """A client that hangs up with a memory file in its output."""
    client = box.client()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    arenas: list[Arena] = []
    for number in range(1, 40):
        client.send(id=number, op="execute", code=b"")
        arena = seal([b"x"])
        arenas.append(arena)
        result = Result(bytes(60_000), b"", 0, Outcome.FINISHED)
        box.pool.tickets[-1].done(Report(result=result, arena=arena))
    assert box.server.arenas > 0
    client.sock.close()
    box.until(lambda: 0 == box.server.arenas)
    assert all(arena.fd == -1 for arena in arenas)


@pytest.mark.needs("uring-transport")
def test_a_descriptor_that_the_ring_may_still_send_stays_open() -> None:
    """Its number would be somebody else's file by then."""
    box = Box(reactors.URING)
    client = box.client()
    client.send(id=1, op="execute", code=b"")
    [connection] = box.server.connections.values()
    with contextlib.suppress(BlockingIOError):
        while connection.sock.send(bytes(4096)):
            pass
    arena = seal([b"x"])
    box.pool.tickets[-1].done(Report(result=HELLO, arena=arena))
    box.turns()

    connection.close("test")
    then = arena.fd
    box.turns()

    assert then >= 0
    assert (0, -1) == (box.server.arenas, arena.fd)
    box.close()


def test_a_refusal_never_lands_inside_an_answer_of_the_fast_path(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the kernel has a part."""
    client = box.client()
    [connection] = box.server.connections.values()
    monkeypatch.setattr(type(connection._stream), "backlog", 17)

    client.raw(b"\xff" * 4)

    assert [] == client.take()
    assert client.closed()


@pytest.mark.parametrize("way", reactors.WAYS)
def test_a_sessions_job_by_a_number_that_is_in_use_ends_the_connection(way: str) -> None:
    """As by the long way. It has run: it is counted, once, and nothing of it after the connection's end."""
    box = Box(way)
    client = box.client()
    client.send(id=5, op="execute", code=b"", args=["not plain"])
    [connection] = box.server.connections.values()
    counted: list[Ran] = []
    connection._flight.sessions = SimpleNamespace(ran=counted.append, end=lambda: None)  # type: ignore[assignment]  # as far as it goes
    ran = Ran(5, 1, 1, started=0.0, ended=0.1, cpu_time=0.0, memory_peak=0)
    connection.ran(ran)
    connection.ran(ran)
    connection.job_started(JobStart(6, b"", 1, 1, started=0.0, unsent=0))

    assert [ran] == counted
    assert ["bad_request"] == [reply["error"]["kind"] for reply in client.take()]
    assert client.closed()
    assert 4 == box.server.watcher.metrics.requests
    box.close()


@pytest.mark.parametrize("way", reactors.WAYS)
def test_c098_a_guest_has_no_more_than_a_share_by_the_fast_path(way: str) -> None:
    """Whose connections are plain only while he may have one more large result."""
    box = Box(way)
    box.client(user=4711)
    box.server.shares[4711].arenas = RESULTS // GUEST_SHARE
    box.client(user=4711)
    box.client(user=4712)

    plain = [connection._stream.fast_path_allowed  # type: ignore[attr-defined]  # of the shim's streams
             for connection in box.server.connections.values()]

    assert [True, False, True] == plain
    box.close()


@pytest.mark.parametrize("way", reactors.WAYS)
def test_new_limits_hold_for_armed_runners_of_the_fast_path(way: str) -> None:
    """They are armed already, with the limits of before."""
    box = Box(way)
    box.client()
    [connection] = box.server.connections.values()

    def plain(limits: Limits) -> bool:
        box.server.config = Config(limits=limits)
        box.server.govern(Quotas())
        return connection._stream.fast_path_allowed  # type: ignore[attr-defined,no-any-return]  # of the shim's streams

    assert [True, False, True] == [plain(Limits()), plain(Limits(memory=64 << 20)), plain(Limits())]
    box.close()

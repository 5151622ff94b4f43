"""
Live sandboxes over connections: who may do what, and that each request is answered once, whatever ends first.

The processes are ordinary ones of this host: tests/kit/sandbox_stand.py.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kit.reference_reactor import ReferenceReactor
from kit.sandbox_stand import ENVIRONMENT, HostPool, HostRunner
from kit.waiting import PATIENCE_S
from leeward.daemon.config import Config
from leeward.daemon.pool.quotas import Quota, Quotas
from leeward.daemon.sandboxes import live_sandboxes
from leeward.daemon.sandboxes.program import MOST_WAITING
from leeward.daemon.sandboxes.sandbox import REMEMBERED
from leeward.daemon.sandboxes.sleeping import SleepStage
from leeward.daemon.sandboxes.terms import Launch, SandboxTerms
from leeward.daemon.serving import flight, sandbox_calls, sandboxes
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.limits import Limits
from leeward.wire.frames import MAX_REPLY, FrameReader, decode, encode


class Table:
    """A server, and peers that speak frames, on one thread."""

    def __init__(self, **config: Any) -> None:
        self.reactor = ReferenceReactor()
        self.pool = HostPool(self.reactor)
        self.server = Server(
            self.reactor, self.pool, Config(**config), status=dict, shut_down=lambda now: None,  # type: ignore[arg-type]  # as far as sandboxes need a pool
            terms=lambda: SandboxTerms(Launch(), ENVIRONMENT),
            users=ServedUsers(1000, None, Quotas(Quota(), {2000: Quota(sandboxes=1)})))
        self.peers: list[Peer] = []

    def peer(self, user: int = 1000) -> Peer:
        self.peers.append(Peer(self, user))
        return self.peers[-1]

    def until(self, condition: Callable[[], Any]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, "it never came"
            self.reactor.turn(0.02)

    @property
    def empty(self) -> bool:
        """Is nothing left of any sandbox?"""
        return not (len(self.server.desk) or self.pool.seats or self.pool.accounts or self.pool.waiting
                    or any(runner.processes for runner in self.pool.runners))

    def close(self) -> None:
        self.server.close()
        self.until(lambda: self.empty)
        for peer in self.peers:
            peer.close()
        self.reactor.close()
        assert not self.reactor.barrier.faults


class Peer:
    def __init__(self, table: Table, user: int) -> None:
        self._table = table
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        table.server.adopt(theirs, user)
        self._reader = FrameReader()
        self._last = 0
        self.answers: dict[int, list[dict[str, Any]]] = {}

    def send(self, op: str, **fields: Any) -> int:
        self._last += 1
        rest = memoryview(encode({"v": 1, "id": self._last, "op": op, **fields}))
        while rest:
            try:
                rest = rest[self._sock.send(rest):]
            except BlockingIOError:
                self._table.reactor.turn(0.02)
        return self._last

    def has(self, number: int) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 16)
        except BlockingIOError:
            data, fds = b"", []
        for fd in fds:
            os.close(fd)
        for payload in self._reader.feed(data):
            reply = decode(payload)
            self.answers.setdefault(reply["id"], []).append(reply)
        return number in self.answers

    def wait(self, number: int) -> dict[str, Any]:
        self._table.until(lambda: self.has(number))
        reply, = self.answers[number]
        answer: dict[str, Any] = reply.get("ok", reply.get("error"))
        return answer

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self.wait(self.send(op, **fields))

    def open(self, **fields: Any) -> str:
        found: str = self.ask("sandbox_open", **fields)["sandbox"]
        return found

    def start(self, box: str, *argv: str, **fields: Any) -> int:
        number: int = self.ask("process_start", sandbox=box, argv=list(argv), **fields)["process"]
        return number

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.close()


def test_any_connection_of_the_user_and_no_other(table: Table) -> None:
    """To a stranger each operation says what it says of an id that never was, and nothing happens."""
    mine, again, stranger = table.peer(), table.peer(), table.peer(2000)
    root = table.peer(0)
    box = mine.open(metadata={"secret": "name"})
    process = mine.start(box, "cat", open=True)
    assert "python" == again.ask("sandbox_info", sandbox=box)["profile"]

    never = box[:-1] + ("a" if box[-1] != "a" else "b")
    for other in (stranger, root):
        for op, fields in (
                ("sandbox_info", {}), ("sandbox_kill", {}), ("sandbox_extend", {"idle": 1.0}), ("process_list", {}),
                ("process_run", {"argv": ["true"]}), ("process_start", {"argv": ["true"]}),
                ("process_read", {"process": process, "wait": 5.0}), ("process_kill", {"process": process}),
                ("process_write", {"process": process, "data": b"x"}), ("process_wait", {"process": process}),
                ("process_signal", {"process": process, "signal": 9}),
                ("process_resize", {"process": process, "rows": 9, "columns": 9})):
            said = [other.ask(op, sandbox=name, **fields) for name in (box, never)]
            assert "sandbox_over" == said[0]["kind"]
            assert "unknown" == said[0]["reason"]
            assert {**said[0], "message": said[0]["message"].replace(box, never)} == said[1]
        assert [] == other.ask("sandbox_list")["sandboxes"]
    assert [box] == [row["sandbox"] for row in again.ask("sandbox_list")["sandboxes"]]
    assert not again.ask("process_list", sandbox=box)["processes"][0]["over"]


def test_a_pool_that_ended_while_folders_were_opened_gives_no_worker(table: Table,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that there is by then does."""
    proceeds: list[Callable[[], Callable[[], None]]] = []

    class Opening:
        def __init__(self, _desk: object, dock: socket.socket, _folders: object, _user: object, proceed: Any,
                     *_: object) -> None:
            dock.close()
            proceeds.append(proceed)

        def cancel(self) -> None:
            return

    monkeypatch.setattr(sandbox_calls, "FolderOpening", Opening)
    pools = [HostPool(table.reactor, most=0), table.pool]
    spec = SimpleNamespace(environment={}, seal=None, executable="", cwd="", plays_root=False,
                           view=SandboxTerms(Launch()).view)
    table.server.place = lambda _key: SimpleNamespace(  # type: ignore[assignment,return-value]  # as far as it is asked
        pool=pools[0], spec=spec, settings=SimpleNamespace(limits=Limits()),
        confinement=SimpleNamespace(degraded=()))
    peer = table.peer()
    number = peer.send("sandbox_open", environment="other", dock=peer.ask("sandbox_dock")["dock"],
                       mounts=[{"path": "/a", "target": "/data"}])
    table.until(lambda: proceeds)
    del pools[0]
    proceeds[0]()

    assert peer.wait(number)["sandbox"]
    assert 1 == len(table.pool.seats)


def test_run_processes_end_with_their_connection_and_started_ones_do_not(table: Table) -> None:
    """The sandbox doesn't end either."""
    first, second = table.peer(), table.peer()
    box = first.open()
    started = first.start(box, "sleep", "100")
    first.send("process_run", sandbox=box, argv=["sleep", "99"])
    table.until(lambda: 2 == second.ask("sandbox_info", sandbox=box)["processes"])
    first.close()
    table.until(lambda: 1 == second.ask("sandbox_info", sandbox=box)["processes"])

    rows = {row["process"]: row["over"] for row in second.ask("process_list", sandbox=box)["processes"]}
    assert {started: False, 2: True} == rows
    assert 0 == second.ask("sandbox_info", sandbox=box)["calls"]


@pytest.mark.parametrize("detached", [False, True])
def test_a_held_sandbox_ends_with_its_connection_unless_it_is_detached(table: Table, detached: bool) -> None:
    """With all that runs in it; the connection isn't closed to make room meanwhile."""
    first, second = table.peer(), table.peer()
    box = first.open(held=True)
    first.start(box, "sleep", "100")
    assert second.ask("sandbox_info", sandbox=box)["held"]
    connection = table.server.connections[min(table.server.connections)]
    assert 0.0 == connection.idle(time.monotonic() + 1000)
    if detached:
        assert not second.ask("sandbox_extend", sandbox=box, detach=True)["held"]
    first.close()
    table.until(lambda: 1 == len(table.server.connections))

    over = second.ask("sandbox_info", sandbox=box)
    assert ("python" if detached else "parted") == over["profile" if detached else "reason"]


def test_held_processes_and_kernels_end_with_their_connection(table: Table) -> None:
    """And no others in the same sandbox."""
    owner, other = table.peer(), table.peer()
    box = owner.open()
    stays, goes = owner.start(box, "sleep", "100"), other.start(box, "sleep", "100", held=True)
    other.close()
    table.until(lambda: 1 == owner.ask("sandbox_info", sandbox=box)["processes"])

    rows = {row["process"]: row["over"] for row in owner.ask("process_list", sandbox=box)["processes"]}
    assert {stays: False, goes: True} == rows


def test_pipelined_requests_are_answered_once_each(table: Table) -> None:
    """Reads, writes, waits, runs and the kill of it all, sent in one go."""
    peer, other = table.peer(), table.peer()
    box = peer.open()
    process = peer.start(box, "cat", open=True)
    sent = []
    for _ in range(10):
        sent += [peer.send("process_write", sandbox=box, process=process, data=b"x"),
                 peer.send("process_read", sandbox=box, process=process, after=10**9, wait=60.0),
                 peer.send("process_wait", sandbox=box, process=process, wait=60.0),
                 peer.send("process_run", sandbox=box, argv=["sleep", "60"]),
                 peer.send("sandbox_info", sandbox=box)]
    table.until(lambda: peer.has(sent[-1]))
    killed = other.send("sandbox_kill", sandbox=box)
    table.until(lambda: other.has(killed) and all(peer.has(number) for number in sent))

    assert all(1 == len(peer.answers[number]) for number in sent)
    kinds = {peer.answers[number][0].get("error", {}).get("reason") for number in sent}
    assert {None, "killed"} == kinds
    late = peer.ask("process_run", sandbox=box, argv=["true"])
    assert ("sandbox_over", "killed") == (late["kind"], late["reason"])


def test_the_end_is_answered_when_no_process_is_left(table: Table) -> None:
    peer = table.peer()
    box = peer.open()
    peer.start(box, "sleep", "60")
    runner, = table.pool.runners
    killed = peer.send("sandbox_kill", sandbox=box)
    left: list[int] = []

    def answered() -> bool:
        has = peer.has(killed)
        left.append(len(runner.processes))
        return has

    table.until(answered)
    assert {} == peer.wait(killed)
    assert 0 == left[-1]


def test_the_end_is_answered_though_a_process_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does for long whose file system doesn't answer."""
    monkeypatch.setattr(sandbox_calls, "ENDING_S", 0.1)
    peer = table.peer()
    box = peer.open()
    runner, = table.pool.runners
    peer.start(box, "sleep", "60")
    end: list[str] = []
    with monkeypatch.context() as stuck:
        stuck.setattr(HostRunner, "end", lambda _runner, why: end.append(why))
        assert {} == peer.ask("sandbox_kill", sandbox=box)
        assert 1 == len(runner.processes)
    assert 1 == table.pool.accounts  # it counts as long as it is there
    runner.end(*end)


def test_a_request_that_is_taken_back(table: Table) -> None:
    """Its own answer says so, and it isn't use of the sandbox any more."""
    peer = table.peer()
    box = peer.open()
    process = peer.start(box, "sleep", "100")
    for op, fields in (("process_run", {"argv": ["sleep", "99"]}), ("process_read", {"process": process, "wait": 60.0}),
                       ("process_wait", {"process": process, "wait": 60.0})):
        number = peer.send(op, sandbox=box, **fields)
        assert {"cancelled": True} == peer.ask("cancel", target=number)
        assert "cancelled" == peer.wait(number)["kind"]
    table.until(lambda: 1 == peer.ask("sandbox_info", sandbox=box)["processes"])

    assert 0 == peer.ask("sandbox_info", sandbox=box)["calls"]


@pytest.mark.parametrize("how", ["cancel", "vanish"])
def test_an_opening_without_a_waiting_client_is_undone(table: Table, how: str) -> None:
    """Leaves the queue, and no sandbox comes of it."""
    table.pool.held = True
    peer = table.peer()
    number = peer.send("sandbox_open")
    table.until(lambda: table.pool.waiting)
    table.pool.accounts -= 1  # as the pool's queue does for one that leaves it
    if "cancel" == how:
        peer.ask("cancel", target=number)
        assert "cancelled" == peer.wait(number)["kind"]
    else:
        peer.close()

    table.until(lambda: table.empty)


def test_an_opening_that_waits_is_answered_when_there_is_a_worker(table: Table) -> None:
    """And can't be used by its id before."""
    table.pool.held = True
    peer = table.peer()
    number = peer.send("sandbox_open")
    table.until(lambda: table.pool.waiting)
    assert [] == peer.ask("sandbox_list")["sandboxes"]
    name = table.server.desk._registry.all()[0].name
    assert "unknown" == peer.ask("sandbox_info", sandbox=name)["reason"]
    table.pool.waiting[0].serve()

    assert name == peer.wait(number)["sandbox"]


def test_quotas_are_by_user(table: Table) -> None:
    """One who has his number doesn't hit others; a sandbox that is over makes room."""
    one, other = table.peer(2000), table.peer(1000)
    box = one.open()
    refused = one.ask("sandbox_open")
    assert ("busy", True) == (refused["kind"], "user 2000 has 1 sandboxes" in refused["message"])
    other.open()
    other.open()
    one.ask("sandbox_kill", sandbox=box)
    one.open()


def test_processes_are_bounded_by_the_sandboxs_limit(table: Table) -> None:
    """Those that have ended don't count, and only the newest of them are remembered."""
    peer = table.peer()
    box = peer.open(limits={"processes": 2})
    peer.start(box, "sleep", "100")
    second = peer.start(box, "sleep", "100")
    assert "busy" == peer.ask("process_run", sandbox=box, argv=["true"])["kind"]
    peer.ask("process_kill", sandbox=box, process=second)
    assert 137 == peer.ask("process_wait", sandbox=box, process=second, wait=20.0)["exit_code"]
    for _ in range(REMEMBERED):
        assert 0 == peer.ask("process_run", sandbox=box, argv=["true"])["exit_code"]

    assert "process_over" == peer.ask("process_wait", sandbox=box, process=second)["kind"]
    assert REMEMBERED + 1 == len(peer.ask("process_list", sandbox=box)["processes"])


def test_requests_that_wait_for_a_process_are_bounded(table: Table) -> None:
    """So that a user can't fill the daemon with them."""
    peer = table.peer()
    box = peer.open()
    process = peer.start(box, "sleep", "100")
    sent = [peer.send("process_wait", sandbox=box, process=process, wait=60.0) for _ in range(MOST_WAITING + 1)]

    assert "busy" == peer.wait(sent[-1])["kind"]
    assert not any(peer.has(number) for number in sent[:-1])


def test_writes_wait_for_the_process_and_have_a_bound(table: Table) -> None:
    """One that doesn't read makes its writers wait; who ends it has them answered with what was taken."""
    peer = table.peer()
    box = peer.open()
    process = peer.start(box, "sleep", "100", open=True)
    sent = [peer.send("process_write", sandbox=box, process=process, data=bytes(1 << 20)) for _ in range(6)]
    assert "busy" == peer.wait(sent[-1])["kind"]
    assert not peer.has(sent[0])
    assert b"" == peer.ask("process_run", sandbox=box, argv=["true"])["stdout"]
    peer.ask("process_kill", sandbox=box, process=process)
    written = [peer.wait(number).get("written") for number in sent[:4]]

    assert 0 < written[0] < 1 << 20
    assert [0, 0, 0] == written[1:]


def test_limits_of_a_program_that_are_the_sandboxs(table: Table) -> None:
    """Are refused by name."""
    peer = table.peer()
    box = peer.open()
    said = peer.ask("process_run", sandbox=box, argv=["true"], limits={"memory": 1 << 26})

    assert "bad_request" == said["kind"]
    assert "time, output, overflow" in said["message"]
    assert "bad_request" == peer.ask("sandbox_open", idle=601.0)["kind"]
    assert "bad_request" == peer.ask("sandbox_extend", sandbox=box, lifetime=4000.0)["kind"]


@pytest.mark.parametrize(("why", "reason", "limit"), [("its init was killed", "lost", None),
                                                      ("it ran out of memory", "memory", "memory")])
def test_a_runner_that_is_lost(table: Table, why: str, reason: str, limit: str | None) -> None:
    """Who waits is answered, and everybody after them is told why."""
    peer = table.peer()
    box = peer.open()
    waits = peer.send("process_run", sandbox=box, shell="echo before; sleep 100")
    process = peer.start(box, "sleep", "100")
    table.until(lambda: 2 == peer.ask("sandbox_info", sandbox=box)["processes"])
    reads = peer.send("process_read", sandbox=box, process=process, wait=60.0)
    runner = table.pool.runners[-1]
    runner.used = Usage(oom_kills=int("memory" == reason), limit_hits=int("memory" == reason))
    runner.end(why)
    table.until(lambda: not len(table.server.desk))

    assert ("out_of_memory" if limit else "signalled") == peer.wait(waits)["outcome"]
    read = peer.wait(reads)
    assert ([], True, "out_of_memory" if limit else "signalled") == (read["chunks"], read["over"], read["outcome"])
    said = peer.ask("sandbox_info", sandbox=box)
    assert (reason, limit) == (said["reason"], said["limit"])


def test_a_daemon_that_ends_says_so(table: Table) -> None:
    """To what runs, and to whoever asks while it drains."""
    peer = table.peer()
    box = peer.open()
    waits = peer.send("process_run", sandbox=box, argv=["sleep", "100"])
    table.until(lambda: 1 == peer.ask("sandbox_info", sandbox=box)["processes"])
    table.pool.drain()

    assert ["shutdown", "shutdown"] == [
        peer.wait(number)["reason"] for number in (waits, peer.send("sandbox_info", sandbox=box))]


def test_a_reader_gets_the_present_output_and_then_waits(table: Table) -> None:
    """A poll is answered at once."""
    peer = table.peer()
    box = peer.open()
    process = peer.start(box, "cat", open=True)
    assert {"chunks": [], "over": False} == peer.ask("process_read", sandbox=box, process=process)
    waits = peer.send("process_read", sandbox=box, process=process, wait=60.0)
    peer.ask("process_write", sandbox=box, process=process, data=b"x", end=True)
    got = peer.wait(waits)
    assert [[1, 1, b"x"]] == [[number, stream, data] for number, stream, _, data in got["chunks"]]
    end = peer.ask("process_read", sandbox=box, process=process, after=1, wait=60.0)

    assert {"chunks": [], **peer.ask("process_wait", sandbox=box, process=process)} == end
    assert end["over"]
    assert end == peer.ask("process_read", sandbox=box, process=process, after=10**6)


def listed(peer: Peer) -> list[list[str]]:
    """The ids of all sandboxes, page by page."""
    pages, last = [], 0
    while True:
        answer = peer.ask("sandbox_list", **({"after": last} if last else {}))
        pages.append([row["sandbox"] for row in answer["sandboxes"]])
        if not answer["more"]:
            return pages
        last = answer["last"]


def test_a_list_comes_in_pages(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, by values and by bytes; each sandbox once, and no other user's, whatever ends meanwhile."""
    peer, other = table.peer(), table.peer(2000)
    boxes = [peer.open(metadata={str(number): "x" * 200 for number in range(64)}) for _ in range(4)]
    theirs = other.open()
    boxes += [peer.open() for _ in range(3)]
    assert [boxes] == listed(peer)
    monkeypatch.setattr(sandboxes, "MOST_ROWS", 3)
    assert [boxes[:3], boxes[3:6], boxes[6:]] == listed(peer)
    monkeypatch.setattr(sandboxes, "MOST_ROWS", 99)
    monkeypatch.setattr(sandboxes, "MOST_VALUES", 400)
    pages = listed(peer)
    assert (boxes[:2], boxes) == (pages[0], [box for page in pages for box in page])
    monkeypatch.setattr(sandboxes, "MOST_VALUES", 99_999)
    monkeypatch.setattr(sandboxes, "MOST_BYTES", 1)
    assert [[box] for box in boxes] == listed(peer)
    first = peer.ask("sandbox_list")
    peer.ask("sandbox_kill", sandbox=boxes[0])
    assert [boxes[1]] == [row["sandbox"] for row in peer.ask("sandbox_list", after=first["last"])["sandboxes"]]
    assert [[theirs]] == listed(other)


def test_a_thousand_with_all_that_they_may_say_are_a_list() -> None:
    """No answer has more than a frame may have."""
    row = {**{f"field {number}": 1.0 for number in range(18)}, "denied": {f"call {number}": 1 for number in range(64)},
           "metadata": {f"name {number}": "\N{SNOWMAN}" * 240 for number in range(64)}}
    entries = [SimpleNamespace(serial=number) for number in range(1, 1001)]
    fake: Any = SimpleNamespace(of=lambda _: entries, info=lambda _: row)
    after = count = 0
    while True:
        answer = sandboxes.page(fake, 1000, after)
        count += len(decode(encode({"id": 1, "ok": answer}, MAX_REPLY)[4:])["ok"]["sandboxes"])
        if not answer["more"]:
            break
        after = answer["last"]
    assert 1000 == count


def test_c370_a_guests_requests_that_wait_are_bounded_in_bytes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they wait for; and are free again with their answers, with their connection, and when they are taken back."""
    monkeypatch.setattr(flight, "GUEST_TAKEN", 1 << 20)
    guest = table.peer(2000)
    box = guest.open()
    share = table.server.shares[2000]
    data = b"x" * (300 << 10)
    process = guest.start(box, "sleep", "60", open=True)
    waiting = [guest.send("process_write", sandbox=box, process=process, data=data) for _ in range(3)]
    table.until(lambda: share.taken >= 3 * len(data))
    assert "busy" == guest.ask("process_write", sandbox=box, process=process, data=data)["kind"]
    owner = table.peer()
    mine = owner.open()
    slow = owner.start(mine, "sleep", "60", open=True)
    own = [owner.send("process_write", sandbox=mine, process=slow, data=data) for _ in range(6)]
    assert not any(owner.has(number) for number in own)  # the owner's memory is his own
    guest.ask("cancel", target=waiting[0])
    assert 3 * len(data) > share.taken
    again = guest.send("process_write", sandbox=box, process=process, data=data)
    table.until(lambda: share.taken >= 3 * len(data))
    assert not guest.has(again)
    second = table.peer(2000)
    assert "busy" == second.ask("process_write", sandbox=box, process=process, data=data)["kind"]
    guest.close()
    table.until(lambda: not share.taken)
    third = second.send("process_write", sandbox=box, process=process, data=data)
    table.until(lambda: share.taken)
    second.ask("process_kill", sandbox=box, process=process)
    second.wait(third)
    assert 0 == share.taken


def test_c370_input_that_no_process_reads_is_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A started process has its request answered, and keeps what it is to read. It counts until it was read, or the
    process has ended, whichever connection has started it.
    """
    monkeypatch.setattr(live_sandboxes, "MOST_INPUT_OF_USER", 1 << 20)
    peer, data = table.peer(), b"x" * (500 << 10)
    box, second = peer.open(), peer.open()
    with_it = {"argv": ["sleep", "60"], "stdin": data}
    first = peer.ask("process_start", sandbox=box, **with_it)["process"]
    peer.ask("process_start", sandbox=second, **with_it)
    again = table.peer()
    assert "busy" == again.ask("process_start", sandbox=box, **with_it)["kind"]
    assert "process" in table.peer(2000).ask("process_start", sandbox=table.peers[-1].open(), **with_it)
    peer.ask("process_kill", sandbox=box, process=first)
    peer.ask("process_wait", sandbox=box, process=first, wait=10.0)
    read = again.ask("process_start", sandbox=box, argv=["wc", "-c"], stdin=data)["process"]
    again.ask("process_wait", sandbox=box, process=read, wait=10.0)
    assert "process" in again.ask("process_start", sandbox=box, **with_it)
    peer.ask("sandbox_kill", sandbox=second)
    assert "bad_request" == again.ask("process_start", sandbox=box, argv=["a\0b"], stdin=data)["kind"]
    assert "process" in again.ask("process_start", sandbox=box, **with_it)
    for each in table.peers:
        for row in each.ask("sandbox_list")["sandboxes"]:
            each.ask("sandbox_kill", sandbox=row["sandbox"])
    assert {} == table.server.desk._input


def test_a_request_for_a_sleeper_that_is_taken_back_is_not_remembered(table: Table) -> None:
    """Else a client could have the daemon remember as many as it likes."""
    peer = table.peer()
    box = peer.open()
    entry = table.server.desk._registry.get(box, 1000)
    entry.sandbox.sleep = sleep = Mock(stage=SleepStage.FALLING)
    number = peer.send("process_list", sandbox=box)
    table.until(lambda: sleep.wake.called)
    assert {"cancelled": True} == peer.ask("cancel", target=number)
    sleep.waits_no_longer.assert_called_once_with(*sleep.wake.call_args.args)
    entry.sandbox.sleep = None

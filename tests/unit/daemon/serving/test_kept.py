"""Memory files that stay with the daemon, over real sockets with a pool that does nothing until it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kit import reactors
from kit.waiting import PATIENCE_S
from leeward.daemon.descriptors import RESULTS
from leeward.daemon.run.report import Arena, Report
from leeward.daemon.serving import connection as limits
from leeward.daemon.serving.connection import OUTPUT
from leeward.daemon.serving.parcel import seal
from leeward.daemon.serving.rounds import CONNECTION_SHARE, GUEST_SHARE
from leeward.spec.outcome import Outcome, Result
from leeward.wire.fields import MAX_PIECE
from unit.daemon.serving.test_server import Box, Peer


@pytest.fixture(params=reactors.ALL)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    box = Box(request.param)
    yield box
    box.close()


def keeping(box: Box, user: int | None = None) -> Peer:
    client = box.client(user)
    client.send(id=1, op="keep_results")

    assert [{"id": 1, "ok": {}}] == client.take()
    return client


def finish(box: Box, client: Peer, number: int, out: bytes, err: bytes = b"") -> Arena:
    """Request *number*, answered by a memory file."""
    client.send(id=number, op="execute", code=b"")
    arena = seal([out, err])
    arena.stdout, arena.stderr = (0, len(out)), (len(out), len(err))
    box.pool.tickets[-1].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena))
    return arena


def taken(client: Peer, count: int) -> list[dict[str, Any]]:
    """So many replies, however often the socket's buffer is full before."""
    found: list[dict[str, Any]] = []
    give_up = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < give_up, found
        found += client.take()
    return found


def read(client: Peer, number: int, target: int, **more: int) -> bytes:
    client.send(id=number, op="kept_read", target=target, **more)
    [reply] = taken(client, 1)
    data: bytes = reply["ok"]["data"]
    return data


def refused(client: Peer, **message: object) -> str:
    client.send(**message)
    [reply] = client.take()
    kind: str = reply["error"]["kind"]
    return kind


def test_a_client_reads_a_kept_result_without_a_descriptor(box: Box) -> None:
    """Its answer is that of any other client; pieces by offset, to the end and behind it."""
    client = keeping(box)
    arena = finish(box, client, 2, b"o" * MAX_PIECE + b"rest", b"err")
    [reply] = client.take()

    assert [MAX_PIECE + 7] == reply["ok"]["arenas"]
    assert [[0, 0, MAX_PIECE + 4], [0, MAX_PIECE + 4, 3]] == [reply["ok"]["stdout"], reply["ok"]["stderr"]]
    assert b"o" * MAX_PIECE == read(client, 3, 2)
    assert b"resterr" == read(client, 4, 2, offset=MAX_PIECE)
    assert b"e" == read(client, 5, 2, offset=MAX_PIECE + 1, size=1)
    assert b"" == read(client, 6, 2, offset=MAX_PIECE + 7) == read(client, 7, 2, offset=2**53 - 1)
    assert [] == client.fds
    assert 1 == box.server.arenas

    client.send(id=8, op="kept_drop", target=2)
    client.send(id=9, op="kept_drop", target=2)
    assert [True, False] == [reply["ok"]["dropped"] for reply in client.take()]
    assert (0, -1) == (box.server.arenas, arena.fd)


def test_a_result_that_is_not_kept_is_refused(box: Box) -> None:
    """A request that never was, a second file of one, another connection's, and one that was dropped."""
    client, other = keeping(box), keeping(box)
    finish(box, client, 2, b"x")
    client.take()

    assert "bad_request" == refused(client, id=3, op="kept_read", target=7)
    assert "bad_request" == refused(client, id=4, op="kept_read", target=2, arena=1)
    assert "bad_request" == refused(other, id=5, op="kept_read", target=2)
    client.send(id=6, op="kept_drop", target=2)
    client.take()
    assert "bad_request" == refused(client, id=7, op="kept_read", target=2)


def test_files_and_output_are_apart(box: Box) -> None:
    """The second memory file is that of collected files."""
    client = keeping(box)
    client.send(id=2, op="execute", code=b"")
    arena = seal([b"out"])
    arena.stdout, arena.stderr = (0, 3), (3, 0)
    box.pool.tickets[-1].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED, files={"a": b"f" * (3 << 20)}),
                                     arena=arena))
    [reply] = client.take()

    assert {"a": [1, 0, 3 << 20]} == reply["ok"]["files"]
    assert b"out" == read(client, 3, 2)
    assert b"ff" == read(client, 4, 2, arena=1, offset=(3 << 20) - 2)
    assert 2 == box.server.arenas


def test_a_number_that_is_used_again_has_the_newer_file(box: Box) -> None:
    """The older one is closed."""
    client = keeping(box)
    first = finish(box, client, 2, b"first")
    client.take()
    finish(box, client, 2, b"second")
    client.take()

    assert b"second" == read(client, 3, 2)
    assert (1, -1) == (box.server.arenas, first.fd)


def test_requests_that_send_a_descriptor_are_refused(box: Box) -> None:
    """An arena for requests, and a dock."""
    client = keeping(box)

    assert "bad_request" == refused(client, id=2, op="arena")
    assert "bad_request" == refused(client, id=3, op="sandbox_dock")
    assert 0 == box.server.requests


@pytest.mark.parametrize(("user", "most"), [(None, RESULTS // CONNECTION_SHARE), (4711, RESULTS // GUEST_SHARE)])
def test_a_client_that_releases_no_result_gets_no_other_job(box: Box, user: int | None, most: int) -> None:
    """A connection has a share of the whole, and a guest a smaller one. Others are served."""
    client = keeping(box, user)
    for number in range(2, most + 2):
        finish(box, client, number, b"x")
    client.take()
    assert most == box.server.arenas
    assert "busy" == refused(client, id=9_000, op="execute", code=b"")

    other = box.client()
    other.send(id=1, op="execute", code=b"")
    assert not other.take()  # taken by the pool, and not refused
    client.send(id=9_001, op="kept_drop", target=2)
    client.take()
    client.send(id=9_002, op="execute", code=b"")
    assert [] == client.take()


def test_kept_files_go_with_their_connection(box: Box) -> None:
    """None is left open, none counted."""
    client = keeping(box)
    arenas = [finish(box, client, number, b"x") for number in range(2, 12)]
    assert 10 == box.server.arenas
    client.sock.close()
    box.turns()

    assert 0 == box.server.arenas
    assert {-1} == {arena.fd for arena in arenas}


def test_no_result_is_kept_for_a_client_that_is_gone(box: Box) -> None:
    """The end of its job has two answers, of the request for calls and of the job: the first one closes the connection."""
    client = keeping(box)
    client.send(id=2, op="execute", code=b"f()", functions={"names": ["f"]})
    client.send(id=3, op="function_take", target=2)
    client.sock.close()
    arena = seal([b"x"])
    arena.stdout = 0, 1
    box.pool.tickets[-1].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena))
    box.turns()

    assert 0 == box.server.arenas
    assert -1 == arena.fd


def test_a_client_that_does_not_read_is_closed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as long as it may leave a reply unread; a read gives it as long again."""
    client = keeping(box)
    finish(box, client, 2, b"x" * 10)
    client.take()
    began = box.reactor.now()
    [connection] = box.server.connections.values()
    now = began + limits.UNREAD_S - 1
    monkeypatch.setattr(connection._flight.kept, "_now", lambda: now)
    connection.look(now)
    assert b"x" == read(client, 3, 2, size=1)

    now = began + 2 * limits.UNREAD_S - 2
    connection.look(now)
    assert not client.closed()
    now += 5
    connection.look(now)
    assert client.closed()
    assert 0 == box.server.arenas


def test_the_daemon_waits_for_kept_results(box: Box) -> None:
    """A drain: the job in flight is answered, its output read, and then the connection ends."""
    client = keeping(box)
    client.send(id=2, op="execute", code=b"")
    box.server.part()
    box.turns()
    arena = seal([b"late"])
    arena.stdout, arena.stderr = (0, 4), (4, 0)
    box.pool.tickets[-1].done(Report(result=Result(b"", b"", 0, Outcome.FINISHED), arena=arena))
    client.take()

    assert not box.server.flushed
    assert b"late" == read(client, 3, 2)
    client.send(id=4, op="kept_drop", target=2)
    assert [True] == [reply["ok"]["dropped"] for reply in client.take()]
    box.until(lambda: box.server.flushed)
    assert client.closed()


def test_a_client_without_kept_results_is_closed_with_its_last_answer(box: Box) -> None:
    """A drain, with a job in flight whose answer is small."""
    client = keeping(box)
    client.send(id=2, op="execute", code=b"")
    box.server.part()
    box.turns()
    assert not box.server.flushed
    box.pool.tickets[-1].done(Report(result=Result(b"small", b"", 0, Outcome.FINISHED)))

    assert [2] == [reply["id"] for reply in client.take()]
    box.until(lambda: box.server.flushed)
    assert client.closed()


def test_reading_has_the_pace_of_the_client(box: Box) -> None:
    """Of many requests for pieces at once only so many are answered as fit: the others wait unread."""
    client = keeping(box)
    finish(box, client, 2, b"x" * MAX_PIECE)
    client.take()
    [connection] = box.server.connections.values()
    for number in range(3, 43):
        client.send(id=number, op="kept_read", target=2)
    peak = connection._output.size

    assert OUTPUT < peak + MAX_PIECE < OUTPUT + 3 * MAX_PIECE
    answers = taken(client, 40)
    assert list(range(3, 43)) == [reply["id"] for reply in answers]
    assert {MAX_PIECE} == {len(reply["ok"]["data"]) for reply in answers}

"""
Escapes by functions of a client's: by the calls that a job makes, and by the answers that a client gives.

A job may call what it was given, as often as it may. It must not reach another job's functions, end, fill or delay the
daemon, or make it keep a clock still for ever; and what it sends is plain values to its client, or nothing.
"""

from __future__ import annotations

import resource
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from kit import reactors
from kit.box import Box, control
from kit.sessions import Peer, Wire
from leeward.base.dataclass import replace
from leeward.client.functions import _Serving
from leeward.wire import function_frames as calls

CHANNEL = pytest.mark.no_single_lock("it is the daemon's reading of the reply pipe, and no call arrives without that")
VALUES = pytest.mark.no_single_lock("it is how a client reads a call, in no process of a sandbox")

#: Calls written by hand: the job pipe is 3, and the reply pipe 4.
BY_HAND = """\
import os, select, signal, struct
def call(number, place=0, body=b'\\x92\\x90\\x80', kind=3):
    write(struct.pack('>BIB', kind, number, place) + body)
def write(content):
    left = memoryview(struct.pack('>I', len(content)) + content)
    while left:
        left = left[os.write(4, left):]
def read():
    head, body = os.read(3, 4), b''
    while len(body) < struct.unpack('>I', head)[0]:
        body += os.read(3, struct.unpack('>I', head)[0] - len(body))
    return body
def park():
    signal.pause()
"""

EMPTY = calls.pack_arguments((), {})


@pytest.fixture(scope="module", params=reactors.ALL)
def two(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The product over each transport, with two workers."""
    with Box(reactor=reactors.reactor(request.param), pool_size=2, spares=0, max_sessions=1) as made:
        yield made


def begin(peer: Peer, code: str, *names: str, wait: float = 60.0, stop_clock: bool = False, **more: Any) -> int:
    """The request of a job with functions of these *names*."""
    return peer.send("execute", code=(BY_HAND + code).encode(), **more,
                     functions={"names": list(names or ("f",)), "wait": wait, "stop_clock": stop_clock})


def take(peer: Peer, job: int) -> list[tuple[int, str, bytes]]:
    return [(number, name, body) for number, name, body in peer.ask("function_take", target=job)["calls"]]


def answer(peer: Peer, job: int, call: int, value: bytes = b"\xc0", outcome: str = "returned") -> bool:
    taken: bool = peer.ask("function_answer", target=job, call=call, outcome=outcome, value=value)["taken"]
    return taken


def end_of(peer: Peer, job: int) -> dict[str, Any]:
    ok: dict[str, Any] = peer.wait(job)["ok"]
    return ok


#: By name: what a job does in place of a call.
FORGED = {
    "a function that wasn't given": "call(1, 1)",
    "the last of all functions": "call(1, 255)",
    "a gap": "call(2)",
    "a number twice": "call(1); call(1)",
    "no number": "call(0)",
    "too many": "[call(number) for number in range(1, 18)]",
    "a cut head": "write(b'\\3\\0\\0')",
    "another kind": "call(1, kind=4)",
    "too long": "call(1, body=bytes(513 << 10))",
    "longer than a reply": "os.write(4, b'\\xff\\xff\\xff\\xff\\3')",
    "an empty frame": "write(b'')",
    "a call and then no reply": "call(1); write(b'\\x90')",
}


@CHANNEL
@pytest.mark.smoke
def test_c240_cannot_end_the_daemon_by_forged_calls(wire: Wire) -> None:
    """Each of them ends its job as `internal`; nobody else is concerned, and nothing of it reaches the client as a call."""
    peer = wire.peer()
    with control():  # this is the pipe of calls, and such a frame is one
        job = begin(peer, "call(1)\nprint(read()[6:])")
        assert [(1, "f", EMPTY)] == take(peer, job)
        assert answer(peer, job, 1, b"mine")
        assert b"b'mine'\n" == end_of(peer, job)["stdout"]

    for forgery, code in FORGED.items():
        job = begin(peer, code + "\npark()")
        got = end_of(peer, job)
        assert ("internal", "PeerError") == (got["outcome"], (got["error"] or {}).get("type")), (forgery, got)
        assert {"calls": [], "over": True} == peer.ask("function_take", target=job), forgery
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)")["stdout"]


@CHANNEL
def test_c240_cannot_call_without_having_been_given_a_function(wire: Wire) -> None:
    """In a process of its own, in a session, and in a session that had functions before."""
    peer = wire.peer()
    with control():
        job = begin(peer, "call(1)\nread()")
        assert [(1, "f", EMPTY)] == take(peer, job)
        answer(peer, job, 1)
        assert "finished" == end_of(peer, job)["outcome"]

    assert "internal" == peer.ask("execute", code=(BY_HAND + "call(1)\npark()").encode())["outcome"]
    session = peer.open()
    job = begin(peer, "call(1)\nread()", session=session)
    assert [(1, "f", EMPTY)] == take(peer, job)
    assert answer(peer, job, 1)
    assert "finished" == end_of(peer, job)["outcome"]
    job = peer.send("execute", session=session, code=b"call(2)\npark()")
    assert {"calls": [], "over": True} == peer.ask("function_take", target=job)
    assert "internal" == end_of(peer, job)["outcome"]


@CHANNEL
def test_c241_cannot_reach_another_jobs_functions(wire: Wire) -> None:
    """
    Two jobs of one connection, and of two: each call comes to who asks for its own job's, and an answer goes to none
    but the job that it names. Another connection's number is nobody's.
    """
    peer, other = wire.peer(), wire.peer()
    mine = begin(peer, "call(1)\nprint(read()[6:])", "mine")
    yours = begin(other, "call(1)\nprint(read()[6:])", "yours")
    with control():  # both wait for an answer at the same time
        assert [(1, "mine", EMPTY)] == take(peer, mine)
        assert [(1, "yours", EMPTY)] == take(other, yours)

    assert not answer(peer, yours + 100, 1, b"stolen")
    third = wire.peer()
    for target in (mine, yours):
        assert {"calls": [], "over": True} == third.ask("function_take", target=target)
        assert not answer(third, target, 1, b"stolen")
        assert not answer(third, target, 1, outcome="broken")
    assert answer(peer, mine, 1, b"a")
    assert answer(other, yours, 1, b"b")
    assert (b"b'a'\n", b"b'b'\n") == (end_of(peer, mine)["stdout"], end_of(other, yours)["stdout"])


@CHANNEL
def test_c242_cannot_fill_or_stop_the_daemon_by_reading_no_answers(wire: Wire) -> None:
    """What waits is bounded by the calls that are open; the daemon serves others meanwhile, and the job ends in its time."""
    peer, body = wire.peer(), bytes(calls.MAX_BODY)
    with control():  # a job that reads gets all of it
        job = begin(peer, "call(1)\ngot = 0\nwhile got < 512 << 10: got += len(read()) - 6\nprint(got)")
        take(peer, job)
        assert answer(peer, job, 1, body)
        assert f"{len(body)}\n".encode() == end_of(peer, job)["stdout"]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = begin(peer, "[call(number) for number in range(1, 17)]\npark()", limits={"time": 1.0})
    came = take(peer, job)
    while len(came) < calls.MAX_OPEN and (more := take(peer, job)):  # none: the job is over
        came += more
    assert calls.MAX_OPEN == len(came)
    assert all(answer(peer, job, number, body) for number, _, _ in came)
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)")["stdout"]
    assert "timed_out" == end_of(peer, job)["outcome"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB

    job = begin(peer, "[call(number) for number in range(1, 17)]\nselect.select([3], [], [])\ncall(17)\npark()")
    for number, _, _ in take(peer, job):
        answer(peer, job, number, body)
    assert "internal" == end_of(peer, job)["outcome"]


@CHANNEL
def test_c243_cannot_answer_twice_late_or_take_twice(wire: Wire) -> None:
    """A client gets one answer to each request, whatever it does; and costs nobody but its own job."""
    peer = wire.peer()
    job = begin(peer, "call(1)\nprint(read()[6:])\ncall(2)\nprint(read()[6:])")
    with control():
        assert [(1, "f", EMPTY)] == take(peer, job)
        assert answer(peer, job, 1, b"a")
    assert not answer(peer, job, 1, b"b")
    assert not answer(peer, job, 3, b"c")
    take(peer, job)
    waits = peer.send("function_take", target=job)
    assert "bad_request" == peer.ask("function_take", target=job)["kind"]
    assert answer(peer, job, 2, b"d")
    assert b"b'a'\nb'd'\n" == end_of(peer, job)["stdout"]
    assert {"calls": [], "over": True} == peer.wait(waits)["ok"]
    assert not answer(peer, job, 2, b"e")

    job = begin(peer, "call(1)\npark()")
    take(peer, job)
    waits = peer.send("function_take", target=job)
    assert peer.ask("cancel", target=waits)["cancelled"]
    assert "cancelled" == peer.wait(waits)["error"]["kind"]
    assert answer(peer, job, 1, outcome="broken")  # the client says that its bytes were none
    assert ("internal", "PeerError") == ((got := end_of(peer, job))["outcome"], got["error"]["type"])

    gone = wire.peer()
    job = begin(gone, "call(1)\nread()\npark()")
    take(gone, job)
    gone.send("function_take", target=job)
    gone.close()
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)")["stdout"]


@CHANNEL
def test_c244_cannot_keep_its_clock_still_for_ever(wire: Wire) -> None:
    """By a call that nobody answers, or by none at all; without the client's word the clock doesn't stand."""
    peer = wire.peer()
    with control():  # it does stand
        job = begin(peer, "call(1)\nread()\nprint(1)", stop_clock=True, wait=0.8, limits={"time": 0.4})
        got = end_of(peer, job)
        assert ("finished", b"1\n") == (got["outcome"], got["stdout"])
        assert got["duration"] > 0.7

    job = begin(peer, "call(1)\nread()\nprint(1, flush=True)\npark()", stop_clock=True, wait=0.2, limits={"time": 0.3})
    got = end_of(peer, job)
    assert ("timed_out", b"1\n") == (got["outcome"], got["stdout"])
    assert "timed_out" == end_of(peer, begin(peer, "call(1)\npark()", limits={"time": 0.3}))["outcome"]


@CHANNEL
def test_c244_cannot_keep_its_clock_still_beyond_the_ceiling(two: Box) -> None:
    """Call after call, each of them in time: all together the clock stands as long as the daemon's limit on time may be."""
    with Wire(two) as wire:
        config = wire.server.config
        wire.server.config = replace(config, ceilings=replace(config.ceilings, time=0.5))
        peer = wire.peer()
        code = "number = 0\nwhile True:\n    number += 1\n    call(number)\n    read()"
        with control():  # as long as there are calls it stands
            got = end_of(peer, begin(peer, code, stop_clock=True, wait=0.1, limits={"time": 0.2}))
            assert got["duration"] > 0.5
        assert "timed_out" == got["outcome"]
        assert got["duration"] < 10


#: By name: the body of a call that is none.
LIES = {
    "nothing": b"", "no list": msgpack.packb({}), "no arguments": msgpack.packb([]), "text": msgpack.packb(["f()", {}]),
    "an extension": msgpack.packb([[msgpack.ExtType(5, b"x")], {}]),
    "a time": msgpack.packb([[msgpack.Timestamp(1)], {}]),
    "nested lists": b"\x92" + b"\x91" * 100_000, "an array of four billion": b"\x92\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\x92\x90\xdf\xff\xff\xff\xff", "text of four billion": b"\x92\x91\xdb\xff\xff\xff\xff",
    "a key that is a list": b"\x92\x90\x81\x90\x01", "a name that is bytes": msgpack.packb([[], {b"x": 1}]),
    "half a million lists": b"\x92\xdd\x00\x07\x00\x00" + b"\x90" * 0x70000 + b"\x80",
}


@VALUES
def test_c245_cannot_give_a_function_anything_but_values(wire: Wire) -> None:
    """The daemon carries what it doesn't read; the client finds that it is no call, and calls nothing. The job ends."""
    peer, called = wire.peer(), []
    given = {"f": lambda *args, **named: called.append((args, named))}
    serving = _Serving(None, 0, given)  # type: ignore[arg-type]  # nothing is sent here
    with control():  # a call that is one calls it
        assert "returned" == serving._run(1, "f", calls.pack_arguments((1,), {"x": b"y"}))["outcome"]
        assert [((1,), {"x": b"y"})] == called

    called.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for lie, content in LIES.items():
        job = begin(peer, "import zlib\ncall(1, body=zlib.decompress(open('lie', 'rb').read()))\npark()",
                    files={"lie": zlib.compress(content)})
        (number, name, body), = take(peer, job)
        told = serving._run(number, name, body)
        assert ("broken", []) == (told["outcome"], called), lie
        assert answer(peer, job, number, outcome="broken")
        got = end_of(peer, job)
        assert ("internal", "PeerError") == (got["outcome"], got["error"]["type"]), lie
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert "raised" == serving._run(1, "g", EMPTY)["outcome"]  # a name that the client has not given

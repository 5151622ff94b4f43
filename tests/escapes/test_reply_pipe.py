"""
Escapes by the reply pipe: values where no reader expects them, over each way on which a reply is read.

What a job writes there is read by the daemon itself. One that isn't a reply ends its job, or its session, as
`internal`, and nobody else's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgpack
import pytest

from kit import reactors
from kit.box import Box, control
from kit.live_daemon import open_files
from kit.sessions import Wire
from leeward.wire.job_frames import LATE

PROTOCOL = pytest.mark.no_single_lock("it is the daemon's reading of a reply, and there is no reading without that")

GOOD = {"exit": 7, "error": None, "limit": None, "files": {}}

#: By name: the body of a reply. Lists and maps have no hash, so they are in no set and no key.
LIES = {
    f"{kind} as {field}": msgpack.packb({**GOOD, field: value})
    for field in ("exit", "error", "limit", "files")
    for kind, value in (("map", {}), ("list", []), ("list of lists", [[], [], []]), ("float", float("nan")))
    if (field, kind) != ("files", "map")
} | {
    "a list for a key": b"\x84\x90\x07" + msgpack.packb(GOOD)[6:],
    "a map for a file's name": msgpack.packb(GOOD)[:-1] + b"\x81\x80\xc4\x00",
    "a list in a file": msgpack.packb({**GOOD, "files": {"x": []}}),
    "cut before a value": msgpack.packb(GOOD)[:6],
} | {
    f"{kind} behind it": msgpack.packb({**GOOD, "behind": behind})
    for kind, behind in (
        ("a list", []), ("a negative size", {"x": -1}), ("a float", {"x": 1.5}), ("a content", {"x": b""}),
        ("true", {"x": True}), ("a path", {"../x": 1}), ("more than there can be", {"x": 1 << 62}),
        ("together too much", {str(number): 1 << 26 for number in range(2)}))
} | {"files within and behind": msgpack.packb({**GOOD, "files": {"x": b""}, "behind": {"y": 0}})}

#: What is sent beside the code: by it a job goes the fast path, where there is one, or the long one.
WAYS = {"plain": {}, "with files to collect": {"collect": ["*"]}}

FORGE = "import os, signal\nos.write(4, bytes.fromhex({frame!r}))\nsignal.pause()"


def forged(body: bytes) -> bytes:
    return FORGE.format(frame=(len(body).to_bytes(4, "big") + body).hex()).encode()


@pytest.fixture(scope="module", params=reactors.ALL)
def two(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The product over each transport, with two workers, one of them for sessions."""
    with Box(reactor=reactors.reactor(request.param), pool_size=2, spares=0, max_sessions=1) as made:
        yield made


@PROTOCOL
@pytest.mark.smoke
@pytest.mark.parametrize("way", WAYS)
def test_c068_cannot_end_the_daemon_by_a_value_out_of_place(wire: Wire, way: str) -> None:
    """Each lie is answered as `internal`, and the same client's next job as if nothing had been."""
    peer = wire.peer()
    with control():  # this is the reply's pipe
        good = peer.ask("execute", code=forged(msgpack.packb(GOOD)), **WAYS[way])
        assert ("finished", 7) == (good["outcome"], good["exit_code"])

    got = {lie: peer.ask("execute", code=forged(body), **WAYS[way])["outcome"] for lie, body in LIES.items()}

    assert dict.fromkeys(LIES, "internal") == got
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)")["stdout"]


@PROTOCOL
def test_c068_cannot_end_the_daemon_by_a_value_out_of_place_in_a_session(wire: Wire) -> None:
    """The same costs a session its process, and another connection nothing."""
    peer, other = wire.peer(), wire.peer()
    number = peer.open()
    with control():  # before, all is well
        assert b"1\n" == peer.run(number, "print(1)")["stdout"]

    for lie, body in LIES.items():
        assert "internal" == peer.ask("execute", session=number, code=forged(body))["outcome"], lie
        assert b"2\n" == other.ask("execute", code=b"print(1 + 1)")["stdout"]
        assert {} == peer.ask("session_reset", session=number)
    assert b"3\n" == peer.run(number, "print(3)")["stdout"]


#: What a job does behind a reply that announces files of 5 and 3 bytes; and its outcome, files, and what was left out.
BEHIND = {
    "all": ("os.write(4, b'aaaaabbb'); signal.pause()", "finished", {"x": b"aaaaa", "y": b"bbb"}, []),
    "more": ("os.write(4, b'aaaaabbbcccccc'); signal.pause()", "finished", {"x": b"aaaaa", "y": b"bbb"}, []),
    "less, and an end": ("os.write(4, b'aaaaabb'); os._exit(7)", "finished", {}, ["ended"]),
    "less, and a signal": ("os.write(4, b'aaaaabb'); os.kill(os.getpid(), 9)", "signalled", {}, ["ended"]),
    "less, and no end": (f"signal.signal({LATE}, signal.SIG_IGN); os.write(4, b'aaaaabb'); signal.pause()",
                         "timed_out", {}, ["ended"]),
    "less, closed": ("os.write(4, b'aaaaabb'); os.close(4); signal.pause()", "timed_out", {}, ["ended"]),
}


@PROTOCOL
@pytest.mark.parametrize("then", BEHIND)
def test_c262_cannot_lie_about_the_files_that_follow_a_reply(wire: Wire, then: str) -> None:
    """Less than was announced costs the job its files, more costs nobody anything, and no memory file stays."""
    peer = wire.peer()
    code, outcome, files, left_out = BEHIND[then]
    body = msgpack.packb({**GOOD, "behind": {"x": 5, "y": 3}})
    with control():  # it is the bytes behind this reply that make the files
        whole = forged(body).replace(b"signal.pause()", b"os.write(4, b'vvvvvwww'); signal.pause()")
        assert {"x": b"vvvvv", "y": b"www"} == peer.ask("execute", code=whole, collect=["*"])["files"]

    got = peer.ask("execute", code=forged(body).replace(b"signal.pause()", code.encode()), collect=["*"],
                   limits={"time": 0.5})

    assert (outcome, files, left_out) == (
        got["outcome"], got.get("files", {}), [reason for _, reason in got.get("left_out", [])])
    assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)", collect=["*"])["stdout"]
    assert not [name for name in open_files(os.getpid()) if "leeward_results" in name]

"""The service's end of a bridge, with a process that is played."""

from __future__ import annotations

import json
import queue
import random
import struct
import threading
from concurrent.futures import Future
from typing import Any, cast

import pytest

from leeward.apps.approvals.bridge import bridge
from leeward.apps.approvals.bridge.bridge import BridgeEnd, BridgeFrames, BridgeRequest, parse_frame, written_frame
from leeward.client.process import Process
from leeward.client.sandbox_calls import Chunk
from leeward.errors import PeerError, SandboxOver

PATIENCE = 20.0


def framed(said: Any) -> bytes:
    data = json.dumps(said).encode()
    return struct.pack("!I", len(data)) + data


HONEST = [1, "POST", "/api/requests?x=1", {"category": "network"}]


class PlayedProcess:
    """Output comes by `say`; what is written is in `heard`."""

    def __init__(self) -> None:
        self._output: queue.Queue[bytes | None] = queue.Queue()
        self.heard: queue.Queue[bytes] = queue.Queue()
        self.killed = threading.Event()

    def say(self, data: bytes | None) -> None:
        self._output.put(data)

    def read(self, timeout: float | None = None) -> list[Chunk]:
        try:
            data = self._output.get(timeout=0.05)
        except queue.Empty:
            if self.killed.is_set():
                raise SandboxOver("it was killed") from None
            return []
        return [] if data is None else [Chunk(1, "stdout", 0.0, data)]

    def wait(self, timeout: float | None = None) -> None:
        return None

    def write(self, data: bytes) -> int:
        self.heard.put(data)
        return len(data)

    def kill(self) -> None:
        self.killed.set()


class LiveSandboxes:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[BridgeRequest, Future[tuple[int, Any]]]] = queue.Queue()

    def __call__(self, request: BridgeRequest) -> Future[tuple[int, Any]]:
        done: Future[tuple[int, Any]] = Future()
        self.asked.put((request, done))
        return done


def heard(process: PlayedProcess) -> list[Any]:
    """The next answer, without what says that the service lives."""
    while True:
        said: list[Any] = json.loads(process.heard.get(timeout=PATIENCE)[4:])
        if said[0]:
            return said


def test_a_request_is_answered_under_its_number() -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    end = BridgeEnd(cast("Process", process), desk, None)
    assert [0, None] == json.loads(process.heard.get(timeout=PATIENCE)[4:])
    data = framed(HONEST)
    for at in range(len(data)):
        process.say(data[at:at + 1])
    request, done = desk.asked.get(timeout=PATIENCE)
    assert end.wait(PATIENCE)
    done.set_result((201, {"id": 1}))

    assert [1, 201, {"id": 1}] == heard(process)
    assert ("POST", "/api/requests?x=1", {"category": "network"}) == (request.method, request.path,
                                                                     json.loads(request.body))
    end.close()
    end.join(PATIENCE)


def test_an_answer_that_fails_is_a_500() -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    end = BridgeEnd(cast("Process", process), desk, None)
    process.say(framed(HONEST))
    desk.asked.get(timeout=PATIENCE)[1].set_exception(RuntimeError("secret"))
    found = heard(process)

    assert [1, 500] == found[:2]
    assert "secret" not in json.dumps(found)
    end.close()
    end.join(PATIENCE)


def test_an_exception_costs_that_bridge() -> None:
    def answering(request: BridgeRequest) -> Future[tuple[int, Any]]:
        raise RuntimeError("no loop")

    process = PlayedProcess()
    end = BridgeEnd(cast("Process", process), answering, None)
    process.say(framed(HONEST))
    end.join(PATIENCE)

    assert ("RuntimeError", False) == (end.fault, end.is_alive)
    assert process.killed.is_set()


@pytest.mark.parametrize("data", [
    b"\0\0\0\0", b"\xff\xff\xff\xff", framed([]), framed({}), framed([0, "GET", "/", None]),
    framed([True, "GET", "/", None]),
    framed([1, "get", "/", None]), framed([1, "GET", "x", None]), framed([1, "GET", "/\n", None]),
    framed([1, "GET", "/é", None]),
    framed([1, "GET", "/" * 3000, None]), framed([1.5, "GET", "/", None]), framed([1, "GET", "/", None, None]),
    struct.pack("!I", 2) + b"[1", struct.pack("!I", 90_000) + b"[" * 90_000, framed([1 << 60, "GET", "/", None]),
    struct.pack("!I", 1) + b"\xff",
])
def test_a_malformed_frame_ends_the_bridge(data: bytes) -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    end = BridgeEnd(cast("Process", process), desk, None)
    process.say(data)
    end.join(PATIENCE)

    assert not end.is_alive
    assert end.fault.startswith("it broke the protocol: ")
    assert process.killed.is_set()
    assert desk.asked.empty()


def test_chance_bytes_are_requests_or_one_error() -> None:
    chance = random.Random(1)
    good = framed(HONEST)
    for _ in range(3000):
        data = bytearray(good * chance.randint(1, 3))
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            for request in BridgeFrames().feed(bytes(data)):
                assert request.path.startswith("/")
        except PeerError:
            pass


def test_a_number_with_too_many_digits_is_one_error() -> None:
    with pytest.raises(PeerError):
        parse_frame(b"[" + b"9" * 10_000 + b', "GET", "/", null]')


def test_an_answer_that_is_too_long_says_so() -> None:
    said = json.loads(written_frame([7, 200, "x" * (5 << 20)])[4:])

    assert [7, 507] == said[:2]


def test_requests_beyond_the_bound_wait_in_the_pipe() -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    end = BridgeEnd(cast("Process", process), desk, None)
    process.say(b"".join(framed([number, *HONEST[1:]]) for number in range(1, 80)))
    futures = [desk.asked.get(timeout=PATIENCE)[1] for _ in range(64)]
    with pytest.raises(queue.Empty):
        desk.asked.get(timeout=0.3)
    futures[0].set_result((200, None))
    assert 65 == desk.asked.get(timeout=PATIENCE)[0].number
    end.close()
    end.join(PATIENCE)


def test_a_process_that_does_not_read_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    blocked = threading.Event()
    monkeypatch.setattr(process, "write", lambda data: blocked.wait(PATIENCE) and len(data))
    monkeypatch.setattr("leeward.apps.approvals.bridge.bridge.EACH_SECOND", 1e6)
    end = BridgeEnd(cast("Process", process), desk, None)

    for number in range(1, 400):
        process.say(framed([number, *HONEST[1:]]))
        try:
            desk.asked.get(timeout=1.0)[1].set_result((200, None))
        except queue.Empty:
            break
        if not end.is_alive:
            break
    assert "it doesn't take its answers" == end.fault
    blocked.set()
    end.join(PATIENCE)


def test_answers_that_wait_have_so_many_bytes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    process, desk = PlayedProcess(), LiveSandboxes()
    blocked, killed, callers = threading.Event(), threading.Event(), list[str]()

    def kill() -> None:
        callers.append(threading.current_thread().name)
        killed.set()

    monkeypatch.setattr(process, "write", lambda data: blocked.wait(PATIENCE) and len(data))
    monkeypatch.setattr(process, "kill", kill)
    end = BridgeEnd(cast("Process", process), desk, None)
    process.say(b"".join(framed([number, *HONEST[1:]]) for number in range(1, 21)))
    futures = [desk.asked.get(timeout=PATIENCE)[1] for _ in range(20)]

    for future in futures:
        future.set_result((200, "x" * (3 << 20)))

    assert killed.wait(PATIENCE)
    assert ("it doesn't take its answers", False) == (end.fault, end.is_alive)
    assert threading.current_thread().name not in callers
    blocked.set()
    process.say(None)
    end.join(PATIENCE)


def test_c398_bodies_beyond_the_bound_wait_in_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of requests that have no answer yet; a larger one is alone."""
    monkeypatch.setattr(bridge, "MOST_BODIES", 1000)
    process, desk = PlayedProcess(), LiveSandboxes()
    end = BridgeEnd(cast("Process", process), desk, None)
    process.say(b"".join(framed([number, "POST", "/api/requests", "x" * size])
                         for number, size in enumerate((400, 400, 400, 5000, 1), 1)))
    for together in (2, 1, 1, 1):
        futures = [desk.asked.get(timeout=PATIENCE)[1] for _ in range(together)]
        with pytest.raises(queue.Empty):
            desk.asked.get(timeout=0.3)
        for future in futures:
            future.set_result((200, None))
    end.close()
    end.join(PATIENCE)


def test_c398_a_get_has_no_body() -> None:
    """It may wait for minutes, with many others."""
    assert b"" == parse_frame(json.dumps([1, "GET", "/api/requests/1?wait=300", "x" * 4000]).encode()).body

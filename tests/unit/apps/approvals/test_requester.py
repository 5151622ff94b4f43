"""The asking side: the bridge between a socket and two pipes, with a service that is played."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from leeward.apps.approvals.requester import MOST_CONNECTIONS, MOST_FRAME, Agent, AskError, Bridge, ServiceGone

PATIENCE = 20.0


class PlayedService:
    """Answers what comes over the bridge by `answers`, and says that it lives."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink, self.asked = source, sink, list[list[Any]]()
        self.answers: dict[str, tuple[int, Any]] = {}
        self.greeted = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def say(self, said: list[Any]) -> None:
        data = json.dumps(said).encode()
        self._sink.write(struct.pack("!I", len(data)) + data)
        self._sink.flush()

    def _run(self) -> None:
        self.say([0, None])
        while len(head := self._source.read(4)) == 4:
            asked = json.loads(self._source.read(struct.unpack("!I", head)[0]))
            self.asked.append(asked)
            route = f"{asked[1]} {asked[2].partition('?')[0]}"
            self.say([asked[0], *self.answers.get(route, (404, {"detail": "none"}))])
            self.greeted.set()


class EndingBridge(Bridge):
    """Whose threads end before the process does."""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # `end` shuts the listener down
            super()._accept()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[PlayedService, str]]:
    inward, outward, before = os.pipe(), os.pipe(), set(threading.enumerate())
    sources = os.fdopen(inward[0], "rb"), os.fdopen(outward[0], "rb")
    sinks = os.fdopen(outward[1], "wb"), os.fdopen(inward[1], "wb")
    path = str(tmp_path / "s")
    bridge, service = EndingBridge(path, sources[0], sinks[0]), PlayedService(sources[1], sinks[1])
    running = threading.Thread(target=bridge.run, daemon=True)
    running.start()
    yield service, path
    service.say([0, 0.0])  # its time is over
    running.join(PATIENCE)
    assert not running.is_alive()
    bridge.end()
    assert service.greeted.wait(PATIENCE)  # the bridge's first request is answered, whatever the test has asked
    sinks[0].close()
    service.thread.join(PATIENCE)  # what it has been asked it answers
    sinks[1].close()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    for source in sources:
        source.close()


def test_a_request_for_permission_is_answered(served: tuple[PlayedService, str]) -> None:
    service, path = served
    service.answers = {"POST /api/requests": (201, {"id": 7, "status": "pending"}),
                       "GET /api/requests/7": (200, {"id": 7, "status": "approved"})}

    found = Agent(path).request_permission("network", host="example.org", reason="why")

    assert {"id": 7, "status": "approved"} == found
    assert ["POST", "/api/requests", {"category": "network", "host": "example.org", "reason": "why"}] in [
        asked[1:] for asked in service.asked]


def test_a_wait_ends_with_its_time(served: tuple[PlayedService, str]) -> None:
    service, path = served
    service.answers = {"GET /api/requests/7": (200, {"id": 7, "status": "pending"})}

    assert "pending" == Agent(path).wait(7, 0.0)["status"]


def test_a_command_is_waited_for(served: tuple[PlayedService, str]) -> None:
    service, path = served
    service.answers = {"POST /api/exec": (201, {"id": 3}), "GET /api/requests/3": (200, {"status": "approved"}),
                       "GET /api/exec/3": (200, {"id": 3, "status": "completed", "exit_code": 0, "output": "x"}),
                       "POST /api/packages": (201, {"requests": [{"id": 3}, {"id": 3}]})}
    agent = Agent(path)

    assert "x" == agent.request_exec("true")["output"]
    assert 2 == len(agent.request_packages("pip install a b"))


def test_a_refusal_has_its_status_and_reason(served: tuple[PlayedService, str]) -> None:
    service, path = served
    service.answers = {"POST /api/propose": (403, {"detail": "no"})}

    with pytest.raises(AskError, match="no") as caught:
        Agent(path).propose_config("a", 1)
    assert 403 == caught.value.status


def test_a_malformed_request_is_refused_inside(served: tuple[PlayedService, str]) -> None:
    service, path = served
    agent = Agent(path)
    for method, route in (("GET", "x"), ("get", "/"), ("GET", "/\n"), ("GET", "/" * 3000), ("GET", "/é")):
        with pytest.raises(AskError) as caught:
            agent.call(method, route)
        assert 400 == caught.value.status
    with pytest.raises(AskError) as caught:
        agent.call("POST", "/", "x" * MOST_FRAME)

    assert 413 == caught.value.status
    assert [] == [asked for asked in service.asked if "/api/status" != asked[2]]


def test_a_connection_beyond_the_bound_is_told_so(served: tuple[PlayedService, str]) -> None:
    """Also one that has sent more than a socket holds."""
    _, path = served
    with ExitStack() as held:
        for _ in range(MOST_CONNECTIONS):
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(path)
            one.sendall(b"{}\n")
            assert one.recv(1 << 16).startswith(b'{"status": 400')
        for body in (None, "x" * (3 << 20)):
            with pytest.raises(AskError, match="a sandbox has 32 connections to the service at once") as caught:
                Agent(path).call("GET", "/api/requests", body)
            assert 503 == caught.value.status


def test_without_a_bridge_the_service_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ServiceGone):
        Agent(str(tmp_path / "none")).list_pending()
    with pytest.raises(ServiceGone):
        Agent(str(tmp_path / "none"), watchdog=True)

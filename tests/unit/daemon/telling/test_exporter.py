"""The metrics' endpoint: who may ask, and that whoever asks holds up nobody."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.reference_reactor import ReferenceReactor
from kit.waiting import PATIENCE_S
from leeward.daemon.telling import exporter as module
from leeward.daemon.telling.exporter import CLIENTS, REQUEST, Exporter, answer, bind, check_place

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"


@pytest.mark.parametrize(("head", "status"), [
    ("GET /metrics HTTP/1.1\nHost: localhost", ""), ("GET /metrics HTTP/1.0", ""), ("GET /metrics?a=b HTTP/1.1", ""),
    ("GET /metrics HTTP/1.1\nhost: 127.0.0.1:9464", ""), ("GET /metrics HTTP/1.1\nHost: [::1]:9464", ""),
    ("GET /metrics HTTP/1.1\nHost: evil.example:9464", "403"), ("GET /metrics HTTP/1.1\nHost: 10.0.0.1", "403"),
    ("GET /metrics HTTP/1.1\nHost: localhost\nHost: localhost", "403"), ("GET /metrics HTTP/1.1\nHost:", "403"),
    ("GET / HTTP/1.1", "404"), ("GET /metrics/ HTTP/1.1", "404"), ("GET /../metrics HTTP/1.1", "404"),
    ("POST /metrics HTTP/1.1", "405"), ("HEAD /metrics HTTP/1.1", "405"),
    ("", "400"), ("GET /metrics", "400"), ("GET  /metrics HTTP/1.1", "400"), ("\x16\x03\x01", "400"),
])
def test_the_exporter_answers_one_path_and_method(head: str, status: str) -> None:
    """By a name of this machine: a web page in a browser would come by a name of its own."""
    assert status == answer(head.encode("latin-1"), local=False)[:3]


def test_a_socket_has_no_name() -> None:
    """No browser gets there."""
    assert "" == answer(b"GET /metrics HTTP/1.1\nHost: whatever", local=True)


@pytest.mark.parametrize("place", ["", "/run/x.sock", "127.0.0.1:9464", "127.1.2.3:0", "[::1]:65535"])
def test_the_exporter_accepts_a_socket_path_or_a_loopback_address(place: str) -> None:
    assert place == check_place(place)


@pytest.mark.parametrize("place", [
    "0.0.0.0:9464", "[::]:9464", "192.168.0.1:80", "localhost:80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
    "::1:80", "[127.0.0.1]:80", "127.0.0.1:-1", "x.sock", "/a\0b", ":80", "127.0.0.1:٣",
])
def test_c149_places_that_are_not_here_are_refused(place: str) -> None:
    """What others could reach, and what isn't clear."""
    with pytest.raises(ValueError, match="loopback"):
        check_place(place)


class Box:
    def __init__(self, listener: socket.socket) -> None:
        self.reactor = ReferenceReactor()
        self.listener = listener
        self.asked = 0
        self.size = 1
        self.ailing = ""
        self.exporter = Exporter(self.reactor, listener, self._collect, lambda: self.ailing)

    def _collect(self, done: Callable[[str], None]) -> None:
        self.asked += 1
        self.reactor.soon(lambda: done("x 1\n" * self.size))

    def until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, "it never came"
            self.reactor.turn(0.05)

    def connect(self) -> socket.socket:
        before = list(self.exporter.clients)
        sock = socket.socket(self.listener.family)
        sock.connect(self.listener.getsockname())
        sock.setblocking(False)
        self.until(lambda: list(self.exporter.clients) != before)
        return sock

    def all_of(self, sock: socket.socket) -> bytes:
        """What comes until the end of the stream."""
        got = b""

        def over() -> bool:
            nonlocal got
            try:
                data = sock.recv(1 << 16)
            except BlockingIOError:
                return False
            got += data
            return not data
        self.until(over)
        sock.close()
        return got

    def close(self) -> None:
        self.exporter.close()
        self.listener.close()
        self.reactor.close()


@pytest.fixture(params=["127.0.0.1:0", "unix"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    if "unix" == request.param:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "m"))
        listener.listen()
    else:
        listener = bind(request.param)
    box = Box(listener)
    yield box
    box.close()


def test_an_answer_has_headers_length_and_text(box: Box) -> None:
    """Headers, length, text, end; also if the request comes byte by byte."""
    for pieces in ([GET], [bytes([byte]) for byte in GET]):
        sock = box.connect()
        for piece in pieces:
            sock.sendall(piece)
            box.reactor.turn(0.05)
        head, _, body = box.all_of(sock).partition(b"\r\n\r\n")

        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in head
        assert b"x 1\n" == body
    assert {} == box.exporter.clients
    assert 1 <= box.asked <= 2


@pytest.mark.parametrize(("ailing", "status", "said"), [
    ("", b"200 OK", b"ok\n"), ("no worker stands", b"503 Service Unavailable", b"no worker stands\n")])
def test_health_says_whether_jobs_are_taken(box: Box, ailing: str, status: bytes, said: bytes) -> None:
    """Whether jobs are taken, without a look at any worker's memory."""
    box.ailing = ailing
    sock = box.connect()
    sock.sendall(GET.replace(b"/metrics", b"/healthz"))
    head, _, body = box.all_of(sock).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert said == body
    assert 0 == box.asked


def test_c098_any_number_of_requests_leaves_the_daemon_serving(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text serves all who ask while it is fresh, or while it is put together; and who comes too fast waits."""
    monkeypatch.setattr(module, "FRESH_S", 60.0)
    socks = [box.connect() for _ in range(CLIENTS)]
    for sock in socks:
        sock.send(GET)
    assert {b"x 1"} == {box.all_of(sock).splitlines()[-1] for sock in socks}
    assert 1 == box.asked
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    last = box.connect()
    last.send(GET)
    box.all_of(last)
    assert 2 == box.asked
    monkeypatch.setattr(module, "RATE", 2)
    start = time.monotonic()
    for _ in range(5):
        sock = box.connect()
        sock.send(GET)
        assert box.all_of(sock).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - start > 1.0


def test_c098_a_request_has_an_end(box: Box) -> None:
    """One that is all headers is refused when it has REQUEST bytes."""
    sock = box.connect()
    sock.send(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * (REQUEST // 6))

    assert box.all_of(sock).startswith(b"HTTP/1.1 431 ")
    assert 0 == box.asked


def test_c098_a_silent_client_is_closed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that doesn't read, after the same time."""
    monkeypatch.setattr(module, "LIFE_S", 0.05)
    silent, deaf = box.connect(), box.connect()
    box.size = 1 << 20  # an answer that no buffer holds
    deaf.send(GET)
    box.until(lambda: not box.exporter.clients)

    assert b"" == box.all_of(silent)
    deaf.close()


def test_c098_places_are_taken_from_the_oldest(box: Box) -> None:
    """However many connect, the next one is served."""
    socks = [box.connect() for _ in range(CLIENTS + 3)]

    assert CLIENTS == len(box.exporter.clients)
    assert [b"", b"", b""] == [box.all_of(sock) for sock in socks[:3]]
    sock = box.connect()
    sock.send(GET)
    assert box.all_of(sock).startswith(b"HTTP/1.1 200 ")
    for sock in socks[3:]:
        sock.close()


def test_a_client_that_disconnects_leaves_no_state(box: Box) -> None:
    """Before its request, in the middle of it, and while its answer is put together."""
    before = len(os.listdir("/proc/self/fd"))
    for said in (b"", GET[:10], GET):
        sock = box.connect()
        sock.send(said)
        sock.close()
        box.until(lambda: not box.exporter.clients)

    assert before == len(os.listdir("/proc/self/fd"))

"""Who connects and says nothing, and who connects too often, is let go; nobody keeps the operator away."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from kit.approvals_browser import ServedPage
from kit.approvals_page import PageService
from leeward.apps.approvals.web import listening

ASK = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"


def connected(served: ServedPage) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 30)


def is_over(made: socket.socket) -> bool:
    try:
        return b"" == made.recv(1)
    except ConnectionResetError:
        return True


def last_words(made: socket.socket) -> bytes:
    """The status and the sentence with which the service closes a connection."""
    data = b""
    while more := made.recv(1 << 16):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"\r\nConnection: close" in head
    return head.split(b" ")[1] + b" " + body


def test_a_connection_beyond_the_bound_is_closed(service: PageService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 3)
    served = ServedPage(service)
    try:
        held = [connected(served) for _ in range(3)]
        for made in held:
            made.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 9\r\n\r\n" % served.port)
        with connected(served) as another:
            assert last_words(another).startswith(b"503 too many connections are open")
        for made in held:
            made.close()
    finally:
        served.close()


def test_a_connection_without_a_request_makes_room(service: PageService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has had none for longest."""
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 3)
    served = ServedPage(service)
    try:
        held = [connected(served) for _ in range(3)]
        for made in (held[1], held[0], held[2]):
            made.sendall(ASK % served.port)
            assert is_answered(made)
        with connected(served) as another:
            another.sendall(ASK % served.port)
            assert is_answered(another)
            assert is_over(held[1])
            for made in (held[0], held[2]):
                made.sendall(ASK % served.port)
                assert is_answered(made)
        for made in held:
            made.close()
    finally:
        served.close()


def test_an_answer_says_for_how_long_its_connection_stays_open(service: PageService,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than clients' pools keep it. A client that sends as it is closed can't know what became of that."""
    assert listening.IDLE_S > listening.TOLD_IDLE_S >= 115  # Firefox: 115; httpx: 5, as uvicorn has it by itself
    monkeypatch.setattr(listening, "IDLE_S", 0.2)
    served = ServedPage(service)
    token = served.app.state.parts.access.program_token().encode()
    known = b"GET /api/requests HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n\r\n" % (served.port, token)

    def head(asked: bytes) -> bytes:
        with connected(served) as made:
            made.sendall(asked)
            data = b""
            while more := made.recv(1 << 16):  # control: IDLE_S is what ends it
                data += more
        return data.lower().partition(b"\r\n\r\n")[0]

    try:
        assert b"\r\nconnection: keep-alive\r\nkeep-alive: timeout=115" in head(known)
        assert b"keep-alive" not in head(ASK % served.port)  # a stranger has a shorter time
        closing = head(known.replace(b"Host", b"Connection: close\r\nHost"))
        assert (True, False) == (b"connection: close" in closing, b"connection: keep-alive" in closing)
    finally:
        served.close()


def test_a_silent_connection_is_closed(service: PageService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_S", 0.1)
    served = ServedPage(service)
    try:
        with connected(served) as silent, connected(served) as slow:
            slow.sendall(b"GET /login HTTP/1.1\r\nHo")
            assert b"408 no whole head of a request has come in 0.1 seconds\n" == last_words(silent) == last_words(slow)
    finally:
        served.close()


def is_answered(made: socket.socket) -> bool:
    data = b""
    while b"requests" not in data and b"</html>" not in data:
        more = made.recv(1 << 16)
        if not more:
            return False
        data += more
    return data.startswith(b"HTTP/1.1 200")


class Users:
    """Connects as other users, whom the service sees by the ports of their listening."""

    def __init__(self) -> None:
        self._by_port: dict[int, int | None] = {}

    def of(self, made: socket.socket) -> int | None:
        return self._by_port.get(made.getpeername()[1], os.geteuid())

    def connected(self, served: ServedPage, uid: int | None) -> socket.socket:
        made = socket.socket()
        made.settimeout(30)
        made.bind(("127.0.0.1", 0))
        self._by_port[made.getsockname()[1]] = uid
        made.connect(("127.0.0.1", served.port))
        return made

    def asked(self, served: ServedPage, uid: int | None, more: bytes = b"") -> bytes:
        with self.connected(served, uid) as made:
            try:
                made.sendall(b"GET /api/requests HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s\r\n" % (served.port, more))
                return made.recv(12)
            except ConnectionResetError:
                return b""


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    made = Users()
    monkeypatch.setattr(listening, "peer_uid", made.of)
    return made


@pytest.fixture
def served(service: PageService) -> Iterator[ServedPage]:
    made = ServedPage(service)
    yield made
    made.close()


def test_another_user_keeps_nobody_away(served: ServedPage, users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the operator, nor one with a token whose id is a third one; the other's own oldest connections make room."""
    monkeypatch.setattr(listening, "MOST_STRANGERS", 4)
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 4)
    token = b"Authorization: Bearer %s\r\n" % served.app.state.parts.access.program_token().encode()
    held = [users.connected(served, 4711) for _ in range(12)]

    assert [b"HTTP/1.1 401"] * 8 == [users.asked(served, os.geteuid()) for _ in range(8)]
    for uid in (4712, None):
        assert [b"HTTP/1.1 200"] * 8 == [users.asked(served, uid, token) for _ in range(8)]
    assert b"503 another connection of this user's needs the room\n" == last_words(held[0])
    for made in held:
        made.close()


def test_a_stranger_has_a_short_time(served: ServedPage, users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it asks for something or not, also by a WebSocket; one that has shown a token has more."""
    monkeypatch.setattr(listening, "STRANGER_S", 0.5)
    token = served.app.state.parts.access.program_token().encode()
    upgrade = (b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
               b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
    silent, slow, web, known = [users.connected(served, 4711) for _ in range(4)]
    with silent, slow, web, known:
        known.sendall(b"GET /api/requests HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n\r\n"
                      % (served.port, token))
        assert is_answered(known)
        slow.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 9\r\n\r\n" % served.port)
        web.sendall(upgrade % served.port)
        assert b"408 a connection of another user has 0.5 seconds to show a session or a token\n" == last_words(silent)
        for made in (slow, web):  # which have an answer
            while not is_over(made):
                continue
        known.sendall(b"GET /api/requests HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n\r\n"
                      % (served.port, token))
        assert is_answered(known)


def test_the_owner_of_a_connection_is_known_while_it_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        made, _ = server.accept()
        with made:
            with client:
                assert os.geteuid() == listening.peer_uid(made)
            assert listening.peer_uid(made) is None

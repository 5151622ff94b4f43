"""Who connects and says nothing, and who connects too often, is let go."""

from __future__ import annotations

import socket

import pytest

from kit.approvals_browser import ServedPage
from kit.approvals_page import PageService
from leeward.approvals.web import connections

ASK = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"


def connected(served: ServedPage) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), 30)


def is_over(made: socket.socket) -> bool:
    try:
        return b"" == made.recv(1)
    except ConnectionResetError:
        return True


def test_a_connection_beyond_the_bound_is_closed(service: PageService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    served = ServedPage(service)
    try:
        held = [connected(served) for _ in range(3)]
        for made in held:
            made.sendall(ASK % served.port)
            assert made.recv(100).startswith(b"HTTP/1.1 200")
        with connected(served) as another:
            assert is_over(another)
        for made in held:
            made.close()
    finally:
        served.close()


def test_a_silent_connection_is_closed(service: PageService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    served = ServedPage(service)
    try:
        with connected(served) as silent, connected(served) as slow:
            slow.sendall(b"GET /login HTTP/1.1\r\nHo")
            assert is_over(silent)
            assert is_over(slow)
    finally:
        served.close()

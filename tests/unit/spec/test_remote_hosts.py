"""Daemons on other machines, in place of a socket's path."""

from __future__ import annotations

import pytest

from leeward.errors import BadRequest
from leeward.spec.paths import RemoteHost, client_socket


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEEWARD_HOST", "LEEWARD_TOKEN", "LEEWARD_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", [
    "https://lw.example", "https://lw.example/", "https://lw.example:8443", "http://localhost:8080", "http://127.0.0.1:1",
    "http://[::1]:1", "ssh://lw.example", "ssh://me@lw.example:22/run/leeward/leeward.sock", "ssh://[2001:db8::1]"])
def test_each_form_is_taken(url: str) -> None:
    assert url == RemoteHost(url, "t") == client_socket(url)


@pytest.mark.parametrize("url", [
    "", "lw.example", "https://", "https:///x", "https://lw.example/path", "https://lw.example?q", "https://lw.example#f",
    "https://me@lw.example", "https://me:x@lw.example", "ssh://me:x@lw.example", "ssh://-oProxyCommand=x", "ssh://a b",
    "ssh://lw.example:x", "https://lw.example:0", "ftp://lw.example", "file:///x", "http://lw.example", "http://10.0.0.1",
    "https://l\u00fc.example", "http://localhost.evil.example"])
def test_all_else_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        RemoteHost(url, "t")


def test_the_token_is_no_part_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    host = RemoteHost("https://lw.example", "secret")
    assert ("secret", False) == (host.token, "secret" in f"{host!r}{host}")
    monkeypatch.setenv("LEEWARD_TOKEN", "from outside")
    assert ("from outside", "") == (RemoteHost("https://lw.example").token, RemoteHost("https://lw.example", "").token)
    for wrong in ("a\nb", "\u00fc"):
        with pytest.raises(BadRequest):
            RemoteHost("https://lw.example", wrong)


def test_what_is_named_wins_and_then_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEWARD_HOST", "https://lw.example")
    monkeypatch.setenv("LEEWARD_SOCKET", "/run/x.sock")
    assert ("/run/own.sock", "https://lw.example") == (client_socket("/run/own.sock"), client_socket(None))
    assert "https://other.example" == client_socket("https://other.example")
    assert isinstance(client_socket(client_socket(None)), RemoteHost)
    monkeypatch.delenv("LEEWARD_HOST")
    assert "/run/x.sock" == client_socket(None)


def test_a_token_for_a_socket_is_a_mistake() -> None:
    with pytest.raises(BadRequest, match="another machine"):
        client_socket("/run/x.sock", "t")

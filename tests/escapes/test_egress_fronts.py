"""
Servers that many names share, under a policy that allows one of the names at a port: ways to the others. Catalogue cases
403 to 406.

In each control a policy names the server's address: no name is looked up, so none can be another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.attack import serves, within
from kit.box import Box, control
from kit.egress import Servers, reaching, row_of

BROKER = "the broker reads the first bytes, a process of the daemon's, and no lock of the job's"

HERE = {"addresses": ["127.0.0.0/8"]}


@pytest.fixture(scope="module")
def box(host: Servers) -> Iterator[Box]:
    """Bytes to web.example.org and echo.example.org, which nobody has to see."""
    with reaching({"allow": [f"web.example.org:{host.http}", f"echo.example.org:{host.echo}",
                             f"web.example.org:{host.tls}"], **HERE, "limits": {"connect": "5s"}}, spares=0) as made:
        yield made
        assert serves(made)


@pytest.fixture(scope="module")
def by_address(host: Servers) -> Iterator[Box]:
    with reaching({"allow": [f"127.0.0.1:{port}" for port in (host.http, host.echo, host.tls)], **HERE},
                  spares=0) as made:
        yield made


#: Sends each list of pieces on a connection of its own, and waits for an answer before each piece that begins with "<".
SEND = """
import contextlib, socket
said = []
for pieces in attacks:
    with socket.create_connection((to, port), 20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        got = ""
        try:
            for piece in pieces:
                if piece.startswith("<"):
                    got += sock.recv(4096).decode("latin-1")
                sock.sendall(piece.removeprefix("<").encode("latin-1"))
            with contextlib.suppress(OSError):  # it was reset already, which the next call tells
                sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65536):
                got += data.decode("latin-1")
        except OSError as error:
            got += type(error).__name__
        said.append(got)
tell(said)
"""

EVIL = "evil.example.net"


def get(host: str, target: str = "/", more: str = "Connection: close\r\n") -> str:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"


@pytest.mark.smoke
@pytest.mark.no_single_lock(BROKER)
def test_c403_cannot_ask_a_shared_server_for_another_name(box: Box, by_address: Box, host: Servers) -> None:
    """By the Host field or the target, in every spelling that some server takes; and each byte in a packet of its own."""
    here = f"web.example.org:{host.http}"
    attacks = [[get(EVIL)], list(get(EVIL)), [get(f"{EVIL}:{host.http}")], ["\r\n\r\n" + get(EVIL)],
               [get(EVIL).replace("\r\n", "\n")], [get(EVIL).replace(" ", "\t", 1)], [get(EVIL).replace("GET", "get")],
               [get(here, f"http://{EVIL}/")], [get(here, more=f"Host: {EVIL}\r\n")], [f"GET http://{EVIL}/\r\n\r\n"],
               [f"CONNECT {EVIL}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n"], ["GET / HTTP/1.0\r\n\r\n"],
               [f"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n{get(EVIL)}"], [get(EVIL).replace(" ", "\f", 2)],
               [get(EVIL).replace(" ", "\v", 2)], [get(EVIL).replace(" ", "\xa0", 2)], ["\v" + get(EVIL)],
               ["\r\n\r\n\0\r\nQUIT\n\x20\0\0\0" + get(EVIL)]]
    with control():
        assert " 200 " in within(by_address, SEND, to="127.0.0.1", port=host.http, attacks=attacks[:1])[0]
        assert EVIL in "".join(name for _, name, _ in host.seen)

    host.seen.clear()
    for attack, said in zip(attacks, within(box, SEND, to="web.example.org", port=host.http, attacks=attacks),
                            strict=True):
        assert any(f"HTTP/1.1 {status} " in said for status in (400, 403, 405)), (attack, said)
        assert f"GET {EVIL}" not in said
    assert [] == host.seen
    row = row_of(box, "denied", name="web.example.org")
    assert row.reason

    assert f"GET {here} /" in within(box, SEND, to="web.example.org", port=host.http, attacks=[[get(here)]])[0]


@pytest.mark.no_single_lock(BROKER)
def test_c404_cannot_ask_for_another_name_later(box: Box, by_address: Box, host: Servers) -> None:
    """Behind a request that is allowed, at once or after its answer, also behind a body."""
    here = f"web.example.org:{host.http}"
    first = get(here, more="")
    posted = f"POST / HTTP/1.1\r\nHost: {here}\r\nContent-Length: 2\r\n\r\nok"
    attacks = [[first + get(EVIL)], [first, "<" + get(EVIL)], [posted + get(EVIL)], [posted, "<" + get(EVIL)]]
    with control():
        said = within(by_address, SEND, to="127.0.0.1", port=host.http,
                      attacks=[[each.replace(here, EVIL) for each in attack] for attack in attacks])
        assert all(2 == each.count(" 200 ") for each in said)

    host.seen.clear()
    for attack, said in zip(attacks, within(box, SEND, to="web.example.org", port=host.http, attacks=attacks),
                            strict=True):
        assert 1 == said.count("HTTP/1.1 200 "), (attack, said)
        assert 1 == said.count("HTTP/1.1 403 "), (attack, said)
    assert {here} == {name for _, name, _ in host.seen}


@pytest.mark.no_single_lock(BROKER)
def test_c405_cannot_speak_a_version_whose_names_are_not_read(box: Box, by_address: Box, host: Servers) -> None:
    """The preface of HTTP/2, to a server that speaks first as well; a change to it within HTTP/1."""
    preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with control():
        said, = within(by_address, SEND, to="127.0.0.1", port=host.echo, attacks=[["<" + preface]])
        assert preface in said

    said, changed = within(box, SEND, to="web.example.org", port=host.http, attacks=[[preface], [get(
        f"web.example.org:{host.http}", more="Connection: upgrade, http2-settings, close\r\nUpgrade: h2c\r\n"
                                             "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n")]])
    assert "HTTP/1.1 505 " in said
    assert "HTTP/2 without TLS" in said
    assert "HTTP/1.1 200 " in changed  # the offer isn't passed on
    said, = within(box, SEND, to="echo.example.org", port=host.echo, attacks=[["<" + preface]])
    assert "hello\nConnectionResetError" == said


@pytest.mark.no_single_lock(BROKER)
def test_c406_cannot_hide_a_request_by_its_pace(box: Box, by_address: Box, host: Servers) -> None:
    """
    Half a line that waits until it has passed on, which the echo tells; and a request after the server has spoken. Another
    protocol passes, in pieces and whole.
    """
    rest = f"T / HTTP/1.1\r\nHost: {EVIL}\r\n\r\n"
    attacks = [["<GE", "<" + rest], ["<GET / HTTP/1.", "<1\r\n" + rest], ["<" + get(EVIL)]]
    with control():
        said = within(by_address, SEND, to="127.0.0.1", port=host.echo, attacks=attacks)
        assert all(EVIL in each for each in said)

    attacks.append(["<GET /" + "x" * 200_000 + " HTTP/1.1\r\nHost: ", EVIL])  # servers in Go take it
    for said in within(box, SEND, to="echo.example.org", port=host.echo, attacks=attacks):
        assert said.startswith("hello\n")
        assert EVIL not in said
        assert said.endswith("ConnectionResetError")
    plain = ["<EHLO x\r\n", "<GET / HTTP/1.1\r\n"], ["<pi", "<ng"], ["<\x16\x02\x03"], ["<\x00GET / HTTP/1.1\r\n"]
    said = within(box, SEND, to="echo.example.org", port=host.echo, attacks=plain)
    assert ["hello\n" + "".join(attack).replace("<", "") for attack in plain] == said

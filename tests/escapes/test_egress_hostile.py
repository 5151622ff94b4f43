"""
A network that is a policy, attacked by what its programs say: a proxy's requests, hellos, floods, and its own broker.
Catalogue cases 293, 295, 296, 365 and 366.

As in test_egress.py, what holds is the broker; in each control the same attack meets a policy, or a place, that lets it
through.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit import egress
from kit.attack import serves, within, without
from kit.box import Box, control
from kit.egress import Servers, reaching

BROKER = "the broker decides, a process of the daemon's, and no lock of the job's"

HERE = {"addresses": ["127.0.0.0/8"]}

REFUSED = {"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "PermissionError", ""}


@pytest.fixture(scope="module")
def box(host: Servers) -> Iterator[Box]:
    """Requests to *.example.org that are seen, and TLS to web.example.org."""
    with reaching({"allow": [f"http://*.example.org:{host.http}", f"https://web.example.org:{host.tls}"],
                   "addresses": ["127.0.0.1/32"], "limits": {"connect": "5s"}}, spares=0) as made:
        yield made
        assert serves(made)


PROXY = """
import socket
said = []
for request in requests:
    try:
        with socket.create_connection(("127.0.0.1", 3128), 20) as sock:
            sock.sendall(request.encode())
            got = b""
            while piece := sock.recv(4096):
                got += piece
                if b"hello" in got:
                    break
    except OSError as error:
        got += type(error).__name__.encode()
    said.append(got.decode())
tell(said)
"""


@pytest.mark.smoke
@pytest.mark.no_single_lock(BROKER)
def test_c293_cannot_have_the_proxy_reach_a_host_that_no_rule_names(host: Servers, box: Box) -> None:
    """CONNECT to an address, in its number forms and with a zone; whole URLs for another host than the Host field's."""
    here, there = f"web.example.org:{host.http}", f"127.0.0.1:{host.echo}"
    connects = [f"CONNECT {form}:{host.echo} HTTP/1.1\r\nHost: {form}:{host.echo}\r\n\r\n"
                for form in ("127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[fe80::1%25lo]",
                             "echo.example.net")]
    wholes = [f"GET http://{there}/ HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n",
              f"GET http://{here}/ HTTP/1.1\r\nHost: {there}\r\nConnection: close\r\n\r\n",
              f"GET http://user@{there}/ HTTP/1.1\r\nHost: {there}\r\nConnection: close\r\n\r\n",
              f"GET / HTTP/1.1\r\nHost: {there}\r\nConnection: close\r\n\r\n"]
    with control(), reaching({"allow": [there], **HERE}, spares=0) as open_to_it:
        assert "hello" in within(open_to_it, PROXY, requests=connects[:1])[0]

    said = within(box, PROXY, requests=[*connects, *wholes])
    assert {"HTTP/1.1 4"} == {text[:10] for text in said}, said
    assert not [text for text in said if "hello" in text]
    allowed = f"GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n"
    assert "200 OK" in within(box, PROXY, requests=[allowed])[0]


HELLOS = """
import socket, ssl
def hello(name):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()[5:]
def records(message, size):
    return [b"\\x16\\x03\\x01" + len(message[at:at + size]).to_bytes(2, "big") + message[at:at + size]
            for at in range(0, len(message), size)]
hellos = [records(hello(name), size) for name, size in asked]
# One that never ends, one whose record claims more than there may be, and records without anything.
hellos += [records(b"\\x01\\xff\\xff\\xff" + bytes(400_000), 16384), [b"\\x16\\x03\\x01\\xff\\xff" + bytes(70_000)],
           [b"\\x16\\x03\\x01\\0\\0"] * 2000]
said = []
for pieces in hellos:
    with socket.create_connection((to, port), 20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                sock.sendall(piece)
            said.append(sock.recv(1).hex())
        except OSError as error:
            said.append(type(error).__name__)
tell(said)
"""


@pytest.mark.no_single_lock(BROKER)
def test_c295_cannot_hide_a_name_in_pieces_of_a_hello(host: Servers, box: Box) -> None:
    """
    A hello in records of a few bytes, each in a packet of its own, is read as a whole one; one that is too large, or
    never ends, is refused within what may wait of it.
    """
    asked = [("web.example.org", 12), ("denied.example.net", 12), ("denied.example.net", 100)]
    with control(), reaching({"allow": [f"127.0.0.1:{host.tls}"], **HERE}, spares=0) as by_address:
        assert ["16"] * 3 == within(by_address, HELLOS, to="127.0.0.1", asked=asked, port=host.tls)[:3]

    first, *others = within(box, HELLOS, to="web.example.org", asked=asked, port=host.tls)
    assert "16" == first
    assert set(others) <= REFUSED, others
    assert "denied.example.net" in "".join(row.reason for row in egress.rows(box))


BEYOND = """
import glob, os, socket
said = {}
for name, family, kind, number in (("raw", socket.AF_INET, socket.SOCK_RAW, 1), ("raw6", socket.AF_INET6,
                                   socket.SOCK_RAW, 58), ("packet", socket.AF_PACKET, socket.SOCK_RAW, 0x300),
                                   ("packet datagrams", socket.AF_PACKET, socket.SOCK_DGRAM, 0x300),
                                   ("unix", socket.AF_UNIX, socket.SOCK_STREAM, 0)):
    def made():
        with socket.socket(family, kind, number) as sock:
            if family == socket.AF_UNIX:
                sock.connect(abstract)
    said[name] = attempt(made)
zone = []
for form in ("::1%lo", "fe80::1%lo", "::ffff:127.0.0.1%lo"):
    try:
        with socket.create_connection((form, port), 20) as sock:
            sock.sendall(b"x")
            zone.append(sock.recv(6).decode())
    except OSError as error:
        zone.append(type(error).__name__)
held = []
for fd in os.listdir("/proc/self/fd"):
    try:
        held.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
tell([said, zone, [each for each in held if each.startswith("socket:")]])
"""


@pytest.mark.no_single_lock("no capability, no such family in the filter, and a network namespace of its own")
def test_c296_cannot_have_another_socket_than_those_of_tcp(host: Servers, box: Box) -> None:
    """
    Raw ones and those of packets, which pass the broker by; the abstract name of a socket of the host; an address with
    a zone; and no descriptor is left of the listeners and of the broker's control.
    """
    name = f"\0leeward-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        with control():
            said, _, _ = without(BEYOND, abstract=name, port=host.echo)
            assert "" == said["unix"]
            if not os.geteuid():
                assert {""} == set(said.values())

        said, zone, held = within(box, BEYOND, abstract=name, port=host.echo)
        assert set(said.values()) <= {"EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ECONNREFUSED"}, said
        assert set(zone) <= REFUSED | {"gaierror", "OSError"}, zone
        assert [] == held


MANY = """
import errno, selectors, socket
done, refused, at_once = 0, 0, 200
waits = selectors.DefaultSelector()
address = socket.getaddrinfo("web.example.org", port, socket.AF_INET)[0][4]
left = times
while left or waits.get_map():
    while left and len(waits.get_map()) < at_once:
        left -= 1
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address)
        waits.register(sock, selectors.EVENT_READ)
    for key, _ in waits.select(20):
        try:
            refused += not key.fileobj.recv(1)
        except OSError:
            refused += 1
        done += 1
        waits.unregister(key.fileobj)
        key.fileobj.close()
tell([done, refused])
"""


def _memory(box: Box) -> int:
    """Bytes of the broker's memory."""
    connection = box.engine.exits.broker
    assert connection is not None
    return int(Path(f"/proc/{connection.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.no_single_lock(BROKER)
def test_c365_cannot_exhaust_the_broker_by_connections(host: Servers) -> None:
    """10,000 connections that say nothing, 200 at a time: each is answered by a reset, and the broker's memory stays."""
    allow = {"allow": [f"http://web.example.org:{host.http}"], **HERE}
    with control(), reaching({**allow, "limits": {"connections": 300, "connect": "600s"}}, spares=0) as wide:
        # They are held for as long as the policy says: the same job waits for its end.
        got = wide.run(f"port, times = {host.http}, 200\ntell = print\n{MANY}", limits={"time": 2.0})
        assert "timed_out" == got.outcome.value

    with reaching({**allow, "limits": {"connections": 5, "connect": "500ms"}}, spares=0) as few:
        assert [50, 50] == within(few, MANY, times=50, port=host.http)
        before = _memory(few)
        assert [10_000, 10_000] == within(few, MANY, times=10_000, port=host.http)
        assert _memory(few) - before < 32 << 20
        assert serves(few)


BOMBS = """
import socket
said = []
for data in bombs:
    with socket.create_connection(("web.example.org", port), 20) as sock:
        sent, got = 0, b""
        try:
            for _ in range(64):  # 64 MiB at most
                sock.sendall(data.encode() * ((1 << 20) // len(data)))
                sent += 1
        except OSError:
            pass
        try:
            got = sock.recv(12)
        except OSError as error:
            got = type(error).__name__.encode()
        said.append([sent, got.decode()])
tell(said)
"""


def _sink(server: socket.socket) -> None:
    """Take what one connection has, and say so. The end of its sandbox resets it."""
    with suppress(ConnectionResetError), server.accept()[0] as sock:
        sock.sendall(b"all of it")
        while sock.recv(1 << 20):
            pass


@pytest.mark.no_single_lock(BROKER)
def test_c366_cannot_exhaust_the_broker_by_heads(host: Servers, box: Box) -> None:
    """Heads without an end: one line, many fields, chunks with extensions. Each is given up long before the sender ends."""
    here = f"web.example.org:{host.http}"
    bombs = ["x", "GET / HTTP/1.1\r\n", f"GET / HTTP/1.1\r\nHost: {here}\r\nX: " + "y" * 1000, "\r\n",
             f"POST / HTTP/1.1\r\nHost: {here}\r\nTransfer-Encoding: chunked\r\n\r\n1;" + "e" * 70_000]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_sink, args=(server,), daemon=True).start()
        # A policy under which bytes pass unseen lets them through.
        with control(), reaching({"allow": [f"web.example.org:{port}"], **HERE, "limits": {"request": "1G"}},
                                 spares=0) as unseen:
            assert [[64, "all of it"]] == within(unseen, BOMBS, bombs=bombs[:1], port=port)

    before = _memory(box)
    for sent, said in within(box, BOMBS, bombs=bombs, port=host.http):
        assert sent < 32
        assert said.startswith("HTTP/1.1 4") or said in REFUSED, said
    assert _memory(box) - before < 16 << 20

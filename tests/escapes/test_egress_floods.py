"""
A network that is a policy, attacked by what takes without giving: connections that nobody answers or ends, bodies
without an end; and by the listeners of another sandbox. Catalogue cases 315 to 317.

As in test_egress.py, what holds is the broker; in each control the same attack meets a policy, or a place, that lets it
through.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kit.attack import serves, within
from kit.box import Box, control
from kit.egress import Servers, reaching

BROKER = "the broker decides, a process of the daemon's, and no lock of the job's"

HERE = {"addresses": ["127.0.0.0/8"]}

REFUSED = {"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "PermissionError", "gaierror", ""}


def _memory(box: Box) -> int:
    """Bytes of the broker's memory."""
    connection = box.engine.exits.broker
    assert connection is not None
    return int(Path(f"/proc/{connection.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def unanswered() -> Iterator[int]:
    """A port of 127.0.0.1 whose queue is full: whoever connects hears nothing, as of a host that drops what it gets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
        yield server.getsockname()[1]


HALVES = """
import selectors, socket
waits, done, refused = selectors.DefaultSelector(), 0, 0
address = socket.getaddrinfo("web.example.org", port, socket.AF_INET)[0][4]
left = times
while left or waits.get_map():
    while left and len(waits.get_map()) < 50:
        left -= 1
        sock = socket.socket()
        sock.connect(address)
        try:
            sock.sendall(first.encode())
            if left % 2:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        waits.register(sock, selectors.EVENT_READ)
    for key, _ in waits.select(20):
        try:
            got = key.fileobj.recv(4096)
        except OSError:
            got = b""
        done += 1
        refused += not got or got.startswith(b"HTTP/1.1 4") or got.startswith(b"HTTP/1.1 5")
        waits.unregister(key.fileobj)
        key.fileobj.close()
tell([done, refused])
"""


@pytest.mark.no_single_lock(BROKER)
def test_c315_cannot_exhaust_the_broker_by_halves_of_connections(host: Servers) -> None:
    """
    To a host that never answers, and to one to which half a request is said, each second one with its own direction
    ended: each is given up within the policy's time, and others are served meanwhile.
    """
    with unanswered() as silent:
        allow = {"allow": [f"web.example.org:{silent}", f"http://web.example.org:{host.http}"], **HERE}
        whole = {"first": "x", "port": silent}
        half = {"first": f"GET / HTTP/1.1\r\nHost: web.example.org:{host.http}\r\nX: ", "port": host.http}
        with control(), reaching({**allow, "limits": {"connections": 300, "connect": "600s"}}, spares=0) as wide:
            # They are held for as long as the policy says: the same job waits for their end.
            got = wide.run(f"port, first, times = {silent}, 'x', 20\ntell = print\n{HALVES}", limits={"time": 2.0})
            assert "timed_out" == got.outcome.value

        with reaching({**allow, "limits": {"connections": 10, "per_minute": 5000, "connect": "300ms"}},
                      spares=0) as few:
            assert [20, 20] == within(few, HALVES, times=20, **whole)
            before = _memory(few)
            assert [300, 300] == within(few, HALVES, times=300, **whole)
            assert [300, 300] == within(few, HALVES, times=300, **half)
            assert _memory(few) - before < 16 << 20
            assert serves(few)
            # Nothing of them counts any more.
            assert [1, 0] == within(few, HALVES, times=1, first=f"{half['first']}\r\n\r\n", port=host.http)


PLACES = """
import socket
said = []
for address in addresses:
    for opening in openings:
        try:
            with socket.create_connection((address, port or 3128), 10) as sock:
                sock.sendall(opening.encode())
                got = b""
                while b"hello" not in got and (piece := sock.recv(4096)):
                    got += piece
            said.append(got.decode())
        except OSError as error:
            said.append(type(error).__name__)
tell(said)
"""

NAMED = 'import socket\ntell(socket.getaddrinfo("echo.example.org", None, socket.AF_INET)[0][4][0])'


@pytest.mark.smoke
@pytest.mark.no_single_lock("each sandbox has a network namespace and a lease of its own")
def test_c316_cannot_use_the_listeners_of_another_sandbox(host: Servers) -> None:
    """A sandbox whose policy allows what this one's doesn't: its proxy and its names, by every address that could be its."""
    openings = [f"CONNECT echo.example.org:{host.echo} HTTP/1.1\r\nHost: echo.example.org:{host.echo}\r\n\r\n",
                f"CONNECT 127.0.0.1:{host.echo} HTTP/1.1\r\nHost: 127.0.0.1:{host.echo}\r\n\r\n"]
    narrow_policy = {"allow": [f"http://web.example.org:{host.http}"], **HERE}
    with reaching({"allow": [f"echo.example.org:{host.echo}", f"127.0.0.1:{host.echo}"], **HERE}, spares=0) as wide, \
            reaching(narrow_policy, spares=0) as narrow:
        with control():
            assert all("hello" in text for text in within(wide, PLACES, addresses=["127.0.0.1"], openings=openings,
                                                          port=0))
        address = within(wide, NAMED)
        addresses = ["127.0.0.1", "127.0.0.53", "127.0.1.1", "::1", "10.0.0.1", "198.18.0.1", address]
        said = within(narrow, PLACES, addresses=addresses, openings=openings, port=0)
        said += within(narrow, PLACES, addresses=[*addresses, "echo.example.org"], openings=openings, port=host.echo)
        assert {text for text in said if not text.startswith("HTTP/1.1 4")} <= REFUSED, said


TAKE = """
import socket
said = []
for path in paths:
    with socket.create_connection(("web.example.org", port), 20) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\\r\\nHost: web.example.org:{port}\\r\\n\\r\\n".encode())
        got = 0
        try:
            while got < most and (piece := sock.recv(1 << 16)):
                got += len(piece)
        except OSError:
            pass
        said.append(got)
tell(said)
"""

REST = """
import socket, time
held = []
for _ in range(40):
    sock = socket.create_connection(("web.example.org", port), 20)
    sock.sendall(f"GET /chunks HTTP/1.1\\r\\nHost: web.example.org:{port}\\r\\n\\r\\n".encode())
    held.append(sock)
got = [sock.recv(12) for sock in held]
tell(sum(each.startswith(b"HTTP/1.1 200") for each in got))
"""

_CHUNK = b"10000\r\n" + bytes(1 << 16) + b"\r\n"

#: What a server says: without an end, in chunks; and in one body, by whose length it is half as long.
BODIES = {"/chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", _CHUNK),
          "/closed": (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", bytes(1 << 16)),
          "/packed": (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", _CHUNK),
          "/long": (b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", bytes(1 << 16))}


@contextmanager
def endless() -> Iterator[int]:
    """The port of a server of BODIES, each as long as somebody takes it."""
    def serve(sock: socket.socket) -> None:
        with sock:
            try:
                head, piece = BODIES[sock.recv(4096).split()[1].decode()]
                sock.sendall(head)
                while True:
                    sock.sendall(piece)
            except (OSError, IndexError):
                pass  # it was reset, or said nothing

    def accept(server: socket.socket) -> None:
        try:
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
        except OSError:
            pass  # it was shut down

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)


@pytest.mark.no_single_lock(BROKER)
def test_c317_cannot_have_a_body_without_an_end_in_the_brokers_memory() -> None:
    """
    A server of the attacker's sends more than the policy allows, in chunks, to the connection's end, packed, with a
    length of a terabyte; and to forty connections that nobody reads.
    """
    with endless() as port:
        allow = {"allow": [f"http://web.example.org:{port}"], **HERE}
        paths = list(BODIES)
        with control(), reaching({**allow, "limits": {"response": "1G"}}, spares=0) as wide:
            assert all(got >= 8 << 20 for got in within(wide, TAKE, paths=paths, port=port, most=8 << 20))

        with reaching({**allow, "limits": {"response": "1M"}}, spares=0) as few:
            within(few, TAKE, paths=paths, port=port, most=8 << 20)
            before = _memory(few)
            assert all(got < 2 << 20 for got in within(few, TAKE, paths=paths, port=port, most=8 << 20))
            assert 40 == within(few, REST, port=port)
            assert _memory(few) - before < 24 << 20
            assert serves(few)

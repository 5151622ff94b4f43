"""Attacks from a sandbox on the page of approvals, which is on the host's loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from kit.attack import within, without
from kit.box import Box, control

KNOCK = """
import socket
said = []
for host in hosts:
    try:
        with socket.create_connection((host, port), 5) as connected:
            connected.sendall(b"GET /login HTTP/1.0\\r\\n\\r\\n")
            said.append(connected.recv(100).decode().split()[1])
    except OSError as error:
        said.append(errno.errorcode.get(error.errno, "none"))
tell(said)
"""


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[int]:
    """The port of something that listens where the page would."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.smoke
@pytest.mark.no_single_lock("its network namespace is a worker's from its first moment; nothing takes it out")
def test_c325_cannot_reach_the_page_by_loopback(box: Box, page: int) -> None:
    """By no name and no number of this host."""
    hosts = ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", "::ffff:127.0.0.1", socket.gethostname()]
    with control():
        assert "200" == without(KNOCK, hosts=hosts, port=page)[0]

    said = within(box, KNOCK, hosts=hosts, port=page)

    assert len(hosts) == len(said)
    assert "200" not in said
    assert said[0] in ("EACCES", "ECONNREFUSED")  # Landlock's rule about TCP; without it nobody listens there

"""
Sandboxes with egress for tests: a broker with a resolver of the tests' own, and servers on this host's loopback.

    with servers() as host, reaching({"allow": [f"web.example.org:{host.http}"], "addresses": ["127.0.0.0/8"]}) as box:
        got = box.run(GET, args=(f"http://web.example.org:{host.http}/",))
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kit import features, points, resolving
from kit.box import PATIENCE_S, Box
from kit.egress_hosts import certified
from kit.live_daemon import LiveDaemon
from leeward.spec.egress_policy import parse_policy
from leeward.wire.egress_control import Decided

#: A job that prints the answer to a request of its argument, by status and content, or why there is none.
GET = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as got:
        print(got.status, got.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(error)
"""

_UNTIL_ANSWERED = """
    import socket
    while True:
        try:
            socket.getaddrinfo("unknown.invalid", 1)
        except socket.gaierror as error:
            if socket.EAI_AGAIN != error.errno:
                break
"""

_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    """
    Answers with the request's line, echoes bodies, and accepts websockets, on which it echoes as well. After /parting
    it closes the connection, and /parted waits for that; /away/ redirects to what follows; /unanswered waits until the
    other side closes it.
    """

    protocol_version = "HTTP/1.1"
    server: Servers.Web

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.headers["Host"] or "", self.path))
        key = self.headers.get("Sec-WebSocket-Key")
        if key is not None:
            self._websocket(key.encode())
        elif self.path.startswith("/chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/away/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/parting"):
            self._say(b"one more?")
            self.connection.shutdown(socket.SHUT_RDWR)  # it hasn't said that it would
            self.close_connection = True
            self.server.parted.set()
        elif self.path.startswith("/unanswered"):
            self.connection.settimeout(PATIENCE_S)
            self.connection.recv(1)
            self.close_connection = True
        elif self.path.startswith("/parted"):
            self._say(str(self.server.parted.wait(PATIENCE_S)).encode())
        else:
            self._say(f"{self.command} {self.headers['Host']} {self.path}".encode())

    def do_POST(self) -> None:
        self.server.seen.append((self.command, self.headers["Host"] or "", self.path))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._say(body)

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _websocket(self, key: bytes) -> None:
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + _WEBSOCKET).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while data := self.connection.recv(4096):
            self.connection.sendall(data.upper())

    def log_message(self, *_: Any) -> None: ...


class Servers:
    """
    Attributes:
        http, tls, echo: the servers' ports on 127.0.0.1.
        seen: the requests to the web server: method, Host and path.
    """

    class Web(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256  # of 5, as socketserver has it, the sixth at once waits for seconds
        seen: list[tuple[str, str, str]]
        parted = threading.Event()

        def handle_error(self, *_: Any) -> None: ...

    class Echo(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 256
        allow_reuse_address = True

        def handle_error(self, *_: Any) -> None: ...

    class _Echoing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"hello\n")  # it speaks first, as many do
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._web = self.Web(("127.0.0.1", 0), Handler)
        self._tls = self.Web(("127.0.0.1", 0), Handler)
        self._tls.socket = tls.wrap_socket(self._tls.socket, server_side=True, do_handshake_on_connect=False)
        self._echo = self.Echo(("127.0.0.1", 0), self._Echoing)
        self.seen = self._web.seen = self._tls.seen = []
        self.http, self.tls, self.echo = (each.server_address[1] for each in (self._web, self._tls, self._echo))

    @contextmanager
    def serving(self) -> Iterator[Servers]:
        all_of_them = (self._web, self._tls, self._echo)
        threads = [threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True) for each in all_of_them]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for each in all_of_them:
                each.shutdown()
                each.server_close()
            for thread in threads:
                thread.join(PATIENCE_S)


@contextmanager
def servers() -> Iterator[Servers]:
    """Start a web server, one with TLS, and one that speaks first."""
    with Servers(certified()).serving() as made:
        yield made


@contextmanager
def live(folder: Path, config: str = "", *options: str, build: Mapping[str, Mapping[str, Any]] | None = None,
         env: Mapping[str, str] | None = None) -> Iterator[LiveDaemon]:
    """
    Start a daemon whose broker asks the tests' resolver.

    Args:
        config: the text of the daemon's configuration, if it has one.
        env: environment variables of the daemon.
        build: other modules that prepare the daemon (daemon_build.py), with their options.
    """
    if config:
        place = folder / "c.toml"
        place.write_text(config)
        place.chmod(0o600)
        options = ("--config", str(place), *options)
    with LiveDaemon(folder, *options, env=env, build={resolving.__name__: {}, **(build or {})}) as daemon:
        yield daemon


@contextmanager
def reaching(policy: dict[str, Any], **more: Any) -> Iterator[Box]:
    """
    Start a Box whose jobs have egress by *policy*. Its broker asks the tests' resolver.

    Args:
        policy: a policy, as a table of the configuration.
        more: further settings of the Box.
    """
    with ExitStack() as stack:
        stack.enter_context(points.filled("broker.entry", resolving.entry))
        made = stack.enter_context(Box(egress=parse_policy(policy, "egress.test", "test"), **more))
        if features.IN_GUEST:  # there a broker takes longer to become a process than a resolver waits
            made.run(_UNTIL_ANSWERED, limits={"time": 60.0})
        yield made


def rows(box: Box, since: int = 0) -> list[Decided]:
    """Return the record's rows, from row *since* on."""
    return [row.decided for row in box.engine.exits.record.rows()][since:]


def row_of(box: Box, verdict: str, **wanted: Any) -> Decided:
    """Wait for a row with this *verdict* and these fields, and return it."""
    def found() -> list[Decided]:
        return [row for row in rows(box) if row.verdict == verdict
                and all(getattr(row, name) == value for name, value in wanted.items())]

    box.reactor.run(lambda: bool(found()))
    return found()[-1]

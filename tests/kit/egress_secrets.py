"""
Sandboxes with secrets for tests: hosts in TLS that give back what they were sent, and a policy with a secret for one.

    with mirrors() as host, sealed(folder, host) as box:
        box.run(code)
        host.heads
"""

from __future__ import annotations

import base64
import http.server
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from kit.box import PATIENCE_S, Box
from kit.egress import live, reaching
from kit.egress_hosts import AUTHORITY, certified
from kit.live_daemon import LiveDaemon

#: The secret's value, the daemon's environment variable that has it, and the variable that jobs see.
VALUE, SOURCE, NAME = "sk-live-0123456789+/=abcdef", "LEEWARD_TEST_SECRET", "API_KEY"


#: What a host makes of what it gives back.
SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "percent": lambda data: b"".join(b"%%%02x" % byte for byte in data),
    "partly": lambda data: data.replace(b"+", b"%2b").replace(b"e", b"%65"),
    "json": lambda data: data.replace(b"/", rb"\/").replace(b"+", rb"\u002B"),
    "javascript": lambda data: b"".join(rb"\x%02X" % byte for byte in data),
    "html": lambda data: data.replace(b"=", b"&#x3D;").replace(b"+", b"&plus;").replace(b"k", b"&#107;"),
    "quoted": lambda data: b"=\r\n".join(data[at:at + 5].replace(b"=", b"=3D") for at in range(0, len(data), 5)),
    **{f"base64-{before}": lambda data, before=before: base64.b64encode(bytes(before) + data)  # type: ignore[misc]
       for before in range(3)},
    "basic": lambda data: b"Basic " + base64.b64encode(b"user:" + data.removeprefix(b"Bearer ")),
}

#: Responses that break the protocol, with what was given in them.
BROKEN = {
    "line": b"HTTP/1.1 200 OK\r\nX-%(given)s\r\n\r\n", "name": b"HTTP/1.1 200 OK\r\nX %(given)s: 1\r\n\r\n",
    "nul": b"HTTP/1.1 200 OK\r\nX: %(given)s\0\r\n\r\n", "status": b"HTTP/1.1 %(given)s\r\n\r\n",
    "first": b"%(given)s\r\n\r\n", "bytes": b"HTTP/1.1 200 \xff%(given)s\r\nX\xff%(given)s: \x80\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %(given)s\r\n\r\n",
    "coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %(given)s\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%(given)s\r\n",
    "end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na%(given)s\r\n",
    "trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX%(given)s\r\n\r\n",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", "nothing": b"",
}


class Mirror(http.server.BaseHTTPRequestHandler):
    """
    Answers each request with the request's own head and body: in pieces after /pieces, compressed after /compressed, in
    another spelling after /spelled/NAME. After /away it redirects to what follows. After /broken/NAME it breaks the
    protocol where it gives back the field Authorization.
    """

    protocol_version = "HTTP/1.1"
    server: Mirrors.Web

    def do_GET(self) -> None:
        length = self.headers.get("Content-Length")
        body = self._chunks() if length is None and "Transfer-Encoding" in self.headers else self.rfile.read(
            int(length or 0))
        said = f"{self.command} {self.path}\n{self.headers}".encode() + body
        self.server.said.append(said)
        _, kind, name = f"{self.path}//".split("/")[:3]
        given = self.headers.get("Authorization", "").encode()
        if kind == "broken":
            self.wfile.write(BROKEN[name] % {b"given": given})
            self.close_connection = True
            return
        if kind == "spelled":
            said = SPELLINGS[name](given)
        if self.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", f"https://{self.path.removeprefix('/away/')}")
            said = b""
        else:
            self.send_response(200)
        self.send_header("X-Given", self.headers.get("Authorization", ""))
        if self.path.startswith("/compressed"):
            said = zlib.compress(said)
            self.send_header("Content-Encoding", "deflate")
        if self.path.startswith("/pieces"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(said), 5):
                piece = said[at:at + 5]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    do_POST = do_PUT = do_GET

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: Any) -> None: ...


class Mirrors:
    """
    Attributes:
        tls, http: the servers' ports on 127.0.0.1.
        said: the requests, each with head and body.
    """

    class Web(http.server.ThreadingHTTPServer):
        daemon_threads = True
        said: list[bytes]

        def handle_error(self, *_: Any) -> None: ...

    def __init__(self) -> None:
        self.servers = [self.Web(("127.0.0.1", 0), Mirror) for _ in range(2)]
        inner = self.servers[0]
        inner.socket = certified().wrap_socket(inner.socket, server_side=True, do_handshake_on_connect=False)
        self.said: list[bytes] = []
        for each in self.servers:
            each.said = self.said
        self.tls, self.http = (each.server_address[1] for each in self.servers)

    def last(self) -> str:
        """Return the last request's head and body."""
        return self.said[-1].decode()


@contextmanager
def mirrors() -> Iterator[Mirrors]:
    """Start a host with TLS, and one without."""
    made = Mirrors()
    threads = [threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True) for each in made.servers]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for each in made.servers:
            each.shutdown()
            each.server_close()
        for thread in threads:
            thread.join(PATIENCE_S)


def policy(folder: Path, host: Mirrors, **more: Any) -> dict[str, Any]:
    """
    Return a policy that allows everything of example.org, and has a secret for api.example.org.

    Args:
        more: further keys of the secret.
    """
    authorities = folder / "authorities.pem"
    authorities.write_text(AUTHORITY)
    return {"allow": [f"*.example.org:{host.tls}", f"*.example.org:{host.http}"], "addresses": ["127.0.0.1/32"],
            "limits": {"connect": "20s"}, "authorities": str(authorities),
            "secrets": {NAME: {"from": f"env:{SOURCE}", "hosts": ["api.example.org"], **more}}}


@contextmanager
def sealed(folder: Path, host: Mirrors, settings: Mapping[str, Any] | None = None, **more: Any) -> Iterator[Box]:
    """
    Start a Box with that policy.

    Args:
        settings: further settings of the Box.
    """
    with mock.patch.dict(os.environ, {SOURCE: VALUE}), reaching(
            policy(folder, host, **more), **{"spares": 0, **(settings or {})}) as box:
        yield box


@contextmanager
def live_sealed(folder: Path, host: Mirrors, config: str, source: str = f"env:{SOURCE}") -> Iterator[LiveDaemon]:
    """
    Start a daemon with policies that have the secret.

    Args:
        config: the text of its configuration, with these fields to format: the ports `tls` and `http`, `authorities`,
            which is a file, and `secrets`, a table with the secret for api.example.org.
        source: the source of the secret's value.
    """
    authorities = folder / "authorities.pem"
    authorities.write_text(AUTHORITY)
    secrets = (f'{{ {NAME} = {{ from = "{source}", hosts = ["api.example.org"], '
               'in = ["header", "query", "body"] } }')
    text = config.format(tls=host.tls, http=host.http, authorities=authorities, secrets=secrets)
    with live(folder, text, env={SOURCE: VALUE}) as daemon:
        yield daemon

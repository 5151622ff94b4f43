"""
The metrics' endpoint: as much of HTTP as Prometheus needs, on a Unix socket or a loopback port; /healthz says whether
the daemon takes jobs.

Trust: none. The numbers aren't secret, and a client can't delay others: a request has at most REQUEST bytes and LIFE_S
seconds, its answer included. A client that comes when all CLIENTS places are taken replaces the oldest one. At most
RATE clients a second are accepted, and the text is made once in FRESH_S: some hundredths of the loop's time.

A web page in a browser on this host can reach a loopback port, by a name of its own that resolves to 127.0.0.1 (DNS
rebinding). Such a request has that name as its Host, and is refused.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial

from leeward.base.closing import on_failure
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import READ, WRITE, Reactor, Timer
from leeward.daemon.telling.metrics import CONTENT_TYPE

REQUEST = 8192
LIFE_S = 5.0
CLIENTS = 16
#: Connections that are accepted in a second.
RATE = 100
#: Seconds for which a text is reused.
FRESH_S = 0.1

#: Makes the text and passes it to its argument, now or some turns of the loop later.
Collect = Callable[[Callable[[str], None]], None]

METRICS, HEALTH = "/metrics", "/healthz"


class Exporter:
    """Answers GET /metrics and /healthz on *listener*, the caller's; *ailing* returns why no jobs are taken, or ""."""

    def __init__(self, reactor: Reactor, listener: socket.socket, collect: Collect,
                 ailing: Callable[[], str] = lambda: "") -> None:
        self.reactor, self.ailing = reactor, ailing
        self._collect = collect
        self._text, self._collected = "", 0.0
        self._waiting: list[Callable[[str], None]] = []
        self._asked = 0.0
        self._second, self._accepted = 0, 0
        self.clients: dict[int, _Client] = {}  # the oldest first
        self._listener = listener
        self.local = listener.family == socket.AF_UNIX
        listener.setblocking(False)
        reactor.watch(listener.fileno(), READ, self._accept)

    def collect(self, done: Callable[[str], None]) -> None:
        """Pass the text to *done*: the last one, if it is less than FRESH_S old."""
        if self._text and self.reactor.now() - self._collected < FRESH_S:
            done(self._text)
            return
        self._waiting.append(done)
        now = self.reactor.now()
        if len(self._waiting) == 1 or now - self._asked > LIFE_S:  # the first request may have failed
            self._asked = now
            self._collect(self._hand_out)

    def _hand_out(self, text: str) -> None:
        self._text, self._collected = text, self.reactor.now()
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            self.reactor.barrier.call(done, text)

    def broken(self, _error: Exception) -> None:
        self.reactor.after(1.0, self._resume)

    def _accept(self, _: int) -> None:
        second = int(self.reactor.now())
        if second != self._second:
            self._second, self._accepted = second, 0
        self._accepted += 1
        if self._accepted > RATE:
            self.reactor.change(self._listener.fileno(), 0)
            self.reactor.at(second + 1, self._resume)
            return
        try:
            sock, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors. The listener stays readable: try again when a client may have gone.
            self.reactor.change(self._listener.fileno(), 0)
            self.reactor.after(1.0, self._resume)
            return
        if len(self.clients) >= CLIENTS:
            next(iter(self.clients.values())).close()
        _Client(self, sock)

    def _resume(self) -> None:
        if self.reactor.watches(self._listener.fileno()):
            self.reactor.change(self._listener.fileno(), READ)

    def close(self) -> None:
        self.reactor.barrier.steps(partial(self.reactor.forget, self._listener.fileno()),
                                   *(client.close for client in list(self.clients.values())))


class _Client:
    costs = "connection"

    def __init__(self, exporter: Exporter, sock: socket.socket) -> None:
        self._exporter, self._sock, self._fd = exporter, sock, sock.fileno()
        self._input = b""
        self._output = memoryview(b"")
        self._asked = self._closed = False
        sock.setblocking(False)
        exporter.clients[self._fd] = self
        exporter.reactor.watch(self._fd, READ, self._ready)
        self._life: Timer = exporter.reactor.after(LIFE_S, self.close)

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._write()
            elif events & READ:
                self._read()
            else:
                self.close()
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def _read(self) -> None:
        data = self._sock.recv(REQUEST)
        if not data:
            self.close()
            return
        if self._asked:
            return  # bytes after the request, which are ignored
        self._input += data
        status = verdict(self._input, local=self._exporter.local)
        if status is None:
            return
        self._asked = True
        if status:
            self._say(status, f"{status}\n")
        elif asked_for(self._input) == HEALTH:
            why = self._exporter.ailing()
            self._say("503 Service Unavailable" if why else "200 OK", f"{why or 'ok'}\n")
        else:
            self._exporter.collect(partial(self._say, "200 OK"))

    def _say(self, status: str, text: str) -> None:
        if self._closed:
            return
        body = text.encode()
        head = (f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
                "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n")
        self._output = memoryview(head.encode() + body)
        self._exporter.reactor.change(self._fd, WRITE)

    def _write(self) -> None:
        self._output = self._output[self._sock.send(self._output):]
        if not self._output:
            # Closing a TCP socket with unread bytes in it would cut off what was just sent.
            with contextlib.suppress(OSError):
                self._sock.recv(REQUEST)
            self.close()

    def broken(self, _error: Exception) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._life.cancel()
            in_any_case(partial(self._exporter.reactor.forget, self._fd),
                        partial(self._exporter.clients.pop, self._fd, None), self._sock.close)


def verdict(data: bytes, *, local: bool) -> str | None:
    """As `answer`, for the bytes received so far; None while the request is incomplete. Pure."""
    head, end, _ = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    if end:
        return answer(head, local=local)
    return "431 Request Header Fields Too Large" if len(data) >= REQUEST else None


def answer(head: bytes, *, local: bool) -> str:
    """Return the status that refuses the request in *head*, "" for none. A *local* one, by a Unix socket, needs no Host."""
    first, *fields = head.decode("latin-1").split("\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "400 Bad Request"
    if not local:
        hosts = [value.strip() for name, _, value in (field.partition(":") for field in fields)
                 if name.strip().lower() == "host"]
        if len(hosts) > 1 or not all(map(is_here, hosts)):
            return "403 Forbidden"
    if words[0] != "GET":
        return "405 Method Not Allowed"
    return "" if words[1].partition("?")[0] in (METRICS, HEALTH) else "404 Not Found"


def asked_for(request: bytes) -> str:
    """Return the path in a request that `answer` has accepted. Pure."""
    return request.split(b" ", 2)[1].partition(b"?")[0].decode("latin-1")


def is_here(host: str) -> bool:
    """Whether a Host field is a loopback address or localhost."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    from ipaddress import ip_address  # few daemons have metrics

    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def bind(place: str) -> socket.socket:
    """Return a listening socket on the loopback address *place*, such as "[::1]:9464"; OSError if it is in use."""
    host, _, port = place.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with on_failure(sock.close):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), int(port)))
        sock.listen(CLIENTS)
    return sock


def check_place(place: str) -> str:
    """Return *place* if the daemon may listen there: "", a socket's path, or a loopback address and port; else ValueError."""
    why = 'must be "", a path, or a loopback address and port such as "127.0.0.1:9464" or "[::1]:9464"'
    if place == "" or (place.startswith("/") and "\0" not in place):
        return place
    host, colon, port = place.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    from ipaddress import ip_address  # as above

    try:
        address = ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError(why) from None
    good = colon and port.isascii() and port.isdecimal() and 0 <= int(port) < 65536
    if not good or not address.is_loopback or (address.version == 6) != bracketed:
        raise ValueError(why)
    return place

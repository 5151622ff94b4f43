"""
The application's listeners: the operator's Unix socket, the bridges of sandboxes, and TCP on 127.0.0.1.

Trust:     none in a peer. One of the Unix socket must be a process of this user's and this host: a process in a sandbox
           can have this user's id, if the user's own daemon runs it, but its pid and network namespaces are others. No
           sandbox is shown the socket's folder, either (spec/own_sockets.py), and abstract names belong to another
           network namespace. A bridge's credential is made here, from the pipe of the request. TCP gives none.
TCP:       any user of the host can open a connection. Those of the operator's user and of root, and those on which a
           session or a token was shown, have a bound of their own; where it is reached, the one that has been without a
           request for longest makes room. All others are strangers, and few: each has a short time, and where there are
           too many, the oldest one of the user who has most makes room. So no other user keeps the operator away, also
           where the operator's browser has another user's id, as in a container.
Source:    unix(7), SO_PEERCRED, which knows Unix sockets alone; sock_diag(7), <linux/inet_diag.h>: one TCP socket is
           looked up by its addresses, which needs no privilege.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future
from typing import Any
from urllib.parse import unquote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from leeward.apps.approvals.bridge.bridge import Answering, BridgeRequest
from leeward.apps.approvals.service_paths import own_folder
from leeward.apps.approvals.web.gate import SCOPE_KEY, AskingSandbox, Credential
from leeward.base.closing import on_failure
from leeward.errors import Busy, Unsupported, reason_of
from leeward.spec.bounded_log import BoundedLog
from leeward.spec.peers import credentials, said_of_peer, shares_namespaces

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Seconds that a bridge's request may take, and bytes of an answer.
_ANSWER_S, _MOST_ANSWER = 60.0, 4 << 20

#: Seconds after which a connection without a request is closed, and those for which clients are told to keep it: a
#: client whose request meets the close can't know whether the request was taken.
IDLE_S, TOLD_IDLE_S = 120, 115


class _Bounded(H11Protocol):
    """HTTP. A connection that isn't taken is closed before a byte of it is read."""

    is_taken = False

    def take(self, transport: Any) -> None:
        self.is_taken = True
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.is_taken:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_taken:
            super().connection_lost(exc)


class OwnerOnly(_Bounded):
    """For the operator's processes alone."""

    def connection_made(self, transport: Any) -> None:
        if is_hosts(transport.get_extra_info("socket")):
            self.take(transport)
        else:
            transport.abort()


#: Of all servers of a process: a logger takes the same filter once.
_BOUNDED = BoundedLog()


class QuietServer(uvicorn.Server):
    """A server that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def with_credential(app: Application, credential: Credential) -> Application:
    """*app* with *credential* in the scope of each call."""
    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, SCOPE_KEY: credential}, receive, send)

    return called


def bind_operator(path: str) -> socket.socket:
    """
    Bind the operator's socket, with mode 0600, in a folder that only this user can write to; the caller owns it.

    Busy if another service listens there, Unsupported if another user can write to the folder or the path is too long.
    """
    own_folder(os.path.dirname(os.path.abspath(path)))
    if len(os.fsencode(path)) > 107:
        raise Unsupported("the operator's socket", have=f"a path of {len(os.fsencode(path))} bytes", need="107 at most",
                          cure="name another one with --socket")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with on_failure(made.close):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(path)
                raise Busy(f"another service for approvals listens on {path}")
            except (FileNotFoundError, ConnectionRefusedError):
                pass
        if os.path.lexists(path):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        made.listen(128)
        made.setblocking(False)
    return made


def bind_loopback(port: int) -> socket.socket:
    """
    Bind a port of 127.0.0.1; the caller owns the socket. Any user of the host can connect; the application identifies
    the caller. Busy if the port can't be bound.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(128)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise Busy(f"port {port} of 127.0.0.1: {reason_of(error)}") from None
    return made


def telling_idle(app: Application) -> Application:
    """*app*, whose answers to known callers say how long the connection stays open without a request (RFC 2068, 19.7.1.1)."""
    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and SCOPE_KEY in scope:
                message["headers"] = [*message["headers"], (b"connection", b"keep-alive"),
                                      (b"keep-alive", b"timeout=%d" % TOLD_IDLE_S)]
            await send(message)

        await app(scope, receive, told)

    return called


def server_of(app: Application, protocol: type[asyncio.Protocol] | str = "auto") -> QuietServer:
    """A server of *app*; its `serve` takes the sockets."""
    for name in ("uvicorn.error", "leeward.apps.approvals", "asyncio"):
        logging.getLogger(name).addFilter(_BOUNDED)
    return QuietServer(uvicorn.Config(telling_idle(app), http=protocol, ws="auto", lifespan="off", log_config=None,
                                      access_log=False, server_header=False, date_header=False, proxy_headers=False,
                                      timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=2, ws_max_size=1 << 20,
                                      ws_ping_interval=20.0))


def answering_of(app: Application, loop: asyncio.AbstractEventLoop) -> Callable[[str], Answering]:
    """A function that returns the answering function of a sandbox's bridge, by the sandbox's id. It calls *app* on *loop*."""
    def of(sandbox: str) -> Answering:
        credential = AskingSandbox(sandbox)

        def answer(request: BridgeRequest) -> Future[tuple[int, Any]]:
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(_call(app, credential, request), _ANSWER_S), loop)

        return answer

    return of


async def _call(app: Application, credential: Credential, request: BridgeRequest) -> tuple[int, Any]:
    """Call *app* with one request, without a socket; returns the status and the JSON value."""
    path, _, query = request.path.partition("?")
    headers = [(b"host", b"sandbox"), (b"content-type", b"application/json"),
               (b"content-length", str(len(request.body)).encode())]
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
             "method": request.method, "scheme": "http", "path": unquote(path), "raw_path": path.encode(),
             "query_string": query.encode(), "root_path": "", "headers": headers, "client": None, "server": None,
             "state": {}, SCOPE_KEY: credential}
    status, body, is_taken = 500, bytearray(), False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal is_taken
        if is_taken:
            await asyncio.Event().wait()
        is_taken = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if len(body) > _MOST_ANSWER:
                raise OverflowError("an answer that is too long for a bridge")

    await app(scope, receive, send)
    try:
        return status, json.loads(bytes(body)) if body else None
    except ValueError:
        return status, {"detail": bytes(body[:1000]).decode("utf-8", "replace")}


def is_hosts(connected: Any) -> bool:
    """
    Whether the peer of a Unix socket is a process of this user's in the pid and network namespace of this process. A
    peer about which that can't be found out isn't one: it has ended, or its namespaces can't be seen from here.
    """
    pid, uid, _ = credentials(connected)
    try:
        return uid == os.geteuid() and pid > 0 and said_of_peer(
            connected, pid, lambda peer: shares_namespaces(peer, "pid", "net"))
    except OSError:
        return False  # no descriptor is left to look at it


#: <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>; the socket module doesn't have these names.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _NO_COOKIE = 4, 20, 1, (0xFFFFFFFF, 0xFFFFFFFF)
#: Of a socket that is being closed the kernel has no owner any more, and answers 0.
_ESTABLISHED = 1

_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
#: Of an answer: family and state; behind its times and queues, the uid.
_STATE, _UID = struct.Struct("=BB"), struct.Struct("=I")
_UID_AT = _HEAD.size + 4 + 48 + 12


def peer_uid(connected: Any) -> int | None:
    """
    The user who has the other end of *connected*, a TCP socket of IPv4 on loopback. None if that isn't known: the peer
    is closing it, or this kernel doesn't tell.
    """
    try:
        (own, own_port), (peer, peer_port) = connected.getsockname(), connected.getpeername()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # the kernel answers before send(2) returns
            asked = (_ASK.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
                     + _ID.pack(peer_port, own_port, socket.inet_aton(peer).ljust(16, b"\0"),
                                socket.inet_aton(own).ljust(16, b"\0"))
                     + _REST.pack(0, *_NO_COOKIE))
            kernel.sendto(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0))
            answer = kernel.recv(4096)
    except (OSError, ValueError):
        return None
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY or len(answer) < _UID_AT + _UID.size:
        return None
    _, state = _STATE.unpack_from(answer, _HEAD.size)
    return int(_UID.unpack_from(answer, _UID_AT)[0]) if state == _ESTABLISHED else None


#: Connections at once, and seconds until the head of the first request has to be complete.
MOST_CONNECTIONS, HEAD_S = 256, 10.0
#: Of strangers: connections at once, and seconds until one has to have shown a session or a token.
MOST_STRANGERS, STRANGER_S = 32, 5.0


class BoundedConnection(_Bounded):
    """A connection within the bounds of TCP."""

    _deadline: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        self.transport, self.uid = transport, peer_uid(transport.get_extra_info("socket"))
        self.since = self.loop.time()
        if not self._has_room():
            _end_with(transport, b"503 Service Unavailable", "too many connections are open: close some, or ask again later")
            return
        self.take(transport)
        self._deadline = self.loop.call_later(STRANGER_S if is_stranger(self) else HEAD_S, self._late)

    def _has_room(self) -> bool:
        """Whether there is room for this connection, or has been made."""
        strangers: list[Any] = [one for one in self.connections if is_stranger(one)]
        if not is_stranger(self):
            return len(self.connections) - len(strangers) < MOST_CONNECTIONS or self._closes_an_idle_one()
        if len(strangers) >= MOST_STRANGERS:
            [(most, _)] = Counter(one.uid for one in [*strangers, self]).most_common(1)
            oldest = min((one for one in strangers if one.uid == most), key=lambda one: one.since)
            self.connections.discard(oldest)
            if isinstance(oldest, BoundedConnection):
                oldest.end(b"503 Service Unavailable", "another connection of this user's needs the room")
            else:
                oldest.transport.abort()
        return True

    def _closes_an_idle_one(self) -> bool:
        """Close the known connection that has been without a request for longest; False if each has one."""
        idle = [(one.timeout_keep_alive_task.when(), one) for one in self.connections
                if isinstance(one, H11Protocol) and one.timeout_keep_alive_task is not None and not is_stranger(one)]
        if idle:
            _, longest = min(idle, key=lambda each: each[0])
            self.connections.discard(longest)
            longest.timeout_keep_alive_handler()
        return bool(idle)

    def _late(self) -> None:
        # h11_impl sets the cycle at the first request.
        if is_stranger(self):
            self.end(b"408 Request Timeout", f"a connection of another user has {STRANGER_S:g} seconds to show a session or a"
                                             " token")
        elif getattr(self, "cycle", None) is None:
            self.end(b"408 Request Timeout", f"no whole head of a request has come in {HEAD_S:g} seconds")

    def end(self, status: bytes, why: str) -> None:
        """Close the connection, with *status* and the sentence *why* if its request has no answer yet."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            _end_with(self.transport, status, why)
        else:
            self.transport.abort()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._deadline.cancel()
        super().handle_websocket_upgrade(event)
        upgraded: Any = self.transport.get_protocol()  # uvicorn's, which has the connection from now on
        upgraded.uid, upgraded.since = self.uid, self.since
        if is_stranger(upgraded):
            self.loop.call_later(STRANGER_S, _end_stranger, upgraded)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_taken:
            self._deadline.cancel()
        super().connection_lost(exc)


def _end_with(transport: Any, status: bytes, why: str) -> None:
    if transport.get_write_buffer_size():  # a peer that doesn't read
        transport.abort()
        return
    transport.write(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
                    b"\r\n%s\n" % (status, len(why) + 1, why.encode("ascii")))
    transport.close()


def _end_stranger(one: Any) -> None:
    if is_stranger(one):
        one.transport.abort()


def is_stranger(one: Any) -> bool:
    """Whether a connection is of another user, and has shown neither a session nor a token."""
    return one.uid not in (0, os.geteuid()) and SCOPE_KEY not in (getattr(one, "scope", None) or ())

"""
The application's listeners: the operator's Unix socket, the bridges of sandboxes, and TCP on 127.0.0.1.

Runs in:   the operator's program that decides, on its event loop.
Trust:     a peer of the Unix socket must be a process of this user's and this host (peers.py). No sandbox is shown the
           socket's folder, either (spec/own_sockets.py), and abstract names belong to another network namespace. A bridge's
           credential is made here, from the pipe of the request. TCP gives no credential.
Source:    unix(7)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future
from typing import Any
from urllib.parse import unquote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from leeward.approvals.bridge.bridge import Answering, BridgeRequest
from leeward.approvals.places import own_folder
from leeward.approvals.web.credentials import SCOPE_KEY, AskingSandbox, Credential
from leeward.approvals.web.peers import is_hosts
from leeward.errors import Busy, Unsupported, told_with_place

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Seconds that a bridge's request may take, and bytes of an answer.
_ANSWER_S, _MOST_ANSWER = 60.0, 4 << 20

#: Seconds after which a connection without a request is closed, and those for which clients are told to keep it: a
#: client whose request meets the close can't know whether the request was taken.
IDLE_S, TOLD_IDLE_S = 120, 115


class OwnerOnly(H11Protocol):
    """HTTP for the operator's processes. A connection of any other is closed before a byte of it is read."""

    def connection_made(self, transport: Any) -> None:
        if not is_hosts(transport.get_extra_info("socket")):
            transport.abort()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.transport is not None:
            super().connection_lost(exc)


class _Told(logging.Filter):
    """Puts the place of an exception in the place of its traceback, whose texts quote what callers have sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage().strip()}: {told_with_place(error)}", ()
            record.exc_info = record.exc_text = None
        return True


#: Of all servers of a process: a logger takes the same filter once.
_TOLD = _Told()


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
    Bind the operator's socket, with mode 0600, in a folder that only this user can write to.

    Returns:
        A listening socket that doesn't block; the caller owns it.

    Raises:
        Busy: another service listens there.
        Unsupported: another user can write to the folder, or the path has more than 107 bytes.
        OSError: the socket can't be made.
    """
    own_folder(os.path.dirname(os.path.abspath(path)))
    if len(os.fsencode(path)) > 107:
        raise Unsupported("the operator's socket", have=f"a path of {len(os.fsencode(path))} bytes", need="107 at most",
                          cure="name another one with --socket")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
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
    except BaseException:
        made.close()
        raise
    return made


def bind_loopback(port: int) -> socket.socket:
    """
    Bind a port of 127.0.0.1. Any user of the host can connect; the application identifies the caller.

    Returns:
        A listening socket that doesn't block; the caller owns it.

    Raises:
        Busy: the port can't be bound; another program has it, for one.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(128)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise Busy(f"port {port} of 127.0.0.1: {(error.strerror or 'an error').lower()}") from None
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
    for name in ("uvicorn.error", "leeward.approvals", "asyncio"):
        logging.getLogger(name).addFilter(_TOLD)
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


#: Records of each logger, and the seconds in which there may be so many.
MOST_RECORDS, WINDOW_S = 20, 60.0

#: The loggers of the server and of its event loop.
_LOGGERS = ("uvicorn.error", "asyncio")


class BoundedRecords(logging.Filter):
    """
    Lets MOST_RECORDS through in each WINDOW_S, and tells with the next one how many it has left out: anybody who can connect
    can cause any number of records about broken requests.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._until, self._count = clock, float("-inf"), 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now >= self._until:
            left, self._until, self._count = self._count - MOST_RECORDS, now + WINDOW_S, 0
            if left > 0:
                record.msg, record.args = f"{record.getMessage()} ({left} lines before this one were left out)", None
        self._count += 1
        return self._count <= MOST_RECORDS


def bound_logs() -> None:
    """Bound the records of the server's loggers."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, BoundedRecords) for each in logger.filters):
            logger.addFilter(BoundedRecords())

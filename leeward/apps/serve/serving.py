"""
The process: the application of the faces that were asked for, its listener, and its end.

Holds:     beyond loopback it listens only with tokens, and with TLS, its own or that of a proxy in front. Of a proxy
           nothing is believed but that: no header of it is read.
Bounds:    connections have those of `connections`, calls those of `calls`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket as sockets
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import FrameType
from typing import Any, Literal

import uvicorn
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from leeward.apps.serve.calls import CALLS
from leeward.apps.serve.connections import CallerConnection, DoorConnection, greet
from leeward.apps.serve.door import Door, DoorOptions
from leeward.apps.serve.gate import HostGate, form, is_loopback
from leeward.apps.serve.metrics import exporting
from leeward.apps.serve.nodes import routes as health
from leeward.apps.serve.problems import ServeProblem
from leeward.apps.serve.sockets import MOST_MESSAGE
from leeward.apps.serve.tokens import TokenFile
from leeward.base.closing import on_failure
from leeward.base.line_writer import LineWriter
from leeward.errors import BadRequest, reason_of, told_with_place
from leeward.spec.bounded_log import BoundedLog
from leeward.spec.paths import RemoteHost, client_socket

#: The faces, by name, with the module that has their routes. Routes are tried in this order: first those of many short calls.
FACES = {"run-code": "leeward.apps.serve.run_code", "e2b": "leeward.apps.serve.e2b.control",
         "mcp": "leeward.apps.serve.mcp_face", "jupyter": "leeward.apps.serve.jupyter_face",
         "opensandbox": "leeward.apps.serve.opensandbox_face", "leeward": "leeward.apps.serve.wire_face", "ports": ""}

#: Those with WebSockets.
WITH_SOCKETS = frozenset({"ports", "leeward", "jupyter"})

#: Connections that wait to be taken; and that are taken in one round of the loop, else a flood of them holds up all others.
MOST_UNTAKEN, TAKEN = 1024, 16
#: Seconds that calls have to end when the server stops, and what is to be ended then.
STOP_S = 5

_log = logging.getLogger("leeward.serve")


@dataclass(frozen=True, slots=True)
class DoorCommand:
    """The options of the command."""

    faces: tuple[str, ...]
    listen: str = "127.0.0.1:8080"
    tokens: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log_calls: bool = False
    metrics: str = ""
    servers: int = 1
    door: DoorOptions = field(default_factory=DoorOptions)


def application(door: Door, faces: Sequence[str], names: Sequence[str] = (), origins: Sequence[str] = ()) -> ASGIApp:
    routes: list[BaseRoute] = [route for face, module in FACES.items() if module and face in faces
                               for route in import_module(module).routes(door)]
    routes += health(door.nodes)
    app: ASGIApp = RouteTable(routes)
    if "e2b" in faces:
        from leeward.apps.serve.e2b.envd import OtherPorts  # with the face

        app = OtherPorts(app)
    ports = None
    if "ports" in faces:
        from leeward.apps.serve.ports import PortsFace  # with the face

        ports = PortsFace(door)
    return HostGate(app, [*names, *([door.options.domain] if door.options.domain else [])], origins, ports)


class RouteTable:
    """Starlette's router alone: its application has two layers more, which each message passes."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # then the router raises where there is no route
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            problem = ServeProblem(error.status_code, "there is no such route; `leeward serve` names the faces that are on")
            await form(problem)(scope, receive, send)


def sockets_of(faces: Sequence[str]) -> type[asyncio.Protocol] | Literal["none"]:
    """What uvicorn serves WebSockets with."""
    if WITH_SOCKETS.isdisjoint(faces):
        return "none"
    from leeward.apps.serve.door_socket import DoorSocket  # its modules are for these faces alone

    return DoorSocket


class _LineHandler(logging.Handler):
    """
    Writes each record as a line to stderr, and never waits: whoever reads there may have stopped, and calls go on. Nothing
    in it ends a line or drives a terminal.
    """

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self._writer = LineWriter(fd)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._writer.line(text if text.isprintable() else text.encode("unicode_escape", "replace").decode())


def checked(options: DoorCommand, tokens: TokenFile) -> tuple[str, int]:
    """The address and the port; BadRequest if the options don't fit together."""
    unknown = [face for face in options.faces if face not in FACES]
    if unknown or not options.faces:
        raise BadRequest(f"faces are {', '.join(FACES)}; name those to serve")
    host, colon, port = options.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadRequest(f"--listen takes an address and a port, such as 127.0.0.1:8080; not {options.listen!r:.80}")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise BadRequest("--tls-cert and --tls-key need each other")
    if not is_loopback(host):
        if options.door.is_open:
            raise BadRequest(f"--open is for loopback; at {host} others can connect")
        if not options.tls_cert and not options.behind_proxy:
            raise BadRequest(f"at {host} tokens would be readable on the way: --tls-cert and --tls-key, or --behind-proxy "
                             "where a proxy has TLS")
    if options.door.nodes is not None and "leeward" in options.faces:
        raise BadRequest("leeward's own clients use nodes by themselves: leeward.fleet.connect(); it is for one daemon")
    if options.door.nodes is None and isinstance(client_socket(options.door.socket), RemoteHost):
        raise BadRequest("a server's daemon is on its machine: --socket takes a path here, and LEEWARD_HOST is for clients")
    if not options.door.is_open and not tokens.tenants():
        raise BadRequest("there is no token: `leeward serve token create NAME`, or --open for every user of this host")
    return host, int(port)


class _Listener(sockets.socket):
    """Has MOST_UNTAKEN connections wait, also where the loop wants as many as it takes in one round; greets what it takes."""

    def accept(self) -> tuple[sockets.socket, Any]:
        made, address = super().accept()
        greet(made)
        return made, address

    def listen(self, _backlog: int = 0, /) -> None:
        super().listen(MOST_UNTAKEN)


def bind(host: str, port: int) -> sockets.socket:
    """The listening socket; BadRequest if it can't be had."""
    try:
        family, kind, protocol, _, address = sockets.getaddrinfo(
            host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)[0]
        made = _Listener(family, kind, protocol)
        with on_failure(made.close):
            made.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen()
            made.setblocking(False)
    except OSError as error:
        raise BadRequest(f"{host}:{port}: {reason_of(error)}") from None
    return made


class _WaitingServer(uvicorn.Server):
    """Waits until it is told to stop, where uvicorn looks whether it was ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()

    async def main_loop(self) -> None:
        if not await self.on_tick(0):
            await self._told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._told.set)


def _log_to_stderr(calls: bool) -> None:
    # No other logger has a handler: the parser of forms tells of bytes that callers have sent.
    logging.getLogger().addHandler(logging.NullHandler())
    shown_lines = _LineHandler()
    shown_lines.setFormatter(logging.Formatter("leeward serve: %(message)s"))
    shown_lines.addFilter(BoundedLog())
    for name in ("leeward.serve", "uvicorn.error", "asyncio"):
        logging.getLogger(name).addHandler(shown_lines)
        logging.getLogger(name).setLevel(logging.WARNING)
    if calls:
        CALLS.addHandler(_LineHandler())
        CALLS.setLevel(logging.INFO)
        CALLS.propagate = False


def serve(options: DoorCommand, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; *ready* is called with the URL. BadRequest if the options don't fit together."""
    tokens = TokenFile(options.tokens, options.servers)
    host, port = checked(options, tokens)
    tokens.make_key()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = bind(host, port)
    port = listener.getsockname()[1]
    scheme = "https" if options.tls_cert else "http"
    _log_to_stderr(options.log_calls)
    shown = f"[{host}]" if ":" in host else host
    domain = options.door.domain or f"localhost:{port}"
    ended_by = list[int]()

    async def run() -> None:
        door = Door(tokens, replace(options.door, domain=domain))
        app = application(door, options.faces, [host, *options.names], options.origins)
        config = uvicorn.Config(
            app, http=DoorConnection if options.behind_proxy else CallerConnection, ws=sockets_of(options.faces),
            ws_max_size=MOST_MESSAGE, ws_per_message_deflate=False, lifespan="off", log_config=None, access_log=False,
            server_header=False, date_header=False, proxy_headers=False, backlog=TAKEN,
            timeout_graceful_shutdown=STOP_S, ssl_certfile=options.tls_cert, ssl_keyfile=options.tls_key)
        if options.tls_cert:
            try:
                config.load()
            except (OSError, ValueError) as error:
                raise BadRequest(f"--tls-cert, --tls-key: {told_with_place(error)}") from None
        server = _WaitingServer(config)

        def stop(number: int, _: object) -> None:
            ended_by.append(number)
            server.should_exit = True

        # uvicorn raises the signal that has stopped it once more at its end, and so before what follows here.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        watch = asyncio.ensure_future(door.watch())
        try:
            await door.nodes.begin()
            async with exporting(door, options.metrics) if options.metrics else nullcontext():
                ready(f"{scheme}://{shown}:{port}")
                await server.serve([listener])
        finally:
            watch.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await door.close()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        listener.close()
    return 128 + signal.SIGINT if signal.SIGINT in ended_by else 0

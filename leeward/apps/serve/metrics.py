"""
Counts by tenant for Prometheus, at a port or socket of their own: `--metrics`.

Trust:     who can connect there learns tenants' names and how much they do, nothing of what. A port is on loopback, and
           asks for a Host that is. What is sent isn't looked at but for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from leeward.apps.fleet.exposition import exposition
from leeward.apps.serve.calls import Use
from leeward.apps.serve.door import Door
from leeward.apps.serve.gate import host_name, is_loopback
from leeward.errors import BadRequest, reason_of

#: Bytes of a request; seconds until it has come.
MOST_REQUEST, REQUEST_S = 8192, 5.0

#: Names, types, and the figures of a tenant.
_FIGURES: tuple[tuple[str, str, str, Callable[[Use], float]], ...] = (
    ("call_seconds_total", "counter", "Time for which calls were under way.", lambda use: use.seconds),
    ("received_bytes_total", "counter", "Bytes of bodies.", lambda use: use.received),
    ("calls", "gauge", "Calls under way.", lambda use: use.streams),
    ("jobs", "gauge", "Jobs that run or wait.", lambda use: use.jobs),
    ("connections", "gauge", "Open connections.", lambda use: use.connections),
    ("sandboxes", "gauge", "Sandboxes, when the daemon was last asked.", lambda use: use.sandboxes))


def text_of(door: Door) -> str:
    uses = door.named_uses()
    lines = ["# HELP leeward_serve_calls_total Calls by the status of their answers.",
             "# TYPE leeward_serve_calls_total counter"]
    lines += [f'leeward_serve_calls_total{{tenant="{name}",status="{status}"}} {count}'
              for name, use in uses for status, count in sorted(use.calls.items())]
    for figure, kind, about, value in _FIGURES:
        lines += [f"# HELP leeward_serve_{figure} {about}", f"# TYPE leeward_serve_{figure} {kind}"]
        lines += [f'leeward_serve_{figure}{{tenant="{name}"}} {value(use):g}' for name, use in uses]
    if door.nodes.fleet is not None:
        lines += exposition(door.nodes.fleet.table(), door.waiting)
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def exporting(door: Door, place: str) -> AsyncIterator[None]:
    """Serve them while the block runs, at an ADDRESS:PORT of loopback or a socket's path; BadRequest if that can't be."""
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status = "200 OK" if path or _is_here(head) else "421 Misdirected Request"
                body = text_of(door).encode() if status == "200 OK" else b""
                writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                             f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    path = place if place.startswith("/") else ""
    host, _, port = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not path and not (is_loopback(host) and port.isdecimal() and int(port) <= 65535):
        raise BadRequest("--metrics takes an ADDRESS:PORT of loopback, or the absolute path of a socket")
    try:
        server = await (asyncio.start_unix_server(answer, path, limit=MOST_REQUEST) if path
                        else asyncio.start_server(answer, host, int(port), limit=MOST_REQUEST))
    except OSError as error:
        raise BadRequest(f"--metrics {place}: {reason_of(error)}") from None
    try:
        yield
    finally:
        server.close()


def _is_here(head: bytes) -> bool:
    hosts = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.lower().startswith(b"host:")]
    return len(hosts) == 1 and is_loopback(host_name(hosts[0].decode("latin-1").strip()))

"""
Servers that do as little as a client's library lets them: what a call takes then is the client's own.

    python bench/floors.py replay PLACE UPSTREAM    # passes each request on once, and has the same answer for its like
    python bench/floors.py mcp PLACE                # the SDK's own server, with a tool `run_shell` that runs nothing
"""

from __future__ import annotations

import asyncio
import http.client
import re
import sys
from typing import ClassVar


class Replay(asyncio.Protocol):
    """A connection. The name in Host is the client's, so what UPSTREAM says of its own address leads here."""

    upstream = ""
    #: By a request's first line and its body.
    answers: ClassVar[dict[tuple[bytes, bytes], bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._in = transport, b""

    def data_received(self, data: bytes) -> None:
        self._in += data
        while b"\r\n\r\n" in self._in:
            head, _, rest = self._in.partition(b"\r\n\r\n")
            found = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
            size = int(found[1]) if found else 0
            if len(rest) < size:
                break
            self._in, key = rest[size:], (head.partition(b"\r\n")[0], rest[:size])
            if key not in self.answers:
                self.answers[key] = self._asked(head.decode(), rest[:size])
            self._transport.write(self.answers[key])

    def _asked(self, head: str, body: bytes) -> bytes:
        first, *lines = head.split("\r\n")
        method, path, _ = first.split()
        there = http.client.HTTPConnection(self.upstream, timeout=60)
        there.request(method, path, body, dict(line.split(": ", 1) for line in lines))
        answer = there.getresponse()
        text = answer.read()
        kept = [f"{name}: {value}\r\n" for name, value in answer.getheaders()
                if name.lower() not in ("transfer-encoding", "content-length", "connection")]
        there.close()
        return f"HTTP/1.1 {answer.status} \r\n{''.join(kept)}content-length: {len(text)}\r\n\r\n".encode() + text


async def replay(place: str, upstream: str) -> None:
    Replay.upstream = upstream
    host, _, port = place.partition(":")
    server = await asyncio.get_running_loop().create_server(Replay, host, int(port))
    print(place, flush=True)
    await server.serve_forever()


async def mcp(place: str) -> None:
    from mcp.server import MCPServer  # which only this one needs

    server = MCPServer("floor", log_level="ERROR")

    @server.tool(structured_output=False)
    def run_shell(command: str) -> str:
        return "exit code 0"

    host, _, port = place.partition(":")
    await server.run_streamable_http_async(host=host, port=int(port))


if __name__ == "__main__":
    asyncio.run(replay(*sys.argv[2:]) if sys.argv[1] == "replay" else mcp(*sys.argv[2:]))

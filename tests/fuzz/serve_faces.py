"""
Hostile requests to all faces of `leeward serve`: heads, JSON, forms, frames of Connect, protobuf, messages of MCP, upgrades,
frames of WebSockets, and requests of the wire in their messages; and hostile answers of a server in a sandbox.

Runs in:   as __main__.py, which has it as `--serve`; starts a daemon and a server of its own, and is their hostile tenant.
Holds:     the server lives, and answers afterwards. No answer is a 5xx but those that say what isn't there; nothing is
           logged as a fault. Its memory and descriptors don't grow with the number of requests.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from decoders import Mutator
from web_decoders import pieces

from leeward.wire.frames import frame, pack

#: Connections at once, of which each waits for its answer; requests after which the sandbox is looked at; seconds for an
#: answer's head, and for the rest of it, which a stream hasn't: then the client goes.
AT_ONCE, AGAIN, ANSWER_S, REST_S = 128, 5120, 1.0, 0.3
#: Bytes by which the server may grow after a fifth of the requests, or SOON; descriptors that it may have in the end.
GROWTH, DESCRIPTORS, SOON = 64 << 20, 400, 100_000
#: What is meant: not offered, gone, no turn in time, no room.
MEANT = {501, 502, 504, 507}

TOKENS = (b"null", b"true", b"0", b"-1", b"1e999", b"NaN", b"9007199254740993", b'""', b"{}", b"[]", b'"\\ud800"',
          b'"\\u0000"',
          b'"\xff"', b"[" * 300, b'{"a":' * 200, b"", b"}", b"\r\n", b"\r\n\r\n", b":", b"\x00", b"../..", b"%00",
          b"%ff", b"x" * 9000, b"\xff\xff\xff\xff\xff", b"\x08\x96\x01", b"HTTP/1.1", b"chunked", b"4294967296")

_RPC = (b'{"process": {"cmd": "/bin/true", "args": ["x"], "envs": {"A": "b"}, "cwd": "/tmp"}, "stdin": true, "tag": "t"}',
        b'{"process": {"pid": 4}, "input": {"stdin": "YWJj"}}', b'{"process": {"pid": 4}, "signal": "SIGNAL_SIGKILL"}',
        b'{"process": {"pid": 4}, "pty": {"size": {"rows": 30, "cols": 100}}}', b'{"path": "/tmp/x", "depth": 1}',
        b'{"path": "a", "recursive": true}', b'{"source": "/tmp/a", "destination": "/tmp/b"}',
        b'{"watcherId": "0011223344556677"}')
_PROTO = (b"\n\x12\n\t/bin/true\x12\x01x\"\x02/t\x18\x01", b"\n\x02\x08\x04\x12\x05\n\x03abc", b"\n\x06/tmp/x\x10\x01",
          b"\n\x02\x08\x04\x10\x09", b"\n\x0200\x12\x01x")
_MCP = tuple(f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'.encode() for method, params in (
    ("initialize", '{"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}'),
    ("tools/call", '{"name": "read_file", "arguments": {"path": "a", "sandbox": "n"}, "_meta": {"progressToken": 1}}'),
    ("resources/read", '{"uri": "sandbox://n/workspace/a"}'), ("tools/list", "{}"),
    ("notifications/cancelled", '{"requestId": 1}')))
_FORM = ((b'--b\r\nContent-Disposition: form-data; name="file"; filename="a/b"\r\nContent-Type: text/plain\r\n\r\nx\r\n'
          b"--b--\r\n"),)
_STREAMS = ("process.Process/Start", "process.Process/Connect", "process.Process/StreamInput",
            "filesystem.Filesystem/WatchDir")
_CALLS = (*(f"process.Process/{name}" for name in ("List", "SendInput", "CloseStdin", "SendSignal", "Update")),
          *(f"filesystem.Filesystem/{name}" for name in ("Stat", "MakeDir", "Move", "Remove", "ListDir", "CreateWatcher",
                                                         "GetWatcherEvents", "RemoveWatcher")))
_JSON = "application/json"

#: What is run in each sandbox.
_SERVER = "\n".join([Path(__file__).with_name("hostile_server.py").read_text(),
                     "threading.Thread(target=listen, args=(3000,)).start()"])

#: Requests of the wire.
_WIRE = tuple(pack({"v": 1, "id": 1, **fields}) for fields in (
    {"op": "execute", "code": b"1", "limits": {"time": 1.0}}, {"op": "cancel", "target": 1}, {"op": "sandbox_list"},
    {"op": "sandbox_open", "metadata": {"a": "b"}, "lifetime": 9.0}, {"op": "session_open", "profile": "python"},
    {"op": "sandbox_info", "sandbox": "a" * 26}, {"op": "kept_read", "target": 1, "offset": 0, "size": 9},
    {"op": "execute", "session": 1, "code": b"1"}, {"op": "keep_results"}))
#: Those of Jupyter's clients.
_ASKED = tuple(
    f'{{"header": {{"msg_id": "a", "msg_type": "{kind}_request"}}, "channel": "{on}", "content": {{{content}}}}}'.encode()
    for kind, on, content in (
        ("execute", "shell", '"code": "1", "silent": false, "stop_on_error": true'), ("interrupt", "control", ""),
        ("complete", "shell", '"code": "a.b", "cursor_pos": 3'), ("kernel_info", "control", ""), ("history", "shell", "")))
_UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==")

#: Frames of a WebSocket, masked with zeros: its masks, lengths, kinds, and the order of pieces are what may be wrong.
_FRAMES = (b"\x81\x82\0\0\0\0hi", b"\x82\x81\0\0\0\0\0", b"\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b", b"\x89\x82\0\0\0\0hi",
           b"\x8a\x80\0\0\0\0", b"\x88\x82\0\0\0\0\x03\xe8", b"\x81\xfe\x00\x80\0\0\0\0" + b"x" * 128,
           b"\x82\xff\0\0\0\0\0\x01\0\0\0\0\0\0" + bytes(65536), b"\x82\xff\0\0\0\0\0\x50\0\0\0\0\0\0" + bytes(100))

#: Methods, paths, types and bodies. {id} is the sandbox's.
REQUESTS: list[tuple[str, str, str, tuple[bytes, ...]]] = [
    ("POST", "/run_code", _JSON, (
        b'{"code": "1", "language": "python", "stdin": "", "run_timeout": 1, "files": {"a": "eA=="}}',
        b'{"code": "", "language": "none", "memory_limit_MB": 64, "fetch_files": ["a"], "args": ["x"]}')),
    ("POST", "/run_jupyter", _JSON, (b'{"cells": ["1", "x"], "cell_timeout": 1, "kernel": "python3", "total_timeout": 2}',)),
    ("POST", "/v2/sandboxes", _JSON, (
        b'{"templateID": "base", "timeout": 60, "metadata": {"a": "b"}, "envVars": {"X": "1"}}',
        b'{"templateID": "base", "network": {"allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"]}}')),
    ("GET", "/v2/sandboxes?metadata=a%3Db&state=running&limit=3&nextToken=x", "", (b"",)),
    ("GET", "/sandboxes/{id}", "", (b"",)), ("DELETE", "/sandboxes/aaaaaaaaaaaaaaaaaaaaaaaaaa", "", (b"",)),
    ("POST", "/sandboxes/{id}/timeout", _JSON, (b'{"timeout": 60}',)),
    ("POST", "/sandboxes/{id}/connect", _JSON, (b'{"timeout": 9}',)), ("POST", "/sandboxes/{id}/pause", _JSON, (b"{}",)),
    ("GET", "/files?path=/etc/passwd&username=user", "", (b"",)), ("GET", "/health", "", (b"",)),
    ("GET", "/files?path=a&signature=v1_x&signature_expiration=99999999999", "", (b"",)),
    ("POST", "/files?path=a", "multipart/form-data; boundary=b", _FORM),
    ("POST", "/files?path=a", "application/octet-stream", (b"abc",)),
    ("POST", "/execute", _JSON, (b'{"code": "1", "context_id": null, "language": "python", "env_vars": {"A": "b"}}',)),
    ("POST", "/contexts", _JSON, (b'{"cwd": "/tmp", "language": "python"}',)), ("GET", "/contexts", "", (b"",)),
    ("GET", "/leeward", "", (b"",)), ("GET", "/leeward/{id}/3000", "", (b"",)),
    ("GET", "/ports/{id}/3000/a%00?b", "", (b"",)), ("POST", "/ports/{id}/3999/", _JSON, (b"{}",)),
    ("POST", "/api/kernels", _JSON, (b'{"name": "python3", "env": {"A": "b"}}',)), ("GET", "/api/kernels", "", (b"",)),
    ("POST", "/api/kernels/{kernel}/interrupt", _JSON, (b"{}",)), ("GET", "/api/kernels/{kernel}?token=x", "", (b"",)),
    ("GET", "/api/kernels/{kernel}/channels", "", (b"",)),
    ("POST", "/v1/sandboxes", _JSON, (
        b'{"image": {"uri": "opensandbox/code-interpreter:1"}, "timeout": 60, "entrypoint": ["tail", "-f", "/dev/null"]}',
        b'{"networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example"}]}, "env": {}}')),
    ("GET", "/v1/sandboxes?metadata=a%3Db&state=Running&page=1&pageSize=3", "", (b"",)),
    ("POST", "/v1/sandboxes/{id}/renew-expiration", _JSON, (b'{"expiresAt": "2040-01-01T00:00:00Z"}',)),
    ("GET", "/v1/sandboxes/{id}/endpoints/44772", "", (b"",)), ("GET", "/opensandbox/{id}/metrics", "", (b"",)),
    ("POST", "/opensandbox/{id}/command", _JSON, (b'{"command": "true", "cwd": "/tmp", "timeout": 9, "background": true}',)),
    ("GET", "/opensandbox/{id}/command/1/logs?cursor=0", "", (b"",)), ("POST", "/opensandbox/{id}/session", _JSON, (b"{}",)),
    ("POST", "/opensandbox/{id}/session/0011223344556677/run", _JSON, (b'{"command": "true", "timeout": 9}',)),
    ("POST", "/opensandbox/{id}/files/mv", _JSON, (b'[{"src": "/tmp/a", "dest": "/tmp/b"}]',)),
    ("POST", "/opensandbox/{id}/files/replace?verbose=true", _JSON, (b'{"/tmp/a": {"old": "a", "new": "b"}}',)),
    ("POST", "/opensandbox/{id}/directories", _JSON, (b'{"/tmp/d": {"mode": 755, "owner": "", "group": ""}}',)),
    ("GET", "/opensandbox/{id}/files/search?path=/tmp&pattern=**", "", (b"",)),
    ("GET", "/opensandbox/{id}/files/download?path=/tmp/a&offset=1&limit=2", "", (b"",)),
    ("POST", "/opensandbox/{id}/files/upload", "multipart/form-data; boundary=b", (
        (b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="m"\r\n\r\n{"path": "/tmp/a", "mode": 644}\r\n'
         b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'),)),
    ("POST", "/mcp", _JSON, _MCP), ("GET", "/mcp", "", (b"",)), ("DELETE", "/mcp", "", (b"",)), ("GET", "/", "", (b"",)),
    *(("POST", f"/{name}", kind, bodies) for name in _CALLS
      for kind, bodies in ((_JSON, _RPC), ("application/proto", _PROTO))),
    *(("POST", f"/{name}", kind, bodies) for name in _STREAMS
      for kind, bodies in (("application/connect+json", _RPC), ("application/connect+proto", _PROTO)))]


class HostileTenant:
    """Sends requests, and keeps what the answers were."""

    def __init__(self, host: str, port: int, token: str, seed: int) -> None:
        self._place, self._token, self._random = (host, port), token, random.Random(seed)
        seeds = {body for _, _, _, bodies in REQUESTS for body in bodies}
        self._bodies = {body: Mutator([(body, pieces(body, b'{}[],: "') or [(0, len(body))])], TOKENS, seed + number)
                        for number, body in enumerate(sorted(seeds))}
        self._wire = Mutator([(body, pieces(body, b"\xa2\xa4")) for body in _WIRE], TOKENS, seed)
        self._asked = Mutator([(body, pieces(body, b'{}[],: "')) for body in _ASKED], TOKENS, seed)
        # Changed are the two bytes of a head, its mask, and bytes by chance.
        self._frames = Mutator([(body, [(0, 1), (1, 2), (2, 6), (0, len(body))]) for body in _FRAMES], TOKENS, seed)
        self._heads: dict[int, Mutator] = {}
        self._seed = seed
        self.statuses: Counter[int] = Counter()  # 0: no answer in time, or the connection was closed without one
        self.found: list[str] = []
        self.sandbox, self.access, self.session, self.kernel = "a" * 26, "", "", "a"

    def _request(self) -> bytes:
        choose = self._random.random
        number = self._random.randrange(len(REQUESTS))
        method, path, kind, bodies = REQUESTS[number]
        body = self._random.choice(bodies)
        if choose() < 0.85:
            body = self._bodies[body].one()
        if "connect+" in kind:
            size = len(body) if choose() < 0.8 else self._random.choice((0, 1, 1 << 16, (1 << 32) - 1))
            body = struct.pack(">BI", self._random.choice((0, 0, 0, 1, 2, 255)), size) + body
        heads = [f"Host: {self._random.choice(('localhost', 'localhost', '49983-' + self.sandbox + '.localhost'))}",
                 f"X-API-KEY: {self._token}", f"Open-Sandbox-Api-Key: {self._token}", f"Content-Length: {len(body)}",
                 f"E2b-Sandbox-Id: {self.sandbox}",
                 f"X-Access-Token: {self.access}"]
        if kind:
            heads.append(f"Content-Type: {kind}")
        if path == "/mcp":
            version = self._random.choice(("2025-11-25", "2025-11-25", "2026-07-28", "1"))
            heads += ["Accept: application/json, text/event-stream", f"Mcp-Protocol-Version: {version}",
                      *([f"Mcp-Session-Id: {self.session}"] if choose() < 0.5 else [])]
        if choose() < (0.8 if path.startswith(("/leeward", "/api")) else 0.4 if path.startswith("/ports") else 0.03):
            heads += _UPGRADE
        line = f"{method} {path.replace('{id}', self.sandbox).replace('{kernel}', self.kernel)} HTTP/1.1"
        head = "\r\n".join([line, *heads, "", ""]).encode()
        if choose() < 0.2:
            mutator = self._heads.get(number)
            if mutator is None:
                mutator = self._heads[number] = Mutator([(head, pieces(head, b" :\r\n"))], TOKENS, self._seed + number)
            head = mutator.one()
        return head + body

    async def send(self, count: int) -> None:
        reader = writer = None
        for _ in range(count):
            request = self._request()
            try:
                if writer is None or writer.is_closing():
                    reader, writer = await asyncio.open_connection(*self._place)
                assert reader is not None
                async with asyncio.timeout(ANSWER_S):
                    writer.write(request)
                    head = await self._head(reader, request)
                async with asyncio.timeout(REST_S):
                    goes_on = await self._rest(reader, writer, request, head)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
                goes_on = False
            if not goes_on and writer is not None:
                writer.transport.abort()
                writer = None
        if writer is not None:
            writer.transport.abort()

    async def _head(self, reader: asyncio.StreamReader, request: bytes) -> bytes:
        """The head of an answer, in lower case, which is counted."""
        status, head = 0, b""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = int(head.split(b" ", 2)[1])
        finally:
            self.statuses[status] += 1
        if status >= 500 and status not in MEANT and not (status == 503 and b" /mcp" in request):
            self.found.append(f"{status}: {request.hex()}")
        return head

    async def _rest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, head: bytes) -> bool:
        """Read the rest of an answer; whether the connection goes on."""
        if head.split(b" ", 2)[1] == b"101":
            for _ in range(8):
                if self._random.random() < 0.5:
                    writer.write(self._frames.one() if self._random.random() < 0.7 else self._random.choice(_FRAMES))
                    continue
                is_text = b" /api/" in request
                mutator, seeds = (self._asked, _ASKED) if is_text else (self._wire, _WIRE)
                payload = mutator.one()[:60_000] if self._random.random() < 0.8 else self._random.choice(seeds)
                message = payload if is_text or self._random.random() < 0.05 else frame(payload)
                kind = 0x82 - is_text if self._random.random() < 0.95 else self._random.randrange(256)
                writer.write(struct.pack(">BBH4x", kind, 0xFE, len(message)) + message)  # masked with zeros
            await reader.read(65536)
            return False
        session = re.search(rb"\r\nmcp-session-id: ([0-9a-f]{32})\r\n", head)
        if session:
            self.session = session[1].decode()
        if b"transfer-encoding: chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            length = re.search(rb"\r\ncontent-length: (\d+)\r\n", head)
            await reader.readexactly(int(length[1]) if length else 0)
        return b"connection: close" not in head


def _state(pid: int) -> tuple[int, int]:
    """The bytes that a process has in memory, and its descriptors."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) << 10, len(os.listdir(f"/proc/{pid}/fd"))


def main(runs: int, seed: int | None = None) -> int:
    """Send *runs* requests; 0 if all holds."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from kit.live_daemon import LiveDaemon
    from kit.served import Served

    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    print(f"serve: seed {seed}; {runs:,} requests", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="leeward-fuzz-") as work, LiveDaemon(Path(work)) as daemon:
        served = Served(daemon.socket, Path(work), "run-code", "e2b", "mcp", "jupyter", "opensandbox", "leeward", "ports")
        served.token = served.new_token("hostile", "--quota", "rate=1000000", "--quota", "sandboxes=3",
                                        "--quota", f"connections={4 * AT_ONCE}", "--quota", f"streams={4 * AT_ONCE}",
                                        "--quota", "body=100000", "--quota", "lifetime=600")
        served.__enter__()  # what it has said in the end is looked at below, with the rest
        served.drain()
        try:
            tenant = HostileTenant(*served.address, served.token, seed)
            began, before = time.monotonic(), (0, 0)
            try:
                while tenant.statuses.total() < runs:
                    _with_sandbox(served, tenant)
                    asyncio.run(_batch(tenant))
                    if not before[0] and tenant.statuses.total() >= min(runs // 5, SOON):
                        before = _state(served.process.pid)
            except KeyboardInterrupt:
                pass  # so many were sent
            after = _state(served.process.pid)
            answered = served.ask("GET", "/sandboxes")[0]
        finally:
            said = served.end()
    sent = tenant.statuses.total()
    print(f"Sent {sent}, of which {sent - tenant.statuses[0]} had an answer in time, in {time.monotonic() - began:.0f} s: "
          f"{dict(sorted(tenant.statuses.items()))}; memory "
          f"{before[0] >> 20} and {after[0] >> 20} MiB, descriptors {before[1]} and {after[1]}", file=sys.stderr)
    faults = [*tenant.found[:20], *(line for line in said.splitlines() if "failed" in line or "Traceback" in line)]
    faults += ["it doesn't answer"] if answered != 200 else []
    faults += ["its memory grows"] if before[0] and after[0] - before[0] > GROWTH else []
    faults += ["its descriptors grow"] if after[1] > DESCRIPTORS else []
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def _with_sandbox(served: Any, tenant: HostileTenant) -> None:
    """Give *tenant* a sandbox with a server and a kernel, in place of those that have ended."""
    if served.ask("GET", "/health", E2b_Sandbox_Id=tenant.sandbox)[0] == 204:
        return
    for each in served.ask("GET", "/sandboxes")[1]:
        served.ask("DELETE", f"/sandboxes/{each['sandboxID']}")
    status, row = served.ask("POST", "/sandboxes", {"timeout": 600})
    kernel = served.ask("POST", "/api/kernels")
    if kernel[0] == 201:
        tenant.kernel = kernel[1]["id"]
    if status == 201:
        tenant.sandbox, tenant.access = row["sandboxID"], row["envdAccessToken"]
        with served.asked("POST", "/execute", {"code": _SERVER}, E2b_Sandbox_Id=tenant.sandbox) as begun:
            begun.read()


async def _batch(tenant: HostileTenant) -> None:
    await asyncio.gather(*(tenant.send(AGAIN // AT_ONCE) for _ in range(AT_ONCE)))

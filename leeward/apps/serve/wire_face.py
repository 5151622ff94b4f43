"""
leeward's own clients on other machines: the wire over a WebSocket, each with a connection to the daemon of its own.

Trust:     none in a request. To the daemon all tenants are one user: so each request is decoded, judged by its operation,
           and changed where the tenant's quota or marks belong in it. Operations that aren't named are refused.
Holds:     a request about a sandbox that isn't the tenant's is refused as one about none. Numbers of sessions, jobs and
           files are those of one connection.
Bounds:    requests under way, and bytes of unfinished ones, count for the tenant as calls and their bodies do, and so do
           those of fresh jobs, by themselves. The next request is read when the tenant's rate has room for it. Fresh jobs
           wait for a turn.

Theory of operation. One task reads requests, one reads answers. A job that waits for its turn has a task, and the requests
behind it go on, but for those about it. An answer is passed on as it came, but for a sandbox's metadata.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute

from leeward.apps.serve.calls import BODIES, SMALL, in_pace, in_turn, tell
from leeward.apps.serve.door import Door
from leeward.apps.serve.e2b.boxes import is_id, marked, own_metadata
from leeward.apps.serve.gate import form
from leeward.apps.serve.problems import ServeProblem, bad, busy, no_sandbox
from leeward.apps.serve.sockets import MOST_MESSAGE, SocketCall, SocketEndpoint, first_of
from leeward.apps.serve.tokens import ServeTenant, TenantQuota
from leeward.client.connecting import connect
from leeward.errors import (
    Busy,
    Cancelled,
    Forbidden,
    PeerError,
    QueueTimeout,
    Refused,
    RequestRejected,
    SandboxOver,
    SnapshotFailed,
)
from leeward.spec.paths import client_socket
from leeward.wire.answers import encode_refused
from leeward.wire.frames import MAX_REPLY, MAX_REQUEST, VERSION, FrameReader, decode, encode, frame
from leeward.wire.requests import OPERATIONS
from leeward.wire.sandbox_requests import SandboxRequest

#: The number of this module's own request, above all of clients'.
OWN = 2**53 - 1
#: Bytes of one read; sandboxes of which it is remembered whose they are: at most.
PIECE, MOST_KNOWN = 1 << 18, 1 << 16
#: Requests about a job that wait with it, at most.
MOST_BEHIND = 32
#: Profiles that each tenant may choose, beside the server's and its own.
PROFILES = frozenset({"", "python", "workdir"})

#: Operations that are about this connection alone.
PLAIN = frozenset({
    "ping", "cancel", "function_take", "function_answer", "output_take", "session_reset", "session_close", "interrupt",
    "keep_results", "kept_read", "kept_drop"})
#: Operations of which the quota counts what they open; and those about a sandbox.
COUNTED = frozenset({"sandbox_open", "session_open"})
ABOUT_SANDBOXES = frozenset(op for op, found in OPERATIONS.items() if issubclass(found.kind, SandboxRequest))
#: Those about snapshots, which belong to the tenant whose kernel was taken, until the server is started anew.
ABOUT_SNAPSHOTS = frozenset({"snapshot_list", "snapshot_info", "snapshot_remove"})

#: The fields with what a request is about, where its answer changes what counts.
_ABOUT = {"session_close": "session", "snapshot_remove": "snapshot"}

#: Refusals by a problem's status; RequestRejected for others.
_KINDS: dict[int, type[Refused]] = {403: Forbidden, 429: Busy, 503: Busy, 504: QueueTimeout}

Row = dict[str, Any]


def routes(door: Door) -> list[BaseRoute]:
    face = WireFace(door)
    return [WebSocketRoute("/leeward", SocketEndpoint("leeward", door.knows, form, face.wire)),
            WebSocketRoute("/leeward/{sandbox}/{port:int}", SocketEndpoint("leeward port", door.knows, form, face.port))]


class WireFace:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._owners: dict[str, str] = {}  # the tenant's id by the sandbox's, also when it has ended
        self.snapshots: dict[str, str] = {}  # by the snapshot's

    async def owns(self, tenant: ServeTenant, sandbox: str) -> bool:
        if sandbox not in self._owners and is_id(sandbox):
            for row in await self._door.boxes.rows(tenant):
                self.add(tenant, row["sandbox"])
        return self._owners.get(sandbox) == tenant.id

    def add(self, tenant: ServeTenant, sandbox: str) -> None:
        self._owners[sandbox] = tenant.id
        while len(self._owners) > MOST_KNOWN:
            del self._owners[next(iter(self._owners))]

    async def load(self, tenant: ServeTenant) -> Row:
        """What a fleet on other machines counts by."""
        if not tenant.fleet:
            raise ServeProblem(403, "how busy the daemon is others' tokens don't tell: `leeward serve token create --fleet`")
        return await self._door.nodes.load()

    async def wire(self, call: SocketCall) -> None:
        made = await asyncio.to_thread(connect, client_socket(self._door.options.socket))
        assert made is not None
        sock = socket.socket(fileno=made.detach())
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        try:
            await call.accept()
            await WireConnection(self, self._door, call, reader, writer).run()
        finally:
            writer.transport.abort()

    async def port(self, call: SocketCall) -> None:
        """A stream of bytes to a server in a sandbox."""
        sandbox, port = call.request.path_params["sandbox"], call.request.path_params["port"]
        try:
            box = await self._door.boxes.find(call.tenant, sandbox)
            if not 0 < port < 65536:
                raise bad("a port is from 1 to 65535")
            made = await self._door.boxes.dial(box, port)
        except SandboxOver:
            raise no_sandbox() from None
        reader, writer = await asyncio.open_connection(sock=made)

        async def up() -> None:
            while True:
                writer.write(_bytes(await call.message()))
                await writer.drain()

        async def down() -> None:
            while data := await reader.read(PIECE):
                await call.send({"type": "websocket.send", "bytes": data})

        try:
            await call.accept()
            await first_of(up(), down())
        except (PeerError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


@dataclass(slots=True)
class _Job:
    """A fresh job that has a turn, or waits for one, and the requests about it that came meanwhile."""

    task: asyncio.Task[None] | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    behind: list[tuple[int, str, Row]] = field(default_factory=list)


@dataclass(slots=True)
class _Asked:
    """A request that the daemon has: its operation, when it began, and what it is about, for its answer."""

    op: str
    begun: float
    about: Any


class WireConnection:
    """One client's connection, and the one to the daemon for it."""

    def __init__(self, face: WireFace, door: Door, call: SocketCall, reader: asyncio.StreamReader,
                 writer: asyncio.StreamWriter) -> None:
        self._face, self._door, self._call, self._reader, self._writer = face, door, call, reader, writer
        self._under_way: dict[int, _Asked] = {}  # by the number of the request
        self._jobs: dict[int, _Job] = {}  # those with turns, or waiting for one
        self._sessions = set[int]()  # that are open
        self._held = 0

    async def run(self) -> None:
        """Until one end closes."""
        try:
            await self._send({"v": VERSION, "id": OWN, "op": "keep_results"})
            await first_of(self._up(), self._down())
        except (PeerError, ConnectionError):
            pass
        finally:
            tasks = [job.task for job in self._jobs.values() if job.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            use, ops = self._call.use, [each.op for each in self._under_way.values()]
            use.streams -= len(ops)
            use.opening -= len(self._sessions) + sum(op in COUNTED for op in ops)
            use.snapshots -= ops.count("kernel_snapshot")
            use.held -= self._held
            if "sandbox_open" in ops:
                self._door.boxes.doubt()  # the daemon may have opened it

    # --- requests -------------------------------------------------------------------

    async def _up(self) -> None:
        use, quota = self._call.use, self._call.tenant.quota
        reader = FrameReader(min(MAX_REQUEST, quota.body))
        while True:
            for payload in reader.feed(_bytes(await self._call.message())):
                await self._paced()
                message = decode(payload) if len(payload) <= SMALL else await in_turn(use, decode, payload)
                number = message.get("id")
                if type(number) is not int or not 0 < number < OWN:
                    raise PeerError("a request has no number")
                try:
                    await self._taken(number, message, len(payload))
                except (ServeProblem, SandboxOver, SnapshotFailed) as refused:
                    await self._refuse(number, refused)
            use.held += reader.held - self._held
            self._held = reader.held
            if use.held > BODIES * quota.body:
                raise PeerError("too much is being sent at once")

    async def _paced(self) -> None:
        """Wait until the tenant may make one more call."""
        await in_pace(self._call.use, self._call.tenant)
        if self._door.tenant(self._call.tenant.id) is None:
            raise PeerError("the token was revoked")

    async def _taken(self, number: int, message: Row, size: int) -> None:
        message = {name: value for name, value in message.items() if value is not None}  # which the daemon takes for missing
        op = message.get("op")
        if not isinstance(op, str):
            raise PeerError("a request has no operation")
        if number in self._under_way or number in self._jobs:
            raise PeerError("a number of two requests")
        target = message.get("target")
        waits = self._jobs.get(target) if type(target) is int and target not in self._under_way else None
        if waits is not None and op == "cancel":
            if waits.task is not None:
                waits.task.cancel()
            await self._give({"id": number, "ok": {"cancelled": True}})
            return
        if waits is not None and op in PLAIN:
            if len(waits.behind) >= MOST_BEHIND:
                raise busy("too many requests about a job that waits for its turn")
            waits.behind.append((number, op, message))
            return
        if op == "status":
            await self._give({"id": number, "ok": await self._face.load(self._call.tenant)})
            return
        if op == "sandbox_list":
            rows = await self._door.boxes.rows(self._call.tenant)
            shown = [{**row, "metadata": own_metadata(row["metadata"])} for row in rows]
            await self._give({"id": number, "ok": {"sandboxes": shown, "more": False}})
            return
        if op == "execute" and "session" not in message:
            self._begun(message)
            use = self._call.use
            if use.waiting + size > BODIES * self._call.tenant.quota.body:
                raise busy("jobs with too many bytes run or wait at once")
            use.waiting += size
            job = self._jobs[number] = _Job()
            job.task = asyncio.ensure_future(self._run(number, job, message))
            job.task.add_done_callback(partial(self._over, size))
            return
        self._check_snapshot(op, message.get("snapshot"))
        if op == "sandbox_open":
            await self._opening(message)
        elif op == "session_open":
            self._begun(message)
            await self._door.boxes.seat(self._call.tenant, self._call.use)
        elif op == "sandbox_extend":
            self._lasting(message)
            if message.get("metadata"):  # the server's own are among them
                raise bad("from another machine metadata are given when a sandbox is opened")
        if op in ABOUT_SANDBOXES:
            sandbox = message.get("sandbox")
            if not isinstance(sandbox, str) or not await self._face.owns(self._call.tenant, sandbox):
                raise SandboxOver("there is no such sandbox", may_have_run=False)
            source = message.get("source")
            if source is not None and (not isinstance(source, str) or not await self._face.owns(self._call.tenant, source)):
                raise SandboxOver("there is no such sandbox to copy from", may_have_run=False)
        elif op not in PLAIN and op not in COUNTED and op not in ABOUT_SNAPSHOTS and op != "execute":
            raise ServeProblem(403, "this isn't for those who come from another machine")
        await self._forward(number, op, message)

    def _over(self, size: int, _job: object) -> None:
        self._call.use.waiting -= size

    def _check_snapshot(self, op: str, snapshot: object) -> None:
        """SnapshotFailed if *snapshot* is another tenant's; ServeProblem if one more would be too many of this one's."""
        found, tenant, use = self._face.snapshots, self._call.tenant, self._call.use
        if snapshot not in (None, "") and (not isinstance(snapshot, str) or found.get(snapshot) != tenant.id):
            raise SnapshotFailed("you have no such snapshot")
        has = use.snapshots + sum(each == tenant.id for each in found.values())
        if op == "kernel_snapshot" and has >= tenant.quota.sandboxes:
            raise busy(f"you have {tenant.quota.sandboxes} snapshots, as many as are allowed at once: remove one")

    def _begun(self, message: Row) -> None:
        """Put the tenant's quota into a request that begins something, and the server's environment."""
        tenant, options = self._call.tenant, self._door.options
        if (message.get("profile") or "") not in (*PROFILES, options.profile, *tenant.profiles):
            raise bad("there is no such profile for this token")
        if message.get("environment") not in (None, "", options.environment):
            raise bad("there is no such environment for this token")
        if message.get("egress") not in (None, "", *tenant.egress):
            raise bad("there is no such policy of egress for this token")
        if options.environment:
            message["environment"] = options.environment
        if tenant.quota.memory:
            limits = message.get("limits") or {}
            asked = limits.get("memory") if isinstance(limits, dict) else None
            if not isinstance(limits, dict) or not isinstance(asked, int | None):
                raise bad("limits are a map of numbers")
            message["limits"] = {**limits, "memory": min(asked or tenant.quota.memory, tenant.quota.memory)}

    def _lasting(self, message: Row) -> None:
        most = self._call.tenant.quota.lifetime
        asked = message.get("lifetime") or 0
        if not isinstance(asked, int | float) or asked > most:
            raise bad(f"a lifetime is {most} seconds at most")
        if message["op"] == "sandbox_open" and not asked and most < TenantQuota().lifetime:
            message["lifetime"] = float(most)

    async def _opening(self, message: Row) -> None:
        self._begun(message)
        self._lasting(message)
        if message.get("mounts") or message.get("dock"):
            raise bad("folders of another machine can't be shown")
        if message.get("image"):
            raise bad("an image is the server's user's, and none is a tenant's: a profile of the token's may name one")
        metadata = message.get("metadata") or {}
        if not isinstance(metadata, dict) or not all(isinstance(each, str) for pair in metadata.items() for each in pair):
            raise bad("metadata are texts")
        message["metadata"] = marked(self._call.tenant, metadata)
        await self._door.boxes.seat(self._call.tenant, self._call.use)

    async def _run(self, number: int, job: _Job, message: Row) -> None:
        """Forward a fresh job when it has its turn, which it keeps until it is answered."""
        try:
            async with self._door.turn(self._call):
                await self._forward(number, "execute", message)
                for behind in job.behind:
                    try:
                        await self._forward(*behind)
                    except ServeProblem as refused:
                        await self._refuse(behind[0], refused)
                await job.answered.wait()
        except (ServeProblem, asyncio.CancelledError) as error:
            if number not in self._under_way:
                late: ServeProblem | Refused = error if isinstance(error, ServeProblem) else Cancelled(
                    "the client took the request back")
                await self._refuse(number, late)
                for other, _, _ in job.behind:
                    await self._refuse(other, bad("the job hasn't begun"))
        finally:
            self._jobs.pop(number, None)

    async def _forward(self, number: int, op: str, message: Row) -> None:
        use, most = self._call.use, self._call.tenant.quota.streams
        if use.streams >= most:
            if op in COUNTED:
                use.opening -= 1
            raise busy(f"{most} calls are under way, as many as are allowed at once")
        use.streams += 1
        use.snapshots += op == "kernel_snapshot"
        about = frozenset(self._face.snapshots) if op == "snapshot_list" else message.get(_ABOUT.get(op, ""))
        self._under_way[number] = _Asked(op, time.monotonic(), about)
        await self._send(message)

    async def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(encode(message))
        await self._writer.drain()

    # --- answers --------------------------------------------------------------------

    async def _down(self) -> None:
        reader = FrameReader(MAX_REPLY)
        while data := await self._reader.read(PIECE):
            for payload in reader.feed(data):
                message = decode(payload)
                number: int = message["id"]
                if number == OWN:
                    continue
                asked = self._under_way.pop(number, _Asked("", 0.0, None))
                if asked.op:
                    self._call.use.streams -= 1
                    tell(tenant=self._call.tenant.name, call=f"leeward {asked.op}", status=200 if "ok" in message else 400,
                         seconds=round(time.monotonic() - asked.begun, 6))
                if number in self._jobs:
                    self._jobs[number].answered.set()
                self._count(asked, message)
                changed = self._shown(asked.op, message.get("ok"))
                try:
                    if asked.op == "sandbox_open" and "ok" in message:
                        await self._door.boxes.check_count(self._call.tenant, message["ok"]["sandbox"])
                    await self._give_bytes(frame(payload) if changed is None else encode({**message, "ok": changed}))
                except ServeProblem as refused:
                    await self._refuse(number, refused)

    def _count(self, asked: _Asked, message: Row) -> None:
        use, op, ok, known = self._call.use, asked.op, message.get("ok"), self._face.snapshots
        use.snapshots -= op == "kernel_snapshot"
        if op == "session_open" and ok is not None:
            self._sessions.add(ok["session"])  # it counts until it is closed, or the connection
        elif op in COUNTED:
            use.opening -= 1
            if ok is not None:
                self._door.boxes.opened(self._call.tenant, ok["sandbox"])
                self._door.boxes.follow(self._call.tenant.id, ok["sandbox"], "leeward")
                self._face.add(self._call.tenant, ok["sandbox"])
        elif op == "kernel_snapshot" and ok is not None:
            known[ok["snapshot"]] = self._call.tenant.id
        elif op == "snapshot_list" and ok is not None:
            for gone in asked.about - {row["snapshot"] for row in ok["snapshots"]}:
                known.pop(gone, None)
        elif op == "snapshot_remove" and (ok is not None or message["error"]["kind"] == SnapshotFailed.kind):
            known.pop(asked.about, None)  # it is removed, or was before
        elif op == "session_close" and ok is not None and type(asked.about) is int and asked.about in self._sessions:
            self._sessions.remove(asked.about)
            use.opening -= 1

    def _shown(self, op: str, ok: Any) -> Row | None:
        """What the client sees of an answer, where that isn't all."""
        if not isinstance(ok, dict):
            return None
        if op == "snapshot_list":
            return {"snapshots": [row for row in ok["snapshots"]
                                  if self._face.snapshots.get(row["snapshot"]) == self._call.tenant.id]}
        return {**ok, "metadata": own_metadata(ok["metadata"])} if op in ("sandbox_info", "sandbox_extend") else None

    async def _refuse(self, number: int, refused: ServeProblem | Refused) -> None:
        if isinstance(refused, ServeProblem):
            kind = _KINDS.get(refused.status, RequestRejected)
            refused = kind(refused.message, None if refused.retry_after is None else float(refused.retry_after))
        await self._give_bytes(encode_refused(number, refused))

    async def _give(self, message: Mapping[str, Any]) -> None:
        await self._give_bytes(encode(message))

    async def _give_bytes(self, data: bytes) -> None:
        for at in range(0, len(data), MOST_MESSAGE):
            await self._call.send({"type": "websocket.send", "bytes": data[at:at + MOST_MESSAGE]})


def _bytes(message: bytes | str) -> bytes:
    if isinstance(message, str):
        raise PeerError("a message of text")
    return message

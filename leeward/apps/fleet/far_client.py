"""
The client of a node that is reached through a `Carrier`, in batches of calls; carrier.py has the other end.

Runs in:   a client's process.

Theory of operation. It has all calls of AsyncClient, since only the lowest one differs: a request of the wire travels as
it is. One task sends what has gathered while its last message was on its way, another one fetches answers. If either
fails, the node is lost: each call fails, and knows whether it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leeward.apps.fleet.carrier import MOST, MOST_BYTES, Call
from leeward.apps.fleet.node_client import NodeClient
from leeward.base.closing import on_failure
from leeward.client.arena import new_file, seal
from leeward.client.conversation import answered
from leeward.client.options import requirements_of
from leeward.client.slots import bulk
from leeward.errors import DaemonAway, DaemonError, NoAnswer, RequestRejected, quoted
from leeward.wire.replies import Reply

if TYPE_CHECKING:
    from leeward.apps.fleet.ray_nodes import ReachedCarrier
    from leeward.client.aio_connection import AsyncConnection
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer
    from leeward.client.mounts import OpenFolders
    from leeward.client.options import PlaceOptions

T = TypeVar("T")

_NO_PORTS = "a server in a sandbox isn't reached through Ray: run its client in the sandbox"
#: Seconds that each part of closing may take.
_CLOSE_S = 1.0


class _Pending:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.sent = False
        self.answer: asyncio.Future[tuple[Any, list[bytes]]] = asyncio.get_running_loop().create_future()


class FarClient(NodeClient):
    """The client of the node *name*; *reach* gives its Carrier, again after each loss. Use it in one event loop."""

    def __init__(self, name: str, reach: Callable[[], Awaitable[ReachedCarrier]]) -> None:
        super().__init__(f"/{name}")  # no call connects to it; errors name it
        self._reach = reach
        self._far: ReachedCarrier | None = None
        self._last = 0
        self._outbox: list[_Pending] = []
        self._some = asyncio.Event()
        self._pending: dict[int, _Pending] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # --- in place of a connection -----------------------------------------------------

    async def _within(self, op: str, fields: Mapping[str, Any], until: float | None, idempotent: bool = False,
                      functions: AwaitedBesideJob | None = None,
                      folders: OpenFolders | None = None) -> tuple[Answer, AsyncConnection]:
        if folders is not None:
            raise RequestRejected("folders of this host are on no other node")
        if op == "sandbox_connect":
            raise RequestRejected(_NO_PORTS)
        packages = fields.get("packages", ())
        given = {name: value for name, value in fields.items() if name != "packages"}
        seconds = None if until is None else max(0.0, until - time.monotonic())
        number, answer = await self._sent("call", op, given, seconds, functions, packages=tuple(packages))
        return answered(answer), cast("AsyncConnection", _FarConnection(self, number))

    @property
    def where(self) -> str:
        raise RequestRejected(_NO_PORTS)

    async def _with_packages(self, options: PlaceOptions, fields: Mapping[str, Any],
                             attempt: Callable[[Mapping[str, Any]], Awaitable[T]]) -> T:
        requirements = requirements_of(options)  # the node itself makes their environment
        return await attempt({**fields, "packages": requirements} if requirements else fields)

    async def state(self, timeout: float) -> dict[str, Any]:
        number, pending = self._put("state", "status", {}, timeout)
        return cast("dict[str, Any]", (await self._awaited(number, pending, timeout))[0])

    async def drain(self, seconds: float) -> None:
        await self._awaited(*self._put("drain", "drain", {"seconds": seconds}, None), None)

    # --- calls ------------------------------------------------------------------------

    async def _sent(self, kind: str, op: str, fields: Mapping[str, Any], seconds: float | None,
                    functions: AwaitedBesideJob | None, **more: Any) -> tuple[int, Answer]:
        if functions is not None:
            more["functions"] = True
        number, pending = self._put(kind, op, fields, seconds, more)
        try:
            if functions is not None:
                functions.begin(self._beside, number)
            reply, contents = await self._awaited(number, pending, seconds)
        finally:
            if functions is not None:
                functions.end()
        assert isinstance(reply, Reply)
        return number, (reply, [_memory_file(content) for content in contents])

    async def _beside(self, op: str, fields: Mapping[str, Any]) -> Answer:
        """Send a request about the job of another call, which `target` names."""
        target = fields["target"]
        given = {name: value for name, value in fields.items() if name != "target"}
        return (await self._sent("beside", op, given, None, None, target=target))[1]

    def _put(self, kind: str, op: str, fields: Mapping[str, Any], seconds: float | None,
             more: Mapping[str, Any] | None = None) -> tuple[int, _Pending]:
        self._last += 1
        pending = _Pending((self._last, kind, op, fields, seconds, dict(more or {})))
        self._pending[self._last] = pending
        self._outbox.append(pending)
        self._some.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._carry())]
        return self._last, pending

    async def _awaited(self, number: int, pending: _Pending, seconds: float | None) -> tuple[Any, list[bytes]]:
        try:
            # The node keeps the time; what it takes longer is the way.
            async with asyncio.timeout(None if seconds is None else seconds + 1.0):
                return await pending.answer
        except TimeoutError:
            late = NoAnswer(f"no answer from {quoted(self.socket[1:])} before the deadline")
            late.may_have_run = pending.sent
            self._take_back(number)
            raise late from None
        except asyncio.CancelledError:
            self._take_back(number)
            raise
        finally:
            self._pending.pop(number, None)

    def _take_back(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is not None and not pending.sent:
            self._outbox.remove(pending)
        elif pending is not None and self._tasks:
            self._outbox.append(_Pending((number, "cancel", "", {}, None, {})))
            self._some.set()

    # --- the way ----------------------------------------------------------------------

    async def _carry(self) -> None:
        try:
            far = self._far = await self._reach()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send(far))
                both.create_task(self._fetch(far))
        except asyncio.CancelledError:
            raise
        except BaseExceptionGroup as group:
            self._fail(f"{type(group.exceptions[0]).__name__} on the way to it")
        except Exception as error:  # whatever a transport raises, the node is lost
            self._fail(f"{type(error).__name__} on the way to it")

    async def _send(self, far: ReachedCarrier) -> None:
        while True:
            await self._some.wait()
            if self._far is not far:
                return
            size = count = 0
            while count < min(MOST, len(self._outbox)) and size < MOST_BYTES:
                size += bulk(*self._outbox[count].call[2:4])
                count += 1
            batch, self._outbox = self._outbox[:count], self._outbox[count:]
            if not self._outbox:
                self._some.clear()
            for pending in batch:
                pending.sent = True
            await far.submit([pending.call for pending in batch])

    async def _fetch(self, far: ReachedCarrier) -> None:
        while self._far is far:
            for number, answer, contents in await far.fetch():
                pending = self._pending.get(number)
                if pending is None or pending.answer.done():
                    continue
                if isinstance(answer, DaemonError):
                    pending.answer.set_exception(answer)
                else:
                    pending.answer.set_result((answer, contents))

    def _fail(self, why: str) -> None:
        self._tasks, self._far = [], None
        for pending in self._pending.values():
            if not pending.answer.done():
                error = DaemonAway(f"{quoted(self.socket[1:])} doesn't answer: {why}")
                error.may_have_run = pending.sent
                pending.answer.set_exception(error)
        self._pending.clear()
        self._outbox.clear()
        self._some.clear()

    async def close(self) -> None:
        far, tasks = self._far, self._tasks
        self._fail("it was closed")
        self._some.set()  # both tasks see that they are over
        if far is not None:
            with contextlib.suppress(Exception):  # it may be lost
                async with asyncio.timeout(_CLOSE_S):
                    await far.close()  # with which its last fetch ends
        if tasks:
            # Not at once: Ray complains of an answer that nobody awaits any more.
            await asyncio.wait(tasks, timeout=_CLOSE_S if far is not None else 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _FarConnection:
    """The calls of AsyncConnection that a session makes, on the connection that opened it."""

    def __init__(self, client: FarClient, number: int) -> None:
        self._client, self._number = client, number

    async def call(self, op: str, fields: Mapping[str, Any], functions: AwaitedBesideJob | None = None) -> Answer:
        return (await self._client._sent("session", op, fields, None, functions, session=self._number))[1]

    async def turn(self, op: str, fields: Mapping[str, Any], functions: AwaitedBesideJob | None = None) -> Answer:
        return (await self._client._sent("session", op, fields, None, functions, session=self._number, turn=True))[1]


def _memory_file(content: bytes) -> int:
    """A sealed memory file with *content*, as the daemon makes them. The caller owns the descriptor."""
    fd = new_file(0)
    with on_failure(os.close, fd):
        written = 0
        while written < len(content):
            written += os.write(fd, memoryview(content)[written:])
        seal(fd)
    return fd

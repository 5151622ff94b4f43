"""
The calls of an asyncio client over its connection: each is sent again where that is right, and has a deadline.

Theory of operation: all calls of one event loop share a connection (aio_connection.py), and further ones when many
requests about sandboxes wait. If one breaks, the next call opens a new one. Each call knows whether a byte of it was
handed to the kernel, and is sent again if not (retry.py). A daemon that is stopping refuses further calls: they go to a
new connection, while the old one is kept until its pending calls are answered. A call that is refused as busy waits
until an earlier one is answered, or if there is none for some time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from _socket import socket as Socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from leeward.client.aio_connection import AsyncConnection
from leeward.client.aio_session import AsyncSession
from leeward.client.connecting import CONNECT_S, away, connect, started
from leeward.client.conversation import answered, checked
from leeward.client.options import PlaceOptions, SessionOptions, requirements_of, session_fields
from leeward.client.retry import Retry
from leeward.errors import Busy, DaemonAway, DaemonError, NoAnswer, QueueTimeout, quoted
from leeward.spec.paths import RemoteHost, client_socket
from leeward.wire.sandbox_replies import whole

# Imported in functions: what not every start needs; 15 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer
    from leeward.client.mounts import OpenFolders

T = TypeVar("T")

#: Requests that the first connection's gate admits.
_JOBS = ("execute", "session_open")
#: Connections of one client in one event loop: the last has all further requests.
_MOST_CONNECTIONS = 16
#: Seconds that the daemon may take to tell its state.
_STATUS_S = 5.0


class AsyncCalls:
    """The base class of `AsyncClient`, which describes the arguments: the connection and sessions, as asyncio has them."""

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, token: str | None = None, retry: bool = True,
                 retry_busy: bool = True) -> None:
        self.socket = client_socket(socket, token)
        self._retry, self._retry_busy = retry, retry_busy
        self._states: dict[asyncio.AbstractEventLoop, _LoopState] = {}

    @contextlib.asynccontextmanager
    async def session(self, *, snapshots: bool = False, deadline: float | None = None,
                      **options: Unpack[SessionOptions]) -> AsyncIterator[AsyncSession]:
        """
        Open a session: one process that keeps its state between jobs. Takes the options of Client.session. It uses this
        client's connection, and ends with it.

            async with client.session() as session:
                await session.execute("x = 6")
        """
        until = None if deadline is None else time.monotonic() + deadline
        if snapshots:
            from leeward.client.aio_kernel_session import AsyncKernelSession
            from leeward.client.aio_sandbox import AsyncSandbox

            box = AsyncSandbox(socket=self.socket, held=True, retry_busy=self._retry and self._retry_busy, **options)
            try:
                async with asyncio.timeout(deadline):
                    kernel = await AsyncKernelSession.opened(box)
            except TimeoutError:
                raise NoAnswer(f"no answer from {quoted(self.socket)} before the deadline") from None
            try:
                yield kernel
            finally:
                await kernel.close()
            return
        reply, connection = await self._with_packages(
            options, session_fields(options), lambda fields: self._within("session_open", fields, until))
        session = AsyncSession(connection, self.socket, checked(whole, reply[0], "session", 1))
        try:
            yield session
        finally:
            await session.close()

    async def _with_packages(self, options: PlaceOptions, fields: Mapping[str, Any],
                             attempt: Callable[[Mapping[str, Any]], Awaitable[T]]) -> T:
        """The result of *attempt* with *fields*, to which the environment of the packages in *options* is added."""
        requirements = requirements_of(options)
        if not requirements:
            return await attempt(fields)
        from leeward.client import packages

        await asyncio.to_thread(packages.ready, self.socket)
        wanted = packages.wanted_packages(requirements, self.socket, await self._simple("status", {}, _STATUS_S))
        return await packages.with_environment_async(fields, wanted, attempt)

    async def _simple(self, op: str, fields: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a request without descriptors, which has *timeout* seconds."""
        reply, _ = await self._call(op, fields, time.monotonic() + timeout)
        return reply.ok or {}

    async def _call(self, op: str, fields: Mapping[str, Any], until: float | None, idempotent: bool = False,
                    functions: AwaitedBesideJob | None = None, folders: OpenFolders | None = None) -> Answer:
        return (await self._within(op, fields, until, idempotent, functions, folders))[0]

    async def _within(self, op: str, fields: Mapping[str, Any], until: float | None, idempotent: bool = False,
                      functions: AwaitedBesideJob | None = None,
                      folders: OpenFolders | None = None) -> tuple[Answer, AsyncConnection]:
        """Make a call before *until*, a time.monotonic() value, or raise NoAnswer: the answer, and its connection."""
        one = _PendingCall(op, fields, idempotent, until, functions, folders)
        try:
            async with asyncio.timeout(None if until is None else until - time.monotonic()):
                return await self._ask(one)
        except TimeoutError:
            if one.refused is not None and not one.sent:
                raise one.refused from None
            late = NoAnswer(f"no answer from {quoted(self.socket)} before the deadline")
            late.may_have_run = one.sent
            raise late from None

    def _connection_with(self, kernel: tuple[str, int, bool]) -> AsyncConnection | None:
        """The connection of this event loop that knows this kernel; None if there is none."""
        return next((each for each in self._state().connections if kernel in each.seats and not each.broken()), None)

    async def _ask(self, one: _PendingCall) -> tuple[Answer, AsyncConnection]:
        state = self._state()
        closings = state.closings
        attempts: Retry | None = None
        while True:
            try:
                connection = await self._connected(state, one.op)
            except DaemonError as error:
                raise (error if attempts is None else attempts.connect_error(error)) from None
            try:
                return await one.ask(connection), connection
            except DaemonError as error:
                attempts = attempts or Retry(self._retry, one.idempotent, one.deadline, self._retry_busy)
                pause = attempts.pause(error, time.monotonic(), connection.gate.progress, beside=bool(connection.gate.jobs))
                if pause is None or closings != state.closings:
                    raise
                if isinstance(error, (Busy, QueueTimeout)):
                    one.refused = error
                    if one.op == "execute" and connection.gate.jobs:  # the gate opens when one of them is answered
                        pause = 0.0
                else:
                    state.retire(connection)
                one.sent = one.sent and error.may_have_run
            await asyncio.sleep(pause)

    def _state(self) -> _LoopState:
        """The state of the running event loop. The state of closed loops is dropped."""
        loop = asyncio.get_running_loop()
        state = self._states.get(loop)
        if state is None:
            for gone in [other for other in self._states if other.is_closed()]:
                self._states.pop(gone).close(away(self.socket, "its event loop is closed"))
            state = self._states[loop] = _LoopState()
        return state

    async def _connected(self, state: _LoopState, op: str) -> AsyncConnection:
        async with state.connecting:
            for connection in (*state.connections,):
                if connection.broken():
                    state.connections.remove(connection)
                elif op in _JOBS or await connection.has_room():
                    return connection
            if len(state.connections) >= _MOST_CONNECTIONS:
                return state.connections[-1]
            loop = asyncio.get_running_loop()
            try:
                sock = await self._connect()
            except DaemonAway:
                if not await loop.run_in_executor(None, started, self.socket, op):
                    raise
                sock = await self._connect()
            connection = AsyncConnection(loop, sock, self.socket, self._retry and self._retry_busy)
            state.connections.append(connection)
            return connection

    async def _connect(self) -> Socket:
        if isinstance(self.socket, RemoteHost):
            from leeward.client import remote  # what most clients don't need

            return await remote.connect_async(self.socket)
        give_up = time.monotonic() + CONNECT_S
        while True:
            sock = connect(self.socket, wait=False)
            if sock is not None:
                return sock
            if time.monotonic() > give_up:
                raise away(self.socket, "no program accepted the connection")
            await asyncio.sleep(0.01)  # poll can't wait for a full backlog; connect(2), EAGAIN

    async def close(self) -> None:
        """
        Close the connection. A later call opens a new one.

        With asyncio, calls that wait fail, and their jobs end.
        """
        self._state().close(away(self.socket, "this client was closed", may_have_run=True))


class _LoopState:
    """A client in one event loop. A call that began before the last `close`, counted by `closings`, isn't sent again."""

    def __init__(self) -> None:
        self.connections: list[AsyncConnection] = []
        self._draining: set[AsyncConnection] = set()  # connections to stopping daemons that owe answers
        self.connecting = asyncio.Lock()
        self.closings = 0

    def retire(self, connection: AsyncConnection) -> None:
        """Make no more calls over *connection*."""
        if connection in self.connections:
            self.connections.remove(connection)
            self._draining.add(connection)
            connection.end_when_answered(lambda: self._draining.discard(connection))

    def close(self, error: DaemonError) -> None:
        """Close all connections; their calls fail with *error*."""
        self.closings += 1
        for connection in (*self.connections, *self._draining):
            connection.close(error)
        self.connections.clear()


class _PendingCall:
    """
    A call, with the state that its attempts share.

    Args:
        folders: what each attempt sends to a dock, which the request names, on the same connection before it.

    Attributes:
        deadline: a time.monotonic() value, or None.
        sent: whether a part of the request may have reached a daemon that didn't refuse it.
        refused: the error of the last attempt, if the daemon was busy.
    """

    def __init__(self, op: str, fields: Mapping[str, Any], idempotent: bool, deadline: float | None,
                 functions: AwaitedBesideJob | None = None, folders: OpenFolders | None = None) -> None:
        self.op, self._fields, self._functions, self._folders = op, fields, functions, folders
        self.idempotent, self.deadline = idempotent, deadline
        self.sent = False
        self.refused: DaemonError | None = None

    async def ask(self, connection: AsyncConnection) -> Answer:
        """Make one attempt over *connection*. A refusal is raised."""
        if self.op in _JOBS:
            return await connection.admitted(self.op, self._fields, self.refused is not None, self._mark_sent,
                                             self._functions)
        fields = self._fields
        if self._folders is not None:
            fields = {**fields, "dock": self._folders.send(*answered(await connection.call("sandbox_dock", {})))}
        self._mark_sent()
        return answered(await connection.call(self.op, fields, self._functions))

    def _mark_sent(self) -> None:
        self.sent = True

"""
A sandbox and a session on one of a fleet's nodes, for asyncio.

Runs in:   a client's process.

A sandbox of a fleet makes all requests of AsyncSandbox over `Connections`, which has the calls of AsyncFreeConnections:
it opens the sandbox on a node that fits, and raises SandboxOver when that is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from leeward.apps.fleet.aio_fleet import AsyncFleet, Member, OpenOnNode
from leeward.apps.fleet.placement import Demand
from leeward.client import sandbox_calls
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.aio_session import AsyncSession
from leeward.client.conversation import answered
from leeward.client.free_connections import KernelKey, by_name
from leeward.client.options import TurnOptions
from leeward.client.sandbox import Sandbox
from leeward.client.sandbox_calls import OpenOptions
from leeward.errors import DaemonError, RequestRejected, SessionOver, quoted
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.client.aio_live_output import AwaitedBesideJob
    from leeward.client.conversation import Answer
    from leeward.client.mounts import OpenFolders

#: Seconds that a node may take to open a sandbox.
_OPEN_S = 60.0
NO_FOLDERS = "a fleet's sandbox shows no folder of this host, which may not be its node's; copy files with `files`"


class Connections:
    """
    The connections of one sandbox of *fleet*, which is opened for *request* with *packages*.

    Attributes:
        opened: its place; None before it was opened.
    """

    def __init__(self, fleet: AsyncFleet, request: Demand, on_drain: Callable[[float], object] | None,
                 packages: tuple[str, ...]) -> None:
        self._fleet, self._request, self._on_drain, self._packages = fleet, request, on_drain, packages
        self.opened: OpenOnNode | None = None
        self._sandbox = ""

    @property
    def socket(self) -> str:
        """The node's name, for errors."""
        return self.opened.member.name if self.opened else "a fleet"

    async def open(self, fields: Mapping[str, Any], folders: OpenFolders | None = None) -> Answer:
        if folders is not None:
            raise RequestRejected(NO_FOLDERS)

        async def attempt(member: Member) -> Answer:
            seconds = None if self._packages else _OPEN_S  # pip takes its time
            return answered(await member.client.ask("sandbox_open", fields, seconds, packages=self._packages))

        answer, self.opened = await self._fleet.open(self._request, self._on_drain, attempt)
        self._sandbox = str((answer[0].ok or {}).get("sandbox", ""))
        self.opened.end = self._end
        return answer

    def adopt(self, member: Member, sandbox: str) -> None:
        """Use the sandbox with this id, which another program has opened on *member*."""
        self._sandbox, self.opened = sandbox, self._fleet.adopt(member)
        self.opened.end = self._end

    async def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None,
                   functions: AwaitedBesideJob | None = None) -> Answer:
        assert self.opened is not None  # `open` comes first
        self.opened.check()
        return await self._fleet.on_node(self.opened, self.opened.member.client.ask(op, fields, seconds, functions))

    async def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        raise RequestRejected(f"{op}: nothing of a fleet's is held by a connection")

    async def execute_in_kernel(self, key: KernelKey, code: bytes) -> Answer:
        return await self.call("sandbox_execute", by_name(key, code))

    async def _end(self) -> None:
        assert self.opened is not None
        await self.opened.member.client.ask("sandbox_kill", {"sandbox": self._sandbox}, sandbox_calls.CLOSE_S)

    async def close(self) -> None:
        if self.opened is not None:
            self._fleet.closed(self.opened)


class AsyncFleetSandbox(AsyncSandbox):
    """A sandbox on one of a fleet's nodes: `AsyncFleet.sandbox` makes it."""

    _connections: Connections  # type: ignore[assignment]  # it has the calls that are used

    def __init__(self, fleet: AsyncFleet, request: Demand, on_drain: Callable[[float], object] | None,
                 options: OpenOptions) -> None:
        super().__init__(**options)
        self._connections = Connections(fleet, request, on_drain, self._packages)
        self._packages = ()  # the node's client sees to them

    @classmethod
    async def attached(cls, fleet: AsyncFleet, member: Member, sandbox: str) -> AsyncFleetSandbox:
        box = cls(fleet, Demand(opens=True), None, {})
        box._id = sandbox_calls.id_of(sandbox)
        box._connections.adopt(member, box._id)
        try:
            await box.info()
        except BaseException:
            await box._connections.close()
            raise
        return box

    async def id(self) -> str:
        """The sandbox's id in the fleet, after its node's name; for `AsyncFleet.attach`. The first use opens it."""
        number = await self._named()
        return f"{self._connections.socket}/{number}"

    async def detach(self) -> str:
        """Let the sandbox run on; returns its id, for `AsyncFleet.attach`."""
        found = await self.id()
        await super().detach()
        return found

    async def _blocking_sandbox(self) -> Sandbox:
        raise RequestRejected(NO_FOLDERS)

    @property
    def node(self) -> str:
        """The name of its node; "" before it was opened."""
        return self._connections.socket if self._connections.opened else ""


class AsyncFleetSession:
    """
    A session on one of a fleet's nodes: `AsyncFleet.session` opens it. AsyncSession describes the calls; when the node is
    lost or was drained they raise SessionOver.
    """

    opened_on: OpenOnNode

    def __init__(self, fleet: AsyncFleet, session: AsyncSession, stack: contextlib.AsyncExitStack) -> None:
        self._fleet, self._session, self._stack = fleet, session, stack

    @classmethod
    async def opened(cls, fleet: AsyncFleet,
                     session: contextlib.AbstractAsyncContextManager[AsyncSession]) -> AsyncFleetSession:
        stack = contextlib.AsyncExitStack()
        return cls(fleet, await stack.enter_async_context(session), stack)

    def place(self, opened: OpenOnNode) -> None:
        self.opened_on, opened.end = opened, self.close

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.opened_on.member.name

    async def execute(self, code: str | bytes, *, deadline: float | None = None,
                      **options: Unpack[TurnOptions]) -> Result:
        """As AsyncSession.execute."""
        async with self._told():
            return await self._session.execute(code, deadline=deadline, **options)

    async def interrupt(self) -> bool:
        """As AsyncSession.interrupt."""
        async with self._told():
            return await self._session.interrupt()

    async def reset(self, deadline: float | None = None) -> None:
        """As AsyncSession.reset."""
        async with self._told():
            await self._session.reset(deadline)

    async def close(self) -> None:
        """End the session."""
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        if self.opened_on.over:
            raise self._over(may_have_run=False)
        try:
            yield
        except DaemonError as error:
            if await self._fleet.is_over(self.opened_on, error):
                raise self._over(error.may_have_run) from None
            raise

    def _over(self, may_have_run: bool) -> SessionOver:
        over = SessionOver(f"{self.opened_on.over}: the session was on {quoted(self.node)}, and its state is lost")
        over.may_have_run = may_have_run
        return over

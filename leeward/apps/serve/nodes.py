"""
The daemons behind a server: one, or the nodes of a fleet; and what this server tells fleets of its own daemon.

Runs in:   the server's process.
Holds:     on a fleet a sandbox's id ends with the mark of its node, a hash of the node's name: every server with the same
           nodes finds it, and none remembers where it is. Whose it is stays in its metadata, on its node.
Trust:     callers learn no node's name or address.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from leeward.apps.fleet.addresses import addresses_of
from leeward.apps.fleet.aio_fleet import AsyncFleet
from leeward.apps.fleet.errors import NodeLost, NoNodeFits
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.serve.problems import Unplaced
from leeward.client.aio import AsyncClient
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Busy, DaemonError, SandboxOver
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.apps.serve.door import DoorOptions

#: An id: that of the daemon's, of so many letters, and on a fleet the node's mark.
LETTERS = 26
ID = rf"[a-z2-7]{{{LETTERS}}}(?:[a-z2-7]{{8}})?"
#: Seconds for a daemon's answer about itself or its list; for which an answer about health is given again.
ASK_S, HEALTH_S = 5.0, 1.0
#: Seconds that a sandbox waits for a node with room.
WAIT_S = 2.0
#: What a fleet counts by, of a daemon's status.
_LOAD = ("queued", "sandboxes", "sessions", "max_sessions", "drains")

#: Kinds of a node's reason not to take a request; for others it is full.
_KINDS = {"is draining": "draining", "doesn't answer": "away"}


def mark_of(node: str) -> str:
    """The mark of the node of this name."""
    return base64.b32encode(hashlib.sha256(node.encode("utf-8", "surrogateescape")).digest()[:5]).decode().lower()


class DoorNodes:
    """The daemons of a server. BadRequest if two nodes can't be told apart."""

    def __init__(self, options: DoorOptions) -> None:
        self._socket = options.socket
        self.client, self._own = AsyncClient(options.socket, retry_busy=False), NodeClient(options.socket)
        self.fleet: AsyncFleet | None = None
        self._sockets: dict[str, str] = {}  # of nodes, by their names
        self._names: dict[str, str] = {}  # by their marks
        self._rows: dict[str, list[dict[str, Any]]] = {}  # of each node, as it has told last
        self._told_at, self._told = float("-inf"), False
        self._asking = asyncio.Lock()
        if options.nodes is not None:
            found = addresses_of(options.nodes)
            self._sockets = {each.name: each.socket for each in found}
            self._names = {mark_of(each.name): each.name for each in found}
            if len(self._names) < len(found):
                raise BadRequest("two nodes have one mark: give one of them another name")
            self.fleet = AsyncFleet(options.nodes, patience=WAIT_S)

    # --- jobs -----------------------------------------------------------------------

    async def workers(self) -> int:
        """How many jobs all run at once."""
        if self.fleet is None:
            return int((await self.client.status(ASK_S))["workers"]["total"])
        return int((await self.fleet.status())["workers"])

    async def execute(self, *, idempotent: bool, **options: Any) -> Result:
        """As AsyncFleet.execute."""
        if self.fleet is None:
            return await self.client.execute(**options)
        with _told():
            return await self.fleet.execute(idempotent=idempotent, **options)

    # --- sandboxes ------------------------------------------------------------------

    @asynccontextmanager
    async def for_a_while(self, **options: Any) -> AsyncIterator[AsyncSandbox]:
        """A sandbox for one block, which ends with its connection where that is possible."""
        box = (AsyncSandbox(socket=self._socket, retry_busy=False, held=True, **options) if self.fleet is None
               else self.fleet.sandbox(**options))
        async with box:
            with _told():
                await box.id()
            yield box

    async def open(self, beside: tuple[AsyncSandbox, str] | None = None, **options: Any) -> tuple[AsyncSandbox, str]:
        """A new sandbox, and its id here; on the node of the one that it is *beside*."""
        box = (AsyncSandbox(socket=self._socket if beside is None else beside[0].socket, retry_busy=False, **options)
               if self.fleet is None or beside is not None else self.fleet.sandbox(**options))
        try:
            with _told():
                found = await box.id()
        except BaseException:
            await box.close()
            raise
        if beside is not None:
            return box, found + beside[1][LETTERS:]
        node, _, number = found.rpartition("/")
        return box, number + (mark_of(node) if self.fleet is not None else "")

    async def attach(self, identity: str) -> AsyncSandbox:
        """The sandbox with this id here; SandboxOver if there is none."""
        if self.fleet is None:
            return await AsyncSandbox.attach(identity, socket=self._socket, retry_busy=False)
        return await self.fleet.attach("/".join(self._place(identity)))

    def attach_blocking(self, identity: str) -> Sandbox:
        """As `attach`, in a thread."""
        if self.fleet is None:
            return Sandbox.attach(identity, socket=self._socket, retry_busy=False)
        node, number = self._place(identity)
        return Sandbox.attach(number, socket=self._sockets[node], retry_busy=False)

    def _place(self, identity: str) -> tuple[str, str]:
        node = self._names.get(identity[LETTERS:])
        if node is None:
            raise SandboxOver("there is no such sandbox", may_have_run=False)
        return node, identity[:LETTERS]

    async def rows(self) -> list[dict[str, Any]]:
        """The row of each sandbox of this user, with its id here, the oldest first; of nodes that are lost there are none."""
        if self.fleet is None:
            return await AsyncSandbox.list(socket=self._socket)
        nodes = await self.fleet.up()
        found = await asyncio.gather(*map(self._rows_of, nodes, nodes.values()))
        rows = ({**row, "sandbox": row["sandbox"] + mark_of(name)}
                for name, told in zip(nodes, found, strict=True) for row in told)
        return sorted(rows, key=lambda row: -row["age"])

    async def _rows_of(self, name: str, client: NodeClient) -> list[dict[str, Any]]:
        # Else what it had counts, until the fleet finds that it is lost, with all that it had.
        with suppress(DaemonError, TimeoutError):
            async with asyncio.timeout(ASK_S):  # for all pages, since others wait
                self._rows[name] = await client.sandboxes(ASK_S)
        return self._rows.get(name, [])

    # --- the server -----------------------------------------------------------------

    async def healthy(self) -> bool:
        """Whether the daemon, or one of the nodes, takes work."""
        async with self._asking:  # anybody may ask
            if time.monotonic() - self._told_at > HEALTH_S:
                try:
                    self._told = await self.workers() > 0
                except DaemonError:
                    self._told = False
                self._told_at = time.monotonic()
            return self._told

    async def load(self) -> dict[str, Any]:
        """What a fleet on other machines learns of this server's daemon: how busy it is, and whether it drains."""
        state = await self._own.state(ASK_S)
        return {"workers": {name: state["workers"][name] for name in ("total", "busy")},
                **{name: state[name] for name in _LOAD if name in state}}

    async def begin(self) -> None:
        """Return when each node has answered, or was given up."""
        if self.fleet is not None:
            await self.fleet.status()

    async def close(self) -> None:
        await self.client.close()
        await self._own.close()
        if self.fleet is not None:
            await self.fleet.close()


@contextmanager
def _told() -> Iterator[None]:
    """What a fleet raises beside a daemon's errors, without its nodes' names."""
    try:
        yield
    except NoNodeFits as error:
        kinds = Counter(map(_KINDS.get, error.reasons.values(), repeat("full")))
        text = "no node has room (" + ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())) + ")"
        if kinds["full"]:
            raise Busy(text) from None
        away = Unplaced(text)
        away.may_have_run = False
        raise away from None
    except NodeLost as error:
        lost = Unplaced("node_lost: the job's node doesn't answer any more" + (
            ", and it may have run: with an Idempotency-Key it is run elsewhere" if error.may_have_run else ""))
        lost.may_have_run = error.may_have_run
        raise lost from None


def routes(nodes: DoorNodes) -> list[BaseRoute]:
    async def health(_request: Request) -> JSONResponse:
        found = await nodes.healthy()
        return JSONResponse({"healthy": found}, 200 if found else 503, {"Retry-After": "1"} if not found else None)

    return [Route("/leeward/health", health, methods=["GET"])]

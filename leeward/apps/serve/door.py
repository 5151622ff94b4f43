"""What all faces share: who calls, the client of jobs and the turns of jobs."""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from leeward.apps.fleet.addresses import Nodes
from leeward.apps.serve.calls import ServeCall, Use
from leeward.apps.serve.e2b.boxes import Boxes
from leeward.apps.serve.nodes import DoorNodes
from leeward.apps.serve.problems import busy
from leeward.apps.serve.sockets import SocketCall
from leeward.apps.serve.tokens import LOOK_S, ServeTenant, TokenFile
from leeward.apps.serve.turns import Turns
from leeward.errors import BadRequest, DaemonError, told_with_place

#: The tenant of a server that asks for no token.
ANYBODY = ServeTenant("", "-")
_REGULARLY = 10

_log = logging.getLogger("leeward.serve")


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """
    Attributes:
        socket: the daemon's; None for the default.
        is_open: serve callers without a token, as ANYBODY.
        profile: of sandboxes and of the jobs of `/run_code`; "" for `box_profile`, and a job's own.
        environment: of jobs and sandboxes; "" for the daemon's own interpreter.
        wait_s: seconds that a job waits for its turn.
        at_once: jobs that run at once; 0 for as many as the daemon has workers.
        domain: below which sandboxes have names, with its port; "" for none.
        nodes: the addresses of a fleet's nodes, in place of the daemon; None for none.
    """

    socket: str | None = None
    is_open: bool = False
    profile: str = ""
    environment: str = ""
    wait_s: float = 8.0
    at_once: int = 0
    domain: str = ""
    nodes: Nodes | None = None

    @property
    def box_profile(self) -> str:
        """The profile of sandboxes whose callers choose none; `workdir` has loopback, and more processes than a job."""
        return self.profile or "workdir"


class Door:
    """
    The state of the server.

    Attributes:
        nodes: the daemons.
        at_end, regularly: what faces do at its end, and every _REGULARLY times LOOK_S.
    """

    def __init__(self, tokens: TokenFile, options: DoorOptions) -> None:
        self.tokens, self.options = tokens, options
        self.nodes = DoorNodes(options)
        self.at_end: list[Callable[[], Awaitable[object]]] = []
        self.regularly: list[Callable[[], Awaitable[object]]] = []
        self._uses: defaultdict[str, Use] = defaultdict(Use)
        self._turns: Turns | None = None
        self._asking = asyncio.Lock()
        self.boxes = Boxes(self)

    def use_of(self, tenant: ServeTenant) -> Use:
        return self._uses[tenant.id]

    def tenant(self, identity: str) -> ServeTenant | None:
        """The tenant with this id; None if its token was revoked."""
        if identity == ANYBODY.id:
            return ANYBODY if self.options.is_open else None
        self.tokens.fresh()
        return self.tokens.by_id(identity)

    def with_token(self, token: str) -> tuple[ServeTenant, Use] | None:
        """The tenant with a token."""
        tenant = self.found(token)
        if tenant is None and self.options.is_open:
            tenant = ANYBODY
        return None if tenant is None else (tenant, self.use_of(tenant))

    def found(self, token: str) -> ServeTenant | None:
        """The tenant that has a token of its own."""
        self.tokens.fresh()
        tenant = self.tokens.find(token) if token else None
        if tenant is None and token and self.tokens.look():  # one that was made just now
            tenant = self.tokens.find(token)
        return tenant

    async def knows(self, request: HTTPConnection) -> tuple[ServeTenant, Use] | None:
        """Who calls, by the token in one of the headers that clients have for it."""
        return self.with_token(token_of(request))

    def check_jobs(self, call: ServeCall | SocketCall) -> None:
        """ServeProblem if the tenant has as many jobs as it may."""
        if call.use.jobs >= call.tenant.quota.jobs:
            raise busy(f"{call.tenant.quota.jobs} jobs run or wait, as many as are allowed at once")

    @asynccontextmanager
    async def turn(self, call: ServeCall | SocketCall) -> AsyncIterator[None]:
        """A turn to run a job; ServeProblem if the tenant has too many, or the turn doesn't come in time."""
        self.check_jobs(call)
        call.use.jobs += 1
        try:
            async with (await self.turns()).turn(call.tenant.id):
                yield
        finally:
            call.use.jobs -= 1

    def named_uses(self) -> list[tuple[str, Use]]:
        """What tenants have under way, by their names; of those whose token was revoked nothing."""
        known = ((self.tenant(identity), use) for identity, use in list(self._uses.items()))
        return [(tenant.name, use) for tenant, use in known if tenant is not None]

    def count_sandboxes(self, counts: Mapping[str, int]) -> None:
        """How many sandboxes each tenant has, by its id."""
        for identity, use in self._uses.items():
            use.sandboxes = counts.get(identity, 0)

    async def watch(self) -> None:
        """Until it is cancelled, end the calls of tenants whose token was revoked or can't be read, and run `regularly`."""
        for turn in itertools.count(1):
            await asyncio.sleep(LOOK_S)
            self._end_revoked()
            for look in self.regularly if turn % _REGULARLY == 0 else ():
                try:
                    await look()
                except DaemonError:
                    pass  # it is away
                except Exception as error:  # else no revoked token would end a call any more
                    _log.error("a look at the daemon failed: %s", told_with_place(error))

    def _end_revoked(self) -> None:
        for identity, use in list(self._uses.items()):
            try:
                use.is_revoked = self.tenant(identity) is None
            except BadRequest:
                use.is_revoked = True
            for task in list(use.tasks) if use.is_revoked else ():
                task.cancel()

    async def turns(self) -> Turns:
        async with self._asking:
            if self._turns is None:
                at_once = self.options.at_once or await self.nodes.workers()
                # Where the workers are on other machines, so are the processors.
                processors = None if self.nodes.fleet else len(os.sched_getaffinity(0))
                self._turns = Turns(max(1, at_once), self.options.wait_s, processors)
                if self.nodes.fleet and not self.options.at_once:
                    self.regularly.append(self._resize)
            return self._turns

    async def _resize(self) -> None:
        """Nodes come and go."""
        assert self._turns is not None
        self._turns.resize(max(1, await self.nodes.workers()))

    @property
    def waiting(self) -> int:
        """Jobs that wait for a turn."""
        return 0 if self._turns is None else self._turns.waiting

    async def close(self) -> None:
        for end in self.at_end:
            await end()
        await self.nodes.close()


def token_of(request: HTTPConnection) -> str:
    """X-API-KEY, a token as bearer or as Jupyter's, or the password of Basic, as clients take it from a URL."""
    headers = request.headers
    return headers["x-api-key"] if "x-api-key" in headers else token_in(headers.get("authorization", ""))


def token_in(authorization: str) -> str:
    """The token in a header Authorization; "" if there is none."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() in ("bearer", "token"):
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode("ascii").rpartition(":")[2]
        except ValueError:
            return ""
    return ""

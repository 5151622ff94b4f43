"""
A fleet for asyncio: jobs, sandboxes and sessions on whichever node suits.

Runs in:   a client's process.

Theory of operation. Each node has a client, which makes each call once, and a task that asks for the node's state every
PROBE_S. A node whose connection ends, or that is silent for LOST_S, is lost: its client is closed, which fails the calls
that wait there with an error that says whether they may have run. Only time in which this process runs counts, and only
since the last answer to a job. The node is asked on, and takes requests again when it answers. A job is placed
(placement.py), sent, and after an error treated as failure.py says. Jobs that no node has room for wait in a line here, one
line for each kind of demand, so that those which need a rare node don't keep the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from leeward.apps.fleet.addresses import AUTO, RAY, Address, Nodes, addresses_of, is_cluster
from leeward.apps.fleet.errors import NodeLost, NoNodeFits
from leeward.apps.fleet.failure import OPEN, AttemptEnd, Attempts, Then, ending_of
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.fleet.placement import DEPTH, Demand, Node, NodePlacement, NodeState, NoNode
from leeward.base.closing import AsyncClosing
from leeward.client.aio_mapping import ends_of
from leeward.client.many import AsyncMapJobs, Course, MapEnd, MapJob, options_of
from leeward.client.options import Options, SessionOptions, check_names, requirements_of
from leeward.client.retry import BUSY_S
from leeward.client.sandbox_calls import OpenOptions
from leeward.errors import DaemonError, NoAnswer, RequestRejected, SandboxOver, Unsupported, quoted, told
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.apps.fleet.aio_open import AsyncFleetSandbox, AsyncFleetSession
    from leeward.client.aio_process import AsyncKernel

T = TypeVar("T")

#: Seconds between two questions for a node's state, and for its answer: a node that is lost is known within 5.
PROBE_S, LOST_S = 1.0, 3.5
#: Turns in which that is waited for; one in which this process stood still counts no more than another, however long it was.
#: And seconds for which it stands still at most.
_TURNS, _STILL_S = 14, 600.0
#: Seconds before a job that every node has refused as busy is sent again; doubled each time, up to the second figure.
_FIRST_S, _MOST_S = 0.02, 0.5
#: More than wait in any line.
_ALL = 1 << 40
#: Seconds that a drained node's work may take, unless told.
DRAIN_S = 600.0


class Member:
    """
    One node: its client, and what is known of it.

    Attributes:
        open: the sandboxes and sessions that this fleet has opened there, by what is called when the node drains.
        status: what it has told last.
        why: why it was given up last.
        losses: how often it was lost.
        answered: how many requests it has answered.
        drains: how often it was drained.
    """

    def __init__(self, node: Node, client: NodeClient) -> None:
        self.node, self.client = node, client
        self.losses = self.answered = 0
        self.open = weakref.WeakSet[OpenOnNode]()  # what nobody has any more ends by its idle time
        self.status: dict[str, Any] = {}
        self.why = ""
        self.draining, self.drains = False, 0

    @property
    def name(self) -> str:
        return self.node.name


class OpenOnNode:
    """
    The place of a sandbox or session on a node.

    Attributes:
        over: the reason why it can't be used any more, as a word of SandboxOver; "" while it can.
        end: ends it, at the end of its node's drain.
        on_drain: called with the seconds that are left when the node is to be drained.
    """

    def __init__(self, member: Member, request: Demand, on_drain: Callable[[float], object] | None) -> None:
        self.member, self.request, self.on_drain = member, request, on_drain
        self.over = ""
        self.losses = member.losses
        self.end: Callable[[], Awaitable[object]] | None = None

    def check(self) -> None:
        if self.over:
            raise self.ended(may_have_run=False)

    def ended(self, may_have_run: bool) -> SandboxOver:
        why = "was drained" if self.over == "drained" else "doesn't answer any more"
        return SandboxOver(f"{self.over}: {quoted(self.member.name)} {why}", self.over, time.time(),
                           may_have_run=may_have_run)


class AsyncFleet(AsyncClosing):
    """
    Runs code in the sandboxes of several daemons.

        async with AsyncFleet(["unix:/run/a.sock", "unix:/run/b.sock"]) as fleet:
            result = await fleet.execute("print(6 * 7)")

    Use it in one event loop. The first call connects.

    Args:
        nodes: "auto" or "ray://HOST:PORT" for the nodes of a cluster of Ray's; else an address for each node, as
            docs/fleet.md describes them.
        patience: seconds for which a request without a deadline waits for a node, while no other one is answered.
    """

    def __init__(self, nodes: Nodes, patience: float = BUSY_S) -> None:
        self._where = nodes if isinstance(nodes, str) else tuple(nodes)
        self._patience = patience
        self._members: dict[str, Member] = {}
        self._placement = NodePlacement([])
        self._lines: dict[object, deque[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._progress = float("-inf")
        self._closed = False

    # --- jobs -----------------------------------------------------------------------

    async def execute(self, code: str | bytes | None = None, *, deadline: float | None = None, idempotent: bool = False,
                      tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                      **options: Unpack[Options]) -> Result:
        """
        Run code on one of the nodes, and wait for its result. The options and results are those of Client.execute.

        Args:
            code: as for Client.execute.
            deadline: seconds that this call may take in all.
            idempotent: the job may run twice: run it on another node also if its node is lost while it may be running.
            tags: words that the node must have.
            resources: amounts of the node's resources that the job has while it runs.

        Raises:
            NodeLost: the node doesn't answer any more; `may_have_run` says whether the job may have run there.
            NoNodeFits: no node could take the job; `reasons` says of each why.
            DaemonError: as for Client.execute.
        """
        check_names("execute", options, Options, ("deadline", "idempotent", "tags", "resources"))
        until = None if deadline is None else time.monotonic() + deadline

        async def attempt(member: Member) -> Result:
            left = None if until is None else until - time.monotonic()
            return await member.client.execute(code, deadline=left, **options)

        request = Demand(environment_of(options), frozenset(tags), dict(resources or {}))
        return (await self._run(request, Attempts(idempotent), until, attempt))[0]

    async def execute_many(self, jobs: AsyncMapJobs, *, in_order: bool = False,
                           on_progress: Callable[[int], object] | None = None,
                           **common: Any) -> AsyncGenerator[tuple[int, Result | DaemonError], None]:
        """
        Run many jobs, no more at once than the nodes have room for. Yields the number of each job, from 0, with its
        result, or the error that `execute` would raise; each exactly once.

        Args:
            jobs: the code of each, or a map of its options with `code` among them; read as far as there is room.
            in_order: yield the results in the order of the jobs; else as they come.
            on_progress: called with the number of jobs that have ended.
            common: options of `execute`, for all jobs.
        """
        await self._ready()
        course = Course(jobs, ordered=in_order, room=self._room)
        async with contextlib.aclosing(ends_of(jobs, course, partial(self._one_of_many, common))) as ends:
            ended = 0
            async for one in ends:
                ended += 1
                if on_progress is not None:
                    on_progress(ended)
                answer = one.error or one.result
                assert answer is not None
                yield one.number, answer

    async def _one_of_many(self, common: Mapping[str, Any], number: int, job: MapJob) -> MapEnd:
        try:
            return MapEnd(number, job, await self.execute(**options_of(job, common)))
        except DaemonError as error:
            return MapEnd(number, job, error=error)  # type: ignore[arg-type]  # a fleet's job may be lost as well

    def _room(self) -> int:
        """How many jobs of execute_many are under way at once: a few more than have room, which then follow at once."""
        workers = sum(member.node.workers for member in self._members.values() if member.node.standing is NodeState.UP)
        return max(1, (DEPTH + 1) * workers)

    # --- what stays open --------------------------------------------------------------

    def sandbox(self, *, tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                on_drain: Callable[[float], object] | None = None, **options: Unpack[OpenOptions]) -> AsyncFleetSandbox:
        """
        A sandbox on one of the nodes, which the first call opens; an AsyncSandbox in all its calls. When its node is
        lost they raise SandboxOver with the reason "node_lost", when the node was drained "drained".

        Args:
            tags: words that the node must have.
            resources: amounts of the node's resources that the sandbox has while it is open.
            on_drain: called with the seconds that are left when the node is to be drained.
            options: those of AsyncSandbox, but for folders of the host, and `held`.
        """
        from leeward.apps.fleet.aio_open import AsyncFleetSandbox  # it needs this module

        check_names("sandbox", options, OpenOptions, ("tags", "resources", "on_drain"))
        if options.get("held"):
            raise RequestRejected("held: what a fleet has opened ends by its idle time, when this program has ended")
        request = Demand(environment_of(options), frozenset(tags), dict(resources or {}), opens=True)
        return AsyncFleetSandbox(self, request, on_drain, options)

    async def attach(self, sandbox: str) -> AsyncFleetSandbox:
        """The sandbox with this id, which names its node; SandboxOver if the node is lost or unknown."""
        from leeward.apps.fleet.aio_open import AsyncFleetSandbox  # as above

        await self._ready()
        node, _, number = sandbox.rpartition("/")
        member = self._members.get(node)
        if member is None or member.node.standing is NodeState.LOST:
            raise SandboxOver(f"node_lost: {quoted(node)} isn't among the nodes that answer", "node_lost",
                              may_have_run=False)
        return await AsyncFleetSandbox.attached(self, member, number)

    async def move(self, kernel: AsyncKernel, to: AsyncFleetSandbox) -> AsyncKernel:
        """
        Let *kernel*, of one of this fleet's sandboxes, go on in the sandbox *to*, on whichever node that is; returns it, and
        the old one is closed. Its sandbox's files aren't moved. SnapshotFailed if it can't be taken, or loaded there, by the
        name of what is different; then it goes on where it was.
        """
        from leeward.apps.fleet.moving import moved_state, removed  # few programs need it

        box = kernel._sandbox
        await to.id()
        name = await moved_state(box._connections, to._connections, await box._named(), kernel.number)  # type: ignore[arg-type]
        try:
            made = await to.kernel(snapshot=name, same_random=True)
        finally:
            await removed(to._connections, name)
        await kernel.close()
        return made

    @contextlib.asynccontextmanager
    async def session(self, *, tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                      deadline: float | None = None,
                      **options: Unpack[SessionOptions]) -> AsyncIterator[AsyncFleetSession]:
        """
        Open a session on one of the nodes: one process that keeps its state between jobs, as Client.session describes
        it. When its node is lost or drained its calls raise SessionOver.
        """
        from leeward.apps.fleet.aio_open import AsyncFleetSession  # as above

        request = Demand(environment_of(options), frozenset(tags), dict(resources or {}), opens=True)
        until = None if deadline is None else time.monotonic() + deadline

        async def attempt(member: Member) -> AsyncFleetSession:
            left = None if until is None else until - time.monotonic()
            return await AsyncFleetSession.opened(self, member.client.session(deadline=left, **options))

        session, member = await self._run(request, Attempts(True), until, attempt)
        session.place(self._opened(member, request, None))
        try:
            yield session
        finally:
            await session.close()
            self.closed(session.opened_on)

    async def open(self, request: Demand, on_drain: Callable[[float], object] | None,
                   attempt: Callable[[Member], Awaitable[T]]) -> tuple[T, OpenOnNode]:
        """Open what *attempt* opens on a node for *request*. Opening may be done twice: what nobody uses ends by itself."""
        result, member = await self._run(request, Attempts(True), None, attempt)
        return result, self._opened(member, request, on_drain)

    def _opened(self, member: Member, request: Demand, on_drain: Callable[[float], object] | None) -> OpenOnNode:
        opened = OpenOnNode(member, request, on_drain)
        member.open.add(opened)
        return opened

    def adopt(self, member: Member) -> OpenOnNode:
        """What another program has opened on *member*."""
        return self._opened(member, Demand(opens=True), None)

    def closed(self, opened: OpenOnNode) -> None:
        """What was *opened* has ended, or isn't this program's any more."""
        if opened in opened.member.open:
            opened.member.open.remove(opened)
            self._placement.closed(opened.member.node, opened.request)
            self._wake()

    async def on_node(self, opened: OpenOnNode, call: Awaitable[T]) -> T:
        """The result of *call*, one on what was *opened*: SandboxOver with a reason of the fleet's if the node is lost."""
        try:
            return await call
        except DaemonError as error:
            if await self.is_over(opened, error):
                raise opened.ended(error.may_have_run) from None
            raise

    async def is_over(self, opened: OpenOnNode, error: DaemonError) -> bool:
        """Whether what was *opened* is over for a reason of the fleet's, as a call on it has ended with *error*."""
        ending = ending_of(error, opened.member.node.standing is NodeState.LOST)
        if not opened.over and OPEN[ending][0] is Then.OVER:
            opened.over = "node_lost"
        if ending is AttemptEnd.LOST:
            await self._lose(opened.member, opened.losses)
        return bool(opened.over)

    # --- the nodes --------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """
        The state of the fleet, as this program sees it: `nodes`, a map for each, and of those that are up together
        `workers`, `waiting`, and `waiting_per_worker`, by which a cluster may grow or shrink.
        """
        await self._ready()
        return self.table()

    def table(self) -> dict[str, Any]:
        """As `status`, of the nodes that are known now."""
        rows = [row_of(member) for member in self._members.values()]
        up = [row for row in rows if row["standing"] == "up"]
        line = sum(map(len, self._lines.values()))
        waiting, workers = line + sum(row["waiting"] for row in up), sum(row["workers"] for row in up)
        return {"nodes": rows, "workers": workers, "waiting": waiting,
                "waiting_per_worker": round(waiting / workers, 3) if workers else None}

    async def drain(self, node: str, seconds: float = DRAIN_S) -> int:
        """
        Give *node* no new work, and wait until what this program has there has ended, *seconds* at most. Whoever opened a
        sandbox with `on_drain` is told at once. What is open after that time is ended: its calls raise SandboxOver with
        the reason "drained". Returns how many were.
        """
        await self.begin_drain(node, seconds)
        member, until = self._known(node), time.monotonic() + seconds
        while (member.node.waiting or member.open) and time.monotonic() < until:
            await asyncio.sleep(min(_FIRST_S, max(0.0, until - time.monotonic())))
        return await self._end_open(member)

    async def begin_drain(self, node: str, seconds: float = DRAIN_S) -> None:
        """As `drain`, without the wait: all who use the node end what they have there in time."""
        await self._ready()
        member = self._known(node)
        await member.client.drain(max(0.001, seconds))
        self._begin_drain(member, seconds)

    async def undrain(self, node: str) -> None:
        """Give *node* work again."""
        await self._ready()
        member = self._known(node)
        await member.client.drain(0.0)
        self._end_drain(member)

    def _known(self, node: str) -> Member:
        if node not in self._members:
            raise NoNodeFits({node: "isn't a node of this fleet"})
        return self._members[node]

    def _end_drain(self, member: Member) -> None:
        member.draining = False
        if member.node.standing is NodeState.DRAINING:
            member.node.standing = NodeState.UP
        self._wake(DEPTH * member.node.workers)

    def _begin_drain(self, member: Member, seconds: float) -> None:
        member.draining, member.drains = True, member.drains + 1
        if member.node.standing is NodeState.UP:
            member.node.standing = NodeState.DRAINING
        for opened in tuple(member.open):
            if opened.on_drain is not None:
                opened.on_drain(seconds)
        self._wake_without_one()

    async def _end_open(self, member: Member) -> int:
        """End what this program has open on *member*, and say so to whoever uses it."""
        ended = [opened for opened in tuple(member.open) if not opened.over]
        for opened in ended:
            opened.over = "drained"
        if ended:
            await asyncio.gather(*(opened.end() for opened in ended if opened.end), return_exceptions=True)
        return len(ended)

    async def prefetch(self, packages: Iterable[str], timeout: float = 600.0) -> dict[str, str]:
        """Have each node make the environment of *packages*. Returns of each node "" or why it couldn't."""
        await self._ready()
        wanted = requirements_of({"packages": packages})
        key = environment_of({"packages": wanted})

        async def make(member: Member) -> str:
            try:
                result = await member.client.execute("", packages=wanted, deadline=timeout)
            except DaemonError as error:
                return str(error)
            if result.ok:
                member.node.environments |= {key}
            return "" if result.ok else f"a job in it ended with exit code {result.exit_code}"

        up = [member for member in self._members.values() if member.node.standing is NodeState.UP]
        return dict(zip((member.name for member in up), await asyncio.gather(*map(make, up)), strict=True))

    async def check(self, timeout: float = 30.0) -> dict[str, str]:
        """Have each node run a job. Returns of each "" or what is wrong with it."""
        await self._ready()

        async def look(member: Member) -> str:
            if member.node.standing is NodeState.LOST:
                return member.why
            try:
                result = await member.client.execute("print(6 * 7)", deadline=timeout)
            except DaemonError as error:
                return told(error)
            return "" if result.stdout == b"42\n" else f"a job ended as {result.outcome}, with exit code {result.exit_code}"

        members = list(self._members.values())
        return dict(zip((each.name for each in members), await asyncio.gather(*map(look, members)), strict=True))

    async def close(self) -> None:
        """Close all connections. Jobs that run end, sandboxes stay until their idle time has passed."""
        self._closed = True
        tasks = [*self._tasks, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            await member.client.close()

    # --- placing ----------------------------------------------------------------------

    async def _run(self, request: Demand, attempts: Attempts, until: float | None,
                   attempt: Callable[[Member], Awaitable[T]]) -> tuple[T, Member]:
        """The result of *attempt* on a node that fits, and that node."""
        await self._ready()
        patience = _Patience(until, self._patience)
        while True:
            member = await self._placed(request, attempts, patience)
            self._placement.begin(member.node, request)
            opened, losses = False, member.losses
            try:
                result = await attempt(member)
                opened = request.opens
                member.answered += 1
                self._progress = time.monotonic()
                if request.environment and request.environment not in member.node.environments:
                    member.node.environments |= {request.environment}
                return result, member
            except DaemonError as error:
                ending = ending_of(error, member.node.standing is NodeState.LOST)
                if ending is AttemptEnd.LOST:
                    await self._lose(member, losses)
                patience.least = getattr(error, "retry_after", None) or 0.0
                then = attempts.then(member.name, ending, error.may_have_run)
                if then is Then.NODE_LOST:
                    raise NodeLost(member.name, attempts.may_have_run) from None
                if then is Then.RAISE:
                    error.may_have_run |= attempts.may_have_run
                    raise
            finally:
                self._placement.end(member.node, request, opened=opened)
                self._wake()

    async def _placed(self, request: Demand, attempts: Attempts, patience: _Patience) -> Member:
        """The node for *request*, when one has room."""
        kind = (request.tags, tuple(sorted(request.resources.items())), request.opens)
        line = self._lines.setdefault(kind, deque())
        woken = False
        while True:
            nothing: NoNode | None = None
            if woken or not line:
                found = self._placement.choose(_avoiding(request, attempts))
                if isinstance(found, Node):
                    if not line:
                        self._lines.pop(kind, None)
                    return self._members[found.name]
                nothing = found
            wait = patience.left(self._progress)
            if attempts.avoid and nothing is not None and nothing.may_come:
                # All have refused it: they are asked again after a while, if that leaves as much time for an answer.
                pause = patience.pause()
                wait = pause if 2 * pause < wait else 0.0
            if wait <= 0.0 or (nothing is not None and not nothing.may_come):
                raise self._none(attempts, nothing or self._placement.nothing(_avoiding(request, attempts)))
            if nothing is not None:
                attempts.avoid.clear()
            line = self._lines.setdefault(kind, line)
            await self._wait_in(line, wait, first=woken)
            woken = True  # it is this one's turn, also when its time is over

    async def _wait_in(self, line: deque[asyncio.Future[None]], seconds: float, first: bool) -> None:
        """Wait in *line*, for its first place if *first*, until there is room, or for so many seconds."""
        place = asyncio.get_running_loop().create_future()
        (line.appendleft if first else line.append)(place)
        try:
            async with asyncio.timeout(seconds):
                await place
        except TimeoutError:
            pass
        except BaseException:
            if place.done() and not place.cancelled():
                self._wake()  # somebody else's turn
            raise
        finally:
            with contextlib.suppress(ValueError):
                line.remove(place)

    def _wake(self, count: int = 1) -> None:
        """There may be room for so many: the first of each line look."""
        for line in self._lines.values():
            for place in itertools.islice((place for place in tuple(line) if not place.done()), count):
                place.set_result(None)

    def _wake_without_one(self) -> None:
        """A node takes nothing any more: if none does, all who wait for one learn that."""
        self._wake(1 if any(each.node.standing is NodeState.UP for each in self._members.values()) else _ALL)

    def _none(self, attempts: Attempts, nothing: NoNode) -> DaemonError:
        if attempts.lost_on:
            return NodeLost(attempts.lost_on, attempts.may_have_run)
        return NoNodeFits(nothing.reasons)

    # --- watching ---------------------------------------------------------------------

    async def _ready(self) -> None:
        """Connect, if this is the first call: return when each node has answered, or was given up."""
        if self._closed:
            raise RequestRejected("this fleet was closed")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        if not self._starting.done():
            await asyncio.shield(self._starting)
        self._starting.result()

    async def _start(self) -> None:
        if not isinstance(self._where, str):
            await asyncio.gather(*(self.join(_member(address)) for address in addresses_of(self._where)))
            return
        if not is_cluster(self._where):
            raise RequestRejected(f"{self._where!r:.80} is no cluster: {AUTO!r}, {RAY}HOST:PORT, or a list of addresses")
        try:
            from leeward.apps.fleet.ray_nodes import follow  # an extra
        except ModuleNotFoundError:
            raise Unsupported("ray", have="none", need="that of the cluster", cure="pip install 'leeward[ray]'") from None
        await follow(self._where, self)

    async def join(self, member: Member) -> None:
        """Take *member* in, and return when it has answered or was given up."""
        self._members[member.name] = member
        member.node.standing = NodeState.LOST
        self._placement.add(member.node)
        await self._probe(member)
        self.follow(self._watch(member))

    def leave(self, name: str) -> None:
        """Forget a node that doesn't exist any more."""
        member = self._members.pop(name, None)
        self._placement.remove(name)
        if member is not None:
            self.follow(self._lose(member, member.losses))

    async def up(self) -> dict[str, NodeClient]:
        """The clients of the nodes that answer, by their names."""
        await self._ready()
        return {name: each.client for name, each in self._members.items() if each.node.standing is not NodeState.LOST}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._members)

    def follow(self, what: Any) -> None:
        """Run a coroutine until it ends, or this fleet is closed."""
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, member: Member) -> None:
        while member.name in self._members:
            await asyncio.sleep(PROBE_S)
            await self._probe(member)

    async def _probe(self, member: Member) -> None:
        """Ask *member* for its state."""
        losses, answered = member.losses, member.answered
        asked, turns = asyncio.ensure_future(member.client.state(_STILL_S)), 0
        try:
            while turns < _TURNS and not (await asyncio.wait({asked}, timeout=LOST_S / _TURNS))[0]:
                turns, answered = turns + 1 if member.answered == answered else 0, member.answered
            if turns == _TURNS:
                raise NoAnswer(f"no answer within {LOST_S:g} s")
            await self._told(member, asked.result())
        except DaemonError as error:
            member.why = told(error)
            await self._lose(member, losses)
        finally:
            asked.cancel()

    async def _told(self, member: Member, status: dict[str, Any]) -> None:
        member.status, node = status, member.node
        node.workers = max(1, int(status["capacity"]))
        node.others = max(0, int(status["workers"]["busy"]) + int(status["queued"]) - node.waiting)
        # What is starting may be among them, and counts by itself: twice, and the node would get fewer than others.
        node.open = max(len(member.open), int(status["sandboxes"]) + int(status["sessions"]) - node.starting)
        node.room = int(status["max_sessions"])
        drains = status.get("drains")  # by whoever uses the node
        if drains is not None and not member.draining:
            self._begin_drain(member, float(drains))
            self.follow(self._drained_by_others(member, float(drains), member.drains))
        elif drains is None and member.draining:
            self._end_drain(member)
        came = node.standing is NodeState.LOST
        if came:
            node.standing = NodeState.DRAINING if member.draining else NodeState.UP
        self._wake(DEPTH * node.workers if came else 1)

    async def _drained_by_others(self, member: Member, seconds: float, drain: int) -> None:
        await asyncio.sleep(seconds)
        if member.draining and drain == member.drains:  # else it was taken back
            await self._end_open(member)

    async def _lose(self, member: Member, losses: int) -> None:
        """*member*, which had been lost so often before, doesn't answer: fail what waits there."""
        if losses != member.losses:
            return  # somebody else has noticed, and it may be back
        member.losses += member.node.standing is not NodeState.LOST
        member.node.standing = NodeState.LOST
        for opened in tuple(member.open):
            opened.over = opened.over or "node_lost"
            self.closed(opened)
        await member.client.close()
        self._wake_without_one()


class _Patience:
    """
    How long one request waits for a node: *until*, a time.monotonic() value, else for *most* seconds without progress.

    Attributes:
        least: seconds that the node which refused it last has named.
    """

    def __init__(self, until: float | None, most: float) -> None:
        self._until, self._most, self._began, self._pause = until, most, time.monotonic(), _FIRST_S
        self.least = 0.0

    def left(self, progress: float) -> float:
        """Seconds; *progress* is when a request of this program was last answered."""
        return (max(self._began, progress) + self._most if self._until is None else self._until) - time.monotonic()

    def pause(self) -> float:
        """Seconds before it is sent again; shorter by a random part, so that not all programs return at one moment."""
        pause = self.least + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, _MOST_S)
        return pause


def _member(address: Address) -> Member:
    node = Node(address.name, tags=address.tags, resources=address.resources)
    return Member(node, NodeClient(address.socket))


def row_of(member: Member) -> dict[str, Any]:
    """A node's row in `status`."""
    node, workers = member.node, member.status.get("workers", {})
    return {"name": node.name, "standing": node.standing.value, "workers": node.workers,
            "busy": int(workers.get("busy", 0)), "waiting": node.waiting + node.others, "open": node.open,
            "room": node.room, "tags": sorted(node.tags), "resources": dict(node.resources),
            "environments": sorted(node.environments), "version": member.status.get("version", ""),
            "why": member.why if node.standing is NodeState.LOST else ""}


def environment_of(options: Mapping[str, Any]) -> str:
    """A name for the environment that *options* ask for, which equal ones have in common; "" for none in particular."""
    packages = requirements_of(options)  # type: ignore[arg-type]  # a part of what it takes
    if packages:
        return "packages " + " ".join(sorted(packages))
    named = options.get("environment")
    return f"environment {named}" if named else ""


def _avoiding(request: Demand, attempts: Attempts) -> Demand:
    if not attempts.avoid:
        return request
    return Demand(request.environment, request.tags, request.resources, request.opens, frozenset(attempts.avoid))

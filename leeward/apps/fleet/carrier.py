"""
The end of a fleet's calls on their node: makes them by the node's own client, and keeps their answers until they are
fetched. Ray has one of these in an actor on each node.

Runs in:   that actor.

Theory of operation. A caller (one client of a fleet) sends calls in batches, each with a number of its own, and fetches
answers in batches: what has come while one message travels goes into the next, so messages grow with the load, and
nobody waits for a slower call of the same batch. Each caller has a client of the daemon, so a caller that doesn't
fetch for CALLER_S is taken for gone: its client is closed, which ends its jobs and sessions; its sandboxes stay until
their idle time has passed. Memory files don't travel: their bytes do.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.apps.fleet.node_client import NodeClient
from leeward.base.closing import OwnedFd
from leeward.client.connecting import started
from leeward.errors import DaemonAway, DaemonError, Refused, told

if TYPE_CHECKING:
    from leeward.client.aio_connection import AsyncConnection
    from leeward.client.aio_functions import Ask
    from leeward.wire.replies import Reply

#: Seconds that a fetch waits for the first answer, and after which a caller that hasn't fetched is gone.
FETCH_S, CALLER_S = 1.0, 30.0
#: Calls or answers of one message, and the bytes after which no further one is added.
MOST, MOST_BYTES = 500, 32 << 20
#: Seconds that a fetch waits for more answers, if fewer have come than half of the jobs that are under way: a message costs
#: the processor time of some short jobs, and the other half keeps the workers busy meanwhile.
MORE_S = 0.01
#: The same where CROWD jobs for each worker are under way: each has waited for several others, and no worker waits for work.
CROWD, CROWDED_S = 4, 0.1
#: Seconds between two attempts to start a daemon.
_START_S = 30.0

#: A call: its number, what it is, its operation and fields, the seconds that it may take, and further details by name.
Call = tuple[int, str, str, Mapping[str, Any], "float | None", Mapping[str, Any]]
#: An answer: the call's number, its reply or error, and the contents of its memory files.
Answered = tuple[int, "Reply | DaemonError | dict[str, Any]", list[bytes]]


class Begun:
    """Waits until a call's job can be asked about, and passes requests about it on: for the functions that it calls."""

    def __init__(self) -> None:
        self._ask: asyncio.Future[tuple[Ask, int]] = asyncio.get_running_loop().create_future()

    def begin(self, ask: Ask, number: int) -> None:
        if not self._ask.done():
            self._ask.set_result((ask, number))

    async def beside(self, op: str, fields: Mapping[str, Any]) -> tuple[Reply, list[int]]:
        ask, number = await asyncio.shield(self._ask)
        return await ask(op, {**fields, "target": number})

    def end(self) -> None:
        self._ask.cancel()


class _Caller:
    """The calls and answers of one client of a fleet."""

    def __init__(self, client: NodeClient) -> None:
        self.client = client
        self.workers = 0  # of the daemon, once it was asked
        self.fetched = time.monotonic()
        self._answers: list[Answered] = []
        self._some = asyncio.Event()
        self._enough: asyncio.Event | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._jobs = 0  # under way
        self._begun: dict[int, Begun] = {}
        self._connections: dict[int, AsyncConnection] = {}  # of sessions, by the number of the call that opened each

    def begin(self, call: Call, make: Callable[[_Caller, Call], Any]) -> None:
        number = call[0]
        if call[5].get("functions"):
            self._begun[number] = Begun()
        task = asyncio.get_running_loop().create_task(self._make(call, make))
        self._tasks[number] = task

    async def _make(self, call: Call, make: Callable[[_Caller, Call], Any]) -> None:
        number, job = call[0], call[2] == "execute"
        self._jobs += job
        answer: Reply | DaemonError | dict[str, Any]
        contents: list[bytes] = []
        try:
            answer, descriptors = await make(self, call)
            contents = [_content(fd) for fd in descriptors]
        except Exception as error:  # each call has an answer
            answer = _portable(error)
        finally:
            self._jobs -= job
            self._tasks.pop(number, None)
            begun = self._begun.pop(number, None)
            if begun is not None:
                begun.end()
        self._answers.append((number, answer, contents))
        self._some.set()
        if self._enough is not None and len(self._answers) >= self._jobs:
            self._enough.set()

    async def made(self, call: Call) -> tuple[Any, list[int]]:
        """Make a call of the wire."""
        number, kind, op, fields, seconds, more = call
        begun = self._begun.get(number)
        if kind == "beside":
            target = self._begun.get(int(more["target"]))
            if target is None:
                raise DaemonAway("the job has ended")
            return await target.beside(op, fields)
        if kind == "session":
            connection = self._connections.get(int(more["session"]))
            if connection is None:
                raise DaemonAway("the session's connection is closed")
            if op == "session_close":
                self._connections.pop(int(more["session"]))
            ask = connection.turn if more.get("turn") else connection.call
            return await ask(op, fields, begun)  # type: ignore[arg-type]  # Begun has the two calls that are used
        if op == "session_open":
            until = None if seconds is None else time.monotonic() + seconds
            answer, self._connections[number] = await self.client.ask_within(op, fields, until, more.get("packages", ()))
            return answer
        packages = more.get("packages", ())
        reply, descriptors = await self.client.ask(op, fields, seconds, begun, packages)  # type: ignore[arg-type]
        return reply, descriptors

    def cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def fetch(self) -> list[Answered]:
        self.fetched = time.monotonic()
        await _until(self._some, FETCH_S)
        if self._answers and len(self._answers) < self._jobs:
            self._enough = asyncio.Event()
            await _until(self._enough, CROWDED_S if 0 < CROWD * self.workers <= self._jobs else MORE_S)
            self._enough = None
        size = count = 0
        while count < min(MOST, len(self._answers)) and size < MOST_BYTES:
            size += sum(map(len, self._answers[count][2]))
            count += 1
        taken, self._answers = self._answers[:count], self._answers[count:]
        if not self._answers:
            self._some.clear()
        self.fetched = time.monotonic()
        return taken

    async def close(self) -> None:
        self._some.set()
        for task in tuple(self._tasks.values()):
            task.cancel()
        await self.client.close()


class Carrier:
    """What a node does for the clients of a fleet. *socket* is its daemon's; by default as for Client."""

    def __init__(self, socket: str | None = None) -> None:
        self._socket = socket
        self._callers: dict[str, _Caller] = {}
        self._drained_at: float | None = None
        self._tried = float("-inf")
        self._watch: asyncio.Task[None] | None = None

    def submit(self, caller: str, calls: list[Call]) -> None:
        """Begin *calls*, whose answers `fetch` brings."""
        one = self._caller(caller)
        for call in calls:
            if call[1] == "cancel":
                one.cancel(call[0])
            else:
                one.begin(call, self._make)

    async def fetch(self, caller: str) -> list[Answered]:
        """The answers that have come for *caller*; waits FETCH_S for the first one."""
        return await self._caller(caller).fetch()

    def _caller(self, name: str) -> _Caller:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._let_go())
        if name not in self._callers:
            self._callers[name] = _Caller(NodeClient(self._socket))
        return self._callers[name]

    async def _make(self, caller: _Caller, call: Call) -> tuple[Any, list[int]]:
        _, kind, _, fields, seconds, _ = call
        if kind == "state":
            state = await self._state(caller.client, seconds or FETCH_S)
            caller.workers = state["capacity"]
            return state, []
        if kind == "drain":
            self._drained_at = time.monotonic() + float(fields["seconds"]) if fields["seconds"] else None
            return {}, []
        return await caller.made(call)

    async def _state(self, client: NodeClient, seconds: float) -> dict[str, Any]:
        try:
            state = await client.state(seconds)
        except DaemonAway:
            if time.monotonic() < self._tried + _START_S:
                raise
            self._tried = time.monotonic()
            if not await asyncio.to_thread(started, client.socket, "execute"):
                raise
            state = await client.state(seconds)
        if self._drained_at is not None:
            state["drains"] = max(0.0, self._drained_at - time.monotonic())
        return state

    async def close(self, caller: str) -> None:
        """*caller* makes no more calls."""
        one = self._callers.pop(caller, None)
        if one is not None:
            await one.close()

    async def _let_go(self) -> None:
        while True:
            await asyncio.sleep(CALLER_S / 3)
            for name in [name for name, one in self._callers.items() if time.monotonic() - one.fetched > CALLER_S]:
                await self.close(name)


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _content(fd: int) -> bytes:
    """What is in a memory file, which is closed."""
    with OwnedFd(fd):
        size, read = os.fstat(fd).st_size, b""
        while len(read) < size:
            piece = os.pread(fd, size - len(read), len(read))
            if not piece:
                break
            read += piece
        return read


def _portable(error: Exception) -> DaemonError:
    """*error*, or one with its text that another process can read."""
    if isinstance(error, DaemonError):
        try:
            pickle.loads(pickle.dumps(error))
            return error
        except TypeError:
            pass
    refused = Refused(told(error))
    refused.may_have_run = getattr(error, "may_have_run", False)
    return refused

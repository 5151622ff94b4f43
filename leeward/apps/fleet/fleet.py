"""
A fleet for blocking programs.

Runs in:   a client's process; the asyncio fleet in an event loop, in a thread of its own.

A fleet watches its nodes while its program does something else, and has many jobs under way for one caller. So this isn't
made from the asyncio source by replacing words, as the client is: each call waits for the other shape's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from leeward.apps.fleet.addresses import Nodes
from leeward.apps.fleet.aio_fleet import DRAIN_S, AsyncFleet
from leeward.apps.fleet.aio_open import NO_FOLDERS, AsyncFleetSession, Connections
from leeward.apps.fleet.moving import moved_state
from leeward.base.closing import Closing
from leeward.client import sandbox_calls
from leeward.client.loop_thread import LoopThread
from leeward.client.many import MapJob, MapJobs
from leeward.client.options import Options, SessionOptions, TurnOptions, arrivals_of, arrived, awaited_by
from leeward.client.sandbox import Sandbox
from leeward.client.sandbox_calls import CodeOptions, OpenOptions
from leeward.errors import DaemonError, RequestRejected
from leeward.spec.outcome import Result

if TYPE_CHECKING:
    from leeward.client.conversation import Answer
    from leeward.client.ports import Published
    from leeward.client.process import Kernel
    from leeward.wire.replies import Reply

T = TypeVar("T")


class _FleetLoop(LoopThread):
    """A loop whose callers are told why they can't wait for it."""

    def __init__(self) -> None:
        super().__init__("leeward fleet")
        self._pid = os.getpid()

    def result(self, what: Coroutine[Any, Any, T]) -> T:
        unable = self._unable()
        if unable:
            what.close()
            raise RequestRejected(unable)
        return super().result(what)

    def _unable(self) -> str:
        if self.is_closed:
            return "this fleet was closed"
        if os.getpid() != self._pid:
            return "this fleet is the parent process's; after a fork the child needs one of its own"
        if self.is_here:
            return "a function that is told what arrives can't wait for the fleet, which waits for it"
        return ""


class Fleet(Closing):
    """
    Runs code in the sandboxes of several daemons.

        with leeward.fleet.connect(["unix:/run/a.sock", "unix:/run/b.sock"]) as fleet:
            print(fleet.execute("print(6 * 7)").text)

    Threads may share it. AsyncFleet describes the calls. Functions that jobs call, and those that are told what arrives,
    run in other threads than the caller's; of these only functions of jobs may use the fleet. After a fork the child
    needs a fleet of its own.

    Args:
        nodes: as for AsyncFleet.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._fleet = AsyncFleet(nodes)
        self._loop = _FleetLoop()

    def execute(self, code: str | bytes | None = None, *, deadline: float | None = None, idempotent: bool = False,
                tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                **options: Unpack[Options]) -> Result:
        """As AsyncFleet.execute."""
        return self._loop.result(self._fleet.execute(code, deadline=deadline, idempotent=idempotent, tags=tags,
                                                  resources=resources, **options))

    def execute_many(self, jobs: MapJobs, *, in_order: bool = False,
                     on_progress: Callable[[int], object] | None = None,
                     **common: Any) -> Iterator[tuple[int, Result | DaemonError]]:
        """As AsyncFleet.execute_many. *jobs* is read in another thread, if it isn't a list or tuple."""
        given = jobs if isinstance(jobs, (list, tuple)) else _read_in_thread(jobs)
        answers = self._fleet.execute_many(given, in_order=in_order, on_progress=on_progress, **common)
        try:
            while True:
                yield self._loop.result(_next(answers))
        except StopAsyncIteration:
            return
        finally:
            with contextlib.suppress(RequestRejected):  # the fleet was closed before
                self._loop.result(_closed(answers))

    def sandbox(self, *, tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                on_drain: Callable[[float], object] | None = None, **options: Unpack[OpenOptions]) -> FleetSandbox:
        """As AsyncFleet.sandbox, with the calls of Sandbox. *on_drain* is called in a thread of its own."""
        def tell(seconds: float) -> None:
            assert on_drain is not None
            threading.Thread(target=on_drain, args=(seconds,), name="leeward drain", daemon=True).start()

        box = self._fleet.sandbox(tags=tags, resources=resources, on_drain=None if on_drain is None else tell, **options)
        return FleetSandbox(self._loop, box._connections, options)

    def attach(self, sandbox: str) -> FleetSandbox:
        """As AsyncFleet.attach."""
        box = self._loop.result(self._fleet.attach(sandbox))
        return FleetSandbox(self._loop, box._connections, {}, box._id)

    def move(self, kernel: Kernel, to: FleetSandbox) -> Kernel:
        """As AsyncFleet.move."""
        box = kernel._sandbox
        assert isinstance(box, FleetSandbox)
        name = self._loop.result(moved_state(box._connections.inner, to._opened_connections(), box._named(), kernel.number))
        try:
            made = to.kernel(snapshot=name, same_random=True)
        finally:
            to._connections.call("snapshot_remove", {"snapshot": name})
        kernel.close()
        return made

    @contextlib.contextmanager
    def session(self, *, tags: Iterable[str] = (), resources: Mapping[str, float] | None = None,
                deadline: float | None = None, **options: Unpack[SessionOptions]) -> Iterator[FleetSession]:
        """As AsyncFleet.session."""
        opening = self._fleet.session(tags=tags, resources=resources, deadline=deadline, **options)
        session = self._loop.result(opening.__aenter__())
        try:
            yield FleetSession(self._loop, session)
        finally:
            self._loop.result(opening.__aexit__(None, None, None))

    def status(self) -> dict[str, Any]:
        """As AsyncFleet.status."""
        return self._loop.result(self._fleet.status())

    def drain(self, node: str, seconds: float = DRAIN_S) -> int:
        """As AsyncFleet.drain."""
        return self._loop.result(self._fleet.drain(node, seconds))

    def begin_drain(self, node: str, seconds: float = DRAIN_S) -> None:
        """As AsyncFleet.begin_drain."""
        self._loop.result(self._fleet.begin_drain(node, seconds))

    def undrain(self, node: str) -> None:
        """As AsyncFleet.undrain."""
        self._loop.result(self._fleet.undrain(node))

    def prefetch(self, packages: Iterable[str], timeout: float = 600.0) -> dict[str, str]:
        """As AsyncFleet.prefetch."""
        return self._loop.result(self._fleet.prefetch(packages, timeout))

    def check(self, timeout: float = 30.0) -> dict[str, str]:
        """As AsyncFleet.check."""
        return self._loop.result(self._fleet.check(timeout))

    def close(self) -> None:
        """As AsyncFleet.close. Calls in other threads that wait raise CancelledError."""
        if not self._loop.is_closed:
            self._loop.result(self._fleet.close())
            self._loop.close()


async def _next(answers: AsyncGenerator[T, None]) -> T:
    return await anext(answers)


async def _closed(answers: AsyncGenerator[Any, None]) -> None:
    await answers.aclose()


async def _read_in_thread(jobs: MapJobs) -> AsyncIterator[MapJob]:
    """*jobs*, which may take its time, and may use the fleet."""
    source = iter(jobs)
    while (job := await asyncio.to_thread(next, source, None)) is not None:
        yield job


class _Bridged:
    """The calls of FreeConnections that a sandbox of a fleet makes, by those of `Connections` in the loop."""

    def __init__(self, loop: _FleetLoop, connections: Connections) -> None:
        self._loop, self._connections = loop, connections

    @property
    def inner(self) -> Connections:
        """The calls in the loop."""
        return self._connections

    @property
    def socket(self) -> str:
        return self._connections.socket

    @property
    def where(self) -> str:
        """The socket of its daemon, which is open; RequestRejected if that isn't reached by one."""
        assert self._connections.opened is not None
        return self._connections.opened.member.client.where

    @property
    def is_open(self) -> bool:
        return self._connections.opened is not None

    def call(self, op: str, fields: Mapping[str, Any], seconds: float | None = None, functions: Any = None) -> Answer:
        return self._loop.result(self._connections.call(op, fields, seconds, functions))

    def call_lasting(self, op: str, fields: Mapping[str, Any]) -> Answer:
        return self._loop.result(self._connections.call_lasting(op, fields))

    def open(self, fields: Mapping[str, Any]) -> Answer:
        return self._loop.result(self._connections.open(fields))

    def close(self) -> None:
        self._loop.result(self._connections.close())


class FleetSandbox(Sandbox):
    """A sandbox on one of a fleet's nodes: `Fleet.sandbox` makes it. Sandbox describes the calls."""

    _connections: _Bridged  # type: ignore[assignment]  # it has the calls that are used

    def __init__(self, loop: _FleetLoop, connections: Connections, options: OpenOptions, number: str = "") -> None:
        super().__init__(**options)
        self._connections = _Bridged(loop, connections)
        self._packages = ()  # the node's client sees to them
        self._id = number

    @property
    def id(self) -> str:
        """The sandbox's id in the fleet, after its node's name; for `Fleet.attach`. The first use opens it."""
        number = self._named()
        return f"{self._connections.socket}/{number}"

    def _opened_connections(self) -> Connections:
        """Its calls in the loop, once it is open."""
        self._named()
        return self._connections.inner

    def detach(self) -> str:
        """Let the sandbox run on; returns its id, for `Fleet.attach`."""
        found = self.id
        self._connections.close()
        return found

    @property
    def node(self) -> str:
        """The name of its node; "" before it was opened."""
        return self._connections.socket if self._connections.is_open else ""

    def publish(self, port: int, host_port: int = 0) -> Published:
        """As Sandbox.publish, on this host, wherever the node is; RequestRejected on Ray."""
        from leeward.client.ports import Published  # most programs don't need it

        number = self._named()
        return Published(number, self._connections.where, port, host_port)

    def _opened(self, fields: Mapping[str, Any]) -> Reply:
        if self._mounts:
            raise RequestRejected(NO_FOLDERS)
        return self._connections.open(fields)[0]

    def _execute(self, kernel: int, code: str | bytes, options: CodeOptions | TurnOptions,
                 seconds: float | None = None) -> Result:
        fields = {"sandbox": self._named(), **sandbox_calls.code_fields(code, options)}
        fields |= {"kernel": kernel} if kernel else {}
        arrivals = arrivals_of(options)
        served = awaited_by(options, arrivals)
        return arrived(sandbox_calls.result(self._connections.call("sandbox_execute", fields, seconds, served)), arrivals)


class FleetSession:
    """A session on one of a fleet's nodes: `Fleet.session` opens it. Session describes the calls."""

    def __init__(self, loop: _FleetLoop, session: AsyncFleetSession) -> None:
        self._loop, self._session = loop, session

    @property
    def node(self) -> str:
        """The name of its node."""
        return self._session.node

    def execute(self, code: str | bytes, *, deadline: float | None = None, **options: Unpack[TurnOptions]) -> Result:
        """As Session.execute."""
        return self._loop.result(self._session.execute(code, deadline=deadline, **options))

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the running job, from another thread; returns whether one was running."""
        return self._loop.result(self._session.interrupt())

    def reset(self, deadline: float | None = None) -> None:
        """As Session.reset."""
        self._loop.result(self._session.reset(deadline))

    def close(self) -> None:
        """End the session."""
        self._loop.result(self._session.close())

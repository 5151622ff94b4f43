"""
Processes of one sandbox: one reader of each, any number of listeners.

Why:       what one reader of a process's output has taken no other one gets. So there is one task for each process, and
           listeners have queues.
Bounds:    a listener that takes nothing for SLOW_S seconds while its queue is full is left behind; until then the
           process waits in its write, as on a pipe. Without a listener output is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leeward.apps.serve.problems import ServeProblem, for_caller, missing
from leeward.client.aio_process import AsyncProcess
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import DaemonError, SandboxOver, told
from leeward.spec.outcome import EXIT_SIGNAL_BASE, Outcome, Result

#: Bytes that wait for one listener, at most; seconds after which one that takes nothing is left behind.
MOST_WAITING, SLOW_S = 1 << 20, 30.0

#: How a signal is told.
_SIGNALS = {1: "hangup", 2: "interrupt", 3: "quit", 6: "aborted", 9: "killed", 11: "segmentation fault", 13: "broken pipe",
            14: "alarm clock", 15: "terminated"}

#: ("stdout" or "stderr", bytes), or how it ended.
Said = tuple[str, bytes] | Result | ServeProblem


class ProcessListener:
    """A queue of what a process says."""

    def __init__(self) -> None:
        self._items: deque[Said] = deque()
        self._size = 0
        self._moved = asyncio.Event()
        self.left_behind = False

    async def put(self, item: Said) -> None:
        size = len(item[1]) if isinstance(item, tuple) else 0
        while size and self._size + size > MOST_WAITING and not self.left_behind:
            self._moved.clear()
            try:
                async with asyncio.timeout(SLOW_S):
                    await self._moved.wait()
            except TimeoutError:
                self.left_behind = True
                self._items.clear()
                item, size = ServeProblem(429, "this stream was read too slowly"), 0
        self._items.append(item)
        self._size += size
        self._moved.set()

    async def get(self, seconds: float | None) -> Said | None:
        """The next item; None if there is none within *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                while not self._items:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return None
        item = self._items.popleft()
        self._size -= len(item[1]) if isinstance(item, tuple) else 0
        self._moved.set()
        return item


@dataclass(slots=True)
class FollowedProcess:
    """A process that is read."""

    process: AsyncProcess
    pid: int
    config: dict[str, Any]
    tag: str = ""
    is_terminal: bool = False
    listeners: set[ProcessListener] = field(default_factory=set)
    reader: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    is_late: bool = False

    @contextmanager
    def listening(self) -> Iterator[ProcessListener]:
        listener = ProcessListener()
        self.listeners.add(listener)
        try:
            yield listener
        finally:
            self.listeners.discard(listener)
            listener.left_behind = True
            listener._moved.set()

    async def tell(self, item: Said) -> None:
        for listener in tuple(self.listeners):
            await listener.put(item)
            if listener.left_behind:
                self.listeners.discard(listener)


class ProcessTable:
    """The processes of a sandbox that this process reads."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box
        self._served: dict[int, FollowedProcess] = {}  # by pid
        self._attaching = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        return bool(self._served)

    def close(self) -> None:
        """Read none any more; they go on."""
        for each in self._served.values():
            if each.reader is not None:
                each.reader.cancel()
            if each.timer is not None:
                each.timer.cancel()
        self._served.clear()

    async def add(self, process: AsyncProcess, config: dict[str, Any], tag: str, is_terminal: bool,
                  seconds: float | None) -> FollowedProcess:
        """
        Serve a process that was started just now; nothing is read before the first listener is there, so call `begin`.
        ServeProblem if it couldn't be started.
        """
        pid = await process.pid()
        if pid == 0:
            result = await process.result()
            raise ServeProblem(400, "the program couldn't be started: its folder or file doesn't exist, or can't be run"
                               if result.exit_code in (126, 127) else "the program couldn't be started")
        served = FollowedProcess(process, pid, config, tag, is_terminal)
        self._served[pid] = served
        if seconds:
            served.timer = asyncio.get_running_loop().call_later(seconds, self._end_late, served)
        return served

    def begin(self, served: FollowedProcess) -> asyncio.Task[None]:
        """Read its output from now on; returns the task that does, which is done when the process has ended."""
        if served.reader is None:
            served.reader = asyncio.ensure_future(self._read(served))
        return served.reader

    def _end_late(self, served: FollowedProcess) -> None:
        served.is_late = True
        task = asyncio.ensure_future(served.process.kill())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may have ended

    async def _read(self, served: FollowedProcess) -> None:
        try:
            async for chunk in served.process:
                await served.tell((chunk.stream, chunk.data))
            result = await served.process.wait()
            assert result is not None
            await served.tell(ServeProblem(504, "the time of this call is over") if served.is_late else result)
        except SandboxOver:
            await served.tell(ServeProblem(503, "the sandbox was killed or reached its end of life"))
        except DaemonError as error:
            await served.tell(ServeProblem(503, told(for_caller(error))))
        finally:
            if served.timer is not None:
                served.timer.cancel()
            self._served.pop(served.pid, None)

    async def find(self, pid: int, tag: str = "") -> FollowedProcess:
        """The process with this pid or tag, whoever has started it; ServeProblem 404 if there is none, or it has ended."""
        if tag:
            found = next((each for each in self._served.values() if each.tag == tag), None)
            if found is None:
                raise missing("there is no process with this tag")
            return found
        async with self._attaching:
            found = self._served.get(pid)
            if found is None:
                rows = [row for row in await self._box.processes() if row.get("pid") == pid and not row.get("over")]
                if not rows or not pid:
                    raise missing("there is no process with this pid")
                row = rows[0]
                argv = list(row.get("argv") or [""])
                found = FollowedProcess(AsyncProcess(self._box, row["process"]), pid, {"cmd": argv[0], "args": argv[1:]},
                               is_terminal=bool(row.get("terminal")))
                self._served[pid] = found
            return found

    async def rows(self) -> list[dict[str, Any]]:
        """Those that run, for E2B's list."""
        found = list[dict[str, Any]]()
        for row in await self._box.processes():
            if not row.get("over") and row.get("pid"):
                served = self._served.get(row["pid"])
                argv = list(row.get("argv") or [""])
                config = {"cmd": argv[0], "args": argv[1:]} if served is None else served.config
                found.append({"config": config, "pid": row["pid"], **({"tag": served.tag} if served and served.tag else {})})
        return found


def end_event(result: Result) -> dict[str, Any]:
    """How a process ended, as E2B tells it."""
    if result.outcome in (Outcome.FINISHED, Outcome.RAISED):
        status = f"exit status {result.exit_code}"
        return {"exitCode": result.exit_code, "exited": True, "status": status,
                **({"error": status} if result.exit_code else {})}
    number = result.exit_code - EXIT_SIGNAL_BASE if result.outcome is Outcome.SIGNALLED else 9
    status = f"signal: {_SIGNALS.get(number, number)}"
    return {"exitCode": -1, "exited": False, "status": status, "error": result.hint or status}


async def said_by(served: FollowedProcess, listener: ProcessListener,
                  keepalive_s: float | None) -> AsyncIterator[dict[str, Any]]:
    """The events of a process for one listener, until its end; ServeProblem if it can't be followed to its end."""
    while True:
        item = await listener.get(keepalive_s)
        if item is None:
            yield {"keepalive": {}}
        elif isinstance(item, ServeProblem):
            raise item
        elif isinstance(item, Result):
            yield {"end": end_event(item)}
            return
        else:
            stream, data = item
            yield {"data": {"pty" if served.is_terminal else stream: data}}

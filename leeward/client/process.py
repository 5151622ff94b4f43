"""
A process and a kernel of a live sandbox, blocking.

Runs in:   anybody's program.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from leeward.client.options import TurnOptions
from leeward.client.sandbox_calls import (
    CLOSE_S,
    READ_S,
    SOON_S,
    Chunk,
    Collected,
    OnData,
    checked,
    chunks_of,
    ended_of,
    pieces,
)
from leeward.errors import DaemonError, ProcessOver
from leeward.outcome import Result
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import flag, whole

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox


class Process:
    """
    A process of a sandbox. Made by `Sandbox.start`; `Sandbox.process` finds it again, from another program as well.

    It lives until it ends by itself, is killed, or the sandbox is over. While nobody reads its output it can write
    some 128 KiB, and then waits.

    Attributes:
        number: under which the sandbox knows it.
    """

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox, self.number = sandbox, number
        self._after = 0
        self._at_end = False
        self._reading = threading.Lock()

    def _ask(self, op: str, deadline: float | None = None, **fields: Any) -> Reply:
        return self._sandbox.ask(op, {"process": self.number, **fields}, deadline)

    @property
    def pid(self) -> int:
        """
        Its number inside the sandbox; 0 for one that couldn't be started. Waits until it is started.
        """
        pause = SOON_S
        while True:
            row = self._row()
            pid = row.get("pid")
            if (type(pid) is int and pid > 0) or row.get("over"):
                return pid if type(pid) is int else 0
            time.sleep(pause)
            pause *= 2

    def _row(self) -> Mapping[str, Any]:
        for row in self._sandbox.processes():
            if row.get("process") == self.number:
                return row
        raise ProcessOver(f"the sandbox has no process {self.number} any more")

    def read(self, timeout: float | None = None) -> list[Chunk]:
        """
        The next output, as soon as there is any.

        Args:
            timeout: seconds to wait for it. None is until there is some; 0 takes what is there.

        Returns:
            Chunks in order; none where the time has passed, or when the process has ended and all was read.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            while not self._at_end:
                left = READ_S if until is None else max(0.0, min(READ_S, until - time.monotonic()))
                reply = self._ask("process_read", after=self._after, wait=left)
                found, self._at_end = chunks_of(reply)
                if found:
                    self._after = found[-1].number
                    return found
                if until is not None and time.monotonic() >= until:
                    break
        return []

    def __iter__(self) -> Iterator[Chunk]:
        """
        Chunks of output until the process has ended.
        """
        while found := self.read():
            yield from found

    def write(self, data: bytes | str) -> int:
        """
        Write to its standard input, which was opened by `start(..., stdin=None)`; waits until the process's pipe has
        taken all.

        Returns:
            How many bytes were taken.

        Raises:
            BrokenPipeError: the process has closed its standard input, or has ended.
        """
        taken = 0
        for piece in pieces(data):
            count = checked(whole, self._ask("process_write", data=piece), "written")
            taken += count
            if count < len(piece):
                raise BrokenPipeError(f"process {self.number} reads no more: {taken} bytes were taken")
        return taken

    def close_stdin(self) -> None:
        """
        End its standard input.
        """
        self._ask("process_write", end=True)

    def signal(self, number: int = signal.SIGTERM) -> bool:
        """
        Send it a signal; it alone, not its children.

        Returns:
            Whether it was there to get it.
        """
        return checked(flag, self._ask("process_signal", signal=int(number)), "sent")

    def resize(self, rows: int, columns: int) -> bool:
        """
        Give its terminal another size; what is in the foreground gets SIGWINCH.

        Args:
            rows: from 1 to 65,535.
            columns: the same.

        Returns:
            Whether it was there to get it.

        Raises:
            RequestRejected: it is on no terminal.
        """
        return checked(flag, self._ask("process_resize", rows=rows, columns=columns), "resized")

    def kill(self) -> None:
        """
        End it and all that descends from it. Its last output and its end can be asked for afterwards.
        """
        self._ask("process_kill")

    def wait(self, timeout: float | None = None) -> Result | None:
        """
        Wait for its end. It can only end if somebody reads what it writes.

        Args:
            timeout: seconds to wait. None is as long as it runs.

        Returns:
            How it ended, without its output, which `read` gives; None where the time has passed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = READ_S if until is None else max(0.0, min(READ_S, until - time.monotonic()))
            result = ended_of(self._ask("process_wait", wait=left))
            if result is not None or (until is not None and time.monotonic() >= until):
                return result

    def result(self, on_stdout: OnData | None = None, on_stderr: OnData | None = None) -> Result:
        """
        Read all of its output that nobody has read yet, and wait for its end.

        Args:
            on_stdout: called with each piece of standard output as it comes.
            on_stderr: the same, of standard error.
        """
        collected = Collected(on_stdout, on_stderr)
        for chunk in self:
            collected.take(chunk)
        while True:
            result = ended_of(self._ask("process_wait", wait=READ_S), *collected.streams)
            if result is not None:
                return result

    def __repr__(self) -> str:
        return f"<Process {self.number} of {self._sandbox!r}>"


class Kernel:
    """
    A Python in a sandbox that keeps its state: variables, imports, threads. Made by `Sandbox.kernel`.

    Requests from several threads run one after the other, in the order in which they came.

    Attributes:
        number: under which the sandbox knows it.
    """

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox, self.number = sandbox, number

    def execute(self, code: str | bytes, **options: Unpack[TurnOptions]) -> Result:
        """
        Run code, and wait for its result. It sees what earlier code left.

        Takes the options of Session.execute, except `deadline`; `display` is on unless it is False. When a limit on
        time or output ends it, the state is lost.

        Raises:
            SessionOver: the kernel's process has ended, and the state is lost; `reset` starts a fresh one.
            SandboxOver: the sandbox has ended.
            Busy: 64 requests wait for it already.
            DaemonError: as for Client.execute. When the connection is lost while the code runs, so is the state.
        """
        return self._sandbox._execute(self.number, code, {"display": True, **options})

    def interrupt(self) -> bool:
        """
        Raise KeyboardInterrupt in what runs; call it from another thread.

        Returns:
            Whether something was running.
        """
        return checked(flag, self._sandbox.ask("kernel_interrupt", {"kernel": self.number}), "interrupted")

    def reset(self) -> None:
        """
        Replace the process by a fresh one; the state is lost. Who waits for a result gets SessionOver.
        """
        self._sandbox.ask("kernel_reset", {"kernel": self.number})

    def fork(self) -> Kernel:
        """
        A second kernel with the state that this one has once it has done what was asked of it before: a branch. From
        then on each has its own. Threads aren't in it. They aren't guarded from each other, and share files, limits,
        and the offsets of files that are open.

        Raises:
            SessionOver: the kernel's process has ended.
            SandboxOver, Busy, DaemonError: as for `Sandbox.kernel`.
        """
        return Kernel(self._sandbox, checked(whole, self._sandbox.ask("kernel_fork", {"kernel": self.number}), "kernel",
                                             1))

    def close(self) -> None:
        """
        End it.
        """
        try:
            self._sandbox.ask("kernel_close", {"kernel": self.number}, time.monotonic() + CLOSE_S)
        except DaemonError:
            pass  # it is over, or goes with its sandbox

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

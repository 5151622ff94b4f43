# Made by ./dev generate
"""A process and a kernel of a live sandbox, for blocking programs."""

from __future__ import annotations

import time

# Not `signal`, which builds enumerations: 1 ms.
from _signal import SIGTERM  # type: ignore[import-not-found]
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from leeward.base.closing import Closing
from leeward.client import sandbox_calls
from leeward.client.conversation import checked
from leeward.client.options import TurnOptions
from leeward.client.sandbox_calls import CLOSE_S, READ_S, SOON_S, Chunk, ChunkReader, Collected, OnData
from leeward.client.snapshot import Snapshot
from leeward.client.waiting import Lock, sleep
from leeward.errors import DaemonError, ProcessOver
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import flag, snapshot_facts, whole

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox
    from leeward.spec.outcome import Result


class Process:
    """
    A process of a sandbox: `Sandbox.start` starts one; `Sandbox.process` returns one by its number, also in
    another program. It runs until it ends by itself, is killed, or the sandbox ends. Its output is buffered up to some
    128 KiB; then its writes block until a client reads. Each object, in this program or another one, reads all output
    from its first `read` on, and the process waits for the slowest, unless that one doesn't read for 10 seconds. Calls
    raise ProcessOver when the sandbox doesn't list it any more.

    Attributes:
        number: the process's number in its sandbox.
    """

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox, self.number = sandbox, number
        self._chunks = ChunkReader()
        self._reading = Lock()

    def _ask(self, op: str, **fields: Any) -> Reply:
        return self._sandbox.ask(op, {"process": self.number, **fields})

    @property
    def pid(self) -> int:
        """The process's pid inside the sandbox; 0 if it couldn't be started. Waits until it is started."""
        pause = SOON_S
        while True:
            row = self.row()
            pid = row.get("pid")
            if (type(pid) is int and pid > 0) or row.get("over"):
                return pid if type(pid) is int else 0
            sleep(pause)
            pause *= 2

    def row(self) -> Mapping[str, Any]:
        """The process's row in `Sandbox.processes`."""
        for row in self._sandbox.processes():
            if row.get("process") == self.number:
                return row
        raise ProcessOver(f"the sandbox has no process {self.number} any more")

    def read(self, timeout: float | None = None) -> list[Chunk]:
        """
        Wait for the next output, and return it: chunks in order; [] after *timeout* seconds (None waits without end, 0
        returns at once), or when the process has ended and all output was read.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            while not self._chunks.at_end:
                left = READ_S if until is None else max(0.0, min(READ_S, until - time.monotonic()))
                found = self._chunks.take(self._ask("process_read", after=self._chunks.after,
                                                    reader=self._chunks.number, wait=left))
                if found:
                    return found
                if until is not None and time.monotonic() >= until:
                    break
        return []

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks of output until the process has ended."""
        while found := self.read():
            yield from found

    def write(self, data: bytes | str) -> int:
        """
        Write to the process's standard input, which `start(..., stdin=None)` has left open, and return the number of
        bytes. Waits until all of *data* is in the process's pipe; BrokenPipeError if the process has closed it, or has
        ended.
        """
        taken = 0
        for piece in sandbox_calls.pieces(data):
            count = checked(whole, self._ask("process_write", data=piece), "written")
            taken += count
            if count < len(piece):
                raise BrokenPipeError(f"process {self.number} reads no more: {taken} bytes were taken")
        return taken

    def close_stdin(self) -> None:
        """Close the process's standard input: the process reads the end of the file."""
        self._ask("process_write", end=True)

    def signal(self, number: int = SIGTERM) -> bool:
        """Send a signal to the process, not to its children; returns False if it had ended."""
        return checked(flag, self._ask("process_signal", signal=int(number)), "sent")

    def resize(self, rows: int, columns: int) -> bool:
        """
        Change the size of the process's terminal, each number from 1 to 65,535; the foreground process group gets
        SIGWINCH. Returns False if the process had ended; RequestRejected if it has no terminal.
        """
        return checked(flag, self._ask("process_resize", rows=rows, columns=columns), "resized")

    def kill(self) -> None:
        """Kill the process and all its descendants. `read`, `wait` and `result` can still be called afterwards."""
        self._ask("process_kill")

    def wait(self, timeout: float | None = None) -> Result | None:
        """
        Wait for the end of the process, which needs a reader of its output if that is long. Returns how it ended,
        without its output; None after *timeout* seconds (None waits without end).
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = READ_S if until is None else max(0.0, min(READ_S, until - time.monotonic()))
            result = self._ended(left)
            if result is not None or (until is not None and time.monotonic() >= until):
                return result

    def _ended(self, seconds: float, *streams: bytes) -> Result | None:
        """How the process ended, with the output in *streams*; None if it runs on for so long."""
        return sandbox_calls.ended_of(self._chunks.end or self._ask("process_wait", wait=seconds), *streams)

    def result(self, on_stdout: OnData | None = None, on_stderr: OnData | None = None) -> Result:
        """
        Read all output that wasn't read yet, wait for the end of the process, and return how it ended, with that
        output. The functions are called with each piece of standard output or standard error as it arrives.
        """
        collected = Collected(on_stdout, on_stderr)
        for chunk in self:
            collected.take(chunk)
        while True:
            result = self._ended(READ_S, *collected.streams)
            if result is not None:
                return result

    def __repr__(self) -> str:
        return f"<Process {self.number} of {self._sandbox!r}>"


class Kernel(Closing):
    """
    A Python process in a sandbox that keeps its state: variables, imports, threads. `Sandbox.kernel` starts one.
    Requests from several threads run one after the other, in the order in which they arrive.

    Attributes:
        number: the kernel's number in its sandbox.
    """

    def __init__(self, sandbox: Sandbox, number: int) -> None:
        self._sandbox, self.number = sandbox, number
        self._owns = False  # the sandbox is its own

    def execute(self, code: str | bytes, **options: Unpack[TurnOptions]) -> Result:
        """
        Run code, and wait for its result. The code sees the state that earlier code left.

        Takes the options of Session.execute, except `deadline` and `label`; `display` is True by default. When a limit
        ends the code, or the connection is lost while it runs, the state is lost.

        Raises:
            SessionOver: the kernel's process has ended, and the state is lost; `reset` starts a fresh one.
            Busy: 64 requests wait for the kernel already.
            SandboxOver, DaemonError: as for `Sandbox.run`.
        """
        return self._sandbox._execute(self.number, code, {"display": True, **options})

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the code that runs; call it from another thread. Returns whether code was running."""
        return checked(flag, self._sandbox.ask("kernel_interrupt", {"kernel": self.number}), "interrupted")

    def reset(self) -> None:
        """Replace the kernel's process by a fresh one; the state is lost. Calls that wait for a result raise SessionOver."""
        self._sandbox.ask("kernel_reset", {"kernel": self.number})

    def fork(self, *, files: bool = False) -> Kernel:
        """
        Start a second kernel with a copy of this kernel's state, without its threads, after the requests that were made
        before; SessionOver if its process has ended. The two aren't protected from each other, and share files, limits,
        and the offsets of open files. With *files* it has a sandbox of its own, which `close` ends: a copy by
        `Sandbox.fork`, whose errors it raises.
        """
        if files:
            copy, = self._sandbox.fork(1, [self])
            kernel, = copy.kernels
            kernel._owns = True
            return kernel
        reply = self._sandbox.begin("kernel_fork", {"kernel": self.number})
        return Kernel(self._sandbox, checked(whole, reply, "kernel", 1))

    def snapshot(self) -> Snapshot:
        """
        Take the state that this kernel has after the requests that were made before, and which goes on.

        Raises:
            SnapshotFailed: it has what can't be taken, such as threads or children, by name; nothing has changed.
            Busy: the snapshots of this user would take more than the daemon's `snapshot_memory`.
        """
        reply = self._sandbox.ask("kernel_snapshot", {"kernel": self.number})
        return Snapshot(self._sandbox.socket, checked(snapshot_facts, reply))

    def rollback(self, snapshot: Snapshot | str, *, same_random: bool = False) -> None:
        """
        Give this kernel the state of *snapshot*, a snapshot or its `id`, after the requests that were made before; also
        when its own state is lost. With *same_random* random numbers go on from there, else `random` and others are seeded
        anew. SnapshotFailed if that can't be, and then the kernel goes on as it was.
        """
        fields = {"kernel": self.number, "snapshot": str(snapshot), **({"same_random": True} if same_random else {})}
        self._sandbox.ask("kernel_rollback", fields)

    def close(self) -> None:
        """End the kernel's process."""
        try:
            self._sandbox.ask("kernel_close", {"kernel": self.number}, CLOSE_S)
        except DaemonError:
            pass  # the kernel has ended, or ends with its sandbox
        if self._owns:
            self._sandbox.close()

"""
A sandbox that sleeps: its kernels' states and its files are kept by the daemon, and it has no process and no worker.

Theory of operation. It falls asleep if it has nothing but kernels at rest and files of its own: their states are taken one
after the other, as snapshots are, then a porter gives the files, then its processes end. Until then a failure leaves it as
it was. The first request about it wakes it, and is refused as busy for the milliseconds that this takes: a worker is had
as at the opening, a porter makes the files, and the kernels begin as copies, whose random numbers go on. A kernel that
can't begin again is lost, as it says; without its files the sandbox is over. What is kept counts as its user's snapshots.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward._native.memfd import memory_file
from leeward.base.protocols import Protocol
from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.run.dumping import Dump, KernelState, close_file
from leeward.daemon.run.verdict import bug
from leeward.daemon.sandboxes.copying import COPY_S
from leeward.errors import Busy, LeewardError, Refused, SnapshotFailed
from leeward.spec.job import Job

if TYPE_CHECKING:
    from leeward.daemon.sandboxes.sandbox import LiveSandbox

#: Bytes that are read of the files at a time, and that rows of them may take beyond their content.
_PIECE, _BESIDE = 1 << 20, 64 << 20


class Bed(Protocol):
    """What a sleeping sandbox needs of its desk."""

    def admit(self, size: int) -> None:
        """Count bytes that are kept; Busy if these are too many."""
    def give_back(self, size: int) -> None: ...
    def leave(self) -> None:
        """End the sandbox's processes, and give its worker back."""
    def enter(self, opened: Callable[[Any], None]) -> None:
        """Ask for a worker; *opened* gets its runner, or why there is none. Raises as the pool's `open_seat`."""
    def woken(self) -> None:
        """It is as it was."""


class Stage(enum.Enum):
    FALLING = "falling asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    OVER = "awake"


class Sleep:
    """
    *answered* is called once: with None when *sandbox* sleeps, or with why it can't; then it is as it was. RequestRejected
    at once if it has what can't sleep.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, sandbox: LiveSandbox, bed: Bed, answered: Callable[[Refused | None], None]) -> None:
        sandbox.check_rests()
        self._reactor, self._sandbox, self._bed = reactor, sandbox, bed
        self._answered: Callable[[Refused | None], None] | None = answered
        self.stage = Stage.FALLING
        self._states: dict[int, KernelState] = {}
        self._admitted = self._size = 0
        self._files = self._pipe = -1
        self._given = False
        self._dump: Dump | None = None
        self._cancel: Callable[[], None] = nothing
        self._waiting: set[int] = set()  # kernels that haven't begun again
        sandbox.held = True
        self._left = [number for number, kernel in sandbox.kernels.items() if kernel.lives]
        try:
            self._take_next()
        except BaseException:
            self._answered, sandbox.held = None, False
            self._let_go()
            raise

    # --- falling asleep -------------------------------------------------------------

    def _take_next(self) -> None:
        if not self._left:
            self._take_files()
            return
        number = self._left.pop(0)
        self._dump = Dump(self._reactor, self._admit, partial(self._taken, number))
        self._sandbox.kernels[number].snapshot(Job(code=b"", limits=self._sandbox.facts.limits), self._dump)

    def _admit(self, size: int) -> None:
        self._bed.admit(size)
        self._admitted += size

    def _taken(self, number: int, made: KernelState | SnapshotFailed) -> None:
        self._dump = None
        if isinstance(made, SnapshotFailed):
            self._stay(SnapshotFailed(f"kernel {number}: {made}"))
            return
        self._states[number] = made
        self._going_on(self._take_next)

    def _going_on(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (LeewardError, OSError) as error:
            self._stay(error if isinstance(error, Refused) else SnapshotFailed(str(error)))

    def _take_files(self) -> None:
        self._files = memory_file("leeward_files")
        self._pipe, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        try:
            self._cancel = self._sandbox.carry({"order": "give"}, [write], self._gave, COPY_S).cancel
        finally:
            os.close(write)
        self._reactor.watch(self._pipe, READ, self._read)

    def _read(self, _events: int) -> None:
        self._going_on(self._read_piece)

    def _read_piece(self) -> None:
        try:
            data = os.read(self._pipe, _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._close_pipe()
            self._check_files()
            return
        self._admit(len(data))
        self._size += len(data)
        if self._size > self._sandbox.facts.limits.files + _BESIDE:
            raise SnapshotFailed("its files are more than its folders hold")
        while data:
            data = data[os.write(self._files, data):]

    def _gave(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        self._cancel = nothing
        if isinstance(what, LeewardError):
            self._stay(SnapshotFailed(f"its files can't be read: {what}"))
            return
        self._given = True
        self._check_files()

    def _check_files(self) -> None:
        if self._given and self._pipe < 0 and self.stage is Stage.FALLING:
            self.stage = Stage.ASLEEP
            in_any_case(self._bed.leave, partial(self._answer, None))

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            in_any_case(partial(self._reactor.forget, pipe), partial(os.close, pipe))

    def _stay(self, why: Refused) -> None:
        """It can't sleep, and is as it was."""
        if self.stage is not Stage.FALLING:
            return
        self.stage, self._sandbox.held = Stage.OVER, False
        in_any_case(self._let_go, self._bed.woken, partial(self._answer, why))

    def _answer(self, why: Refused | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(why)

    def _let_go(self) -> None:
        """Free what is kept."""
        states, self._states = self._states, {}
        files, self._files = self._files, -1
        admitted, self._admitted = self._admitted, 0
        dump, self._dump = self._dump, None
        cancel, self._cancel = self._cancel, nothing
        in_any_case(cancel, self._close_pipe, *([] if dump is None else [dump.give_up]),
                    *(partial(close_file, state.fd, state.size) for state in states.values()),
                    *([partial(close_file, files, self._size)] if files >= 0 else []),
                    partial(self._bed.give_back, admitted))

    # --- waking -----------------------------------------------------------------------

    def wake(self) -> None:
        """Begin to wake the sandbox, if it sleeps; raises as `Bed.enter`."""
        if self.stage is Stage.ASLEEP:
            self.stage = Stage.WAKING
            try:
                self._bed.enter(self._entered)
            except LeewardError:
                self.stage = Stage.ASLEEP
                raise

    def _entered(self, what: Any) -> None:
        if isinstance(what, Refused):
            self.stage = Stage.ASLEEP  # until the next request
            return
        self._sandbox.place(what)
        try:
            os.lseek(self._files, 0, os.SEEK_SET)
            self._cancel = self._sandbox.carry({"order": "take"}, [self._files], self._made, COPY_S).cancel
        except (LeewardError, OSError) as error:
            self._sandbox.lost(f"it couldn't wake: {error}")

    def _made(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        self._cancel = nothing
        if isinstance(what, LeewardError):
            self._sandbox.lost(f"it couldn't wake: {what}")
            return
        self._sandbox.held = False
        self._waiting = {number for number in self._states if number in self._sandbox.kernels}
        for number in list(self._waiting):
            try:
                self._sandbox.wake_kernel(number, self._states[number], partial(self._begun, number))
            except LeewardError as error:
                self._begun(number, str(error))
        self._check_woken()

    def _begun(self, number: int, _why: str) -> None:
        """A kernel has begun again, or is lost, as it says itself."""
        if number in self._waiting:
            self._waiting.discard(number)
            self._check_woken()

    def _check_woken(self) -> None:
        if not self._waiting and self.stage is Stage.WAKING and not self._sandbox.held:
            self.stage = Stage.OVER
            in_any_case(self._let_go, self._bed.woken)

    def close(self) -> None:
        """The sandbox is over."""
        in_any_case(self._let_go, partial(self._answer, Busy("the sandbox is over")))

    def broken(self, error: Exception) -> None:
        if self.stage is Stage.FALLING:
            self._stay(SnapshotFailed(bug(error)))
        else:
            self._sandbox.lost(bug(error))

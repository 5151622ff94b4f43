"""
A sandbox that sleeps: its kernels' states and its files are kept by the daemon, and it has no process and no worker.

Theory of operation. It falls asleep if it has nothing but kernels at rest and files of its own: when it is its turn among
its user's, their states are taken one after the other, as snapshots are, then a porter gives the files, then its processes
end. Until then a failure leaves it as it was. The first request about it wakes it, and is refused as busy for the
milliseconds that this takes: a worker is had as at the opening, a porter makes the files, and the kernels begin as copies,
whose random numbers go on. A kernel that can't begin again is lost, as it says; without its files the sandbox is over.
What is kept counts as its user's snapshots, until it is on disk, if the daemon has a folder for that. If it can't be
written it stays in memory.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leeward.daemon.loop.barrier import in_any_case, nothing
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor
from leeward.daemon.run.dumping import Dump, KernelState, close_file
from leeward.daemon.run.porter import PorterRefusal
from leeward.daemon.run.verdict import bug
from leeward.daemon.sandboxes.copying import COPY_S
from leeward.daemon.sandboxes.sleep_folder import Asleep
from leeward.errors import Busy, LeewardError, Refused, RequestRejected, SnapshotFailed, told
from leeward.spec.job import Job

if TYPE_CHECKING:
    from leeward.daemon.run.live_runner import LiveRunner
    from leeward.daemon.sandboxes.live_sandboxes import Bed
    from leeward.daemon.sandboxes.sandbox import LiveSandbox

#: Seconds of a turn, after which the next one of the user's goes on too: what runs in a sandbox can keep it from falling
#: asleep for long, and behind a server for many all are one user's.
_TURN_S = 1.0
#: Bytes that are read of the files at a time, and that rows of them may take beyond their content.
_PIECE, _BESIDE = 1 << 20, 64 << 20


class SleepStage(enum.Enum):
    FALLING = "falling asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    OVER = "awake"


class Sleep:
    """
    *answered* is called once: with None when *sandbox* sleeps, or with why it can't; then it is as it was. RequestRejected
    at once if it has what can't sleep. `on_disk`: it sleeps, and does so without this daemon, too.
    """

    costs = "session"

    def __init__(self, reactor: Reactor, sandbox: LiveSandbox, bed: Bed, answered: Callable[[Refused | None], None]) -> None:
        sandbox.check_rests()
        self._begin(reactor, sandbox, bed, answered)
        sandbox.held = True
        self._left = [number for number, kernel in sandbox.kernels.items() if kernel.lives]
        self._in_turn = True
        try:
            if bed.enter_turn(self._take_later):
                self._begin_turn()
        except BaseException as error:
            sandbox.held = False
            self._forget_caller()
            in_any_case(self._leave_turn, self._let_go)
            if isinstance(error, OSError):
                raise Busy(f"it can't sleep now: {told(error)}") from error
            raise

    def _begin(self, reactor: Reactor, sandbox: LiveSandbox, bed: Bed,
               answered: Callable[[Refused | None], None] | None) -> None:
        self._reactor, self._sandbox, self._bed = reactor, sandbox, bed
        self._answered: Callable[[Refused | None], None] | None = answered
        self.stage = SleepStage.FALLING
        self.on_disk = self._is_put = self._is_written = False
        self._place: LiveRunner | None = None  # of one that wakes, and waits for what is on disk
        self._states: dict[int, KernelState] = {}
        self._size = 0
        self._in_turn = False
        self._turn = NO_TIMER
        self._files = self._pipe = -1
        self._given = False
        self._dump: Dump | None = None
        self._cancel: Callable[[], None] = nothing
        self._waiting: set[int] = set()  # kernels that haven't begun again
        self._awaited: list[Callable[[Refused], None]] = []

    # --- falling asleep -------------------------------------------------------------

    def _take_later(self) -> None:
        if self.stage is SleepStage.FALLING:
            self._going_on(self._begin_turn)

    def _begin_turn(self) -> None:
        self._turn = self._reactor.after(_TURN_S, self._leave_turn)
        self._take_next()

    def _leave_turn(self) -> None:
        self._turn.cancel()
        if self._in_turn:
            self._in_turn = False
            self._bed.leave_turn(self._take_later)

    def _take_next(self) -> None:
        kernel = None
        while self._left and kernel is None:
            number = self._left.pop(0)
            kernel = self._sandbox.kernels.get(number)  # with its connection it can have been closed
        if kernel is None:
            self._take_files()
            return
        self._dump = Dump(self._reactor, self._bed.new_file, partial(self._taken, number))
        kernel.snapshot(Job(code=b"", limits=self._sandbox.facts.limits), self._dump)

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
        self._files = self._bed.new_file(0)
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
        self._size += len(data)
        self._bed.resize(self._files, self._size)
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
        if self._given and self._pipe < 0 and self.stage is SleepStage.FALLING:
            self.stage = SleepStage.ASLEEP
            in_any_case(self._bed.leave, self._write)

    def _write(self) -> None:
        try:
            if self._bed.put(Asleep(self._states, self._files, self._size), self._written):
                self._is_put = True
                return
        except (LeewardError, OSError) as error:
            self._bed.warn(error)
        self._fallen()

    def _written(self, error: Exception | None) -> None:
        self._is_written = error is None
        if error is not None:
            self._is_put = False
            self._bed.warn(error)
        self._sleep_on()
        self._fallen()

    def _sleep_on(self) -> None:
        """What is on disk needn't be in memory, unless it wakes with that."""
        if self._is_written and self.stage is SleepStage.ASLEEP and not self.on_disk:
            self.on_disk = True
            self._let_go()

    def _fallen(self) -> None:
        """It sleeps; for requests that came meanwhile it wakes."""
        in_any_case(self._leave_turn, partial(self._answer, None))
        if self._awaited and self.stage is SleepStage.ASLEEP:
            first = self._awaited.pop(0)
            try:
                self.wake(first)
            except LeewardError as error:
                why = error if isinstance(error, Refused) else RequestRejected(str(error))
                in_any_case(partial(first, why), partial(self._tell, why))

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            in_any_case(partial(self._reactor.forget, pipe), partial(os.close, pipe))

    def _stay(self, why: Refused) -> None:
        """It can't sleep, and is as it was."""
        if self.stage is not SleepStage.FALLING:
            return
        self.stage, self._sandbox.held = SleepStage.OVER, False
        in_any_case(self._leave_turn, self._let_go, self._bed.woken, partial(self._answer, why),
                    partial(self._tell, Busy("the sandbox didn't fall asleep", retry_after=0.0)))

    def _answer(self, why: Refused | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(why)

    def _forget_caller(self) -> None:
        self._answered = None

    def _let_go(self) -> None:
        """Free what is kept."""
        states, self._states = self._states, {}
        files, self._files = self._files, -1
        dump, self._dump = self._dump, None
        cancel, self._cancel = self._cancel, nothing
        in_any_case(cancel, self._close_pipe, *([] if dump is None else [dump.give_up]),
                    *(partial(close_file, state.fd, state.size) for state in states.values()),
                    *([partial(close_file, files, self._size)] if files >= 0 else []))

    # --- waking -----------------------------------------------------------------------

    @property
    def is_volatile(self) -> bool:
        """Whether it sleeps, and will end with the daemon."""
        return self.stage is SleepStage.ASLEEP and not self.on_disk and self._answered is None

    @classmethod
    def left(cls, reactor: Reactor, sandbox: LiveSandbox, bed: Bed) -> Sleep:
        """The sleep of a sandbox that an earlier daemon has left on disk."""
        made = cls.__new__(cls)
        made._begin(reactor, sandbox, bed, None)
        made.stage, sandbox.held = SleepStage.ASLEEP, True
        made.on_disk = made._is_put = made._is_written = True
        return made

    def wake(self, tried: Callable[[Refused], None] = nothing) -> None:
        """
        Begin to wake the sandbox, if it sleeps, or once it does; raises as `Bed.enter`. *tried* is called once it is awake,
        or can't be now, with the refusal of a request that came too early; not after `waits_no_longer`.
        """
        if tried is not nothing:
            self._awaited.append(tried)
        if self.stage is SleepStage.ASLEEP:
            self.stage = SleepStage.WAKING
            try:
                self._bed.enter(self._entered)
            except BaseException:
                self.stage = SleepStage.ASLEEP
                self.waits_no_longer(tried)
                raise

    def waits_no_longer(self, tried: Callable[[Refused], None]) -> None:
        if tried in self._awaited:
            self._awaited.remove(tried)

    def _tell(self, why: Refused) -> None:
        awaited, self._awaited = self._awaited, []
        in_any_case(*(partial(tried, why) for tried in awaited))

    def _entered(self, what: Any) -> None:
        if self.stage is not SleepStage.WAKING:
            return
        if isinstance(what, Refused):
            self._wait_on(what)
            return
        self._place = what
        if self.on_disk:
            self._bed.get(self._got)  # not before, so that nothing is open for those that wait for a worker
        else:
            self._enter()

    def _got(self, what: Asleep | Exception) -> None:
        if self.stage is not SleepStage.WAKING:
            if isinstance(what, Asleep):
                what.close()
        elif isinstance(what, OSError) and what.errno not in (None, errno.ENOENT):  # it is there, and may be read later
            self._wait_on(Busy(f"it can't be read now: {told(what)}"))
        elif isinstance(what, Exception):
            self._sandbox.lost(f"it couldn't wake: what was kept of it on disk can't be read: {told(what)}")
        else:
            self._states, self._files, self._size = dict(what.states), what.files, what.size
            self._enter()

    def _wait_on(self, why: Refused) -> None:
        """It can't wake now, and sleeps until the next request; what was taken off the disk does so in memory."""
        self.stage, self._place = SleepStage.ASLEEP, None
        if self.on_disk and self._files >= 0:
            self.on_disk = self._is_written = False
        in_any_case(self._bed.leave, self._sleep_on, partial(self._tell, why))

    def _enter(self) -> None:
        place, self._place = self._place, None
        assert place is not None
        try:
            self._bed.count(list(self._states.values()))
            self._sandbox.place(place)
            os.lseek(self._files, 0, os.SEEK_SET)
            self._cancel = self._sandbox.carry({"order": "take"}, [self._files], self._made, COPY_S).cancel
        except (LeewardError, OSError) as error:
            self._wait_on(Busy(f"it can't wake now: {told(error)}"))

    def _made(self, what: Mapping[str, Any] | LeewardError, fds: list[int]) -> None:
        self._cancel = nothing
        if isinstance(what, LeewardError):
            why = "its files can't be made again" if isinstance(what, PorterRefusal) else what  # whose text has their names
            self._sandbox.lost(f"it couldn't wake: {why}")
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
        if not self._waiting and self.stage is SleepStage.WAKING and not self._sandbox.held:
            self.stage = SleepStage.OVER
            # Ordered behind the writing, and before that of the next sleep.
            in_any_case(self._let_go, *([self._bed.remove] if self._is_put else []), self._bed.woken,
                        partial(self._tell, Busy("the sandbox was asleep, and is awake", retry_after=0.0)))

    def close(self, *, kept: bool = False) -> None:
        """The sandbox is over, for this daemon at least: what is on disk may be *kept*."""
        self.stage = SleepStage.OVER
        over = Busy("the sandbox is over")
        in_any_case(self._leave_turn, self._let_go,
                    *([self._bed.remove] if self._is_put and not (kept and self.on_disk) else []),
                    partial(self._answer, over), partial(self._tell, over))

    def broken(self, error: Exception) -> None:
        if self.stage is SleepStage.FALLING:
            self._stay(SnapshotFailed(bug(error)))
        else:
            self._sandbox.lost(bug(error))

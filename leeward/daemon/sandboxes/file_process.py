"""
File calls of a live sandbox's clients, done one after the other by a process in it.

Trust: none in that process (inside/file_calls.py): others of the sandbox may kill, stop or starve it, and its answers
may be anything.

Theory of operation. The first call starts the process, which is kept. Each call is answered once: by the process, or as
failed when the process ends during the call or the call's time is up. In the last case the process is given up as well.
When the sandbox ends no answer comes from here, because its end answers its requests. A process ends before the sandbox
with which it ends, so a call that was lost with it fails after LOST_S alone. The process has a time limit of
its own for a call, and ends the call itself; the limit here is longer. A call that is withdrawn while it runs goes on,
and its answer is dropped.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor, Timer
from leeward.daemon.run.called_process import CallProcess
from leeward.daemon.run.runner_states import after
from leeward.daemon.run.verdict import bug
from leeward.daemon.sandboxes.kernel import KernelProcess
from leeward.errors import Busy, LeewardError, PeerError
from leeward.wire.file_answers import MAX_ANSWER, failure, read_answer
from leeward.wire.job_frames import FILE_CALLS_BEGIN
from leeward.wire.pieces import pieces_of

#: Calls of one sandbox that may wait, and bytes of all of them together.
MOST_CALLS, MOST_BYTES = 64, 16 << 20
#: Seconds beyond a call's own time, after which the process is given up.
GRACE_S = 2.0
#: Seconds after the loss of a process until its call fails: the sandbox may be ending.
LOST_S = 0.5

#: The answer to a call; None where the sandbox is over.
Answered = Callable[[Mapping[str, Any] | None], None]


#: Starts the process: takes its first frame, the most bytes of an answer, a callback for when the process is ready, and
#: one for when it is lost.
StartFiles = Callable[[bytes, int, Callable[[CallProcess], None], Callable[[str], None]], KernelProcess]


class FilesStage(Enum):
    """The states of the process for file calls, together with the sandbox's end (CLOSED)."""

    NONE = "none"
    STARTING = "starting"
    READY = "ready"
    CLOSED = "closed"


class FilesEvent(Enum):
    """What changes the stage: the first call, the start or the loss of the process, and the end of the sandbox."""

    ASKED = "asked"
    STARTED = "started"
    LOST = "lost"
    CLOSED = "closed"


FILES: Mapping[tuple[FilesStage, FilesEvent], FilesStage] = {
    (FilesStage.NONE, FilesEvent.ASKED): FilesStage.STARTING,
    (FilesStage.STARTING, FilesEvent.STARTED): FilesStage.READY,
    (FilesStage.STARTING, FilesEvent.LOST): FilesStage.NONE,
    (FilesStage.READY, FilesEvent.LOST): FilesStage.NONE,
    **{(stage, FilesEvent.CLOSED): FilesStage.CLOSED for stage in FilesStage if stage is not FilesStage.CLOSED},
}


class FileCall:
    """A file call that was queued. Whoever asked for it can withdraw it by `cancel`."""

    def __init__(self, files: LiveFiles, number: int, call: Mapping[str, Any], size: int, answered: Answered) -> None:
        self._files, self.number, self.size = files, number, size
        self.op: str = call["op"]
        self.call: Mapping[str, Any] = call
        self._answered: Answered | None = answered
        self.timer = NO_TIMER

    def answer(self, answer: Mapping[str, Any] | None) -> None:
        self.timer.cancel()
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(answer)

    def late(self) -> None:
        self._files.late(self)

    def fail_by(self, timer: Timer) -> None:
        """Have *timer* answer the call, in place of the limit on its time."""
        self.timer.cancel()
        self.timer = timer

    def cancel(self) -> None:
        self._answered = None
        self._files.taken_back(self)


class LiveFiles:
    costs = "session"

    def __init__(self, reactor: Reactor, start: StartFiles) -> None:
        self._reactor, self._start = reactor, start
        self.stage = FilesStage.NONE
        self._waiting: deque[FileCall] = deque()
        self._running: FileCall | None = None
        self._failing = set[FileCall]()  # lost with a process, a short while ago
        self._process: CallProcess | None = None
        self._starting: KernelProcess | None = None
        self._last = self._turn = self._size = 0

    @property
    def calls(self) -> int:
        """How many calls have no answer yet."""
        return len(self._waiting) + (self._running is not None) + len(self._failing)

    def _happen(self, event: FilesEvent) -> None:
        self.stage = after("files", FILES, self.stage, event)

    def ask(self, call: Mapping[str, Any], size: int, answered: Answered) -> FileCall:
        """
        Queue *call*, of about *size* bytes; *answered* is called once, perhaps before this returns. Busy if too many
        wait, or no process can be started.
        """
        if len(self._waiting) >= MOST_CALLS or (self._waiting and self._size + size > MOST_BYTES):
            raise Busy(f"{len(self._waiting)} file calls of {self._size} bytes wait in the sandbox already")
        self._last += 1
        asked = FileCall(self, self._last, call, size, answered)
        if self.stage is FilesStage.NONE:
            self._begin()
        self._waiting.append(asked)
        self._size += size
        asked.timer = self._reactor.after(call["timeout"] + GRACE_S, asked.late)
        self._pump()
        return asked

    # --- its process ----------------------------------------------------------------

    def _begin(self) -> None:
        self._happen(FilesEvent.ASKED)
        self._turn += 1
        turn = self._turn
        try:
            self._starting = self._start(FILE_CALLS_BEGIN, MAX_ANSWER, partial(self._opened, turn),
                                         partial(self._lost, turn))
        except LeewardError as error:
            self._happen(FilesEvent.LOST)
            raise Busy(f"the process for file calls can't be started: {error}") from error

    def _opened(self, turn: int, process: CallProcess) -> None:
        if turn != self._turn or self.stage is not FilesStage.STARTING:
            process.end("it was given up")
            return
        self._happen(FilesEvent.STARTED)
        self._process = process
        self._pump()

    def _lost(self, turn: int, why: str) -> None:
        """The process has ended. If it had never started, the waiting calls fail, because another one would fail, too."""
        if turn != self._turn or self.stage not in (FilesStage.STARTING, FilesStage.READY):
            return
        never = self.stage is FilesStage.STARTING
        self._happen(FilesEvent.LOST)
        self._process = self._starting = None
        calls, self._running = [self._running] if self._running is not None else [], None
        if never:
            calls += self._take_waiting()
        failed = failure(errno.EIO, f"the process that does file calls in the sandbox has ended: {why}")
        in_any_case(*(partial(self._fail, call, failed) for call in calls), self._again)

    def _again(self) -> None:
        if self._waiting and self.stage is FilesStage.NONE:
            try:
                self._begin()
            except Busy as busy:
                failed = failure(errno.EAGAIN, busy.message)
                in_any_case(*(partial(self._fail, call, failed) for call in self._take_waiting()))

    def _fail(self, call: FileCall, failed: Mapping[str, Any]) -> None:
        """Answer *call* in LOST_S, unless the sandbox ends before."""
        self._failing.add(call)
        call.fail_by(self._reactor.after(LOST_S, partial(self._failed, call, failed)))

    def _failed(self, call: FileCall, failed: Mapping[str, Any]) -> None:
        self._failing.discard(call)
        call.answer(failed)

    def _take_waiting(self) -> list[FileCall]:
        waiting, self._waiting, self._size = [*self._waiting], deque(), 0
        return waiting

    def _answer_all(self, answer: Mapping[str, Any] | None) -> None:
        calls = [*self._failing, *([self._running] if self._running else []), *self._take_waiting()]
        self._failing, self._running = set(), None
        in_any_case(*(partial(call.answer, answer) for call in calls))

    def _pump(self) -> None:
        if self._process is None or self._running is not None or not self._waiting:
            return
        call = self._running = self._waiting.popleft()
        self._size -= call.size
        body = pieces_of({"n": call.number, **call.call})
        call.call = {}  # it was sent, and may be large
        try:
            self._process.call(body, partial(self._heard, call))
        except LeewardError as error:
            self._process.end(str(error))

    def _heard(self, call: FileCall, body: memoryview) -> None:
        try:
            answer = read_answer(call.op, call.number, body)
        except PeerError as error:
            if self._process is not None:
                self._process.end(str(error))
            return
        if self._running is call:
            self._running = None
        in_any_case(partial(call.answer, answer), self._pump)

    # --- calls ----------------------------------------------------------------------

    def late(self, call: FileCall) -> None:
        """Called by *call*: its time is up, and the process hasn't answered it."""
        self._drop(call)
        late = partial(call.answer, failure(errno.ETIMEDOUT, "the call took too long"))
        if call is self._running or self.stage is FilesStage.STARTING:
            if call is self._running:
                self._running = None
            in_any_case(late, partial(self._give_up, "a call took too long"))
        else:
            late()

    def _give_up(self, why: str) -> None:
        """Kill the process; waiting calls get another one, unless it hadn't started yet: then they fail."""
        process, starting = self._process, self._starting
        turn = self._turn
        in_any_case(*([partial(process.end, why)] if process is not None else []),
                    *([starting.kill] if starting is not None else []), partial(self._lost, turn, why))

    def _drop(self, call: FileCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            self._size -= call.size

    def taken_back(self, call: FileCall) -> None:
        """Called by *call*: it was cancelled. A call that runs is completed, because a partial one would be worse."""
        if call in self._waiting or call in self._failing:
            self._drop(call)
            self._failing.discard(call)
            call.answer(None)

    def rest(self) -> None:
        """End the process, which must have no call to do; the next call starts another one."""
        if self.stage in (FilesStage.STARTING, FilesStage.READY):
            self._give_up("the sandbox stands still")

    def close(self) -> None:
        if self.stage is FilesStage.CLOSED:
            return
        self._happen(FilesEvent.CLOSED)
        self._turn += 1
        process, starting = self._process, self._starting
        self._process = self._starting = None
        self._start = _closed  # the old value refers to the sandbox, which refers to this object
        in_any_case(*([partial(process.end, "its sandbox is over")] if process is not None else []),
                    *([starting.kill] if starting is not None else []), partial(self._answer_all, None))

    def broken(self, error: Exception) -> None:
        if self.stage in (FilesStage.STARTING, FilesStage.READY):
            self._give_up(bug(error))


def _closed(*_how: Any) -> KernelProcess:
    raise LeewardError("the sandbox is over")

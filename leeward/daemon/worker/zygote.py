"""The zygote, seen from the daemon: orders for keepers, its output, its end, and its successor. `hatch` starts it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.closing import OwnedFd
from leeward.base.dataclass import dataclass
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor, Timer
from leeward.daemon.worker.zygote_memory import ZygoteMemory
from leeward.daemon.worker.zygote_start import StartedZygote
from leeward.errors import Bug, LeewardError, PeerError
from leeward.isolation.plan import WorkerPlan, ZygotePlan
from leeward.wire import control, records

if TYPE_CHECKING:
    from leeward.daemon.pool.zygotes import EventLog, Zygotes


#: The value of `Zygote.snapshot` until the zygote is ready.
PENDING = "pending"
#: Characters of `Zygote.snapshot`, at most.
_MOST_OF_SNAPSHOT = 200
#: Bytes of a zygote's output that are read at a time, and that are reported in all.
_MOST_WORDS = 4096
_MOST_SAID = 64 << 10


class Zygote:
    """
    One zygote process, which this object owns, and which is ready some time after it was given the workers' plan.
    *said* is called with output of the zygote or a keeper on stderr, *made* with a message, the keeper's pidfd, which
    the callee owns, and the memory file that the keeper maps, *gone* once. *snapshot* says whether its memory is a
    file's, so that clones don't copy its page tables: "taken", "off", or "none: " and the reason; PENDING until it is
    ready. *importing* is the module of `preload` that it imports at the moment, or "".
    """

    costs = "zygote"

    def __init__(self, reactor: Reactor, hatched: StartedZygote, *,
                 ready: Callable[[], None],
                 made: Callable[[control.Made, int, ZygoteMemory | None], None],
                 failed: Callable[[control.Failed], None],
                 said: Callable[[str], None],
                 gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._ready, self._made, self._failed, self._said, self._gone = ready, made, failed, said, gone
        self._heard = 0
        self.snapshot = PENDING
        self.importing = ""
        self.memory: ZygoteMemory | None = None
        self.process, self._channel, self._preload = hatched.process, hatched.channel, hatched.preload
        self._channel.socket.setblocking(False)
        reactor.watch(self._channel.fileno(), READ, self._on_message)
        assert self.process.stdout is not None
        self._words = self.process.stdout.fileno()
        os.set_blocking(self._words, False)
        reactor.watch(self._words, READ, self._on_words)

    def give(self, plan: WorkerPlan) -> None:
        """Send the plan of keepers and runners; orders may follow. OSError if the zygote is gone."""
        self._channel.send_raw(records.pack(plan))

    @property
    def pid(self) -> int:
        return self.process.pid

    def make_keeper(self, message: control.MakeKeeper, fds: Sequence[int]) -> None:
        """Ask for a keeper; *fds* stay the caller's. LeewardError if the zygote is gone, or stuck."""
        try:
            self._channel.send(message, fds)
        except OSError as error:
            raise LeewardError(f"zygote {self.pid} takes no orders: {error.strerror}") from error

    def _on_message(self, _events: int) -> None:
        try:
            received = self._channel.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        if received is None:
            self._end_channel()
            return
        message, fds = received
        if isinstance(message, control.Made) and not fds:
            self._failed(control.Failed(message.slot, "", "no descriptor was left for its keeper's pidfd"))
        elif isinstance(message, control.Made):
            self._made(message, fds.pop(0), self.memory)
        elif isinstance(message, control.Failed):
            self._failed(message)
        elif isinstance(message, control.Importing):
            self.importing = dict(enumerate(self._preload)).get(message.number, "")
        elif isinstance(message, control.Ready):
            self.snapshot = message.report.get("snapshot", PENDING)[:_MOST_OF_SNAPSHOT]
            self.memory = ZygoteMemory(fds.pop()) if fds else None
            self._hear_out()  # output until now is that of imported modules, and no failure
            self._ready()

    def _on_words(self, _events: int) -> None:
        self._hear()

    def _hear(self) -> bool:
        """Read output on stderr: of imported modules, or the reason of the zygote's end. False if none was there."""
        if self.process.stdout is None:
            return False
        try:
            text = os.read(self._words, _MOST_WORDS)
        except BlockingIOError:
            return False
        if not text:
            self._stop_listening()
            return False
        told = text[:max(0, _MOST_SAID - self._heard)]  # a pipe gives pieces of any size, and the bound may lie in one
        if told:
            self._said(told.decode("utf-8", "replace").rstrip())
        if self._heard <= _MOST_SAID < self._heard + len(text):
            self._said("... and more than is told")
        self._heard += len(text)
        return True

    def _hear_out(self) -> None:
        """Read all output that waits, up to a bound."""
        for _ in range(_MOST_SAID // _MOST_WORDS):
            if not self._hear():
                return

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has raised *error*, so a message may be lost. Another zygote has to be made."""
        in_any_case(self.process.kill, self._end_channel)

    def _end_channel(self) -> None:
        gone, self._gone = self._gone, lambda: None
        in_any_case(self._hear_out, self.close, gone)

    def _stop_listening(self) -> None:
        if self.process.stdout is not None:
            self._reactor.forget(self._words)
            self.process.stdout.close()
            self.process.stdout = None

    def close(self) -> None:
        """Close the channel; the zygote ends when it notices. Keepers live on."""
        self.memory = None
        self._stop_listening()
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()

    def death(self) -> str:
        """Reap a zygote that has ended. Returns how it did, if that was while it imported a module of `preload`; or ""."""
        status = self.process.wait()
        how = f"ends with status {status}" if status >= 0 else f"is killed by signal {-status} ({signal.strsignal(-status)})"
        return self.importing and f"preload: module {self.importing}: the zygote {how} while it imports it"

    def take_office(self, *, failed: Callable[[control.Failed], None], gone: Callable[[], None]) -> None:
        """Replace the callbacks for failures and for its end."""
        self._failed, self._gone = failed, gone

    def retire(self, seconds: float, left: Callable[[], None]) -> None:
        """End the zygote as `end` does, but without waiting; *left* is called when it was reaped."""
        self.close()
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # no descriptor is left, or the zygote was reaped: end it at once
            in_any_case(partial(self.end, 0.0), left)
            return
        hurry = self._reactor.after(seconds, self._hurry)
        self._reactor.watch(pidfd, READ, partial(self._on_end, pidfd, hurry, left))

    def _hurry(self) -> None:
        self.process.kill()

    def _on_end(self, pidfd: int, hurry: Timer, left: Callable[[], None], _events: int) -> None:
        in_any_case(hurry.cancel, partial(self._reactor.forget, pidfd), partial(os.close, pidfd), self.process.wait,
                    left)

    def end(self, seconds: float = 0.5) -> None:
        """Close the channel, and reap the zygote; kill it if it doesn't end within *seconds*."""
        self.close()
        if not self._goes(seconds):
            self.process.kill()
        self.process.wait()

    def _goes(self, seconds: float) -> bool:
        """Wait for the zygote's end, and return whether it came within *seconds*. Popen.wait would poll and sleep."""
        if self.process.poll() is not None:
            return True
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # no descriptor is left to wait with
            return False
        with OwnedFd(pidfd):
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))


#: Seconds until another try, after a successor that was never ready; doubled each time up to the second figure.
_AGAIN_S, _AGAIN_MOST_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class Term:
    """For how long a zygote serves."""

    jobs: int  # 0 is without end
    seconds: float  # after which the term ends, or with the next job if there was none until then; 0 is without end


class Succession:
    """
    Replaces the zygote of a pool now and then.

    All keepers and jobs of one zygote are clones of it, and share its address layout and hash seed. A job can learn
    both, and use them in later jobs. So after a number of jobs, or some time, another zygote is started beside the old
    one. It warms up, within *patience* seconds, while the old one serves, and takes over when it is ready and the old
    one has no keeper left to make. Then the old one is ended. Its keepers and their runners live on; the pool replaces
    them when they are idle (pool/workforce.py).
    """

    costs = "zygote"

    def __init__(self, reactor: Reactor, term: Term, plans: tuple[ZygotePlan, WorkerPlan], zygotes: Zygotes,
                 log: EventLog, patience: float) -> None:
        self._reactor, self._term, self._plans, self._zygotes, self._log = reactor, term, plans, zygotes, log
        self._patience = patience
        self._jobs = 0
        self._late = False
        self._clock = self._due = self._again = NO_TIMER
        self._successor: Zygote | None = None
        self._ready = self._closed = False
        self._failures = 0
        self._leaving: set[Zygote] = set()

    def begin(self) -> None:
        """Begin the term of a zygote, which serves from now on."""
        self._jobs, self._late = 0, False
        self._clock.cancel()
        if self._term.seconds:
            self._clock = self._reactor.after(self._term.seconds, self._time_is_up)

    def job_ended(self) -> None:
        self._jobs += 1
        if self._late or self._jobs == self._term.jobs:
            self._late = False
            self._reactor.soon(self.start)

    def _time_is_up(self) -> None:
        if self._jobs:
            self.start()
        else:
            self._late = True  # no job has seen this layout yet, so its term begins with the first one

    def start(self) -> None:
        """Start a new zygote, unless one is being started or a start is to be tried again."""
        if self._successor is not None or self._again.is_set or self._closed:
            return
        try:
            hatched = StartedZygote(self._plans[0])
        except (LeewardError, OSError) as error:  # for example, no descriptors are left
            self._fail(str(error))
            return
        self._successor = Zygote(self._reactor, hatched, ready=self._on_ready, made=self._zygotes.on_made,
                                 failed=self._on_failed, said=self._zygotes.on_words, gone=self._on_gone)
        self._due = self._reactor.after(self._patience, self._on_silence)
        try:
            self._successor.give(self._plans[1])
        except OSError:
            return  # the new zygote has ended; `_on_gone` is called for the end of its channel
        self._log.debug("zygote starts, to take over", pid=self._successor.pid, jobs=self._jobs)

    def _on_ready(self) -> None:
        self._ready = True
        self.go_on()

    def go_on(self) -> None:
        """Let the new zygote take over, if it is ready and the old one has made all its keepers."""
        successor = self._successor
        if successor is None or not self._ready or self._zygotes.on_order():
            return
        self._forget_successor()
        self._failures = 0
        successor.take_office(failed=self._zygotes.on_failed, gone=self._zygotes.on_gone)
        old = self._zygotes.take_over(successor)
        self.begin()
        if old is not None:
            self._leaving.add(old)
            old.retire(self._patience, partial(self._leaving.discard, old))

    def _forget_successor(self) -> None:
        self._successor, self._ready = None, False
        self._due.cancel()

    def _on_failed(self, message: control.Failed) -> None:
        self._log.warning("zygote failed", layer=message.layer, error=message.message)
        if self._successor is not None:
            self._successor.process.kill()  # the end of its channel does the rest

    def _on_silence(self) -> None:
        if self._successor is not None and not self._ready:
            self._log.warning("zygote doesn't answer", pid=self._successor.pid, seconds=self._patience)
            self._successor.process.kill()

    def _on_gone(self) -> None:
        successor = self._successor
        if successor is None:
            raise Bug("a zygote has gone that wasn't to take over")
        self._forget_successor()
        self._fail(successor.death() or "it ended before it took over")

    def _fail(self, why: str) -> None:
        if self._closed:
            return
        seconds = min(_AGAIN_MOST_S, _AGAIN_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._log.warning("no new zygote: the old one goes on", error=why, again_after=seconds)
        self._again = self._reactor.after(seconds, self.start)

    def broken(self, _error: Exception) -> None:
        """For the barrier: a callback has failed. End the new zygote, if there is one."""
        successor = self._successor
        if successor is not None:
            self._forget_successor()
            in_any_case(successor.end, partial(self._fail, "a callback failed"))

    def close(self) -> None:
        """End a new zygote that hasn't taken over."""
        self._closed = True
        successor, leaving = self._successor, list(self._leaving)
        self._forget_successor()
        self._leaving.clear()
        for timer in (self._clock, self._again):
            timer.cancel()
        in_any_case(*([successor.end] if successor is not None else []), *(zygote.end for zygote in leaving))

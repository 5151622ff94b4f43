"""
Decides when a job's output is read from its pipes while the job runs.

Runs in:   the daemon.

Theory of operation. A short job's output is read at once at its end, and the daemon isn't woken for each line. At first
the pipes are checked every millisecond, so that a flood doesn't wait, and from _FIRST_LOOK_S on the loop waits for
them. After some output the daemon reads again only after _NEXT_LOOK_S; a flood it goes on reading at once, up to the
limit on output. Output beyond that is read with pauses, see excess.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leeward.loop.reactor import READ, Reactor, Timer
from leeward.run.excess import pause
from leeward.run.output import Output, OutputStream, unread
from leeward.run.verdict import Stop

if TYPE_CHECKING:
    from leeward.run.execution import Execution

#: Seconds for which output is first left in the pipes. A pipe holds 64 KiB.
_FIRST_LOOK_S = 0.005
#: Bytes in a pipe from which on it is read earlier, because a job that writes more than a pipe holds waits.
_FLOOD, _FLOOD_LOOK_S = 32 << 10, 0.001
#: Seconds between reads. Waking the daemon for each line of a job would cost both more than the lines themselves.
_NEXT_LOOK_S = 0.002


class OutputWatch:
    """Watches the output of a job that began at *started*, by the reactor's clock."""

    costs = "job"

    def __init__(self, reactor: Reactor, output: Output, execution: Execution, started: float) -> None:
        self._reactor, self._output, self._execution, self._started = reactor, output, execution, started
        self._watched: set[int] = set()
        self._looks: dict[int, Timer] = {}  # by the pipe's descriptor
        self._first: Timer
        self._look_for_flood(started + _FLOOD_LOOK_S)

    def _look_for_flood(self, when: float) -> None:
        """Check for a flood every millisecond from *when* on, until there is one or the first look at any output is due."""
        due = when >= self._started + _FIRST_LOOK_S
        self._first = self._reactor.at(when, self._begin if due else partial(self._look, when))

    def _look(self, when: float) -> None:
        if max(unread(self._output.out.fd), unread(self._output.err.fd)) >= _FLOOD:
            self._begin()
        else:
            self._look_for_flood(when + _FLOOD_LOOK_S)

    def _begin(self) -> None:
        self._execution.take_back()
        for stream in (self._output.out, self._output.err):
            self._watch(stream)

    def _ready(self, stream: OutputStream, _events: int) -> None:
        self._take(stream)

    def _take(self, stream: OutputStream, late: float = 0.0) -> None:
        before = stream.length
        try:
            more = self._output.drain(stream)
        except OSError:
            self._execution.stop(Stop.STORE)
        else:
            if self._output.exceeded:
                self._execution.stop(Stop.OUTPUT)
            elif not more:
                self._forget(stream.fd)
            elif self._output.in_excess:
                self._look_later(stream, pause(late))
            elif stream.length - before < _FLOOD:
                self._look_later(stream, _NEXT_LOOK_S)
            elif stream.fd not in self._watched:
                self._watch(stream)
        if self._output.listener is not None and stream.length > before:
            self._output.listener()
        if self._execution.stopped:  # a pipe that stays full would wake the loop again and again
            self._forget(self._output.out.fd)
            self._forget(self._output.err.fd)

    def _look_later(self, stream: OutputStream, seconds: float) -> None:
        self._forget(stream.fd)
        when = self._reactor.now() + seconds
        self._looks[stream.fd] = self._reactor.at(when, partial(self._look_again, stream, when))

    def _look_again(self, stream: OutputStream, when: float) -> None:
        if self._execution.over or self._execution.stopped:
            return
        if unread(stream.fd):
            self._take(stream, self._reactor.now() - when)
        else:
            self._watch(stream)

    def _watch(self, stream: OutputStream) -> None:
        if stream.fd >= 0 and not self._execution.over:
            self._reactor.watch(stream.fd, READ, partial(self._ready, stream))
            self._watched.add(stream.fd)

    def _forget(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            self._reactor.forget(fd)

    def close(self) -> None:
        """Stop watching. The content of the pipes stays there."""
        for timer in (self._first, *self._looks.values()):
            timer.cancel()
        for fd in tuple(self._watched):
            self._forget(fd)

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the execution."""
        self._execution.broken(error)

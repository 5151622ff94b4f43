"""
The filter of a program in a live sandbox: its listener comes on the program's birth channel, for the supervisor.

Runs in:   the daemon.
Owns:      the daemon's end of the birth channel, until the program is locked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from leeward.errors import LeewardError, PeerError
from leeward.isolation.channel import Channel
from leeward.loop.reactor import READ, Reactor
from leeward.run.runner import Denials
from leeward.wire import control


class ProgramFilter:
    """
    Args:
        number: the program's number; *runner* is that of its sandbox's runner.
        birth: the channel; None for an interpreter, whose runner listens.
        failed: ends the program, whose refused calls would be neither counted nor answered.
        broken: called with an exception of a callback of ours.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, number: int, runner: int, denials: Denials, birth: Channel | None,
                 failed: Callable[[], None], broken: Callable[[Exception], None]) -> None:
        self._reactor, self._number, self._runner, self._denials = reactor, number, runner, denials
        self._birth, self._failed, self._broken = birth, failed, broken
        self._listening = False
        if birth is not None:
            reactor.watch(birth.fileno(), READ, self._born)

    def _born(self, _events: int) -> None:
        """The listener has arrived, or the program was executed, after which no listener can arrive."""
        if self._birth is None:
            return
        try:
            received = self._birth.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        self.close_birth()
        if received is None:
            return
        message, fds = received
        if isinstance(message, control.Locked) and 1 <= len(fds) <= 2 and not message.entrances:
            for fd in fds[1:]:
                os.close(fd)  # the runner's first process has sent the same
            try:
                self._denials.add(fds[0], self._number)
                self._listening = True
                self._denials.share(self._number, self._runner)
            except (LeewardError, OSError):
                os.close(fds[0])
                self._failed()
            return
        for fd in fds:
            os.close(fd)
        self._failed()

    def denied(self) -> Mapping[str, int]:
        """The number of refused calls so far, by name."""
        return self._denials.counts(self._number) if self._listening else {}

    def close_birth(self) -> None:
        """Wait for no listener any more. May be called repeatedly."""
        birth, self._birth = self._birth, None
        if birth is not None:
            self._reactor.forget(birth.fileno())
            birth.close()

    def remove(self) -> None:
        """Count no more refused calls. May be called repeatedly."""
        listening, self._listening = self._listening, False
        if listening:
            self._denials.remove(self._number)

    def broken(self, error: Exception) -> None:
        """For the barrier: pass *error* to the process."""
        self._broken(error)

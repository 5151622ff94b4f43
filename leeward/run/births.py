"""
A runner's birth, as the runner reports it: locked, then ready; or which step failed.

Runs in:   the daemon.
Trust:     the runner has no code of a job yet, but its messages are checked like a peer's: a message out of
           turn ends the birth, and no descriptor that comes with it stays open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from leeward.errors import LeewardError, PeerError
from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, Reactor
from leeward.run.runner import Runner
from leeward.run.verdict import bug
from leeward.wire import control

#: Called with the runner, the layer (or ""), and the reason.
Failed = Callable[[int, str, str], None]


def attend(reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
    """Listen to the birth channel of *runner* until the runner is ready or has failed, or until `stop_listening`."""
    assert runner.birth is not None
    reactor.watch(runner.birth.fileno(), READ, BirthListener(reactor, runner, born, failed).hear)


def stop_listening(reactor: Reactor, runner: Runner) -> None:
    """Stop listening to the birth channel of *runner*. May be called repeatedly."""
    if runner.birth is not None:
        reactor.forget(runner.birth.fileno())
        runner.close_birth()


class BirthListener:
    """Listens to the birth channel of one runner."""

    costs = "worker"

    def __init__(self, reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
        self._reactor, self._runner, self._born, self._failed = reactor, runner, born, failed

    def broken(self, error: Exception) -> None:
        """For the barrier: the handler of a message has raised *error*."""
        in_any_case(partial(stop_listening, self._reactor, self._runner),
                    partial(self._failed, self._runner.number, "", bug(error)))

    def hear(self, _events: int) -> None:
        runner = self._runner
        if runner.birth is None:
            return
        try:
            received = runner.birth.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        if received is None:
            stop_listening(self._reactor, runner)
            if not runner.checked:
                self._failed(runner.number, "", "the runner went before it was ready")
            return
        message, fds = received
        if isinstance(message, control.Locked) and len(fds) - 1 - message.entrances in (0, 1):
            try:
                listener, *more = fds
                scratch = more.pop() if len(more) > message.entrances else -1
                runner.listen(listener, scratch, tuple(more))
            except (LeewardError, OSError) as error:
                stop_listening(self._reactor, runner)
                self._failed(runner.number, "seccomp", str(error))
            return
        stop_listening(self._reactor, runner)
        if isinstance(message, control.Locked) and not fds:
            runner.cut = True
            self._failed(runner.number, "seccomp", "its listener did not arrive: no descriptor was left")
            return
        for fd in fds:
            os.close(fd)
        match message:
            case control.Ready(report) if runner.locked:
                runner.checked = True
                runner.report = report
                self._born(runner)
            case control.Failed(_, layer, text):
                self._failed(runner.number, layer, text)
            case _:
                self._failed(runner.number, "", f"the runner says {type(message).__name__}")

"""
A runner's birth, as it tells it itself: locked, then ready; or what failed.

Runs in:   the daemon.
Trust:     the runner has no code of a job yet, but what it says is checked like a peer's: a message out of
           turn ends the birth, and no descriptor that comes with it stays open.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from leeward.errors import LeewardError, PeerError
from leeward.wire import control
from leeward.worker.reactor import READ, Reactor
from leeward.worker.runner import Runner

#: Of which runner, in which layer (or ""), and why.
Failed = Callable[[int, str, str], None]


def attend(reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
    """
    Listen to its birth channel until it has come all the way, failed, or `leave`.
    """
    assert runner.birth is not None
    reactor.watch(runner.birth.fileno(), READ, lambda _: _hear(reactor, runner, born, failed))


def leave(reactor: Reactor, runner: Runner) -> None:
    """
    Nothing of its birth is wanted any more; harmless if that is so already.
    """
    if runner.birth is not None:
        reactor.forget(runner.birth.fileno())
        runner.close_birth()


def _hear(reactor: Reactor, runner: Runner, born: Callable[[Runner], None], failed: Failed) -> None:
    assert runner.birth is not None
    try:
        received = runner.birth.receive()
    except BlockingIOError:
        return
    except (PeerError, OSError):
        received = None
    if received is None:
        leave(reactor, runner)
        if not runner.checked:
            failed(runner.number, "", "the runner went before it was ready")
        return
    message, fds = received
    if isinstance(message, control.Locked) and len(fds) in (1, 2):
        try:
            runner.listen(*fds)
        except (LeewardError, OSError) as error:
            leave(reactor, runner)
            failed(runner.number, "seccomp", str(error))
        return
    leave(reactor, runner)
    for fd in fds:
        os.close(fd)
    match message:
        case control.Ready(report) if runner.locked:
            runner.checked = True
            runner.report = report
            born(runner)
        case control.Failed(_, layer, text):
            failed(runner.number, layer, text)
        case _:
            failed(runner.number, "", f"the runner says {type(message).__name__}")

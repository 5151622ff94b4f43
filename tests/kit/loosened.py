"""
A daemon without one of the locks that are its own: for controls.

Runs in:   the tests' process, which is the daemon of its boxes, and a test build (points.py). The product has no switch
           for this either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kit import points
from kit.locks import DAEMONS
from leeward.daemon.worker.worker import Worker, WorkerState


@contextmanager
def without(names: frozenset[str]) -> Iterator[None]:
    """While the block runs, no daemon in this process has these."""
    with ExitStack() as stack:
        for name in sorted(names):
            for point, replacement in _OFF[name].items():
                stack.enter_context(points.filled(point, replacement))
        yield


def _is_free_at_once(worker: Worker) -> bool:
    """As Worker.free, without the check that the runner before has no process left."""
    return (worker.state is WorkerState.SERVING and worker._doomed is None and worker.leasing.execution is None
            and bool(worker.arming.store) and not worker._spent)


def _seal_nothing(fd: int, seals: int) -> None:
    return


def _see_no_sockets(_keeper: object) -> int:
    return 0


#: The points that are filled to take out a lock, with their replacements, by the lock's name.
_OFF: dict[str, dict[str, Callable[..., Any]]] = {
    "sealing": {"results.seal": _seal_nothing},
    "turns": {"worker.free": _is_free_at_once},
    "backstage": {},  # Box starts the zygote by hand
    "limits": {},  # Box gives the engine another driver at its start: drivers.py
    "sockets": {"worker.sockets": _see_no_sockets},
}
assert _OFF.keys() == DAEMONS

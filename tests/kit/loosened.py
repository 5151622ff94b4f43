"""
A daemon without one of the locks that are its own: for controls.

Runs in:   the tests' process, which is the daemon of its boxes. The product has no switch for this either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

from kit.locks import DAEMONS
from leeward.run import output
from leeward.worker.keeper import Keeper
from leeward.worker.states import WorkerState
from leeward.worker.worker import Worker


@contextmanager
def without(names: frozenset[str]) -> Iterator[None]:
    """
    While the block runs, no daemon in this process has these.
    """
    with ExitStack() as stack:
        for name in sorted(names):
            for patch in _OFF[name]:
                stack.enter_context(patch())
        yield


def _is_impatient(worker: Worker) -> bool:
    """
    Worker.free, but for the runner before, which may still have processes.
    """
    return (worker.state is WorkerState.SERVING and worker._doomed is None and worker._leasing.execution is None
            and bool(worker._armed) and worker.jobs < worker._terms.recycle_after)


_OFF: dict[str, tuple[Callable[[], AbstractContextManager[object]], ...]] = {
    "sealing": (lambda: mock.patch.object(output, "_SEALS_FIRST", 0),
                lambda: mock.patch.object(output, "_SEALS_LAST", 0)),
    "turns": (lambda: mock.patch.object(Worker, "free", property(_is_impatient)),),
    "backstage": (),  # Box starts the zygote by hand
    "limits": (),  # Box gives the engine another driver at its start: drivers.py
    "sockets": (lambda: mock.patch.object(Keeper, "sockets", return_value=0),),
}
assert _OFF.keys() == DAEMONS

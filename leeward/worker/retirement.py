"""
The end of a worker: its keeper, its runners, and then its groups.

Runs in:   the daemon.

Theory of operation. The keeper is killed and its channel closed. Its runners die with it; their inits' pidfds show
that, since the keeper can't report it any more. The worker is gone when no process and no group is left. Each step can
be repeated, and all steps are repeated as long as something is left, because an exception in a callback may have come
between two of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leeward.loop.barrier import in_any_case
from leeward.loop.reactor import READ, Reactor, Timer
from leeward.run.births import stop_listening
from leeward.run.runner import Runner
from leeward.worker.orphans import reap, reap_orphans
from leeward.worker.removal import REMOVE_S, Removal
from leeward.worker.states import WorkerState
from leeward.worker.stumbles import AGAIN_MOST_S

if TYPE_CHECKING:
    from leeward.worker.worker import Worker

#: Seconds after which the steps are taken again when a callback has failed.
_MEND_S = 0.5

#: Seconds after a keeper's death until its inits, which die with it, are looked for.
_ORPHANS_S = 0.1


class Retirement:
    """
    The retirement of one worker.

    Attributes:
        removal: removes the groups of runners, also before the worker retires.
    """

    costs = "worker"

    def __init__(self, reactor: Reactor, worker: Worker) -> None:
        self._reactor, self._worker = reactor, worker
        self.removal = Removal(reactor, self.check, worker.group_stays, worker.broken)
        self._reason = ""
        self._mending: Timer | None = None

    def start(self, reason: str) -> None:
        """Begin to retire; a running job ends with *reason*."""
        self._reason = reason
        self._go()

    def _go(self) -> None:
        """Take all steps that are left."""
        worker = self._worker
        in_any_case(worker.withdraw, worker.keeper.close, worker.keeper.kill,
                    *(partial(self._let_go, runner) for runner in list(worker.runners.values())),
                    partial(self._reactor.soon, self.check))

    def _let_go(self, runner: Runner) -> None:
        stop_listening(self._reactor, runner)
        if runner.pidfd >= 0:
            # The keeper can't report any more, so the end of the init is noticed by its pidfd.
            runner.kill()
            self._reactor.forget(runner.pidfd)
            self._reactor.watch(runner.pidfd, READ, partial(self._on_orphan_end, runner))
        else:
            # The keeper hasn't reported this runner: it reads end of file on its pipes, or dies with the keeper.
            self._worker.runner_ended(runner.number, None, self._reason)

    def _on_orphan_end(self, runner: Runner, _events: int) -> None:
        self._reactor.forget(runner.pidfd)
        reap(runner.pidfd)
        self._worker.runner_ended(runner.number, None, self._reason)

    def on_keeper_end(self, _events: int) -> None:
        """Collect the keeper, which has ended, and retire the worker if it doesn't retire already."""
        in_any_case(self._worker.keeper.collect, self._worker.keeper_ended,
                    partial(self._reactor.after, _ORPHANS_S, self._reap_orphans),
                    partial(self._worker.retire, "its keeper is gone"), self.check)

    def _reap_orphans(self) -> None:
        # Repeated while there are runners: a frozen process may die later, and its init waits for its end.
        if not reap_orphans() or self._worker.runners:
            self._reactor.after(AGAIN_MOST_S, self._reap_orphans)

    def check(self) -> None:
        """If nothing is left, the worker is gone."""
        worker = self._worker
        if worker.state is WorkerState.RETIRING and worker.keeper.gone and not worker.runners and not self.removal:
            if not self.removal.removed(worker.group):
                self._reactor.after(REMOVE_S, self.check)
                return
            worker.gone()

    # --- when a callback has failed -------------------------------------------

    def mend(self) -> None:
        """Take the steps again, a little later: a callback has failed while the worker retires."""
        if self._mending is None:
            self._mending = self._reactor.after(_MEND_S, self._again)

    def _again(self) -> None:
        self._mending = None
        if self._worker.state is WorkerState.RETIRING:
            in_any_case(self.removal.again, self._go)

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback has raised *error*, which is reported to the worker."""
        self._worker.broken(error)

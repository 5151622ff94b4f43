"""
Makes the state with which the interpreters of an environment begin: code that runs once, as a kernel, with every lock.

Theory of operation. The first worker of the pool that could take a job is claimed. Its sandbox gets a kernel, which
begins as everywhere else, and runs the code; its process is taken as snapshots are (run/dumping.py), but so that a copy
waits for a first frame, of whatever kind. Then the sandbox is ended, and from now on each runner that is armed, and each
interpreter of a live sandbox, loads the state after its last lock, before anybody waits for it. Until there is a state no
other runner is armed, so no job begins without it. If the first state can't be made the pool ends, with the reason.

A state has the address layout of its zygote. When another zygote has taken over, a state is made anew in the same way,
while the pool goes on with the one before; if that fails it stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leeward._native.memfd import memory_file
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.begin import WarmCode
from leeward.daemon.run.dumping import Dump, KernelState
from leeward.daemon.run.lease import Lease, TakeWarmTurn
from leeward.daemon.run.live_runner import LiveCaller, LiveRunner
from leeward.daemon.run.loading import why_not
from leeward.daemon.run.report import Report
from leeward.daemon.run.verdict import bug
from leeward.daemon.worker.warmth import Warmth
from leeward.daemon.worker.worker import Worker
from leeward.errors import LeewardError, SnapshotFailed
from leeward.spec.job import Job
from leeward.spec.limits import Limits


class Warming:
    """*made* is called when there is a state, *failed* with the reason why there is none."""

    costs = "session"

    def __init__(self, reactor: Reactor, warmth: Warmth, what: WarmCode, limits: Limits,
                 made: Callable[[KernelState], None], failed: Callable[[str], None]) -> None:
        self._reactor, self._warmth, self._limits = reactor, warmth, limits
        self._job = Job(code=what.code, name=what.name, limits=limits)
        self._made, self._failed = made, failed
        self._due, self._closed = True, False
        self._live: LiveRunner | None = None
        self._dump: Dump | None = None

    @property
    def works(self) -> bool:
        """Whether the code runs, or its state is being taken."""
        return self._live is not None

    def renew(self) -> None:
        """Another zygote has taken over: make a state from it."""
        self._due = True

    def claims(self, worker: Worker) -> bool:
        """Whether *worker*, which is free, may have no job now; perhaps because the code runs there."""
        if self._due and not self.works and not worker.outdated:
            self._begin(worker)
            return True
        return self._warmth.state is None

    def _begin(self, worker: Worker) -> None:
        self._due = False
        self._warmth.waits = self._warmth.state is None
        try:
            self._live = worker.leasing.open(self._limits, self._lost)
            self._live.kernel(self._limits, self._opened, self._lost, cold=True)
        except LeewardError as error:
            self._end(str(error))

    def _opened(self, lease: Lease) -> None:
        lease.run(LiveCaller(self._job, partial(self._ran, lease)))

    def _ran(self, lease: Lease, report: Report) -> None:
        why = why_not(report)
        report.close()
        if why or not self.works:
            self._end(why)
            return
        # The state can't be larger than the memory of the sandbox, which its limit bounds.
        dump = self._dump = Dump(self._reactor, lambda _size: memory_file("leeward_snapshot"), self._dumped)
        try:
            dump.begin(lease.held)
            lease.ask(LiveCaller(Job(code=b"", limits=self._limits), self._answered), TakeWarmTurn)
        except LeewardError as error:
            dump.give_up()
            self._end(str(error))

    def _answered(self, report: Report) -> None:
        why = why_not(report)
        report.close()
        if self._dump is not None:
            self._dump.answered(why)

    def _dumped(self, made: KernelState | SnapshotFailed) -> None:
        self._dump = None
        if isinstance(made, SnapshotFailed):
            self._end(str(made))
            return
        live, self._live = self._live, None
        self._warmth.take(made)
        in_any_case(*([] if live is None else [partial(live.end, "its state was taken")]), partial(self._made, made))

    def _lost(self, why: str) -> None:
        if self.works:
            self._end(why)

    def _end(self, why: str) -> None:
        """Give up: there is no state, or the one before stays."""
        live, self._live = self._live, None
        dump, self._dump = self._dump, None
        in_any_case(*([] if live is None else [partial(live.end, why)]), *([] if dump is None else [dump.give_up]),
                    *([] if self._closed else [partial(self._failed, why)]))

    def broken(self, error: Exception) -> None:
        self._end(bug(error))

    def close(self) -> None:
        """The pool ends."""
        self._closed = True
        in_any_case(partial(self._end, "the pool ends"), partial(self._warmth.take, None))

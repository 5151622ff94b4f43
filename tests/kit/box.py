"""
A sandbox for tests: an engine in this process, with all locks or with some.

    with Box() as box:                       # all locks, as the product has them
        got = box.run("print(1)")
    with Box(locks={"landlock"}) as box:     # that one alone (and what can't be left out)
        ...
    with Box(lacks={"sealing"}) as box:      # all locks of the job, and the daemon without one of its own
        ...
    with Box(lacks={"limits"}) as box:       # all locks, and no limit on memory, tasks and processors
        ...

`run_outside` runs code in an interpreter outside any sandbox, which is the control of most attacks. Every run is noted
in `RUNS`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from weakref import WeakSet

from kit import features, loosened, points
from kit.drivers import UnlimitedDriver
from kit.locks import LOCKS
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.begin import Patience, Settings
from leeward.daemon.pool.engine import Engine
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import RunnerState
from leeward.daemon.worker import zygote_start
from leeward.daemon.worker.keeper import Keeper
from leeward.daemon.worker.zygote_start import BackstageProcess
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.plan import ZygotePlan
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Result

TESTS = Path(__file__).resolve().parents[1]

#: The layers that the operator of this machine has to allow to be missing.
MISSING = () if features.is_met("landlock") else ("landlock",)

#: Seconds that a test waits for something at most; no result depends on this time.
PATIENCE_S = 60.0 * features.SLOWER


def patience() -> Patience:
    """Return the product's `Patience`, multiplied by how slow this machine is."""
    usual = Patience()
    return Patience(*(each * features.SLOWER for each in (usual.start, usual.zygote, usual.keeper)))


@dataclass(frozen=True, slots=True)
class Run:
    """
    The surroundings in which a piece of code ran.

    Attributes:
        locks: the locks of the job, of `locks.LOCKS`; None for all.
        lacks: the locks that the daemon lacked, of `locks.DAEMONS`.
        outside: the code ran in no sandbox at all.
    """

    locks: frozenset[str] | None = None
    lacks: frozenset[str] = frozenset()
    outside: bool = False

    @property
    def whole(self) -> bool:
        """Whether the code ran in the product with all its locks."""
        return not self.outside and self.locks is None and not self.lacks


#: What ran since this list was cleared. A test's marks are compared with it: lock_policy.py.
RUNS: list[Run] = []

#: Every sandbox that is up, in the order in which they were started.
_UP: list[Box] = []

#: What ran in each control since this list was cleared.
CONTROLS: list[tuple[Run, ...]] = []


@contextmanager
def control() -> Iterator[None]:
    """
    The block of a control: in it the attack runs without the lock that should stop it. Assert inside that it succeeds.

        with control():
            assert text in without(attack)

    A test that doesn't reach the end of such a block has no control.
    """
    before = len(RUNS)
    yield
    CONTROLS.append(tuple(RUNS[before:]))


def begins_with(source: str) -> AbstractContextManager[None]:
    """While the block runs, zygotes that start run *source* first."""
    usual = points.original("zygote.entry")
    return points.filled("zygote.entry", lambda control: source + usual(control))


class Journal:
    """A log that keeps its rows."""

    details = True

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, /, **fields: object) -> None:
        self.rows.append((event, fields))

    debug = warning = info

    def of(self, event: str) -> list[dict[str, object]]:
        """The fields of every row with this *event*."""
        return [fields for name, fields in self.rows if name == event]


class _OverlookingKeeper(Keeper):
    """A keeper in the host's network namespace. The host's sockets aren't its jobs', so it counts none."""

    def sockets(self) -> int:
        return 0


#: The event loops of the boxes whose jobs are in the host's network namespace.
_IN_HOST_NETWORK: WeakSet[Reactor] = WeakSet()


def _keeper(reactor: Reactor, limits: Limits) -> Keeper:
    """
    At the point `worker.keeper`. Several boxes may be up at once, each with an event loop of its own, and *reactor*
    tells for which of them the keeper is made.
    """
    if any(reactor is each for each in _IN_HOST_NETWORK):  # a unit test's may have no hash
        return _OverlookingKeeper(reactor, limits)
    keeper: Keeper = points.original("worker.keeper")(reactor, limits)
    return keeper


class Box:
    """
    An engine with one worker (or *pool_size*), driven from the test's own thread.

    Args:
        locks: names from `locks.LOCKS` to keep; None for the product as it is.
        lacks: names from `locks.DAEMONS` to go without.
        driver: the cgroup driver, where it isn't to be chosen: tests/kit/drivers.py.
        reactor: the reference, unless another is given.
        settings: of the engine, e.g. pool_size, recycle_after, cgroup, python_env.
    """

    def __init__(self, locks: Iterable[str] | None = None, lacks: Iterable[str] = (), *,
                 driver: Driver | None = None, reactor: Reactor | None = None, **settings: Any) -> None:
        self.log = Journal()
        self.reactor = reactor or ReferenceReactor()
        settings = {"pool_size": 1, "allow_degraded": MISSING, "patience": patience(), **settings}
        self.engine = Engine(self.reactor, Settings(**settings), self.log)
        self.made_of = Run(None if locks is None else frozenset(locks), frozenset(lacks))
        self._driver = UnlimitedDriver() if "limits" in self.made_of.lacks else driver

    def __enter__(self) -> Box:
        locks = self.made_of.locks
        with ExitStack() as stack:
            if locks is not None or "backstage" in self.made_of.lacks:
                stripped = (
                    f"sys.path.append({str(TESTS)!r})\n"
                    "from kit import points\n"
                    "points.build()\n"
                    "from kit import halfway\n"
                    "sys.path.pop()\n"
                    f"halfway.strip({None if locks is None else sorted(locks)!r})\n"
                    "halfway.give_up_rights()\n"
                )
                stack.enter_context(begins_with(stripped))
                stack.enter_context(points.filled("zygote.begin", _careless(LOCKS if locks is None else locks)))
                if locks is not None and "namespaces" not in locks:
                    _IN_HOST_NETWORK.add(self.reactor)
                    points.fill("worker.keeper", _keeper)  # for good: workers are also made after the start
            if self._driver is not None:
                stack.enter_context(points.filled("cgroup.driver", lambda *_, **__: self._driver))
            self.engine.start()
        _UP.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _UP.remove(self)
        # A keeper that is killed reaps nobody, and without a pid namespace nobody else ends what a job left.
        until = time.monotonic() + PATIENCE_S / 10
        while time.monotonic() < until and any(
                runner.state is RunnerState.ENDING for worker in self.engine.main.pool.workforce.workers
                for runner in worker.arming.runners.values()):
            self.reactor.turn(0.1)
        self.engine.close()
        self.reactor.close()

    def report(self, code: str | bytes | None, *, limits: dict[str, Any] | None = None, **fields: Any) -> Report:
        """Run one job to its end, and return its report."""
        source = textwrap.dedent(code).encode() if isinstance(code, str) else code
        job = Job(code=source, limits=Limits(**{"time": Limits().time * features.SLOWER, **(limits or {})}), **fields)
        reports: list[Report] = []
        RUNS.append(self.made_of)
        with loosened.without(self.made_of.lacks):
            self.engine.main.pool.submit(job, reports.append, PATIENCE_S)
            # Until the job's processes are ended, too, which happens after the answer: nothing else turns this reactor.
            self.reactor.run(lambda: bool(reports) and not any(
                worker.leasing.running is not None and worker.leasing.running.state is RunnerState.RUNNING
                for worker in self.engine.main.pool.workforce.workers if not worker.busy))
        return reports[0]

    def settle(self) -> None:
        """
        Wait until no process of a job is left, and every runner that is armed in advance is there; of a worker that
        is just being replaced as well.
        """
        def settled() -> bool:
            workers = self.engine.main.pool.workforce.workers
            return bool(workers) and all(
                worker.free and not (worker.arming.count or worker.arming.wanted())
                and len(worker.arming.runners) == worker.armed
                for worker in workers)

        self.reactor.run(settled)

    def run(self, code: str | bytes | None, **fields: Any) -> Result:
        """Run one job. Returns its result, with a large output read from the memory file."""
        report = self.report(code, **fields)
        assert report.result is not None, report.refusal
        if report.files is not None:
            report.result = replace(report.result, files=report.files.contents())
            report.files.arena.close()
        if report.arena is not None:
            from os import pread

            arena = report.arena
            parts: dict[str, Any] = {name: pread(arena.fd, region[1], region[0])
                                     for name, region in (("stdout", arena.stdout), ("stderr", arena.stderr)) if region}
            arena.close()
            return replace(report.result, **parts)
        return report.result


def settle_all() -> None:
    """
    `settle` every sandbox that is up. A sandbox that an earlier test has left while it arms a runner would have one
    process more a moment later, and a test that counts processes would fail.
    """
    for box in _UP:
        box.settle()


def _careless(locks: frozenset[str]) -> Callable[[ZygotePlan, int], tuple[BackstageProcess, int]]:
    """
    Return the replacement for the point `zygote.begin`. Its zygote isn't backstage, so that keepers without a lock find
    the host's files and network. By *locks* it may also inherit the daemon's environment and descriptors.
    """
    def start(plan: ZygotePlan, control_fd: int) -> tuple[BackstageProcess, int]:
        env = dict(plan.environment)
        if "environment" not in locks:
            # But for what puts a sanitizer into this process, which is not the zygote's: test_sanitizers.py.
            env = {name: value for name, value in os.environ.items()
                   if name not in ("LD_PRELOAD", "PYTHONPATH") and not name.endswith("SAN_OPTIONS")} | env
        close = "descriptors" in locks
        if not close:
            os.set_inheritable(control_fd, True)
        argv = [plan.executable, *(["-S"] if plan.bare else []), "-c", zygote_start._BOOTSTRAP]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   cwd="/", env=env, pass_fds=[control_fd] if close else [], close_fds=close,
                                   start_new_session=True)
        return cast("BackstageProcess", process), control_fd

    return start


def run_outside(code: str, **options: Any) -> str:
    """Run code in an interpreter outside any sandbox. Returns its stdout and stderr."""
    RUNS.append(Run(outside=True))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True,
                          errors="replace", timeout=PATIENCE_S, stdin=subprocess.DEVNULL, **options)
    said: str = done.stdout + done.stderr
    return said

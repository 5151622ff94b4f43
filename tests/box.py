"""
A sandbox for tests: an engine in this process, with all locks or with some.

    with Box() as box:                       # all locks, as the product has them
        got = box.run("print(1)")
    with Box(locks={"landlock"}) as box:     # that one alone (and what can't be left out)
        ...
    with Box(driver=UnlimitedDriver()):      # all locks, and no limit on memory, tasks and processors
        ...

`run_outside` runs the same code in a plain interpreter: most attacks' control.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from leeward.isolation.cgroup.entry import Driver
from leeward.outcome import Result
from leeward.pool import engine as engine_module
from leeward.pool.engine import Engine, Settings
from leeward.pool.pool import Pool
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.worker import zygote
from leeward.worker.reactor import Reactor
from leeward.worker.report import Report
from leeward.worker.worker import Worker

TESTS = Path(__file__).resolve().parent

#: What a test waits for at most; nothing here depends on time.
PATIENCE_S = 60.0


class Journal:
    """
    A log that keeps what it is told.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.rows.append((event, fields))

    warning = info

    def of(self, event: str) -> list[dict[str, object]]:
        """
        The fields of every row with this *event*.
        """
        return [fields for name, fields in self.rows if name == event]


class Box:
    """
    An engine with one worker (or *pool_size*), driven from the test's own thread.

    Args:
        locks: names from `halfway.LOCKS` to keep; None for the product as it is.
        driver: the cgroup driver, where it isn't to be chosen: tests/drivers.py.
        settings: of the engine, e.g. pool_size, recycle_after, cgroup, python_env.
    """

    def __init__(self, locks: Iterable[str] | None = None, *, driver: Driver | None = None, **settings: Any) -> None:
        self.log = Journal()
        self.reactor = Reactor()
        self.engine = Engine(self.reactor, Settings(**{"pool_size": 1, **settings}), self.log)
        self._locks = None if locks is None else sorted(locks)
        self._driver = driver

    def __enter__(self) -> Box:
        before, choose = zygote.ENTRY, engine_module.choose
        if self._locks is not None:
            zygote.ENTRY = (
                f"sys.path.append({str(TESTS)!r})\n"
                "import halfway\n"
                "sys.path.pop()\n"
                f"halfway.strip(frozenset({self._locks!r}))\n"
            ) + before
        if self._locks is not None and "namespaces" not in self._locks:
            self._overlook_sockets()
        driver = self._driver
        if driver is not None:
            engine_module.choose = lambda wanted=None: driver
        try:
            self.engine.start()
        finally:
            zygote.ENTRY, engine_module.choose = before, choose
        return self

    def _overlook_sockets(self) -> None:
        """
        Its jobs are in the host's network namespace: the host's sockets are none of theirs.
        """
        make = self.engine.make_worker

        def make_worker(slot: int, pool: Pool) -> Worker:
            worker = make(slot, pool)
            worker.sockets = lambda: 0  # type: ignore[method-assign]  # of this worker alone
            return worker

        self.engine.make_worker = make_worker  # type: ignore[method-assign]  # of this engine alone

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.engine.close()
        self.reactor.close()

    def settle(self) -> None:
        """
        Wait until no process of a job is left, and every runner that is armed in advance is there.
        """
        runners = 1 + self.engine._settings.spares
        self.reactor.run(lambda: all(worker.free and runners == len(worker._runners) == len(worker._armed)
                                     for worker in self.engine.pool.workers))

    def report(self, code: str | bytes | None, *, limits: dict[str, Any] | None = None, **fields: Any) -> Report:
        """
        Run one job to its end.
        """
        source = textwrap.dedent(code).encode() if isinstance(code, str) else code
        job = Job(code=source, limits=Limits(**(limits or {})), **fields)
        reports: list[Report] = []
        self.engine.pool.submit(job, reports.append, PATIENCE_S)
        self.reactor.run(lambda: bool(reports))
        return reports[0]

    def run(self, code: str | bytes | None, **fields: Any) -> Result:
        """
        Run one job; its result, with a large output read back from the arena.
        """
        report = self.report(code, **fields)
        assert report.result is not None, report.refusal
        if report.arena is not None:
            from dataclasses import replace
            from os import pread

            arena = report.arena
            parts = {name: pread(arena.fd, region[1], region[0])
                     for name, region in (("stdout", arena.stdout), ("stderr", arena.stderr)) if region}
            arena.close()
            return replace(report.result, **parts)
        return report.result


def run_outside(code: str, **options: Any) -> str:
    """
    stdout and stderr of the same code in a plain interpreter, outside any sandbox.
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True,
                          errors="replace", timeout=PATIENCE_S, stdin=subprocess.DEVNULL, **options)
    return done.stdout + done.stderr

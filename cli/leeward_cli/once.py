"""Runs one job in an engine of its own. `leeward run` imports this module while its zygote warms up."""

from __future__ import annotations

from leeward.client.live_output import LOOK_S
from leeward.daemon.ending import Signals
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.begin import Bootstrap, Settings
from leeward.daemon.pool.engine import Engine
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.spec.job import Job
from leeward_cli.live_output import ShownOutput

#: Seconds until the worker must be ready for the job.
WORKER_S = 30.0


class Quiet:
    """A log that drops everything: errors are raised, or are in the result."""

    details = False

    def info(self, event: str, /, **fields: object) -> None:
        pass

    debug = warning = info


def perform(one: Job, settings: Settings, bootstrap: Bootstrap,
            shown: ShownOutput | None = None) -> tuple[Report, bool]:
    """Run the job *one*, whose output is *shown* meanwhile. Returns its report, and whether Ctrl-C has ended it."""
    reactor = NativeReactor("socket", fast_path=False)
    asked = Asked(reactor)
    signals = Signals(reactor, asked.arrived)
    engine = Engine(reactor, settings, Quiet(), bootstrap=bootstrap)
    reports: list[Report] = []
    try:
        try:
            if engine.start():
                asked.job = engine.main.pool.submit(one, reports.append, WORKER_S)
                if shown is not None:
                    _Looks(reactor, asked.job, shown)
                reactor.run(until=lambda: bool(reports))
        finally:
            engine.close()
    finally:
        signals.close()
        reactor.close()
    if asked.name:
        raise KeyboardInterrupt if asked.name == "SIGINT" else EndedBySignal(asked.name)
    return reports[0], asked.interrupts > 1


class _Looks:
    """Shows the job's new output every LOOK_S seconds. There is only this job, so this work delays no other one."""

    costs = "job"

    def __init__(self, reactor: Reactor, job: Ticket, shown: ShownOutput) -> None:
        self._reactor, self._job, self._shown = reactor, job, shown
        reactor.after(LOOK_S, self._look)

    def _look(self) -> None:
        execution = self._job.execution
        if execution is not None and not execution.over:
            output = execution.output
            out, err = (output.since(stream, size) for stream, size in
                        zip((output.out, output.err), self._shown.sizes, strict=True))
            self._shown.add(out, err)
        self._reactor.after(LOOK_S, self._look)

    def broken(self, error: Exception) -> None:
        """Pass an exception of `_look` on to the job, such as that standard output is closed. The barrier calls this."""
        self._job.broken(error)


class EndedBySignal(BaseException):
    """A signal has asked this process to end. The argument is the signal's name."""


class Asked:
    """Records the *name* of the signal that asked this process to end. The first SIGINT interrupts, the second kills."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.name = ""
        self.job: Ticket | None = None
        self.interrupts = 0

    def arrived(self, name: str) -> None:
        if name == "SIGINT" and self.job is not None:
            self.interrupts += 1
            if self.interrupts == 1 and self.job.interrupt():
                return
            if self.interrupts == 2 and self.job.kill():
                return
        self.name = self.name or name
        self._reactor.stop()

"""
One job in an engine that lives as long as it: what `leeward run` imports while a zygote warms up.

Runs in:   the CLI, which for once is the daemon as well.
"""

from __future__ import annotations

from leeward.daemon.signals import Signals
from leeward.pool.begin import Begun, Settings
from leeward.pool.engine import Engine
from leeward.pool.report import Report
from leeward.spec.job import Job
from leeward.worker.reactor import Reactor

#: Seconds until the one worker must be ready to take the one job.
WORKER_S = 30.0


class Quiet:
    """
    The engine's log, dropped: what matters comes back as an error or in the result.
    """

    def info(self, event: str, /, **fields: object) -> None:
        pass

    debug = warning = info


def perform(one: Job, settings: Settings, begun: Begun) -> Report:
    """
    The report of *one* job, from an engine that lives as long as it.

    Raises:
        LeewardError: a layer can't be set.
    """
    reactor = Reactor()
    signals = Signals(reactor, _ended_by)
    engine = Engine(reactor, settings, Quiet(), begun=begun)
    try:
        try:
            engine.start()
        except (Ended, KeyboardInterrupt):
            engine.close()
            raise
        try:
            reports: list[Report] = []
            engine.pool.submit(one, reports.append, WORKER_S)
            reactor.run(until=lambda: bool(reports))
            return reports[0]
        finally:
            engine.close()
    finally:
        signals.close()
        reactor.close()


class Ended(BaseException):
    """
    A signal asked for the end; its name is the argument.
    """


def _ended_by(name: str) -> None:
    raise KeyboardInterrupt if name == "SIGINT" else Ended(name)

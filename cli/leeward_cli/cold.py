"""
`leeward run`: the same isolation without a daemon, made for one job.

Runs in:   the CLI, which for once is the daemon as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leeward.client.arena import map_arenas
from leeward.daemon.config import Config, load
from leeward.daemon.intake import job_of
from leeward.daemon.parcel import pack
from leeward.daemon.signals import Signals
from leeward.pool.engine import Engine, Settings
from leeward.pool.report import Report
from leeward.spec.job import Job
from leeward.wire.frames import HEADER, VERSION, decode
from leeward.wire.messages import Execute, parse_request
from leeward.wire.replies import parse_reply, parse_result
from leeward.worker.reactor import Reactor
from leeward_cli import job
from leeward_cli.main import die_by
from leeward_cli.options import parse

#: Seconds until the one worker must be ready to take the one job.
WORKER_S = 30.0


class Quiet:
    """
    The engine's log, dropped: what matters comes back as an error or in the result.
    """

    def info(self, event: str, /, **fields: object) -> None:
        pass

    debug = warning = info


def run(argv: Sequence[str]) -> int:
    """
    Run one job in a pool of one worker, made and taken down around it.
    """
    parsed = parse("run", argv)
    # The daemon's own way in, so that both refuse the same.
    request = parse_request({"v": VERSION, "id": 1, "op": "execute", **job.request(parsed)})
    assert isinstance(request, Execute)
    overrides: dict[str, Any] = {}
    if parsed.values("--allow-degraded"):
        overrides["allow_degraded"] = parsed.values("--allow-degraded")
    config = load(parsed.value("--config"), overrides)
    try:
        report = perform(job_of(request, config), config)
    except Ended as end:
        return die_by(str(end))
    if report.refusal is not None:
        raise report.refusal
    parcel = pack(1, report)
    # What a client would get, read as a client would: `run` and `exec` can't differ.
    reply = parse_reply(decode(bytes(parcel.frame[HEADER:])))
    arenas = map_arenas([arena.fd for arena in parcel.arenas], reply.arenas)
    return job.show(parse_result(reply), arenas, parsed)


def perform(one: Job, config: Config) -> Report:
    """
    The report of *one* job, from an engine that lives as long as it.

    Raises:
        LeewardError: a layer can't be set.
    """
    reactor = Reactor()
    signals = Signals(reactor, _ended_by)
    engine = Engine(reactor, Settings(
        pool_size=1, spares=1, recycle_after=1, queue_size=1, limits=config.limits, python_env=config.python_env,
        preload=config.preload, allow_degraded=config.allow_degraded,
    ), Quiet())
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

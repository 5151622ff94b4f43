"""
`leeward selftest` over a Box, which can lack a lock.

Runs in:   the tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kit import loosened
from kit.box import PATIENCE_S, Box
from leeward.client.options import execute_fields
from leeward.daemon.run.report import Report
from leeward.spec.job import Job
from leeward.spec.limits import CEILINGS, Limits, adjusted
from leeward.spec.outcome import Result


class InBox:
    """As leeward_cli.selftest.command.ByDaemon, over a box with two workers."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def _job(self, code: str, **options: Any) -> Job:
        fields = execute_fields(code, **options)
        return Job(code=fields["code"], args=tuple(fields["args"]),
                   limits=adjusted(Limits(), CEILINGS, fields.get("limits", {})))

    def run(self, code: str, **options: Any) -> Result:
        job = self._job(code, **options)
        result = self._box.run(job.code, args=job.args, limits={
            name: getattr(job.limits, name) for name in ("memory", "processes", "time", "output")})
        return replace(result, stdout=bytes(result.stdout))

    def beside(self, code: str, **options: Any) -> Callable[[], object]:
        reports: list[Report] = []
        with loosened.without(self._box.made_of.lacks):
            ticket = self._box.engine.main.pool.submit(self._job(code, **options), reports.append, PATIENCE_S)
        return ticket.cancel

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                return False
            self._box.reactor.turn(0.02)
        return True

"""Which uses of a sandbox keep it awake: each of them opens files that are closed when it rests, so each is told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from leeward.daemon.loop.reactor import JobStart, Ran
from leeward.daemon.run.report import Report
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.terms import SandboxFacts
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

GOOD = Report(result=Result(b"", b"", 0, Outcome.FINISHED))


def test_a_job_of_a_kernel_is_a_use_when_it_begins_and_when_it_ends() -> None:
    """By name and on the fast path. The sandbox may have gone to rest while the job ran."""
    uses: list[str] = []
    callers: list[Any] = []
    lease: Any = SimpleNamespace(ending=False, run=callers.append, ran=lambda ran: None,
                                 job_started=lambda caller, start: callers.append(caller))

    def kernel(_limits: Limits, opened: Callable[[Any], None], _lost: Callable[[str], None], _state: object, *,
               same: bool) -> Any:
        reactor.then.append(lambda: opened(lease))
        return SimpleNamespace(kill=lambda: None)

    reactor: Any = SimpleNamespace(now=lambda: 0.0, then=[])
    terms: Any = None
    place: Any = SimpleNamespace(stir=lambda: uses.append("used"), kernel=kernel, withdraw=lambda: None)
    sandbox = LiveSandbox(reactor, SandboxFacts(Limits(), {}, {}), terms, lambda reason, why: None)
    sandbox.begin(place)
    number = sandbox.open_kernel()
    reactor.then.pop()()
    job, told = Job(code=b""), list[Report]()
    for begin in (lambda: sandbox.run_in(number, job, told.append),
                  lambda: sandbox.job_started(number, job, told.append, JobStart(1, b"", 7, 1, 0.0, 0))):
        begin()
        assert ["used"] == uses
        callers.pop().finished(GOOD)
        assert ["used"] * 2 == uses
        uses.clear()
    sandbox.ran(number, Ran(2, 7, 1, 0.0, 1.0, 0.0, 0))
    assert (["used"], [GOOD] * 2) == (uses, told)

"""The processor time of short jobs: to the microsecond, and without arming, whoever counts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.box import Box
from kit.drivers import DRIVERS
from leeward.spec.outcome import Outcome

BURN = "import os, time\nuntil = time.process_time() + 0.003\nwhile time.process_time() < until: pass\n"


@pytest.fixture(scope="module", params=DRIVERS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with Box(cgroup=request.param) as made:
        yield made


@pytest.mark.parametrize(("code", "outcome"), [
    (BURN, Outcome.FINISHED),                                             # its reply tells its end
    (BURN + "os._exit(0)", Outcome.FINISHED),                             # its init does
    ("import os, signal\n" + BURN + "os.kill(os.getpid(), signal.SIGKILL)", Outcome.SIGNALLED),
    ("import os\nif 0 == os.fork():\n    " + BURN.replace("\n", "\n    ") + "os._exit(0)\nos.wait()\nos._exit(0)",
     Outcome.FINISHED),                                                   # a child that it has waited for
])
def test_three_milliseconds_are_no_tick_of_a_clock(box: Box, code: str, outcome: Outcome) -> None:
    got = box.run(code)

    assert outcome is got.outcome
    assert 0.002 < got.cpu_time < 0.010


def test_an_empty_job_is_charged_some_processor_time(box: Box) -> None:
    """And less than what arming takes."""
    assert 0 < box.run("pass").cpu_time < 0.002


def test_a_job_that_times_out_is_charged_its_processor_time(box: Box) -> None:
    got = box.run("while True: pass", limits={"time": 0.055})

    assert Outcome.TIMED_OUT is got.outcome
    assert 0 < got.cpu_time <= got.duration + 0.002

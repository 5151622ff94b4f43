"""Interpreters in a live sandbox: a fresh one for a job, with the sandbox's files, and one with state."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kit.box import Box
from kit.live import Live, opened
from leeward.daemon.loop.reactor import JobStart
from leeward.daemon.run.beside import Interpreter
from leeward.daemon.run.lease import Lease
from leeward.daemon.run.live_runner import UNHURRIED
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner_states import RunnerState
from leeward.daemon.sandboxes.sandbox import FreshJob
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result
from leeward.wire.job_frames import job_frame

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture(scope="module", params=[
    pytest.param("v2", marks=pytest.mark.needs("cgroup-v2-controllers")),
    pytest.param("v1", marks=pytest.mark.needs("cgroup-v1-controllers", "root")),
    pytest.param("none"),
])
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with Box(cgroup=request.param) as box, opened(box) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["starts", "waits"])
def waits(request: pytest.FixtureRequest, live: Live) -> bool:
    """Whether an interpreter waits for the next job."""
    if request.param:
        prepared(live)
    return bool(request.param)


def prepared(live: Live) -> Interpreter:
    live.runner.prepare()
    live.runner.prepare()
    made, = live.runner.interpreters
    live.until(lambda: made.runner.state is RunnerState.ARMED)
    live.runner.stir()  # a sandbox that rests lets it go
    return made


def execute(live: Live, code: str, **limits: Any) -> Result:
    reports: list[Report] = []
    live.runner.execute(Job(code=code.encode(), limits=Limits(**limits)), reports.append)
    live.until(lambda: bool(reports))
    live.until(lambda: not live.runner.processes)
    report, = reports
    assert report.result is not None, report.refusal
    return report.result


def test_nothing_of_a_job_that_is_over_waits_for_a_collection(live: Live) -> None:
    def run() -> None:
        reports: list[Report] = []
        fresh = FreshJob(reports.append, set())
        fresh.process = live.runner.execute(Job(code=b"1", limits=Limits()), fresh.answer, fresh.moved)
        live.until(lambda: bool(reports))

    for _ in range(3):
        run()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            run()
        assert gc.collect() < 50  # each had 33 objects
    finally:
        gc.enable()


@pytest.mark.usefixtures("waits")
def test_a_job_has_the_sandboxs_files_and_a_process_of_its_own(live: Live) -> None:
    live.shell("echo data >f")

    got = execute(live, "import os, threading; open('g', 'w').write('by a job'); print(open('f').read().strip(),"
                        " os.getcwd(), os.getpid() > 2, os.getpid() == threading.main_thread().native_id)")

    assert (Outcome.FINISHED, "data /workspace True True\n") == (got.outcome, got.stdout_text), got.stderr_text
    assert "by a job" == live.shell("cat g").out


def test_a_job_gets_the_interpreter_that_waits(live: Live) -> None:
    """Also one that isn't ready yet; nothing else of the sandbox can be told from what it does."""
    before = prepared(live).runner.pid
    reports: list[Report] = []
    made = live.runner.execute(Job(code=b"print(1)"), reports.append)
    assert before == made.runner.pid
    live.until(lambda: bool(reports) and not live.runner.processes)
    live.runner.prepare()
    waiting, = live.runner.interpreters
    assert waiting is live.runner.execute(Job(code=b"print(2)"), reports.append)
    live.until(lambda: 2 == len(reports) and not live.runner.processes)
    assert ["1\n", "2\n"] == [report.result.stdout_text for report in reports if report.result is not None]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_an_interpreter_that_others_have_stopped_or_ended_gets_no_job(live: Live, number: signal.Signals) -> None:
    """As any process of the sandbox can."""
    made = prepared(live)
    os.kill(made.runner.pid, number)
    live.until(lambda: not made.waits())

    assert "1\n" == execute(live, "print(1)").stdout_text


@pytest.mark.parametrize("number", [0, signal.SIGSTOP])
def test_a_job_of_the_fast_path_moves_if_its_interpreter_was_stopped(live: Live, number: int) -> None:
    """As any process of the sandbox can, while it was on offer."""
    made = prepared(live)
    os.kill(made.runner.pid, number)
    live.until(lambda: not number or not made.waits())
    job, reports, moved = Job(code=b"print(1)"), list[Report](), list[Interpreter]()
    os.write(made.runner.job, job_frame(job))
    live.runner.job_started(job, reports.append, moved.append, JobStart(1, job.code, made.number, 5, time.monotonic(), 0))
    live.until(lambda: bool(reports) and not live.runner.processes)
    report, = reports
    assert report.result is not None
    assert ("1\n", bool(number)) == (report.result.stdout_text, bool(moved))


def test_a_job_of_the_fast_path_that_stops_itself_can_be_continued(live: Live) -> None:
    """It has begun, so it has its time, as any job."""
    made, reports = prepared(live), list[Report]()
    job = Job(code=b"import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print(1)")
    os.write(made.runner.job, job_frame(job))
    live.until(lambda: not made.waits())
    live.runner.job_started(job, reports.append, lambda _: None, JobStart(1, job.code, made.number, 5, time.monotonic(), 0))
    os.kill(made.runner.pid, signal.SIGCONT)
    live.until(lambda: bool(reports) and not live.runner.processes)
    report, = reports
    assert report.result is not None
    assert "1\n" == report.result.stdout_text


def test_an_interpreter_rehearses_if_those_before_it_had_time(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is late begins the count again. The job of one that has rehearsed is as any other."""
    execute(live, "")
    hurried, keeper = list[bool](), live.runner._keeper
    send = keeper.send
    monkeypatch.setattr(keeper, "send", lambda message, fds: (hurried.append(message.hurried), send(message, fds)))

    for _ in range(UNHURRIED + 1):
        prepared(live)
        assert "1\n" == execute(live, "print(1)").stdout_text
    live.runner.prepare()
    execute(live, "")
    prepared(live)
    execute(live, "")

    assert [*[True] * UNHURRIED, False, False, True] == hurried


def test_an_interpreter_waits_until_the_sandbox_rests(live: Live) -> None:
    prepared(live)
    live.runner.rest()
    live.until(lambda: not live.runner.processes)

    assert "1\n" == execute(live, "print(1)").stdout_text


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(("code", "outcome", "exit_code"), [
    ("1 / 0", Outcome.RAISED, 1), ("raise SystemExit(3)", Outcome.FINISHED, 3),
    ("import os; os._exit(7)", Outcome.FINISHED, 7), ("import os; os.kill(os.getpid(), 9)", Outcome.SIGNALLED, 137),
])
def test_an_interpreters_end_is_reported_as_a_jobs(live: Live, code: str, outcome: Outcome, exit_code: int) -> None:
    got = execute(live, code)

    assert (outcome, exit_code) == (got.outcome, got.exit_code)


@pytest.mark.usefixtures("waits")
def test_an_interpreters_time_is_limited_and_its_children_end_with_it(live: Live) -> None:
    got = execute(live, "import os, subprocess, time\nsubprocess.Popen(['sleep', '1234'])\nbegan = time.process_time()\n"
                  "told = os.open('spent', os.O_WRONLY | os.O_CREAT)\n"
                  "while True: os.pwrite(told, f'{time.process_time() - began:.9f}'.encode(), 0)", time=1.0)

    assert Outcome.TIMED_OUT is got.outcome
    assert got.cpu_time >= float(live.shell("cat spent").out) > 0.0
    assert "sleep" not in live.living()


@pytest.mark.usefixtures("waits")
def test_refused_calls_of_an_interpreter_are_counted_as_its_own(live: Live) -> None:
    refused = execute(live, "import ctypes; ctypes.CDLL(None).unshare(0x10000000)")

    assert {"unshare": 1} == refused.denied
    assert {} == execute(live, "pass").denied


def test_two_draw_different_numbers(live: Live) -> None:
    code = "import random, ssl; print(random.random(), ssl.RAND_bytes(8).hex())"

    assert not set(execute(live, code).stdout_text.split()) & set(execute(live, code).stdout_text.split())


def test_a_kernel_keeps_its_state_beside_others(live: Live) -> None:
    leases: list[Lease] = []
    lost: list[str] = []
    for _ in range(2):
        live.runner.kernel(Limits(), leases.append, lost.append)
    live.until(lambda: 2 == len(leases) or bool(lost))

    assert "1\n" == turn(live, leases[0], "x = 1; print(x)").stdout_text
    assert "2\n" == turn(live, leases[1], "x = 2; print(x)").stdout_text
    assert "2\n" == turn(live, leases[0], "x += 1; print(x)").stdout_text
    live.shell("true")
    assert "3\n" == turn(live, leases[1], "print(x + 1)").stdout_text
    leases[0].end("done with it")
    live.until(lambda: bool(lost))
    assert ["done with it"] == lost
    live.shell("kill -9 -1")  # they are programs of one sandbox
    live.until(lambda: 2 == len(lost) and not live.runner.processes)
    assert 0 == live.run("true").code


class Asked:
    """A job of a kernel, and its report."""

    client = None

    def __init__(self, code: str) -> None:
        self.job = Job(code=code.encode(), limits=Limits())
        self.report: Report | None = None

    def finished(self, report: Report) -> None:
        self.report = report

    def lost(self) -> None:
        raise AssertionError


def turn(live: Live, lease: Lease, code: str) -> Result:
    asked = Asked(code)
    lease.run(asked)
    live.until(lambda: asked.report is not None)
    assert asked.report is not None
    assert asked.report.result is not None
    return asked.report.result


def test_all_interpreters_end_with_the_sandbox(live: Live) -> None:
    """A job that runs is answered, and a kernel is lost."""
    with Box(cgroup=live.box.engine.driver.name if live.box.engine.driver.name != "v2" else None) as box:
        reports: list[Report] = []
        leases: list[Lease] = []
        lost: list[str] = []
        with opened(box) as other:
            other.runner.kernel(Limits(), leases.append, lost.append)
            other.runner.execute(Job(code=b"print(1); import time; time.sleep(1000)", limits=Limits()), reports.append)
            other.until(lambda: bool(leases))
            other.runner.end("the end")
            other.until(lambda: bool(other.lost))
        report, = reports
        assert report.result is not None
        assert report.result.outcome in (Outcome.INTERNAL, Outcome.SIGNALLED)
        assert 1 == len(lost)

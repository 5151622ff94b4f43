"""A job whose processes somebody outside has frozen: it is answered all the same, and costs one worker until they thaw."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.box import PATIENCE_S, Box
from kit.features import own_cgroups
from kit.live import opened
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import job_of
from leeward.daemon.worker.orphans import LATER_S
from leeward.daemon.worker.worker import WorkerState
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

CODE = "print('started', flush=True)\nwhile True: pass"


@contextlib.contextmanager
def frozen(pid: int, version: int) -> Iterator[None]:
    """Process *pid* is in a frozen group of its own meanwhile, and afterwards in its old one again."""
    groups = Path("/proc/self/cgroup").read_text()
    home = own_cgroups(Path("/proc/self/mountinfo").read_text(), groups)["freezer" if 1 == version else ""]
    group = home / f"leeward-test-{os.getpid()}"
    group.mkdir()
    members, switch, on, off = ((group / "tasks", group / "freezer.state", "FROZEN", "THAWED") if 1 == version else
                                (group / "cgroup.procs", group / "cgroup.freeze", "1", "0"))
    try:
        members.write_text(f"{pid}\n")
        switch.write_text(on)
        try:
            yield
        finally:
            switch.write_text(off)
    finally:
        with contextlib.suppress(OSError):  # it has ended
            (home / members.name).write_text(f"{pid}\n")
        while True:
            try:
                group.rmdir()
                break
            except OSError:  # who was killed is in it until it is collected
                continue


def submit(box: Box, code: str, **limits: float) -> list[Report]:
    """The answers to a job that is under way."""
    answers: list[Report] = []
    box.engine.main.pool.submit(Job(code=code.encode(), limits=Limits(**limits)), answers.append, PATIENCE_S)  # type: ignore[arg-type]  # by name
    return answers


def answer(box: Box, answers: list[Report]) -> Result:
    box.reactor.run(lambda: bool(answers))
    (report,) = answers
    assert report.result is not None
    return report.result


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.needs("root", "cgroup-v1-freezer")),
                                     pytest.param(2, marks=pytest.mark.needs("root", "cgroup-v2"))])
def test_a_frozen_job_is_answered_and_costs_one_worker_until_it_thaws(version: int) -> None:
    """Version 1 holds who was killed until it thaws, and version 2 lets it die."""
    with Box(pool_size=2) as box:
        box.engine.patience.keeper = 0.3
        under_way = submit(box, CODE, time=0.5)
        (worker,) = (worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
        runner = worker.arming.runners[worker.running]
        output = worker.leasing.execution.output.out.fd  # type: ignore[union-attr]  # it is busy
        assert select.select([output], [], [], PATIENCE_S)[0]
        job = job_of(runner.pid)
        with frozen(job, version):
            late = answer(box, under_way)
            assert (Outcome.TIMED_OUT, b"started\n") == (late.outcome, late.stdout)
            assert (1 == version) is Path(f"/proc/{job}").exists()  # control: it could not be killed
            for number in range(4):
                assert f"{number}\n".encode() == answer(box, submit(box, f"print({number})")).stdout

        box.reactor.run(lambda: 2 == sum(each.free for each in box.engine.main.pool.workforce.workers))
        assert not Path(f"/proc/{job}").exists()
        assert 1 == len(under_way)


@pytest.mark.needs("root", "cgroup-v1-freezer")
def test_a_frozen_process_of_a_sandbox_costs_one_worker_until_it_thaws() -> None:
    """Its keeper is dead by then, and the sandbox's init waits until somebody has collected it."""
    with Box(pool_size=1) as box, opened(box) as live:
        box.engine.patience.keeper = 0.3
        process = live.start("sh", "-c", "echo started; while :; do :; done")
        process.says("started")
        live.until(lambda: process.process.host_pid > 0)
        pid = process.process.host_pid
        with frozen(pid, 1):
            live.runner.end("enough")
            live.until(lambda: bool(live.lost))
            assert Path(f"/proc/{pid}").exists()  # control: it could not be killed
            assert 1 == len(process.ends)
            live.until(lambda: live.worker.keeper.gone)
            looked: list[int] = []
            box.reactor.after(2 * LATER_S, lambda: looked.append(1))
            live.until(lambda: bool(looked))  # who is dead by now was collected

        live.until(lambda: WorkerState.GONE is live.worker.state)
        assert not Path(f"/proc/{pid}").exists()
        assert 1 == len(process.ends) == len(live.lost)

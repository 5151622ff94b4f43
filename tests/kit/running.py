"""
A running job, and the entries of its processes in the host's /proc.

Runs in:   the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.box import PATIENCE_S, Box
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import job_of
from leeward.spec.job import Job
from leeward.spec.limits import Limits

#: Code that waits until it is cancelled, in a system call that the host's /proc shows.
_WAITS = b"import os, signal\nos.write(1, b'here')\nwhile True: signal.pause()\n"


@dataclass(frozen=True)
class Running:
    """
    The host's pids of everything around one job.

    Attributes:
        said: the job's output so far.
    """

    zygote: int
    keeper: int
    init: int
    job: int
    said: bytes = b""


@contextmanager
def running(box: Box, code: bytes = _WAITS, limits: Limits | None = None) -> Iterator[Running]:
    """Run a job for as long as the block runs. Its code writes something when it has started, and then waits."""
    reports: list[Report] = []
    before = [worker for worker in box.engine.main.pool.workforce.workers if worker.busy]
    ticket = box.engine.main.pool.submit(Job(code=code, limits=limits or Limits()), reports.append, PATIENCE_S)
    box.reactor.run(lambda: any(worker.busy and worker not in before for worker in box.engine.main.pool.workforce.workers))
    worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy and worker not in before)
    execution = worker.leasing.execution
    assert isinstance(execution, Execution)
    box.reactor.run(lambda: bool(execution.output.out.head) or bool(reports))
    runner, zygote = worker.leasing.running, box.engine.main.zygotes.current  # type: ignore[union-attr]  # no fresh layout
    assert not reports
    assert runner is not None
    assert zygote is not None
    yield Running(zygote.pid, worker.keeper.pid, runner.pid, job_of(runner.pid),
                  bytes(execution.output.out.head))
    ticket.cancel()
    box.reactor.run(lambda: worker.leasing.running is not runner)


def status(pid: int | str) -> dict[str, str]:
    """/proc/<pid>/status, by field."""
    rows = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: value.strip() for name, _, value in rows}


def spaces(pid: int | str) -> dict[str, str]:
    """Its namespaces, by name."""
    folder = Path(f"/proc/{pid}/ns")
    return {name: os.readlink(folder / name) for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")}


def named(comm: str) -> list[int]:
    """Return the pids of the host's processes with this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if comm == (folder / "comm").read_text().rstrip("\n"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found

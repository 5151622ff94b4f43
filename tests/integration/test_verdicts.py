"""Verdicts that load doesn't change: processor time, time without starvation, and what the machine did wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import leeward
from bench import verdicts
from kit import features
from kit.box import Box
from kit.live_daemon import PATIENCE, LiveDaemon, run
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.daemon.run.verdict import Stop
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit, Outcome, Result

SPIN = "import time\nwhile time.process_time() < {}: pass\n"
#: Programs of the short form of bench/verdicts.py, and of the long one.
COUNT = 2000 if os.environ.get("LEEWARD_LONG") else len(verdicts.KINDS)


@pytest.mark.timeout(7200 if os.environ.get("LEEWARD_LONG") else 900)
def test_verdicts_are_the_same_beside_ten_times_the_load(daemon: LiveDaemon) -> None:
    with leeward.Client(str(daemon.socket)) as client, verdicts.loaded(verdicts.LOAD):
        tally = verdicts.run(client, COUNT)

    assert tally.part >= verdicts.BAR, tally.wrong


@pytest.mark.parametrize(("code", "outcome"), [
    (SPIN.format(0.2), Outcome.FINISHED), (SPIN.format(5), Outcome.TIMED_OUT),
    ("import time; time.sleep(0.8)", Outcome.FINISHED),
    ("import os\nchild = os.fork()\n" + SPIN.format(5), Outcome.TIMED_OUT)])
def test_processor_time_is_a_limit_of_its_own(daemon: LiveDaemon, code: str, outcome: Outcome) -> None:
    """Of all processes together, and not of sleep."""
    with daemon.client() as client:
        got = client.execute(code, cpu_time=0.5, timeout=60)

    assert (outcome, Limit.CPU if Outcome.TIMED_OUT is outcome else None) == (got.outcome, got.limit)
    assert got.cpu_time < 0.5 * 1.5
    assert got.starved is None


def test_a_job_that_waits_by_itself_has_its_time_alone(daemon: LiveDaemon) -> None:
    """A control of the stretching: no sleep is starvation, whatever the bound."""
    with daemon.client() as client:
        got = client.execute("import time; time.sleep(50)", timeout=0.5, wall=60)

    assert (Outcome.TIMED_OUT, Limit.TIME) == (got.outcome, got.limit)
    assert got.starved is not None
    assert got.duration - got.starved < 5 * features.SLOWER


@pytest.mark.parametrize("does", [
    "time.sleep(0.4)", "until = time.process_time() + 0.1\n    while time.process_time() < until: pass"],
    ids=["sleeps", "computes"])
def test_a_job_that_fills_its_pipe_gains_no_time(daemon: LiveDaemon, does: str) -> None:
    """The daemon reads a full pipe at once, however long the job had left it empty."""
    with daemon.client() as client:
        got = client.execute(f"import os, time\nfor _ in range(30):\n    {does}\n    os.write(1, bytes(1 << 16))\n"
                             "while True: pass", timeout=0.5, wall=15)

    assert (Outcome.TIMED_OUT, Limit.TIME) == (got.outcome, got.limit)
    assert 1 << 16 <= len(got.stdout) < 8 << 16


def test_the_bound_that_a_request_names_holds(daemon: LiveDaemon) -> None:
    """Its end blames the machine, not the program."""
    with daemon.client() as client, verdicts.loaded(verdicts.LOAD):
        got = client.execute("while True: pass", timeout=5.0, wall=5.1)

    assert got.duration < 15 * features.SLOWER
    if Outcome.INTERNAL is got.outcome:
        assert got.error is not None
        assert ("Starved", None) == (got.error.type, got.limit)
    else:  # the kernel gave it a processor alone
        assert (Outcome.TIMED_OUT, Limit.TIME) == (got.outcome, got.limit)


@pytest.mark.parametrize(("options", "said"), [
    ({"wall": 1}, "below the limit time"), ({"wall": 1e9}, "ceiling"), ({"cpu_time": 0}, "below the least")])
def test_limits_that_make_no_sense_are_refused(daemon: LiveDaemon, options: dict[str, float], said: str) -> None:
    with daemon.client() as client, pytest.raises(leeward.RequestRejected, match=said):
        client.execute("1", **options)


def test_a_session_has_no_such_limits(daemon: LiveDaemon) -> None:
    """Nor does stop_clock go together with a stretched one."""
    with daemon.client() as client:
        with client.session() as session, pytest.raises(TypeError, match="no option 'cpu_time'"):
            session.execute("1", cpu_time=1)  # type: ignore[call-arg]  # what is refused
        with pytest.raises(leeward.RequestRejected, match="stop_clock"):
            client.execute("1", wall=60, functions={"f": print}, stop_clock=True)


def test_the_command_line_has_them(daemon: LiveDaemon) -> None:
    done = run(daemon.socket, "exec", "--cpu-time", "0.2", "--timeout", "20", "--wall", "30", "while True: pass")

    assert 124 == done.returncode
    assert b"time" in done.stderr


@pytest.fixture
def box() -> Iterator[Box]:
    with Box(pool_size=1) as made:
        yield made


def again(box: Box, end: Callable[[Ticket], object], limits: Limits = Limits()) -> tuple[Ticket, Result]:  # noqa: B008
    """A job that is ended by *end* once it has begun, and its one result."""
    reports: list[Report] = []
    ticket = box.engine.main.pool.submit(Job(code=b"import time; print('here', flush=True); time.sleep(0.5)", limits=limits),
                                         reports.append, PATIENCE)
    box.reactor.run(lambda: ticket.execution is not None and ticket.execution.taken)
    end(ticket)
    box.reactor.run(lambda: bool(reports))
    (report,) = reports
    assert report.result is not None
    return ticket, report.result


@pytest.mark.parametrize("end", [
    lambda box, ticket: os.kill(box.engine.workers[0].keeper.pid, signal.SIGKILL),
    lambda box, ticket: ticket.execution.stop(Stop.HOST),
], ids=["its keeper is killed", "the host has no memory"])
def test_what_the_machine_has_ended_is_run_again(box: Box, end: Callable[[Box, Ticket], object]) -> None:
    """It ends as if nothing had been, with the output of one run."""
    ticket, result = again(box, partial(end, box))

    assert (1, Outcome.FINISHED, b"here\n") == (ticket.losses, result.outcome, result.stdout)


def test_what_somebody_has_seen_is_not_run_again(box: Box) -> None:
    """The control: its client got output while it ran."""
    def end(ticket: Ticket) -> None:
        assert ticket.execution is not None
        ticket.execution.output.seen = True
        ticket.execution.stop(Stop.HOST)

    ticket, result = again(box, end)

    assert (0, Outcome.INTERNAL, None) == (ticket.losses, result.outcome, result.limit)
    assert result.error is not None
    assert "HostMemory" == result.error.type


@pytest.mark.parametrize(("wall", "told"), [(60.0, (Outcome.INTERNAL, None, "Starved")),
                                            (None, (Outcome.TIMED_OUT, Limit.TIME, None))])
def test_a_job_that_the_watchdog_has_ended_is_blamed_for_its_own_time_alone(
        box: Box, wall: float | None, told: tuple[Outcome, Limit | None, str | None]) -> None:
    """While the loop stands still nobody counts for how long it was starved."""
    def end(ticket: Ticket) -> None:
        assert ticket.execution is not None
        ticket.execution.runner.ended_by_watchdog = Stop.TIME
        signal.pidfd_send_signal(ticket.execution.runner.pidfd, signal.SIGKILL)

    _, result = again(box, end, Limits(time=30.0, wall=wall))

    assert told == (result.outcome, result.limit, result.error and result.error.type)


def test_a_job_that_has_ended_by_itself_has_not_run_out_of_time(box: Box) -> None:
    """Where the host is too busy for its status to come: here its keeper is stopped meanwhile."""
    reports: list[Report] = []
    code = b"import os, time; print('here', flush=True); time.sleep(0.1); os.kill(os.getpid(), 9)"
    ticket = box.engine.main.pool.submit(Job(code=code, limits=Limits(time=0.4)), reports.append, PATIENCE)
    box.reactor.run(lambda: ticket.execution is not None and bool(ticket.execution.output.out.head))
    keeper = box.engine.workers[0].keeper.pid
    os.kill(keeper, signal.SIGSTOP)
    box.reactor.run(lambda: box.reactor.now() > ticket.execution.started + 0.5)  # type: ignore[union-attr]  # it has begun
    os.kill(keeper, signal.SIGCONT)
    box.reactor.run(lambda: bool(reports))

    assert reports[0].result is not None
    assert (Outcome.SIGNALLED, None) == (reports[0].result.outcome, reports[0].result.limit)


def test_a_job_that_closes_its_pipe_has_not_ended(box: Box) -> None:
    """The control: nor has one whose first thread has, while another one goes on."""
    code = ("import ctypes, os, threading\nos.closerange(3, 9)\n"
            "threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()\n"
            "ctypes.CDLL(None).syscall(60 if 'x86' in os.uname().machine else 93, 0)")
    result = box.run(code, limits={"time": 0.5})

    assert (Outcome.TIMED_OUT, Limit.TIME) == (result.outcome, result.limit)

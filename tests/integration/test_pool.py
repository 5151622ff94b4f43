"""
The pool when its processes die, when it is full, and when its workers are used up.

Every request gets exactly one answer. SIGKILL on a process spoils at most the job that ran there;
what no runner had read runs elsewhere.
"""

from __future__ import annotations

import os
import select
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.box import PATIENCE_S, Box
from kit.features import outside_tmp
from leeward.daemon.pool import pool as pool_module
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import Runner, job_of
from leeward.daemon.run.runner_states import RunnerState
from leeward.daemon.worker.keeper import Keeper
from leeward.daemon.worker.worker import Worker
from leeward.errors import Busy, KernelRefusal, QueueTimeout, ShuttingDown
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result
from leeward.wire import control

WORKERS = 2
FOREVER = "import signal\nprint('started', flush=True)\nwhile True: signal.pause()"
TARGETS = ("job", "init", "keeper", "zygote")


class Requests:
    """Jobs under way, and every answer that came for them."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self.answers: list[list[Report]] = []

    def submit(self, code: str, *, patience: float = PATIENCE_S, **limits: float) -> Ticket:
        answers: list[Report] = []
        self.answers.append(answers)
        return self._box.engine.main.pool.submit(Job(code=code.encode(), limits=Limits(**limits)),  # type: ignore[arg-type]  # by name
                                            answers.append, patience)

    def wait(self) -> list[Report]:
        """The one answer of each, once all have come and the pool is whole again."""
        self._box.reactor.run(lambda: all(self.answers))
        whole(self._box)
        assert {1} == {len(answers) for answers in self.answers}
        return [answers[0] for answers in self.answers]

    def results(self) -> list[Result]:
        """As `wait`; none may have been refused."""
        return [result(report) for report in self.wait()]


def result(report: Report) -> Result:
    assert report.result is not None, report.refusal
    return report.result


def whole(box: Box) -> None:
    """Let the reactor run until every worker can take a job."""
    pool = box.engine.main.pool
    box.reactor.run(lambda: len(pool.workforce.workers) == pool.counts()["workers"]["total"]  # type: ignore[index,call-overload]  # status as JSON
                    and all(worker.free for worker in pool.workforce.workers))


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Box(pool_size=WORKERS, spares=1) as made:
        yield made


@pytest.fixture
def requests(box: Box) -> Requests:
    whole(box)
    return Requests(box)


def kill(box: Box, worker: Worker, runner: Runner, target: str) -> None:
    """SIGKILL to *target*, and wait until all that dies of it is dead; the reactor sees nothing yet."""
    zygote = box.engine.main.zygotes.current
    assert zygote is not None
    job = job_of(runner.pid)
    pids = {"job": [job, runner.pid], "init": [runner.pid, job], "keeper": [worker.keeper.pid, runner.pid, job],
            "zygote": [zygote.pid]}[target]
    pidfds = [os.pidfd_open(pid) for pid in pids]
    signal.pidfd_send_signal(pidfds[0], signal.SIGKILL)
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000)
        os.close(pidfd)


def next_up(box: Box) -> tuple[Worker, Runner]:
    """The worker that gets the next job, and the runner there."""
    worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.free)
    return worker, worker.arming.store[0]


def running(box: Box) -> tuple[Worker, Runner]:
    worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
    assert worker.leasing.running is not None
    return worker, worker.leasing.running


def started(worker: Worker) -> None:
    """Wait until the job of *worker* has said something, without taking it."""
    output = select.poll()
    output.register(worker.leasing.execution.output.out.fd, select.POLLIN)  # type: ignore[union-attr]  # it is busy
    assert output.poll(PATIENCE_S * 1000)


# --- each process, at each stage ----------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_death_while_armed_spoils_no_job(box: Box, requests: Requests, target: str):
    """The code of the next job goes to a dead process, or none, and then elsewhere."""
    kill(box, *next_up(box), target)
    for number in range(2 * WORKERS):
        requests.submit(f"print({number})")

    assert [f"{number}\n".encode() for number in range(2 * WORKERS)] == [got.stdout for got in requests.results()]


@pytest.mark.parametrize("target", TARGETS)
def test_a_death_while_arming_spoils_no_job_of_that_worker(target: str, monkeypatch: pytest.MonkeyPatch):
    """A runner that is born beside a running job takes only itself along; without its keeper the job is run again."""
    with Box(pool_size=1, spares=1) as box:
        requests = Requests(box)
        box.reactor.run(lambda: 2 == len(next_up(box)[0].arming.store))
        worker, first = next_up(box)
        # Alive, but never heard to be ready, as far as the daemon knows.
        monkeypatch.setattr(Runner, "ready", lambda self: False)
        requests.submit("print('first')")
        box.reactor.run(lambda: any(RunnerState.ARMING is runner.state and runner.pid > 0 and runner.checked
                                    for runner in worker.arming.runners.values()) and worker.leasing.running is not first)
        newborn = next(runner for runner in worker.arming.runners.values() if RunnerState.ARMING is runner.state)
        requests.submit(FOREVER, time=5.0 if "keeper" == target else 1.5)  # the keeper's end comes first
        assert worker.busy
        started(worker)  # else it may run elsewhere
        kill(box, worker, newborn, target)
        monkeypatch.undo()

        first_result, second = requests.results()

    assert b"first\n" == first_result.stdout
    assert Outcome.TIMED_OUT is second.outcome


@pytest.mark.parametrize("target", TARGETS)
def test_a_death_under_a_running_job_spoils_that_one_alone(box: Box, requests: Requests, target: str):
    """Exactly one answer for it; with its init or keeper it is run again, and the zygote's death isn't its own."""
    requests.submit(FOREVER, time={"zygote": 1.5, "job": PATIENCE_S}.get(target, 5.0))  # the death comes first
    worker, runner = running(box)
    started(worker)
    for number in range(2 * WORKERS):
        requests.submit(f"print({number})")
    kill(box, worker, runner, target)

    first, *others = requests.results()

    assert [f"{number}\n".encode() for number in range(2 * WORKERS)] == [got.stdout for got in others]
    assert {"job": Outcome.SIGNALLED}.get(target, Outcome.TIMED_OUT) is first.outcome
    assert b"started\n" == first.stdout
    assert (first.outcome in (Outcome.INTERNAL, Outcome.SIGNALLED)) is (first.error is not None)


def test_a_job_that_a_socket_of_the_host_may_have_heard_is_not_run_again():
    """Its profile shows a folder, where one may be."""
    with tempfile.TemporaryDirectory(dir=outside_tmp()) as folder, Box(pool_size=1, profile="shows", show=(folder,)) as box:
        requests = Requests(box)
        requests.submit(FOREVER, time=5.0)
        worker, runner = running(box)
        started(worker)
        kill(box, worker, runner, "keeper")
        (got,) = requests.results()
    assert (Outcome.INTERNAL, "WorkerLost") == (got.outcome, got.error and got.error.type)


def test_a_stopped_keeper_is_replaced_and_its_job_answered(box: Box, requests: Requests):
    """It is alive and says nothing: no end of a job, no armed runner. Both have a deadline."""
    box.engine.patience.keeper = 0.3
    requests.submit(FOREVER, time=0.2)
    worker, _ = running(box)
    os.kill(worker.keeper.pid, signal.SIGSTOP)
    requests.submit("print('elsewhere')")

    first, second = requests.results()  # every worker is free again then

    assert (Outcome.TIMED_OUT, b"elsewhere\n") == (first.outcome, second.stdout)
    assert worker not in box.engine.main.pool.workforce.workers


def test_a_keeper_that_stops_between_two_jobs_is_replaced(box: Box, requests: Requests):
    """The reply comes; the next runner doesn't."""
    box.engine.patience.keeper = 0.3
    requests.submit("print(1)")
    worker, _ = running(box)
    os.kill(worker.keeper.pid, signal.SIGSTOP)

    (got,) = requests.results()

    assert b"1\n" == got.stdout
    assert worker not in box.engine.main.pool.workforce.workers


@pytest.mark.parametrize("target", TARGETS)
def test_a_death_after_the_reply_does_not_change_the_result(box: Box, requests: Requests, target: str):
    """A job's reply stands, though the daemon reads it after the job's death."""
    requests.submit("print('done'); raise SystemExit(3)")
    worker, runner = running(box)
    reply = select.poll()
    reply.register(runner.reply, select.POLLIN)
    assert reply.poll(PATIENCE_S * 1000)
    kill(box, worker, runner, target)

    (got,) = requests.results()

    assert (Outcome.FINISHED, 3, b"done\n") == (got.outcome, got.exit_code, got.stdout)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kill_without_waiting_spoils_at_most_one(box: Box, requests: Requests, target: str):
    """Whatever the processes were at when the signal came: one answer each, one job spoiled at most."""
    zygote = box.engine.main.zygotes.current
    assert zygote is not None
    for number in range(2 * WORKERS):
        requests.submit(f"print({number})")
    worker, runner = running(box)
    pid = {"init": runner.pid, "keeper": worker.keeper.pid, "zygote": zygote.pid}.get(target) or job_of(runner.pid)
    os.kill(pid, signal.SIGKILL)

    results = requests.results()

    spoiled = [got for number, got in enumerate(results) if got.stdout != f"{number}\n".encode()]
    assert len(spoiled) <= 1
    assert all(got.outcome in (Outcome.INTERNAL, Outcome.SIGNALLED) for got in spoiled)


def test_code_that_lies_unread_in_the_pipe_runs_elsewhere(box: Box, requests: Requests):
    """A stopped runner gets the whole of the code, reads none of it and is killed."""
    worker, runner = next_up(box)
    job = job_of(runner.pid)
    os.kill(job, signal.SIGSTOP)
    while "T" != Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[0]:
        pass  # on its way to stop it would still read
    requests.submit("print('here')")
    assert runner is worker.leasing.running
    kill(box, worker, runner, "init")

    (got,) = requests.results()

    assert b"here\n" == got.stdout


def test_a_worker_that_never_starts_a_job_is_not_tried_for_ever(box: Box, requests: Requests,
                                                                 monkeypatch: pytest.MonkeyPatch):
    """After some workers the answer is `internal`; before, a client would have waited for ever."""
    def refuse(self: Runner, limits: Limits) -> None:
        raise KernelRefusal("write", "memory.max", 16)

    monkeypatch.setattr(Runner, "limit", refuse)
    requests.submit("print('here')")
    box.reactor.run(lambda: all(requests.answers))
    monkeypatch.undo()

    (got,) = requests.results()

    assert Outcome.INTERNAL is got.outcome
    assert got.error is not None
    assert "WorkerLost" == got.error.type


def test_input_too_large_for_the_memory_limit_is_out_of_memory(box: Box, requests: Requests):
    """The runner is ended while it reads, so the job hasn't started; but it would go so everywhere."""
    files = {"big": b"x" * (40 << 20)}
    answers: list[Report] = []
    box.engine.main.pool.submit(Job(code=b"pass", files=files, limits=Limits(memory=17 << 20)), answers.append, PATIENCE_S)
    requests.answers.append(answers)

    (got,) = requests.results()

    if not box.engine.driver.degraded:
        assert Outcome.OUT_OF_MEMORY is got.outcome
    assert Outcome.FINISHED is not got.outcome


# --- the queue ----------------------------------------------------------------


def occupy(requests: Requests, count: int) -> list[Ticket]:
    return [requests.submit(FOREVER, time=PATIENCE_S) for _ in range(count)]


def test_a_full_queue_is_busy_at_once():
    with Box(pool_size=1, queue_size=2) as box:
        requests = Requests(box)
        blocker = requests.submit(FOREVER, time=0.3)
        for number in range(2):
            requests.submit(f"print({number})")

        with pytest.raises(Busy):
            requests.submit("print('too many')")
        requests.answers.pop()

        assert not any(requests.answers)
        assert blocker.execution is not None
        assert [b"started\n", b"0\n", b"1\n"] == [got.stdout for got in requests.results()]


def test_a_request_waits_no_longer_than_its_patience(box: Box, requests: Requests):
    """It is answered with a refusal, and never runs."""
    blockers = occupy(requests, WORKERS)
    requests.submit("print('late')", patience=0.01)
    waiting = requests.answers[-1]
    box.reactor.run(lambda: bool(waiting))

    assert isinstance(waiting[0].refusal, QueueTimeout)
    del requests.answers[:WORKERS]
    for ticket in blockers:
        ticket.cancel()
    assert 1 == len(requests.wait())


def test_a_request_taken_back_from_the_queue_never_runs(box: Box, requests: Requests):
    blockers = occupy(requests, WORKERS)
    waiting = requests.submit("print('never')")
    behind = requests.submit("print('behind')")
    waiting.cancel()
    for ticket in blockers:
        ticket.cancel()
    withdrawn = requests.answers[:WORKERS + 1]
    del requests.answers[:WORKERS + 1]

    assert [b"behind\n"] == [got.stdout for got in requests.results()]
    assert not any(withdrawn)
    assert behind.done is None


def test_a_request_taken_back_while_it_runs_is_ended(box: Box, requests: Requests):
    """Its processes are gone, nobody is answered, and its worker takes the next."""
    (ticket,) = occupy(requests, 1)
    _, runner = running(box)
    pidfd = os.pidfd_open(job_of(runner.pid))
    ticket.cancel()
    withdrawn = requests.answers.pop()
    whole(box)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)

    assert poll.poll(0)
    assert not withdrawn
    os.close(pidfd)


def test_a_request_that_moved_to_another_worker_can_still_be_taken_back(box: Box, requests: Requests,
                                                                         monkeypatch: pytest.MonkeyPatch):
    """The first worker fails at once, the second has the job: `cancel` has to reach that one."""
    refused: list[Runner] = []
    limit = Runner.limit

    def refuse_once(self: Runner, limits: Limits) -> None:
        if not refused:
            refused.append(self)
            raise KernelRefusal("write", "memory.max", 16)
        limit(self, limits)

    monkeypatch.setattr(Runner, "limit", refuse_once)
    ticket = requests.submit(FOREVER, time=PATIENCE_S)
    _, runner = running(box)
    pidfd = os.pidfd_open(runner.pid)
    ticket.cancel()
    requests.answers.clear()
    whole(box)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)

    assert refused
    assert refused[0] is not runner
    assert poll.poll(0)
    os.close(pidfd)


def test_draining_refuses_waiting_jobs_and_lets_running_ones_end():
    with Box(pool_size=1) as box:
        requests = Requests(box)
        requests.submit(FOREVER, time=0.3)
        requests.submit("print('waits')")
        drained: list[bool] = []
        box.engine.drain(PATIENCE_S, lambda: drained.append(True))
        with pytest.raises(ShuttingDown):
            requests.submit("print('late')")
        requests.answers.pop()
        box.reactor.run(lambda: bool(drained))

        ran, waited = (answers[0] for answers in requests.answers)
        assert Outcome.TIMED_OUT is result(ran).outcome
        assert isinstance(waited.refusal, ShuttingDown)


def test_jobs_cut_by_a_drain_are_answered_while_their_processes_live_on(monkeypatch: pytest.MonkeyPatch):
    """By a result, for it has run in part; a job whose runner was lost after the cut has not, and is refused."""
    refused: list[Report] = []
    with Box(pool_size=1) as box:
        pool, requests = box.engine.main.pool, Requests(box)
        requests.submit(FOREVER, time=PATIENCE_S)
        drained: list[bool] = []
        monkeypatch.setattr(pool_module, "_CUT_S", 0.1)
        with monkeypatch.context() as nothing_dies:
            nothing_dies.setattr(Runner, "kill", lambda self: None)
            box.engine.drain(PATIENCE_S, lambda: drained.append(True))
            for _ in range(2):
                box.engine.cut()
            lost = Ticket(Job(code=b""), refused.append, pool, box.reactor.now())
            pool.ledger.start(lost.user, lost.job.limits.memory)
            pool.lost(lost)
            box.reactor.run(lambda: bool(drained))
        cut = list(requests.answers[0])  # before the box closes, and the processes die with it

    assert 1 == len(cut) == len(requests.answers[0])
    assert Outcome.INTERNAL is result(cut[0]).outcome
    assert "the daemon shut down before the job was over" == result(cut[0]).error.message  # type: ignore[union-attr]  # it has one
    assert [ShuttingDown] == [type(report.refusal) for report in refused]


# --- recycling ----------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 3])
def test_a_worker_is_replaced_after_so_many_jobs(after: int):
    """Another keeper, and so other namespaces, for each *after* jobs; none is lost at the change."""
    with Box(pool_size=1, recycle_after=after) as box:
        keepers = []
        for number in range(3 * after):
            (worker,) = box.engine.main.pool.workforce.workers
            box.reactor.run(lambda: all(worker.free for worker in box.engine.main.pool.workforce.workers)
                            and box.engine.main.pool.any_free)
            (worker,) = box.engine.main.pool.workforce.workers
            keepers.append(worker.keeper.pid)
            assert f"{number}\n".encode() == box.run(f"print({number})").stdout

    assert [keepers.count(pid) for pid in dict.fromkeys(keepers)] == [after] * 3


def test_jobs_in_a_row_are_answered_across_the_changes():
    """Submitted all at once, to workers that each take one."""
    with Box(pool_size=WORKERS, recycle_after=1) as box:
        requests = Requests(box)
        for number in range(8):
            requests.submit(f"print({number})")

        assert [f"{number}\n".encode() for number in range(8)] == [got.stdout for got in requests.results()]


# --- what nobody had heard of -------------------------------------------------


def zombies() -> set[int]:
    """Dead children of this process that nobody has collected."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = status.parent.name, status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "Z" == rest[0] and os.getpid() == int(rest[1]):
            found.add(int(pid))
    return found


def test_an_init_whose_keeper_died_unreported_is_reaped(box: Box, requests: Requests):
    """It becomes the daemon's child, without a pidfd that would tell."""
    worker, runner = next_up(box)
    keeper, init = worker.keeper.pid, runner.pid
    # As if the message with its pidfd had never come.
    os.close(runner.pidfd)
    runner.pidfd = -1
    os.kill(keeper, signal.SIGKILL)
    box.reactor.run(lambda: not Path(f"/proc/{init}").exists())

    whole(box)
    assert init not in zombies()


def test_a_keeper_is_told_that_a_runner_has_passed_only_when_one_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeper's first runners take the whole check of themselves until one of them is ready."""
    orders: dict[Keeper, list[bool]] = {}
    ready: dict[Keeper, int] = {}  # how many orders a keeper had when its first runner was
    send, prove = Keeper.send, Keeper.prove

    def sent(keeper: Keeper, message: control.Arm | control.Start, fds: list[int]) -> None:
        if isinstance(message, control.Arm):
            orders.setdefault(keeper, []).append(message.proved)
        send(keeper, message, fds)

    def proved(keeper: Keeper) -> None:
        ready.setdefault(keeper, len(orders[keeper]))
        prove(keeper)

    monkeypatch.setattr(Keeper, "send", sent)
    monkeypatch.setattr(Keeper, "prove", proved)
    with Box(pool_size=2, spares=1, recycle_after=3) as box:
        for _ in range(12):
            assert Outcome.FINISHED is box.run("pass").outcome

    assert len(orders) > 2
    assert all(told[:ready.get(keeper, len(told))] == [False] * ready.get(keeper, len(told))
               for keeper, told in orders.items())
    assert all(all(told[ready[keeper]:]) for keeper, told in orders.items() if keeper in ready)
    assert any(True in told for told in orders.values())

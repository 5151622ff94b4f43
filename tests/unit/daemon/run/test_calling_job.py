"""A job that calls functions, on a runner that is four pipes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from kit.callers import JobCaller, RunnerHolder
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.watchdog import deadline
from leeward.daemon.run.calling_job import Calling, execution_of
from leeward.spec.job import Functions, Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome
from leeward.wire import function_frames as wire
from leeward.wire.job_frames import HEADER, NOTHING_FRAME
from unit.daemon.run.test_execution import Runner as OneRunner


class Runner(OneRunner):
    """One whose job has functions, so it takes no fast path."""

    ended_by_watchdog = None

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[int] = []

    def offer(self, _out: int, _err: int) -> None:
        raise AssertionError("a job with functions takes the fast path")

    def signal(self, number: int) -> bool:
        self.signals.append(number)
        return True


class Exchange:
    """What the client's connection would have."""

    def __init__(self) -> None:
        self.came: list[tuple[int, str, bytes]] = []
        self.gone: list[int] = []
        self.over = False
        self.answer: Callable[[int, bool, bytes], bool]

    def begin(self, answer: Callable[[int, bool, bytes], bool], broken: Callable[[], None]) -> None:
        self.answer, self.broken = answer, broken

    def called(self, number: int, name: str, body: bytes) -> None:
        self.came.append((number, name, body))

    def withdrawn(self, number: int) -> None:
        self.gone.append(number)

    def ended(self) -> None:
        self.over = True


class Stand:
    def __init__(self, reactor: Reactor, *, wait: float = 60.0, standing: float = 0.0, time: float = 30.0) -> None:
        self.reactor, self.runner, self.exchange = reactor, Runner(), Exchange()
        job = Job(code=b"f()", limits=Limits(time=time), functions=Functions(("f", "g"), self.exchange, wait, standing))
        self.holder, self.caller = RunnerHolder(), JobCaller(job)
        made = execution_of(job)(reactor, self.runner, self.holder, self.caller)  # type: ignore[arg-type]  # stands in
        assert isinstance(made, Calling)
        self.run = made
        made.start()
        os.read(self.runner.far_job, 1 << 16)

    def call(self, number: int, place: int = 0, body: bytes = b"x") -> None:
        os.write(self.runner.far_reply, wire.call_frame(number, place, body))

    def until(self, condition: Callable[[], object]) -> None:
        self.reactor.run(lambda: bool(condition()))

    def piece(self) -> wire.AnswerPiece:
        size = HEADER.unpack(os.read(self.runner.far_job, HEADER.size))[0]
        return wire.read_piece(os.read(self.runner.far_job, size))

    def finish(self) -> None:
        os.write(self.runner.far_reply, NOTHING_FRAME)
        self.until(lambda: self.run.over)


@pytest.fixture
def stand(reactor: Reactor) -> Iterator[Stand]:
    made = Stand(reactor)
    yield made
    if not made.run.over:
        made.run.emptied(9, "")
    made.runner.close()


def test_calls_come_before_the_reply(stand: Stand) -> None:
    """Each is told once; its answer goes down the job pipe; the reply is read as ever."""
    stand.call(1)
    stand.call(2, 1, b"y" * 200)
    stand.until(lambda: 2 == len(stand.exchange.came))
    assert [(1, "f", b"x"), (2, "g", b"y" * 200)] == stand.exchange.came
    assert stand.exchange.answer(2, True, b"b")
    assert not stand.exchange.answer(2, False, b"c")
    assert not stand.exchange.answer(3, False, b"c")
    assert stand.exchange.answer(1, False, b"a")
    assert [(2, wire.RAISED, b"b"), (1, 0, b"a")] == [stand.piece(), stand.piece()]
    stand.finish()
    assert stand.exchange.over
    report, = stand.caller.reports
    assert report.result is not None
    assert Outcome.FINISHED is report.result.outcome


def test_a_full_pipe_does_not_block_the_daemon(stand: Stand) -> None:
    """What it doesn't take waits, in pieces, and goes when there is room."""
    for number in range(1, wire.MAX_OPEN + 1):
        stand.call(number)
    stand.until(lambda: wire.MAX_OPEN == len(stand.exchange.came))
    body = bytes(wire.MAX_BODY)
    for number in range(1, wire.MAX_OPEN + 1):
        assert stand.exchange.answer(number, False, body)
    got: dict[int, int] = {}

    def all_there() -> bool:
        try:
            while True:
                piece = stand.piece()
                got[piece.number] = got.get(piece.number, 0) + len(piece.body)
        except BlockingIOError:
            return wire.MAX_OPEN * wire.MAX_BODY == sum(got.values())

    stand.until(all_there)
    assert dict.fromkeys(range(1, wire.MAX_OPEN + 1), wire.MAX_BODY) == got
    assert list(got) == sorted(got)
    stand.call(wire.MAX_OPEN + 1)
    stand.until(lambda: wire.MAX_OPEN < len(stand.exchange.came))
    stand.finish()


def test_a_call_is_open_until_its_answer_is_written(stand: Stand) -> None:
    """A job that reads none makes no more calls than may be open."""
    for number in range(1, wire.MAX_OPEN + 1):
        stand.call(number)
    stand.until(lambda: wire.MAX_OPEN == len(stand.exchange.came))
    for number in range(1, wire.MAX_OPEN + 1):
        stand.exchange.answer(number, False, bytes(wire.MAX_BODY))
    stand.call(wire.MAX_OPEN + 1)
    stand.until(lambda: stand.run.stopped)
    assert 1 == stand.runner.kills


def test_a_job_that_has_called_has_started(stand: Stand) -> None:
    """An answer that it hasn't read isn't code that it hasn't read."""
    stand.call(1)
    stand.until(lambda: stand.exchange.came)
    stand.exchange.answer(1, False, b"a")
    stand.run.emptied(9, "")
    report, = stand.caller.reports
    assert report.result is not None
    assert Outcome.SIGNALLED is report.result.outcome


def test_an_interrupt_does_not_wait_until_an_answer_is_read(stand: Stand) -> None:
    """Perhaps nobody reads it any more."""
    stand.call(1)
    stand.until(lambda: stand.exchange.came)
    stand.exchange.answer(1, False, b"a")
    stand.run.interrupt()
    assert [signal.SIGINT] == stand.runner.signals
    stand.finish()


def test_a_job_that_was_killed_before_it_called_runs_elsewhere(reactor: Reactor) -> None:
    """As any other: its code stands in the pipe."""
    made = Stand(reactor)
    os.write(made.runner.job, b"code")
    made.run.emptied(9, "")
    assert made.run.over
    assert not made.caller.reports
    made.runner.close()


def test_the_watchdog_knows_how_long_the_clock_may_stand(reactor: Reactor) -> None:
    """While it stands: as long as it may. Else as long as it has."""
    made = Stand(reactor, standing=100.0)
    made.until(lambda: True)
    assert made.run.started + 30 == deadline(made.run)
    made.call(1)
    made.until(lambda: made.exchange.came)
    assert made.run.started + 130 == deadline(made.run)
    made.exchange.answer(1, False, b"")
    assert made.run.started + 30 < deadline(made.run) < made.run.started + 60
    made.finish()
    made.runner.close()


def test_a_call_that_waits_for_too_long_raises(reactor: Reactor) -> None:
    """And is no longer told, nor answered."""
    made = Stand(reactor, wait=0.01)
    made.call(1)
    made.until(lambda: made.exchange.gone)
    made.until(lambda: True)
    piece = made.piece()
    assert (1, wire.RAISED) == piece[:2]
    assert ["TimeoutError", "no answer within 0.01 s"] == wire.unpack(piece.body)
    assert not made.exchange.answer(1, False, b"late")
    made.finish()
    made.runner.close()

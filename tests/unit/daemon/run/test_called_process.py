"""A process that does calls: one frame down, one up; whatever else it does ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.run.called_process import _TURN, CallProcess
from leeward.errors import LeewardError

MOST = 1 << 20


class Far:
    """The process's side of the pipes, and whose it is."""

    def __init__(self) -> None:
        self.reactor = ReferenceReactor()
        self.calls, job = os.pipe()
        reply, self.replies = os.pipe()
        for fd in (job, reply, self.calls):
            os.set_blocking(fd, False)
        self.runner = SimpleNamespace(number=1, job=job, reply=reply)
        self.killed = 0
        self.lost: list[str] = []
        self.heard: list[bytes] = []
        self.process = CallProcess(self.reactor, self.runner, self, b"begins", MOST, self.lost.append)  # type: ignore[arg-type]  # as far as it is used

    def kill(self) -> None:
        self.killed += 1

    def turn(self) -> None:
        for _ in range(8):
            self.reactor.turn(0)

    def close(self) -> None:
        self.process.end("the test is over")
        for fd in (self.calls, self.replies, self.runner.job, self.runner.reply):
            if fd >= 0:
                os.close(fd)
        assert not self.reactor.barrier.faults
        self.reactor.close()


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far()
    assert b"begins" == os.read(made.calls, 100)
    yield made
    made.close()


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_a_call_is_sent_and_its_answer_heard(far: Far) -> None:
    """However large, and in however many parts it comes."""
    for size in (0, 1, 100_000, MOST):
        far.process.call([bytes(size)], far.heard.append)
        got = b""
        while len(got) < size + 4:
            try:
                got += os.read(far.calls, 1 << 16)
            except BlockingIOError:
                far.turn()
        assert frame(bytes(size)) == got
        answer = memoryview(frame(b"x" * size))
        while answer:
            answer = answer[os.write(far.replies, answer[:30_000]):]
            far.turn()
        assert b"x" * size == far.heard.pop()
    assert ([], 0) == (far.lost, far.killed)


def test_an_answer_that_ends_with_what_a_turn_reads_is_heard(far: Far) -> None:
    """Nothing comes after it that would wake the loop again."""
    far.process.call([b""], far.heard.append)
    answer = frame(bytes(540_000))
    rest = len(answer) - _TURN
    os.write(far.replies, answer[:rest])
    far.turn()
    assert _TURN == os.write(far.replies, answer[rest:])  # at once, for which the pipe was widened
    far.turn()
    assert [540_000] == [len(body) for body in far.heard]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("told", [b"\xff\xff\xff\xff", frame(b"a") + b"\0", (MOST + 1).to_bytes(4, "big"), None])
def test_a_malformed_answer_ends_the_process(far: Far, asked: bool, told: bytes | None) -> None:
    """Too long, more than one, to no request, and the end. The reason is reported once, and no later message is read."""
    if asked:
        far.process.call([b"call"], far.heard.append)
    if told is None:
        os.close(far.replies)
        far.replies = -1
    else:
        os.write(far.replies, told)
    far.turn()
    assert (1, 1) == (len(far.lost), far.killed)
    assert len(far.heard) <= 1
    far.process.end("again")
    far.process.emptied(9, "")
    assert 1 == len(far.lost)
    with pytest.raises(LeewardError):
        far.process.call([b""], far.heard.append)


def test_an_answer_before_the_call_was_read_ends_it(far: Far) -> None:
    """It can't be one."""
    far.process.call([bytes(MOST)], far.heard.append)
    os.write(far.replies, frame(b"x"))
    far.turn()
    assert (1, []) == (len(far.lost), far.heard)


def test_a_process_that_reads_no_more_is_ended(far: Far) -> None:
    """And the signal that ended one is told."""
    os.close(far.calls)
    far.calls = -1
    far.process.call([b"call"], far.heard.append)
    assert 1 == len(far.lost)

    other = Far()
    other.process.emptied(9, "")
    assert ["signal 9 has ended it"] == other.lost
    other.close()


def test_one_call_at_a_time(far: Far) -> None:
    far.process.call([b""], far.heard.append)
    with pytest.raises(LeewardError):
        far.process.call([b""], far.heard.append)
    far.process.broken(ValueError("oops"))
    assert 1 == far.killed

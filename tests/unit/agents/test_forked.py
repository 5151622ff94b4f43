"""An answer from a copy of the process: the whole of it or none, and nothing is left of the copy."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leeward.agents.forked import ForkedAnswer

LARGE = ("x" * 300_000, {"flag": True, "none": None, "name": "\udcff"}, 1.5)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test takes its answer or closes it: no process and no descriptor is left."""
    before = os.listdir("/proc/self/fd")
    yield
    assert len(before) == len(os.listdir("/proc/self/fd"))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def raises(error: BaseException) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


def test_the_answer_is_what_the_work_returned_in_another_process() -> None:
    ours = os.getpid()
    answer = ForkedAnswer(lambda: (os.getpid(), LARGE))
    copy = answer.copy
    assert (copy, LARGE) == answer.take()
    assert copy not in (0, ours)
    assert answer.take() is None  # once
    answer.close()


@pytest.mark.parametrize("error", [ValueError(), OSError(5, "no"), KeyboardInterrupt(), SystemExit(0)], ids=repr)
def test_work_that_raises_gives_no_answer_and_the_copy_does_nothing_else(error: BaseException) -> None:
    assert ForkedAnswer(raises(error)).take() is None


def test_what_cannot_be_written_gives_no_answer() -> None:
    assert ForkedAnswer(object).take() is None


def test_a_copy_that_is_killed_gives_no_answer() -> None:
    answer = ForkedAnswer(lambda: time.sleep(60))
    os.kill(answer.copy, signal.SIGKILL)
    assert answer.take() is None


def test_a_copy_that_is_killed_while_it_answers_gives_no_answer() -> None:
    answer = ForkedAnswer(lambda: ["x" * (1 << 20)])  # more than a pipe holds, so it waits for us
    assert select.select([answer._pipe], [], [], 60)[0]
    os.kill(answer.copy, signal.SIGKILL)
    assert answer.take() is None


def test_without_a_status_there_is_no_answer() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert ForkedAnswer(lambda: 1).take() is None
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_close_ends_a_copy_that_works_on() -> None:
    ForkedAnswer(lambda: time.sleep(60)).close()


@pytest.mark.parametrize("call", ["fork", "pipe"])
def test_there_is_no_answer_where_there_can_be_no_copy(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, call, raises(BlockingIOError(11, "too many")))
    answer = ForkedAnswer(lambda: 1)
    assert 0 == answer.copy
    assert answer.take() is None
    answer.close()

"""
A request whose answer comes with a memory file: whatever ends it, the file is closed once or the answer's, and the
sandbox is idle again. And what ends with a connection, and has ended before.
"""

from __future__ import annotations

import gc
import os
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from leeward.daemon.loop.barrier import nothing
from leeward.daemon.serving.sandbox_calls import FileTicket, Hold, Holds, SandboxCall


class Asked(FileTicket):
    """A ticket that has asked somebody."""

    def __init__(self) -> None:
        self.desk: Any = Mock()
        super().__init__(self.desk, Mock(), 1, Mock())
        self.began = self.taken_back

    def _begin(self) -> Any:
        self._fd = os.memfd_create("x")
        return Mock()

    @property
    def fd(self) -> int:
        return self._fd

    def answered(self) -> int:
        return self._take_file() if self.end() else -1


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize("end", [Asked.cancel, lambda ticket: ticket.broken(ValueError())], ids=["cancel", "broken"])
def test_an_end_without_an_answer_closes_the_file(end: Any) -> None:
    """Once, as the number may be another file's afterwards."""
    ticket = Asked()
    fd = ticket.fd
    end(ticket)
    assert not is_open(fd)

    again = os.open("/dev/null", os.O_RDONLY)
    if again != fd:
        os.dup2(again, fd)
        os.close(again)
    end(ticket)
    assert is_open(fd)
    os.close(fd)
    ticket.began.assert_called_once_with()
    ticket.desk.free.assert_called_once_with(ticket._entry)


def test_an_answer_takes_the_file() -> None:
    ticket = Asked()
    fd = ticket.answered()
    assert is_open(fd)

    ticket.cancel()
    assert is_open(fd)
    os.close(fd)
    ticket.began.assert_not_called()
    ticket.desk.free.assert_called_once_with(ticket._entry)


def test_an_answer_after_the_end_is_none() -> None:
    ticket = Asked()
    ticket.cancel()

    assert -1 == ticket.answered()


@pytest.mark.parametrize("end", [SandboxCall.end, SandboxCall.cancel])
def test_what_has_ended_is_not_kept_by_its_call_until_a_collection(end: Any) -> None:
    """A program refers to the call that it answers, and has its output."""
    call = SandboxCall(Mock(), Mock(), nothing)
    program = SimpleNamespace(stop=nothing, answers=call)
    call.taken_back, call.job = partial(SimpleNamespace.__getattribute__, program, "stop"), Mock(caller=call)
    gone = weakref.ref(call)
    gc.disable()
    try:
        end(call)
        del call, program
        assert gone() is None
    finally:
        gc.enable()


def test_what_lives_is_ended_once_and_the_rest_is_not() -> None:
    ended: list[int] = []
    living = {1, 3}
    holds = Holds()
    for number in range(4):
        holds.add(Hold(lambda number=number: number in living, lambda number=number: ended.append(number)))  # type: ignore[misc]
    assert holds
    holds.end()
    holds.end()

    assert [1, 3] == ended
    assert not holds


def test_what_has_ended_takes_no_memory() -> None:
    """However many there were on one connection; those that live stay."""
    holds = Holds()
    holds.add(Hold(lambda: True, lambda: None))
    for _ in range(10_000):
        holds.add(Hold(lambda: False, lambda: None))

    assert len(holds._rows) <= 64
    assert holds


def test_one_that_cannot_be_ended_keeps_no_other_alive() -> None:
    ended: list[str] = []

    def fails() -> None:
        raise OSError("no")

    holds = Holds()
    holds.add(Hold(lambda: True, fails))
    holds.add(Hold(lambda: True, lambda: ended.append("second")))
    try:
        holds.end()
    except OSError:
        ended.append("told")

    assert ["second", "told"] == ended

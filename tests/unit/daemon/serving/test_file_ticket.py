"""
A request whose answer comes with a memory file: whatever ends it, the file is closed once or the answer's, and the
sandbox is idle again.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest

from leeward.daemon.serving.file_ticket import FileTicket


class Asked(FileTicket):
    """A ticket that has asked somebody."""

    def __init__(self) -> None:
        self.desk: Any = Mock()
        super().__init__(self.desk, Mock())
        self.taken_back = Mock()
        self._fd, self._take_back = os.memfd_create("x"), self.taken_back

    @property
    def fd(self) -> int:
        return self._fd

    def answered(self) -> int:
        return self._take_file() if self._end() else -1


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
    ticket.taken_back.assert_called_once_with()
    ticket.desk.free.assert_called_once_with(ticket._entry)


def test_an_answer_takes_the_file() -> None:
    ticket = Asked()
    fd = ticket.answered()
    assert is_open(fd)

    ticket.cancel()
    assert is_open(fd)
    os.close(fd)
    ticket.taken_back.assert_not_called()
    ticket.desk.free.assert_called_once_with(ticket._entry)


def test_an_answer_after_the_end_is_none() -> None:
    ticket = Asked()
    ticket.cancel()

    assert -1 == ticket.answered()

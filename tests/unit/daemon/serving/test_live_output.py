"""Output of jobs for a client that shows it while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leeward.daemon.pool.pool import Ticket
from leeward.daemon.pool.sessions import Cancellable
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.output import Output
from leeward.daemon.serving.waiting import LiveOutput
from leeward.errors import BadRequest
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.wire.requests import OutputTake

WAITS, OVER = ({"stdout": b"", "stderr": b"", "running": False, "over": over} for over in (False, True))


class Connection:
    """One job, of request 1, that writes to pipes."""

    def __init__(self) -> None:
        out, err = os.pipe(), os.pipe()
        self.out, self.err = out[1], err[1]
        for fd in (*out, *err):
            os.set_blocking(fd, False)
        self.output = Output(out[0], err[0], 1 << 20)
        self.ticket = Ticket(Job(code=b"", limits=Limits()), None, cast("Any", None), 0.0)
        self.tickets: dict[int, Cancellable | None] = {1: self.ticket}
        self.answers: list[tuple[int, Mapping[str, Any]]] = []
        self.live = LiveOutput(self)

    def begin(self) -> None:
        self.ticket.execution = cast("Execution", SimpleNamespace(output=self.output, over=False))

    def write(self, fd: int, data: bytes) -> None:
        """As a job, and as what watches it."""
        os.write(fd, data)
        self.output.take_rest()
        if self.output.listener is not None:
            self.output.listener()

    def wait(self, request: int, ticket: Cancellable) -> None:
        self.tickets[request] = ticket

    def answer(self, request: int, answer: Mapping[str, Any]) -> None:
        del self.tickets[request]
        self.answers.append((request, answer))


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.output.close()
    os.close(made.out)
    os.close(made.err)


def test_a_request_waits_until_there_is_more(connection: Connection) -> None:
    """Behind what the client has of each stream; what is there is answered at once."""
    connection.begin()
    assert connection.live.take(OutputTake(2, 1)) is None
    connection.write(connection.out, b"one")
    connection.write(connection.err, b"two")
    assert [(2, {"stdout": b"one", "stderr": b"", "running": True, "over": False})] == connection.answers
    assert connection.output.listener is None

    assert {"stdout": b"", "stderr": b"two", "running": True, "over": False} == connection.live.take(
        OutputTake(3, 1, 3, 0))
    assert connection.live.take(OutputTake(4, 1, 3, 3)) is None
    connection.live.close(1)
    assert (4, OVER) == connection.answers[-1]
    assert {1} == set(connection.tickets)


def test_what_is_held_back_answers_nobody(connection: Connection) -> None:
    connection.begin()
    assert connection.live.take(OutputTake(2, 1)) is None
    connection.write(connection.err, b"Fatal Python error: Aborted")
    assert [] == connection.answers
    connection.write(connection.out, b"x")
    assert [2] == [number for number, _ in connection.answers]


def test_a_job_that_waits_or_is_unknown(connection: Connection) -> None:
    """Nobody waits for it; a job of a session is none that could be shown."""
    assert WAITS == connection.live.take(OutputTake(2, 1))
    assert OVER == connection.live.take(OutputTake(2, 9))
    connection.tickets[5] = None
    assert WAITS == connection.live.take(OutputTake(2, 5))
    connection.ticket.execution = cast("Execution", SimpleNamespace(output=connection.output, over=True))
    assert WAITS == connection.live.take(OutputTake(2, 1))
    assert {1, 5} == set(connection.tickets)


def test_one_request_waits_for_a_job_and_may_be_taken_back(connection: Connection) -> None:
    connection.begin()
    assert connection.live.take(OutputTake(2, 1)) is None
    with pytest.raises(BadRequest, match="another output_take waits"):
        connection.live.take(OutputTake(3, 1))

    waiting = connection.tickets.pop(2)
    assert waiting is not None
    waiting.cancel()
    connection.write(connection.out, b"x")
    connection.live.close(1)
    assert [] == connection.answers
    assert connection.output.listener is None

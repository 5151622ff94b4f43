"""The steps of a ticket: whom it tells of a report, and in which order."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Arena, Report
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result

DONE = Report(result=Result(b"", b"", 0, Outcome.FINISHED))


class World:
    """The pool and a session, which note what they hear."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def finished(self, ticket: Ticket, report: Report) -> None:
        self.heard.append("finished")
        ticket.answer(report)

    def lost(self, ticket: Ticket) -> None:
        self.heard.append("lost")

    @property
    def admission(self) -> World:
        return self

    def forget(self, ticket: Ticket) -> None:
        self.heard.append("forget")

    def broken(self, error: Exception) -> None:
        self.heard.append(str(error))

    def job_over(self) -> None:
        self.heard.append("job over")

    def done(self, _report: Report) -> None:
        self.heard.append("answer")


@pytest.fixture
def world() -> World:
    return World()


def ticket(world: World, **fields: object) -> Ticket:
    return Ticket(Job(code=b""), world.done, world, 0.0, **fields)  # type: ignore[arg-type]


def test_the_client_is_answered_once(world: World) -> None:
    one = ticket(world)
    one.finished(DONE)
    one.answer(DONE)

    assert ["finished", "answer"] == world.heard


def test_a_session_hears_of_the_end_before_the_client_does(world: World) -> None:
    """Whoever sends the next job on the answer finds the session without one."""
    ticket(world, session=world).finished(DONE)

    assert ["finished", "job over", "answer"] == world.heard


def test_a_cancelled_ticket_reports_to_no_owner_and_closes_its_files(world: World) -> None:
    fd = os.memfd_create("result", os.MFD_CLOEXEC)
    one = ticket(world, session=world)
    one.cancel()
    one.finished(Report(result=DONE.result, arena=Arena(fd, 0)))

    assert ["forget", "finished"] == world.heard
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_tickets_loss_and_bugs_go_to_the_pool(world: World) -> None:
    one = ticket(world)
    one.lost()
    one.broken(ValueError("of ours"))

    assert ["lost", "of ours"] == world.heard


@pytest.mark.parametrize(("change", "unseen"), [
    ({}, True), ({"session": object()}, False), ({"take": object()}, False), ({"execution": None}, False),
    ({"job": Job(functions=object())}, False), ({"seen": True}, False), ({"reaches_out": True}, False)])
def test_a_job_is_seen_by_its_session_functions_output_and_network(change: dict[str, Any], unseen: bool) -> None:
    output = SimpleNamespace(seen=change.get("seen", False))
    pool: Any = SimpleNamespace(reaches_out=change.get("reaches_out", False))
    ticket = Ticket(change.get("job", Job()), None, pool, 0.0)
    ticket.execution = change.get("execution", SimpleNamespace(output=output))
    ticket.session, ticket.take = change.get("session"), change.get("take")
    assert unseen == ticket.unseen

"""The last ends of each user: what is kept, for whom, and how much of it."""

from __future__ import annotations

import dataclasses

import pytest

from leeward.daemon.telling import events
from leeward.daemon.telling.events import NAMED, ORDINARY, SPECIAL, TEXT, USERS, EventBook
from leeward.spec.outcome import JobError, Limit, Outcome, Result

FINE = Result(b"much", b"", 0, Outcome.FINISHED, duration=0.5)
LATE = Result(b"", b"", 124, Outcome.TIMED_OUT, Limit.TIME)


def test_a_user_gets_the_users_own_events_alone() -> None:
    """And numbers count his alone, so that they tell nothing of others."""
    book = EventBook(lambda: 17.0)
    book.job(1, 100, "", FINE)
    book.job(2, 101, "mine", LATE)
    book.sandbox(1, "a" * 26, "memory", "why", {"oom_kills": 1})
    assert [(1, 100), (2, None)] == [(row["number"], row.get("job")) for row in book.after(1, 0)["events"]]
    [row] = book.after(2, 0)["events"]
    assert {"number": 1, "time": 17.0, "kind": "job", "job": 101, "title": "mine", "outcome": "timed_out",
            "exit_code": 124, "limit": "time", "seconds": 0.0, "cpu_time": 0.0, "memory_peak": 0, "denied": {}} == row
    assert {"events": [], "last": 1} == book.after(2, 1)
    assert {"events": [], "last": 0} == book.after(3, 0)


def test_ordinary_ends_do_not_hide_the_others() -> None:
    """Each kind makes room for its own."""
    book = EventBook()
    book.job(1, 1, "", LATE)
    for number in range(2, 1000):
        book.job(1, number, "", FINE)
    found = book.after(1, 0)["events"]
    assert (1, ORDINARY + 1, 999) == (found[0]["job"], len(found), found[-1]["job"])
    for number in range(1000):
        book.job(1, number, "", LATE)
    assert SPECIAL + ORDINARY == len(book.after(1, 0)["events"]) == len(book)


def test_every_table_of_events_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users, names of denied calls, texts; output isn't kept."""
    book = EventBook()
    many = {f"call{number}": number for number in range(200)}
    book.process(1, "b" * 26, 7, "t" * 5000, dataclasses.replace(LATE, denied=many, error=JobError("T" * 300, "m", "")))
    [row] = book.after(1, 0)["events"]
    assert (NAMED, 199) == (len(row["denied"]), row["denied"]["call199"])
    assert ("b" * 26, 7, TEXT, TEXT) == (row["sandbox"], row["process"], len(row["title"]), len(row["error"]))
    for user in range(2, 300):
        book.job(user, user, "", FINE)
    assert USERS == len(book)
    assert [] == book.after(1, 0)["events"]
    monkeypatch.setattr(events, "USERS", 1)
    said: list[int] = []
    take_back = book.wait(4000, lambda: said.append(1))
    book.job(4001, 1, "", FINE)
    book.job(4000, 1, "", FINE)
    book.job(4000, 2, "", FINE)
    assert [1] == said
    take_back()


def test_a_waiter_is_notified_once_and_can_withdraw() -> None:
    book = EventBook()
    said: list[str] = []
    book.wait(1, lambda: said.append("first"))
    book.wait(1, lambda: said.append("second"))()
    book.wait(2, lambda: said.append("of another"))()
    book.job(1, 1, "", FINE)
    book.job(1, 2, "", FINE)
    assert ["first"] == said
    assert [] == book.after(2, 0)["events"]

"""The asks that wait: who is told, how each ends, and what bounds them."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool import asks
from leeward.daemon.pool.asks import MOST_OF_USER, AskBook
from leeward.daemon.pool.egress_record import EVERYBODY, EgressRecord
from leeward.errors import PeerError
from leeward.wire.egress_control import Ask, AskAnswer, Listening, Unask

ABOUT: dict[str, object] = {"name": "a.example.org", "address": "", "port": 80, "protocol": "http", "method": "GET",
                            "path": "/", "rule": "*", "seconds": 60.0}


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def book(reactor: Reactor, told: list[Any]) -> AskBook:
    record = EgressRecord()
    for lease, user in ((1, 1000), (2, 2000)):
        record.leased(lease, "web")
        record.owned(lease, user, {"kind": "job", "job": 10 + lease})
    made = AskBook(reactor, record)
    made.tell = told.append
    return made


def waiting(book: AskBook) -> list[dict[str, Any]]:
    return list(book.after(EVERYBODY, 0)["events"])


def test_an_ask_is_answered_once(book: AskBook, told: list[Any]) -> None:
    """Whose it is is known by the daemon's own books."""
    woken: list[bool] = []
    book.wait(EVERYBODY, lambda: woken.append(True))
    book.hear(Ask(1, 7, ABOUT))
    [row] = waiting(book)

    assert [True] == woken
    assert (1, 1000, "job", 11, "web", "a.example.org", "GET") == tuple(
        row[name] for name in ("ask", "user", "kind", "job", "policy", "name", "method"))
    assert [] == book.after(EVERYBODY, 1)["events"]
    assert book.answer(1, True, "")
    assert not book.answer(1, False, "")
    assert [AskAnswer(7, 1, "")] == told


def test_a_refusal_has_words(book: AskBook, told: list[Any]) -> None:
    book.hear(Ask(1, 7, ABOUT))
    book.hear(Ask(1, 8, ABOUT))
    book.answer(1, False, "")
    book.answer(2, False, "Blocked by rule")

    assert [AskAnswer(7, 0, "Denied by leeward (request 1)"), AskAnswer(8, 0, "Blocked by rule")] == told


def test_an_ask_without_a_waiting_request_is_removed(book: AskBook, told: list[Any]) -> None:
    """It was withdrawn, its sandbox is over, or its broker is."""
    for end in (lambda: book.hear(Unask(7)), lambda: book.over(1), book.lost):
        book.hear(Ask(1, 7, ABOUT))
        assert 1 == len(book)
        end()
        assert 0 == len(book)
    assert [] == told


def test_a_user_has_so_many(book: AskBook, told: list[Any]) -> None:
    """Another user's are taken meanwhile."""
    for number in range(MOST_OF_USER + 1):
        book.hear(Ask(1, number, ABOUT))
    book.hear(Ask(2, 1000, ABOUT))

    assert MOST_OF_USER + 1 == len(book)
    [refused] = told
    assert (MOST_OF_USER, 0) == (refused.number, refused.allow)
    assert 1 == book.refused


def test_all_users_together_have_a_bound_of_asks(book: AskBook, told: list[Any],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "MOST", 1)
    book.hear(Ask(1, 1, ABOUT))
    book.hear(Ask(2, 2, ABOUT))

    assert [2] == [each.number for each in told]


def test_an_ask_of_no_lease_is_refused(book: AskBook, told: list[Any]) -> None:
    book.hear(Ask(3, 7, ABOUT))

    assert [AskAnswer(7, 0, "the sandbox is over")] == told


@pytest.mark.parametrize("wrong", [
    {"name": 1}, {"name": "a\nb"}, {"name": "x" * 600}, {"port": 0}, {"port": True}, {"protocol": "dns"},
    {"seconds": 1}, {"seconds": float("nan")}, {"path": "/" * 9000}, {"method": None}, {"rule": "\x1b[2J"}])
def test_a_malformed_ask_ends_the_broker(book: AskBook, wrong: dict[str, object]) -> None:
    """The broker that says so is ended for it."""
    with pytest.raises(PeerError):
        book.hear(Ask(1, 7, {**ABOUT, **wrong}))
    book.hear(Ask(1, 7, ABOUT))
    with pytest.raises(PeerError):
        book.hear(Ask(1, 7, ABOUT))


def test_the_broker_is_told_of_listening_clients(book: AskBook, told: list[Any], reactor: Reactor,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first one and of the last, and of none that is back in time."""
    monkeypatch.setattr(asks, "GRACE_S", 0.01)
    assert Listening(0) == book.listening
    book.listen()
    book.listen()
    book.unlisten()
    book.unlisten()
    assert Listening(1) == book.listening
    book.listen()
    assert [Listening(1)] == told

    book.hear(Ask(1, 7, ABOUT))
    book.unlisten()
    reactor.run(lambda: len(told) > 1)
    assert [Listening(1), Listening(0)] == told
    assert (0, Listening(0)) == (len(book), book.listening)

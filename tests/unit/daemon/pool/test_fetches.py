"""The table of fetches that a broker was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.daemon.pool.broker import MOST_OF_USER, Fetches
from leeward.errors import Busy, PeerError
from leeward.wire.egress_control import FetchAnswer

FAILED = {"failed": "dns", "message": "no", "url": "", "sent": False}


def test_every_fetch_is_answered_once() -> None:
    waiting, got = Fetches(), []
    number = waiting.begin(1, got.append)

    for _ in range(2):
        waiting.answered(FetchAnswer(number, dict(FAILED)))

    assert [FAILED] == got


def test_a_fetch_that_was_given_up_has_no_answer() -> None:
    waiting, got = Fetches(), []
    number = waiting.begin(1, got.append)

    assert waiting.end(number)
    assert not waiting.end(number)
    waiting.answered(FetchAnswer(number, dict(FAILED)))
    assert [] == got


def test_a_user_has_so_many() -> None:
    """Another user isn't kept waiting by them."""
    waiting = Fetches()
    numbers = [waiting.begin(1, lambda _: None) for _ in range(MOST_OF_USER)]
    with pytest.raises(Busy):
        waiting.begin(1, lambda _: None)
    waiting.begin(2, lambda _: None)

    waiting.end(numbers[0])
    waiting.begin(1, lambda _: None)


def test_a_malformed_answer_is_not_passed_on() -> None:
    """The broker that sent it is ended for it, and `lost` answers then."""
    waiting, got = Fetches(), []
    number = waiting.begin(1, got.append)

    with pytest.raises(PeerError):
        waiting.answered(FetchAnswer(number, {"status": "x"}))
    assert [] == got
    waiting.lost()
    assert ["http"] == [answer["failed"] for answer in got]


def test_a_broker_that_is_lost_answers_all_of_them() -> None:
    """Whatever one of those who wait does with it."""
    waiting, got = Fetches(), []

    def fails(_: Any) -> None:
        raise ValueError("a bug")

    waiting.begin(1, fails)
    waiting.begin(2, got.append)
    with pytest.raises(ValueError, match="a bug"):
        waiting.lost()
    assert 1 == len(got)
    waiting.lost()
    assert 1 == len(got)

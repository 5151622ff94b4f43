"""Questions to the shards: one answer for each, in time or without those that are late."""

from __future__ import annotations

from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.shards.dealer import ANSWER_S, Gathering
from leeward.daemon.shards.messages import ShardCounts


def stand() -> tuple[Gathering, Reactor, list[int], list[dict[int, ShardCounts]]]:
    reactor = Reactor()
    return Gathering(reactor), reactor, [], []


def counts(number: int) -> ShardCounts:
    return ShardCounts(number, b"", b"")


def test_all_answers_are_passed_once() -> None:
    gathering, reactor, sent, got = stand()
    gathering.ask({1: sent.append, 2: sent.append}, got.append)
    gathering.answered(2, counts(sent[0]))
    assert not got
    gathering.answered(1, counts(sent[0]))
    gathering.answered(1, counts(sent[0]))
    reactor.close()

    assert [{1, 2}] == [set(found) for found in got]


def test_a_shard_that_ends_is_not_waited_for() -> None:
    gathering, reactor, sent, got = stand()
    gathering.ask({1: sent.append, 2: sent.append}, got.append)
    gathering.answered(2, counts(sent[0]))
    gathering.lost(1)
    reactor.close()

    assert [{2}] == [set(found) for found in got]


def test_without_shards_the_answer_comes_later() -> None:
    gathering, reactor, _, got = stand()
    gathering.ask({}, got.append)
    assert not got
    reactor.turn(0.0)
    reactor.close()

    assert [{}] == got


def test_a_late_shard_is_left_out() -> None:
    gathering, reactor, sent, got = stand()
    gathering.ask({1: sent.append}, got.append)
    end = reactor.now() + 10 * ANSWER_S
    while not got and reactor.now() < end:
        reactor.turn(ANSWER_S)
    gathering.answered(1, counts(sent[0]))
    reactor.close()

    assert [{}] == got


def test_a_question_that_is_taken_back_has_no_answer() -> None:
    gathering, reactor, sent, got = stand()
    gathering.ask({1: sent.append}, got.append)()
    gathering.answered(1, counts(sent[0]))
    reactor.turn(0.0)
    reactor.close()

    assert not got

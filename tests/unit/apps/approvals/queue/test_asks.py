"""Connections that wait: what is asked of a person, and which answer goes to which of them. The daemon is played."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.waiting import poll_until
from leeward.apps.approvals.queue import asks
from leeward.apps.approvals.queue.asks import EgressQuestions, ask_request
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.client.egress_asks import EgressAsk
from leeward.errors import DaemonAway

ASK = EgressAsk(id=1, kind="sandbox", job=0, sandbox="box", user=1000, policy="web", rule="*", name="a.example",
                address="", port=443, protocol="https", method="GET", path="/x", time=1.0, seconds=300.0)


class PlayedDaemon:
    """Its asks, and the answers to them."""

    def __init__(self) -> None:
        self.asks, self.answers = list[EgressAsk](), list[tuple[int, bool, str]]()
        self.is_away = False
        self.lost = 0  # answers whose connection breaks

    def client(self, **options: Any) -> PlayedDaemon:
        return self

    def __enter__(self) -> PlayedDaemon:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def egress_asks(self, after: int = 0, wait: float = 0.0) -> list[EgressAsk]:
        if self.is_away:
            raise DaemonAway("away")
        found = [ask for ask in self.asks if ask.id > after]
        if not found and wait:
            threading.Event().wait(0.01)  # the wait that it plays, which ends with nothing; the desk asks again
        return found

    def answer_egress_ask(self, ask: int, allow: bool, message: str = "") -> bool:
        if self.lost:
            self.lost -= 1
            raise DaemonAway("the connection was lost")
        self.answers.append((ask, allow, message))
        return True


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> PlayedDaemon:
    made = PlayedDaemon()
    monkeypatch.setattr(asks, "Client", made.client)
    monkeypatch.setattr(asks, "_AGAIN_S", 0.01)
    return made


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    made = ApprovalQueue(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def desk(daemon: PlayedDaemon, queue: ApprovalQueue) -> Iterator[EgressQuestions]:
    made = EgressQuestions(queue, None, lambda sandbox: ("/home/me/shop", "claude"))
    made.start()
    yield made
    made.close()


def answered(daemon: PlayedDaemon, count: int) -> list[tuple[int, bool, str]]:
    poll_until(lambda: len(daemon.answers) >= count, "answers to asks")
    return daemon.answers


def test_a_request_describes_the_connection() -> None:
    assert "GET https://a.example:443/x" == ask_request(ASK).description
    other = replace(ASK, name="", address="2001:db8::1", protocol="tcp", method="", path="", sandbox="", kind="job",
                    job=7)
    assert "tcp to [2001:db8::1]:443" == ask_request(other).description
    assert "job 7" == ask_request(other).sandbox


def test_one_decision_answers_all_that_wait_for_it(daemon: PlayedDaemon, queue: ApprovalQueue,
                                                   desk: EgressQuestions) -> None:
    daemon.asks += [ASK, replace(ASK, id=2), replace(ASK, id=3, name="b.example")]
    poll_until(lambda: sum(request.repeats + 1 for request in queue.pending()) == 3, "requests")
    first, second = queue.pending()
    assert ("/home/me/shop", "claude") == (first.project, first.asker)
    queue.decide([first.id], True, "cli")
    queue.decide([second.id], False, "cli")

    assert [(1, True, ""), (2, True, ""), (3, False, f"Denied by leeward (request {second.id})")] == sorted(
        answered(daemon, 3))


def test_rules_and_modes_answer_at_once(daemon: PlayedDaemon, queue: ApprovalQueue, desk: EgressQuestions) -> None:
    queue.add_rule("network(a.example)", "deny")
    daemon.asks.append(ASK)
    assert [(1, False, "Blocked by rule")] == answered(daemon, 1)
    queue.set_mode("network", "deny-all")
    daemon.asks.append(replace(ASK, id=2, name="b.example"))

    assert (2, False, "Blocked by policy") == answered(daemon, 2)[1]


def test_another_daemons_ask_of_the_same_number_is_not_answered(daemon: PlayedDaemon, queue: ApprovalQueue,
                                                                desk: EgressQuestions) -> None:
    daemon.asks.append(ASK)
    poll_until(queue.pending, "a request")
    daemon.asks[:] = [replace(ASK, name="evil.example", time=2.0)]
    queue.decide([queue.pending()[0].id], True, "cli")
    daemon.asks.append(replace(ASK, id=5, name="b.example"))
    poll_until(queue.pending, "the next request")
    queue.decide([queue.pending()[0].id], True, "cli")

    assert [(5, True, "")] == answered(daemon, 1)


def test_a_daemon_that_is_away_is_asked_again(daemon: PlayedDaemon, queue: ApprovalQueue, desk: EgressQuestions) -> None:
    daemon.is_away = True
    poll_until(lambda: desk.trouble, "trouble that is told")
    daemon.is_away = False
    daemon.asks.append(ASK)
    poll_until(queue.pending, "a request")

    assert 1 == len(queue.pending())
    poll_until(lambda: not desk.trouble, "trouble that is over")


def test_an_answer_whose_connection_was_lost_is_sent_again(daemon: PlayedDaemon, queue: ApprovalQueue,
                                                           desk: EgressQuestions) -> None:
    queue.add_rule("network(a.example)", "deny")
    daemon.lost = 1
    daemon.asks.append(ASK)

    assert [(1, False, "Blocked by rule")] == answered(daemon, 1)


def test_an_unexpected_error_does_not_end_the_listening(daemon: PlayedDaemon, queue: ApprovalQueue, desk: EgressQuestions,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(ask: EgressAsk, *_: str) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(asks, "ask_request", failing)
        daemon.asks.append(ASK)
        poll_until(lambda: "RuntimeError" == desk.trouble, "trouble")

    poll_until(queue.pending, "a request")

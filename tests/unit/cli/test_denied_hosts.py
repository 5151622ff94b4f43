"""What a person hears of hosts that an agent is denied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from leeward.client import blocking
from leeward.client.egress_asks import EgressAsk
from leeward_cli import denied_hosts
from leeward_cli.denied_hosts import DeniedHosts


def row(number: int, name: str, port: int = 443, verdict: str = "denied", sandbox: str = "box",
        reason: str = "domain not in allowlist: x") -> dict[str, Any]:
    return {"number": number, "name": name, "address": "", "port": port, "verdict": verdict, "sandbox": sandbox,
            "reason": reason}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the daemon remembers, which is told once."""
    found = list[dict[str, Any]]()

    class Log:
        def last(self) -> int:
            return max((each["number"] for each in found), default=0)

        def pages(self, _follow: bool, after: int = 0) -> Iterator[list[dict[str, Any]]]:
            yield [each for each in found if each["number"] > after]

    monkeypatch.setattr(denied_hosts, "decisions", lambda _path: Log())
    return found


def test_each_host_is_told_once_and_all_at_the_end(rows: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    rows += [row(1, "a.example.org", 0), row(2, "a.example.org"), row(3, "b.example.org", 22), row(4, "b.example.org", 22),
             row(5, "ok.example.org", verdict="allowed"), row(6, "other.example.org", sandbox="other"),
             row(7, "c.example.org", reason="domain is blocked: y")]
    told, ready = list[str](), threading.Event()
    made = DeniedHosts("", "box")

    def tell(what: str, host: str) -> None:
        assert "denied" == what
        told.append(host)
        if len(told) == 3:
            ready.set()

    made.follow(tell)
    assert ready.wait(10)
    assert ["a.example.org", "b.example.org:22", "c.example.org"] == told
    rows.append(row(8, "late.example.org"))
    made.sum_up()
    assert 3 == len(told)
    said = capfd.readouterr().err
    assert "the agent was denied a.example.org, b.example.org:22, c.example.org, late.example.org;" in said
    assert 'allow = ["a.example.org", "b.example.org:22", "late.example.org"]' in said


def test_what_waits_for_a_decision_is_told_once(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the agent's own sandbox; the looks at it don't wait, which would count as somebody who answers."""
    asks = [EgressAsk(id=number, kind="sandbox", job=0, sandbox=box, user=1000, policy="agent", rule="*", name=name,
                      address="", port=443, protocol="https", method="GET", path="/x", time=1.0, seconds=300.0)
            for number, box, name in ((1, "box", "a.example"), (2, "other", "b.example"), (3, "box", "a.example"),
                                      (4, "box", "c.example"))]

    class Daemon:
        def __init__(self, **_options: Any) -> None: ...

        def __enter__(self) -> Daemon:
            return self

        def __exit__(self, *_: object) -> None: ...

        def egress_asks(self, after: int) -> list[EgressAsk]:
            return [each for each in asks if each.id > after]

    monkeypatch.setattr(blocking, "Client", Daemon)
    monkeypatch.setattr(denied_hosts, "_LOOK_S", 0.001)
    told, ready = list[tuple[str, str]](), threading.Event()

    def tell(what: str, host: str) -> None:
        told.append((what, host))
        if len(told) == 2:
            ready.set()

    made = DeniedHosts("", "box", True)
    made.follow(tell)
    assert ready.wait(10)
    made.sum_up()
    assert [("asks about", "a.example"), ("asks about", "c.example")] == told


def test_nothing_is_said_of_nothing(rows: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    rows.append(row(1, "a.example.org", verdict="allowed"))
    DeniedHosts("", "box").sum_up()
    assert ("", "") == capfd.readouterr()


def test_names_are_shown_escaped_and_their_number_is_bounded(rows: list[dict[str, Any]],
                                                             capfd: pytest.CaptureFixture[str]) -> None:
    rows += [row(1, "\x1b]0;evil\x07"), *(row(number, f"{number}.example.org") for number in range(2, 300))]
    DeniedHosts("", "box").sum_up()
    said = capfd.readouterr().err
    assert "\\x1b]0;evil\\x07" in said
    assert "20.example.org and 80 more;" in said

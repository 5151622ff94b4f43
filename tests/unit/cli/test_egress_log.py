"""`leeward egress log`: rows for people, the list of names, and the line that would have allowed a try."""

from __future__ import annotations

import json
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from leeward.client.daemon_rows import RowLog, subject_of
from leeward.egress.policy import Decision, Request, decide
from leeward.egress.tenancy import unanswered
from leeward.errors import BadRequest
from leeward.spec.egress_policy import parse_policy
from leeward_cli import egress_log
from leeward_cli.egress_log import line, names, would_allow
from leeward_cli.terminal_rows import matches


def row(**more: Any) -> dict[str, Any]:
    return {"number": 1, "user": 0, "kind": "job", "job": 7, "policy": "web", "lease": 4, "try": 1, "time": 0.0,
            "name": "a.example.org", "address": "", "port": 443, "verdict": "denied", "rule": "", "reason": "",
            "sent": 0, "received": 0, **more}


@pytest.mark.parametrize(("more", "text"), [
    ({"reason": "domain not in allowlist: a.example.org:443"},
     "job 7  denied   a.example.org:443  domain not in allowlist: a.example.org:443"),
    ({"verdict": "closed", "address": "93.184.216.34", "rule": "*", "sent": 2048, "received": 5},
     "job 7  closed   a.example.org:443  (93.184.216.34)  rule '*'  sent 2KiB, received 5"),
    ({"name": "", "address": "2001:db8::1"}, "job 7  denied   [2001:db8::1]:443"),
    ({"port": 0}, "job 7  denied   a.example.org"),
])
def test_a_row_is_a_line(more: dict[str, Any], text: str) -> None:
    assert line(row(**more)).endswith("  " + text)


def test_a_row_names_its_job_or_sandbox() -> None:
    """By a job's number or a sandbox's id; a session has its lease's number."""
    box = row(kind="sandbox", sandbox="s" * 26)
    del box["job"]
    session = row(kind="session")
    del session["job"]
    assert ("job 7", "s" * 26, "session 4") == (subject_of(row()), subject_of(box), subject_of(session))
    assert matches(row(), "7")
    assert matches(box, "s" * 26)
    assert matches(session, "")
    assert not matches(row(), "8")
    assert not matches(box, "7")
    assert not matches(session, "4")


def test_names_are_listed_once() -> None:
    """Sorted; what failed or was closed says nothing of the policy."""
    rows = [row(name="b"), row(name="a"), row(name="b"), row(name="b", verdict="allowed"),
            row(name="c", verdict="failed"), row(name="", address="10.0.0.1")]
    assert ["allowed b", "denied 10.0.0.1", "denied a", "denied b"] == names(rows)


POLICY: dict[str, Any] = {"allow": ["*.example.org", "10.0.0.0/8:5432", "GET http://get.test"],
                          "deny": ["no.example.org"], "ask": ["asked.test"]}


@pytest.mark.parametrize("request_", [
    Request("other.test", port=443),
    Request("other.test", protocol="dns"),
    Request("a.example.org", port=25, protocol="tcp"),
    Request("a.example.org", port=443, protocol="tcp"),
    Request("a.example.org", ip_address("10.1.2.3"), 443),
    Request("", ip_address("10.1.2.3"), 22, "tcp"),
    Request("", ip_address("2606:4700::1111"), 443),
    Request("asked.test", port=443),
], ids=str)
def test_the_suggested_line_allows_the_denied_request(request_: Request) -> None:
    """The policy with that line allows the same request."""
    decision = decide(parse_policy(POLICY, "egress.web", "web"), request_)
    assert decision.verdict in ("deny", "ask")
    cure = would_allow(_denied(request_, decision))
    key, _, value = cure.removeprefix("in [egress.web]: ").partition(" = ")
    changed = {**POLICY, key: [*POLICY.get(key, ()), *json.loads(value)]}
    assert decide(parse_policy(changed, "egress.web", "web"), request_).verdict in ("allow", "need-address")


@pytest.mark.parametrize(("request_", "begins"), [
    (Request("no.example.org", port=443), "in [egress.web]: take 'no.example.org' out of `deny`"),
    (Request("get.test", port=80, protocol="http", method="POST", path="/"), ""),
])
def test_a_denial_that_no_line_of_allow_cures_has_no_suggestion(request_: Request, begins: str) -> None:
    """`deny` comes first; and for a method the reason says which rule is for others."""
    cure = would_allow(_denied(request_, decide(parse_policy(POLICY, "egress.web", "web"), request_)))
    assert cure.startswith(begins)
    assert bool(cure) == bool(begins)


def test_a_failed_connection_has_no_suggestion() -> None:
    assert "" == would_allow(row(verdict="failed", reason="domain not in allowlist: x"))


def test_rows_of_a_session_are_those_of_its_time() -> None:
    """They don't say which of its jobs they are of."""
    session = row(kind="session", time=10.0)
    del session["job"]
    assert egress_log._is_of(session, {"job": 3, "time": 10.5, "seconds": 1.0})
    assert not egress_log._is_of(session, {"job": 3, "time": 9.0, "seconds": 1.0})
    assert egress_log._is_of(row(), {"job": 7, "time": 0.0})
    assert not egress_log._is_of(row(), {"job": 8, "time": 0.0})


def _denied(request: Request, decision: Decision) -> dict[str, Any]:
    decision = unanswered(decision)
    return row(name=request.name, address="" if request.address is None or request.name else str(request.address),
               port=request.port, rule=decision.rule, reason=decision.reason)


def test_names_are_written_through_no_link_of_a_sandboxs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may lie in the project, which the agent has written."""
    monkeypatch.setattr(RowLog, "rows", lambda self: [])
    victim, link, fifo, file = (tmp_path / name for name in ("victim", "link", "fifo", "file"))
    victim.write_text("mine")
    link.symlink_to(victim)
    os.mkfifo(fifo)

    for path in (link, fifo):
        with pytest.raises(BadRequest, match="can't be written"):
            egress_log.write_names("socket", "box", str(path))
    egress_log.write_names("socket", "box", str(file))

    assert ("mine", "") == (victim.read_text(), file.read_text())

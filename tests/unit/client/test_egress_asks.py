"""What clients make of the daemon's answers about asks."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.client.egress_asks import asks_of, taken
from leeward.client.options import execute_fields, session_fields
from leeward.errors import BadReply

ROW: dict[str, Any] = {"ask": 3, "user": 1000, "kind": "sandbox", "sandbox": "sb-1", "policy": "web", "time": 1.5,
                       "name": "a.example.org", "address": "", "port": 443, "protocol": "tls", "method": "", "path": "",
                       "rule": "*", "seconds": 60.0}


def test_a_row_becomes_an_ask() -> None:
    [ask] = asks_of({"events": [ROW]})

    assert (3, "sandbox", 0, "sb-1", "a.example.org", 443, "tls") == (ask.id, ask.kind, ask.job, ask.sandbox, ask.name,
                                                                      ask.port, ask.protocol)
    assert [] == asks_of({"events": []})
    assert taken({"taken": True})


@pytest.mark.parametrize("answer", [
    {}, {"events": [1]}, {"events": [{**ROW, "ask": "3"}]}, {"events": [{**ROW, "kind": None}]},
    {"events": [{**ROW, "job": None}]}, {"events": [{**ROW, "port": 0}]}, {"events": [{**ROW, "path": 1}]}])
def test_a_malformed_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(BadReply):
        asks_of(answer)
    with pytest.raises(BadReply):
        taken(answer)


def test_an_empty_policy_allows_no_host() -> None:
    """It isn't taken for a missing one, with which the operator's would hold as it is."""
    assert {"allow": []} == execute_fields("1", egress="web", policy={})["policy"]
    assert {"allow": []} == session_fields({"egress": "web", "policy": {}})["policy"]
    assert "policy" not in execute_fields("1", egress="web")
    assert "policy" not in session_fields({"egress": "web"})

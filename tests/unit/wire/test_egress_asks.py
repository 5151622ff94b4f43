"""What is believed of an ask, and what a client may answer."""

from __future__ import annotations

import pytest

from leeward.errors import BadRequest
from leeward.wire.egress_asks import MAX_MESSAGE, check_ask, message
from leeward.wire.frames import VERSION
from leeward.wire.requests import EgressAnswer, parse_request


def test_only_its_own_fields_are_kept() -> None:
    about = {"name": "", "address": "192.0.2.1", "port": 22, "protocol": "tcp", "method": "", "path": "", "rule": "*",
             "seconds": 1.0}

    assert about == check_ask({**about, "user": 0, "ask": 1})


def test_a_malformed_message_is_refused() -> None:
    assert "Blocked by rule" == message("Blocked by rule", "message")
    for wrong in ("x" * (MAX_MESSAGE + 1), "a\r\nb", b"x", "\x1b"):
        with pytest.raises(BadRequest):
            message(wrong, "message")


def test_an_answer_names_its_ask() -> None:
    """And refuses where it doesn't say that it allows."""
    base = {"v": VERSION, "id": 1, "op": "egress_answer"}
    assert EgressAnswer(1, 4) == parse_request({**base, "ask": 4})
    assert not EgressAnswer(1, 4).allow
    for wrong in ({}, {"ask": -1}, {"ask": 4, "allow": 1}, {"ask": 4, "sandbox": "x"}):
        with pytest.raises(BadRequest):
            parse_request({**base, **wrong})

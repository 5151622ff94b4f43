"""The fields of a fetch: what a client may ask, and what is believed of a broker's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leeward.errors import BadRequest, PeerError
from leeward.wire import fetches

RESPONSE: dict[str, Any] = {"status": 200, "headers": [["a", "b"], ["a", "c"]], "history": ["http://x/"],
                            "url": "http://y/", "address": "192.0.2.1"}


def test_valid_fields_are_taken() -> None:
    assert (("a", "b"), ("a", "c")) == fetches.headers([["a", "b"], ["a", "c"]], "headers")
    assert () == fetches.headers([], "headers")
    assert "x" * fetches.MAX_URL == fetches.url("x" * fetches.MAX_URL, "url")
    assert b"x" == fetches.body(b"x", "body")
    assert {"allow": ["*"]} == fetches.policy({"allow": ["*"]}, "policy")


@pytest.mark.parametrize(("check", "value"), [
    (fetches.url, b"http://x"), (fetches.url, "x" * (fetches.MAX_URL + 1)), (fetches.method, None),
    (fetches.method, "x" * (fetches.MAX_METHOD + 1)), (fetches.body, "text"),
    (fetches.body, bytes(fetches.MAX_BODY + 1)), (fetches.headers, {"a": "b"}), (fetches.headers, [["a"]]),
    (fetches.headers, ["ab"]), (fetches.headers, [["a", b"b"]]),
    (fetches.headers, [["a", "b"]] * (fetches.MAX_FIELDS + 1)),
    (fetches.headers, [["a", "x" * (fetches.MAX_HEAD // 2)]] * 3), (fetches.policy, ["*"]),
    (fetches.policy, {str(number): 1 for number in range(33)}),
    (fetches.policy, {"allow": ["x" * 100] * 1000}),
])
def test_malformed_fields_are_refused(check: Callable[[object, str], object], value: object) -> None:
    with pytest.raises(BadRequest):
        check(value, "a field")


def test_an_answer_of_a_broker() -> None:
    assert fetches.check_answer({**RESPONSE, "more": 1}) == RESPONSE
    failed = {"failed": "dns", "message": "no", "url": "", "sent": False}
    assert failed == fetches.check_answer({**failed, "status": 200})


@pytest.mark.parametrize("change", [
    {"status": 99}, {"status": True}, {"status": "200"}, {"headers": {}}, {"headers": [["a"]]}, {"headers": [["a", 1]]},
    {"headers": [["a", "b"]] * 4097}, {"history": "x"}, {"history": ["x"] * 51}, {"history": [None]}, {"url": None},
    {"address": 7}, {"url": "x" * (1 << 19)}, {"failed": 1}, {"failed": "dns"},
    {"failed": "dns", "message": "", "url": "", "sent": 1},
])
def test_an_answer_that_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        fetches.check_answer({**RESPONSE, **change})

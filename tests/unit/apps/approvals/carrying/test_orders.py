from __future__ import annotations

import pytest

from leeward.apps.approvals.carrying.orders import (
    CarriedOrder,
    CommandOrder,
    ConfigOrder,
    PushOrder,
    command_order,
    pack_order,
    push_order,
    unpack_order,
)
from leeward.errors import BadRequest, Bug

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize("order", [
    CommandOrder(("ls", "a b", "\udcff"), cwd="/workspace", timeout=3.0, profile="build"),
    CommandOrder((), "ls | wc"),
    PushOrder("/state/x.git", "https://example.org/x", "main", COMMIT),
    ConfigOrder("exec.timeout", 60.0), ConfigOrder("mode.git", "deny-all"),
])
def test_a_stored_order_is_read_back(order: CarriedOrder) -> None:
    assert order == unpack_order(pack_order(order))


@pytest.mark.parametrize("data", [b"\x90", b"\x92\xa7command\x90", b"\xc0"])
def test_a_malformed_stored_order_is_a_bug(data: bytes) -> None:
    with pytest.raises(Bug):
        unpack_order(data)


@pytest.mark.parametrize(("command", "more"), [
    ("", {}), ([], {}), (7, {}), (["ls", 7], {}), ({"ls": 1}, {}), ("ls \ud800", {}), (["ls", "\ud800"], {}),
    ("ls", {"cwd": "a\nb"}), ("ls", {"timeout": 0}), ("ls", {"timeout": float("nan")}), ("ls", {"timeout": "1"}),
    ("ls", {"timeout": 10_000}), ("ls", {"profile": "../x"}), ("ls", {"profile": "x" * 65}),
])
def test_a_malformed_command_is_refused(command: object, more: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        command_order(command, **more)  # type: ignore[arg-type]


def test_a_line_of_plain_words_is_its_words() -> None:
    assert ("ls", "-l") == command_order("ls -l").argv
    assert (() , "ls; id") == (command_order("ls; id").argv, command_order("ls; id").line)


@pytest.mark.parametrize(("name", "commit"), [
    ("a..b", COMMIT), ("-x", COMMIT), ("main", "HEAD"), ("main", COMMIT.upper()),
])
def test_a_malformed_branch_or_commit_is_refused(name: str, commit: str) -> None:
    with pytest.raises(BadRequest):
        push_order("/r", "u", name, commit)

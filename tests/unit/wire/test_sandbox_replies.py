"""What clients make of answers about sandboxes, right ones and wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import PeerError, SandboxOver
from leeward.wire import sandbox_replies
from leeward.wire.answers import details_of, encode_refusal
from leeward.wire.frames import HEADER, decode
from leeward.wire.replies import Reply, parse_reply

VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 2**64 - 1) | st.floats() | st.text(max_size=5)
                      | st.binary(max_size=5), lambda inner: st.lists(inner, max_size=4)
                      | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=8)


def reply(**ok: Any) -> Reply:
    return Reply(1, ok, "", "", [])


def test_the_end_of_a_sandbox_comes_with_its_reason() -> None:
    """From the daemon to the client."""
    sent = SandboxOver("it is over", "memory", 12.5, "memory")
    refusal = parse_reply(decode(encode_refusal(7, sent.kind, sent.message, details_of(sent))[HEADER:]))
    assert refusal.error is not None
    got = sandbox_replies.over(refusal.message, refusal.error)

    assert ("it is over", "memory", 12.5, "memory") == (got.message, got.reason, got.when, got.limit)


@pytest.mark.parametrize(("error", "may_have_run"), [
    ({"begun": False}, False), ({"begun": True}, True), ({}, True), ({"begun": 0}, True), ({"begun": "no"}, True),
])
def test_only_an_explicit_false_means_that_no_code_ran(error: dict[str, Any], may_have_run: bool) -> None:
    """A daemon that doesn't send the field may have begun."""
    sent = SandboxOver("x", may_have_run=may_have_run)

    assert may_have_run is sandbox_replies.over("x", error).may_have_run
    assert may_have_run is sandbox_replies.over("x", details_of(sent)).may_have_run


@pytest.mark.parametrize("error", [{}, {"reason": 7, "when": -1, "limit": "hope"}, {"when": float("nan"), "limit": []}])
def test_an_end_that_says_nonsense_is_an_end(error: dict[str, Any]) -> None:
    """Without what is wrong."""
    got = sandbox_replies.over("x", error)

    assert ("unknown", 0.0, None) == (got.reason, got.when, got.limit)


def test_chunks_come_in_order() -> None:
    """In order."""
    assert ([(2, 1, 0.5, b"x"), (5, 2, 0.5, b"y")], False) == sandbox_replies.chunks(
        reply(chunks=[[2, 1, 0.5, b"x"], [5, 2, 0.5, b"y"]], over=False))


@pytest.mark.parametrize("chunks", [
    None, {}, [[]], [[1, 1, 0.5]], [[0, 1, 0.5, b""]], [[1, 3, 0.5, b""]], [[1, True, 0.5, b""]], [[1, 1, 5, b""]],
    [[1, 1, 0.5, "x"]], [[2, 1, 0.5, b""], [2, 1, 0.5, b""]], [[1, 1, float("nan"), b""]], [[1, 1, -0.5, b""]],
])
def test_wrong_chunks_are_refused(chunks: Any) -> None:
    """Are no chunks."""
    with pytest.raises(PeerError):
        sandbox_replies.chunks(reply(chunks=chunks, over=False))


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(["chunks", "over", "sandbox", "process", "processes", "written"]), VALUES))
def test_any_answer_is_read_or_refused(ok: dict[str, Any]) -> None:
    """With the one error."""
    for read in (sandbox_replies.chunks, sandbox_replies.sandbox_id, sandbox_replies.answer,
                 lambda got: sandbox_replies.whole(got, "process", 1), lambda got: sandbox_replies.flag(got, "over"),
                 lambda got: sandbox_replies.rows(got, "processes")):
        try:
            read(reply(**ok))
        except PeerError:
            pass

"""What arrives of a job is passed on once and in order, whatever the job sends."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.client.live_output import Arrivals, taken_output
from leeward.errors import BadReply, PeerError
from leeward.spec.outcome import Outcome, Result
from leeward.wire.replies import Reply


def result(out: bytes = b"", err: bytes = b"", *shown: str) -> Result:
    return Result(out, err, 0, Outcome.FINISHED, results=tuple({"text/plain": text} for text in shown))


def test_the_rest_comes_at_the_end() -> None:
    out: list[bytes] = []
    err: list[bytes] = []
    arrivals = Arrivals(out.append, err.append, None)
    arrivals.add(b"one", b"")
    ended = result(b"one two", b"three", "shown")

    assert ended is arrivals.finish(ended)
    assert ([b"one", b" two"], [b"three"]) == (out, err)


def test_a_result_that_is_shorter_than_what_was_taken() -> None:
    """As faulthandler's text may be."""
    out: list[bytes] = []
    arrivals = Arrivals(out.append, None, None)
    arrivals.add(b"one two", b"")
    arrivals.finish(result(b"one"))

    assert [b"one two"] == out


def test_results_are_in_order_and_none_comes_twice() -> None:
    told: list[str] = []
    arrivals = Arrivals(None, None, lambda forms: told.append(str(forms["text/plain"])))
    for number in (1, 0, 0, 3, 1, -1, 64, 1 << 70):
        arrivals.shown(number, {"text/plain": str(number)})
    assert ["0", "1"] == told

    arrivals.finish(result(b"", b"", "0", "1", "2", "3", "4"))
    assert ["0", "1", "2", "3", "4"] == told


@pytest.mark.parametrize("forms", [None, [], {}, {"text/x": "a"}, {"image/png": "text"}, {"text/plain": b"bytes"}, "text"])
def test_a_job_can_show_nothing_else(forms: Any) -> None:
    told: list[Any] = []
    with pytest.raises(PeerError):
        Arrivals(None, None, told.append).shown(0, forms)

    assert [] == told


def test_after_an_exception_nothing_is_called() -> None:
    called: list[bytes] = []

    def fails(data: bytes) -> None:
        called.append(data)
        raise ZeroDivisionError

    arrivals = Arrivals(fails, called.append, called.append)  # type: ignore[arg-type]  # any list does
    arrivals.add(b"one", b"two")
    with pytest.raises(ZeroDivisionError):
        arrivals.finish(result(b"one", b"two three", "shown"))

    assert [b"one"] == called


@pytest.mark.parametrize("changed", [{"stdout": "text"}, {"stderr": None}, {"running": 1}, {"over": "no"}])
def test_another_answer_is_refused(changed: dict[str, Any]) -> None:
    ok = {"stdout": b"a", "stderr": b"", "running": True, "over": False}
    assert (b"a", b"", True, False) == taken_output(Reply(1, ok, "", "", []))

    with pytest.raises(BadReply):
        taken_output(Reply(1, {**ok, **changed}, "", "", []))

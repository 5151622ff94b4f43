"""Results as text for a model."""

from __future__ import annotations

import pytest

from leeward.client.model_text import MOST, cut, text_of
from leeward.spec.outcome import Outcome, Result


def test_a_long_text_loses_its_middle() -> None:
    assert "x" * MOST == cut("x" * MOST)
    text = cut("a" * MOST + "b" * MOST)
    assert text.startswith("a" * (MOST // 2) + f"\n[{MOST} characters cut]\n")
    assert text.endswith("b" * (MOST // 2))


@pytest.mark.parametrize(("result", "text"), [
    (Result(b"", b"", 0, Outcome.FINISHED), "[No output]"),
    (Result(b"", b"", 0, Outcome.FINISHED, value="42"), "42"),
    (Result(b"out\n", b"", 0, Outcome.FINISHED, value="42"), "42\nout"),
    (Result(b"out\n", b"err\n", 3, Outcome.FINISHED), "out\n[stderr]:\nerr\n[Exit code: 3]"),
    (Result(b"", b"", 124, Outcome.TIMED_OUT, duration=2.0), "[Timed out after 2 s]\n[Exit code: 124]"),
    (Result(b"", b"", 137, Outcome.OUT_OF_MEMORY), "[Ended: out_of_memory]\n[Exit code: 137]"),
])
def test_a_result_says_how_it_ended(result: Result, text: str) -> None:
    assert text == text_of(result)

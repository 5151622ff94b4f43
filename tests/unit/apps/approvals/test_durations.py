"""Durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.durations import LONGEST, duration_text, parse_duration
from leeward.errors import BadRequest


@pytest.mark.parametrize(("text", "seconds"), [
    ("4h", 14400), ("30m", 1800), ("1h30m", 5400), ("2h15m30s", 8130), ("500ms", 0.5), ("2d", 172800),
    ("1d12h", 129600),
    ("1s500ms", 1.5), ("90m", 5400), ("366d", LONGEST), ("007s", 7)])
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "4", "h", "4x", "-1h", "+1h", "1.5h", "1h 30m", " 1h", "1h\n", "30m1h",
    "1h1h", "0s",
                                  "0h0m", "1e3s", "1_0s", "\u0661h", "367d", "9999999999s", "4H", "1hour",
                                  "inf", "1m2d"])
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_duration(text)


@given(st.integers(1, int(LONGEST) * 1000))
def test_a_written_duration_is_parsed_again(milliseconds: int) -> None:
    assert milliseconds / 1000 == pytest.approx(parse_duration(duration_text(milliseconds / 1000)))
    assert "0s" == duration_text(0.0)

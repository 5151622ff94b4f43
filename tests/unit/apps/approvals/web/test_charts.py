"""Lines over time as points."""

from __future__ import annotations

import pytest

from leeward.apps.approvals.daemon_view import DaemonSample
from leeward.apps.approvals.web.charts import chart, charts, seconds_text


def test_a_line_fills_its_box_and_has_gaps() -> None:
    made = chart("x", [("a", [(0.0, 0.0), (60.0, 5.0), (90.0, None), (120.0, 1.0)])], str)

    assert ("5.0", 120.0, [("a", "1.0", ["0.0,120.0 300.0,0.0", "600.0,96.0 600.0,96.0"])]) == (
        made.top, made.seconds, made.lines)


def test_nothing_is_a_chart_of_nothing() -> None:
    for made in charts([]):
        assert ("none", []) == made.lines[0][1:]
        assert 60.0 == made.seconds


@pytest.mark.parametrize(("value", "top"), [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (70.0, 100.0),
                                             (float("inf"), 1.0)])
def test_the_upper_edge_is_a_round_number(value: float, top: float) -> None:
    assert str(top) == chart("x", [("a", [(0.0, value)])], str).top


def test_rates_are_between_looks() -> None:
    """A clock that is set back, and counts of another daemon, leave a gap."""
    samples = [DaemonSample(time, done, None, None) for time, done in ((0.0, 5), (2.0, 9), (1.0, 10), (4.0, 1), (5.0, 2))]

    rate, _ = charts(samples)

    assert ("all users", "1") == rate.lines[0][:2]
    assert 2 == len(rate.lines[0][2])


@pytest.mark.parametrize(("seconds", "text"), [(0.0003, "0.3 ms"), (0.045, "45 ms"), (1.25, "1.2 s"), (90.0, "90 s")])
def test_seconds_have_a_unit(seconds: float, text: str) -> None:
    assert text == seconds_text(seconds)

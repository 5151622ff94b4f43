"""What bench/processor_pairs.py makes of its turns."""

from __future__ import annotations

import math

from bench.processor_pairs import compared, interval
from leeward_cli.bench.spent import Spent


def test_the_interval_is_of_the_values_own_order() -> None:
    """Of six values the least and the greatest hold the median with 97 %; of fewer none do with 95."""
    assert (1.0, 6.0) == interval([6.0, 2.0, 5.0, 3.0, 4.0, 1.0])
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert interval([]) is None


def test_more_rounds_make_it_narrower() -> None:
    """Of 60 values in a row the 22nd and the 39th: the 21 below and above are as few as 2.5 % of all tosses give."""
    values = [float(number) for number in range(1, 61)]
    assert (22.0, 39.0) == interval(values)
    assert sum(math.comb(60, heads) for heads in range(22)) / 2 ** 60 <= 0.025


def test_a_ratio_is_a_rounds_own() -> None:
    """A machine that is slow for a round slows both sides of it, and the ratio stays."""
    pairs = [(Spent(load * 1e-3, 0.0, load * 3e-3), Spent(load * 2e-3, 0.0, load * 3e-3))
             for load in (1.0, 5.0, 2.0)]
    daemon, workers, both = compared(pairs, 1)
    assert (2.0, 1.0, 1.25) == (daemon["ratio"], workers["ratio"], both["ratio"])
    assert (2000, 4000) == (daemon["tree_us"], daemon["other_us"])


def test_workers_that_no_group_counts_have_no_row() -> None:
    """Neither they, nor the sum with them."""
    assert ["daemon"] == [row["part"] for row in compared([(Spent(1e-3, 0.0, None), Spent(1e-3, 0.0, None))], 1)]

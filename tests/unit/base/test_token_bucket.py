"""A burst, what comes back with time, and a figure that changes."""

from __future__ import annotations

from leeward.base.token_bucket import TokenBucket


def test_a_burst_is_taken_at_once_and_comes_back_with_time() -> None:
    bucket = TokenBucket(2, 4, 10.0)
    assert [True, True, False] == [bucket.take(10.0) for _ in range(3)]
    assert 0.25 == bucket.wait(10.0)
    assert bucket.take(10.25)
    assert not bucket.take(10.25)
    assert 2 == bucket.left(100.0), "never more than the burst"
    assert 0.0 == bucket.wait(100.0)


def test_several_are_taken_all_or_none() -> None:
    bucket = TokenBucket(5, 1)
    assert not bucket.take(0.0, 6)
    assert bucket.take(0.0, 5)
    assert not bucket.take(0.5, 1)
    assert bucket.take(0.5, 0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1, 1, 10.0)
    assert bucket.take(10.0)
    assert not bucket.take(5.0)
    assert not bucket.take(10.5)
    assert bucket.take(11.0)


def test_a_smaller_figure_holds_from_the_next_call() -> None:
    bucket = TokenBucket(10, 10, 0.0)
    bucket.most, bucket.rate = 1.0, 0.5
    assert bucket.take(0.0)
    assert not bucket.take(1.0)
    assert bucket.take(2.0)

"""Bytes for other bytes, wherever the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.egress.injection import Swap

PAIRS = [(b"secret-value", b"placeholder"), (b"secret", b"p"), (b"aab", b"-")]


def streamed(swap: Swap, *pieces: bytes) -> bytes:
    return b"".join(map(swap.feed, pieces)) + swap.end()


@pytest.mark.parametrize("cut", range(30))
def test_a_value_is_found_wherever_it_is_cut(cut: int) -> None:
    data = b"a secret-value and secrets aaab"

    assert b"a placeholder and ps a-" == streamed(Swap(PAIRS), data[:cut], data[cut:])


def test_the_longest_counts_where_one_value_begins_another() -> None:
    """The shorter one isn't taken before it is known whether the longer one is there."""
    assert b"placeholder" == streamed(Swap(PAIRS), b"secret", b"-value")
    assert b"p-valve" == streamed(Swap(PAIRS), b"secret", b"-valve")
    assert b"p" == streamed(Swap(PAIRS), b"secret")


def test_without_secrets_bytes_pass_unchanged() -> None:
    assert b"as it is" == streamed(Swap([]), b"as ", b"it is")


@given(st.lists(st.text("abc", max_size=6), max_size=12),
       st.dictionaries(st.text("abc", min_size=1, max_size=5), st.text("xyz", max_size=3), min_size=1, max_size=4))
def test_a_stream_is_swapped_as_the_whole_is(pieces: list[str], pairs: dict[str, str]) -> None:
    made = [(old.encode(), new.encode()) for old, new in pairs.items()]
    data = [piece.encode() for piece in pieces]

    assert Swap(made).whole(b"".join(data)) == streamed(Swap(made), *data)

"""Pages put together to ranges."""

from __future__ import annotations

import resource

import pytest

from leeward.crossing.scout import ranges

PAGE = resource.getpagesize()


@pytest.mark.parametrize(("wanted", "found"), [
    ("", []),
    ("...", []),
    ("x", [(0, 1)]),
    ("xxx", [(0, 3)]),
    (".xx..x", [(1, 2), (5, 1)]),
    ("x.x", [(0, 1), (2, 1)]),
])
def test_neighbours_are_one_range(wanted: str, found: list[tuple[int, int]]):
    start = 7 * PAGE
    expected = [(start + first * PAGE, count * PAGE) for first, count in found]
    assert expected == list(ranges(start, ["x" == each for each in wanted]))

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.approvals.carrying import detail as hunks_module
from leeward.apps.approvals.carrying.detail import file_hunks, split_lines, take_hunks
from leeward.errors import BadRequest

TEXTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\xff\n", b"\n", b"d"]), max_size=30).map(b"".join)


@given(TEXTS, TEXTS)
def test_all_hunks_are_the_whole_change(before: bytes, after: bytes) -> None:
    hunks = file_hunks(before, after)

    assert before == b"".join(split_lines(before))
    assert bool(hunks) == (before != after)
    if hunks:
        assert after == take_hunks(before, hunks, range(len(hunks)))


@given(TEXTS, TEXTS, st.data())
def test_taken_and_remaining_hunks_make_up_the_change(before: bytes, after: bytes, data: st.DataObject) -> None:
    hunks = file_hunks(before, after)
    if len(hunks) < 2:
        return
    wanted = data.draw(st.sets(st.integers(0, len(hunks) - 1), min_size=1, max_size=len(hunks) - 1))
    part = take_hunks(before, hunks, wanted)

    lines = split_lines(before)
    expected, at = list[bytes](), 0
    for place, hunk in enumerate(hunks):
        expected += lines[at:hunk.start] + list(hunk.new if place in wanted else hunk.old)
        at = hunk.start + len(hunk.old)
    assert part == b"".join([*expected, *lines[at:]])


@pytest.mark.parametrize("wanted", [[], [-1], [2], [0, 5]])
def test_hunks_that_there_are_none_of_are_refused(wanted: list[int]) -> None:
    hunks = file_hunks(b"a\nb\nc\n", b"x\nb\ny\n")

    assert 2 == len(hunks)
    with pytest.raises(BadRequest):
        take_hunks(b"a\nb\nc\n", hunks, wanted)


def test_only_a_newline_ends_a_line() -> None:
    """So no change hides behind what some program shows as the end of a line."""
    [hunk] = file_hunks("a\u2028b\rc\n".encode(), "a\u2028b\rd\n".encode())

    assert 1 == len(hunk.old)


@pytest.mark.parametrize("content", [b"\0", b"x" * ((1 << 20) + 1), b"\n" * 20_002])
def test_a_binary_or_very_long_file_is_decided_as_a_whole(content: bytes) -> None:
    with pytest.raises(BadRequest):
        file_hunks(b"", content)


def test_texts_for_which_a_comparison_takes_hours_are_decided_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other line is alike and the others differ, so each look finds one line at its very beginning."""
    before, after = (b"".join(b"%d\n%s%d\n" % (place % 90, side, place) for place in range(9000))
                     for side in (b"old", b"new"))

    monkeypatch.setattr(hunks_module, "MOST_PAIRS", hunks_module.MOST_PAIRS // 10)
    with pytest.raises(BadRequest, match="as a whole"):
        file_hunks(before, after)


def test_a_long_file_with_many_changes_has_hunks() -> None:
    lines = [b"%d\n" % (place if place % 3 else 0) for place in range(15_000)]
    after = [b"other\n" if 0 == place % 150 else line for place, line in enumerate(lines)]

    assert 100 == len(file_hunks(b"".join(lines), b"".join(after)))

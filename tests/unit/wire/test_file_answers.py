"""Answers to file calls, whose bytes are hostile."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import PeerError
from leeward.wire.file_answers import (
    ANSWERS,
    CHUNK,
    FAILURE,
    MAX_ANSWER,
    MAX_ROWS,
    MAX_WHY,
    check_answer,
    failure,
    read_answer,
)

ROW = [b"name", "file", 0o644, 1, 2, b""]
GOOD: dict[str, dict[str, Any]] = {
    "file_read": {"data": b"x", "handle": 0, "at": 0, "end": 1, "mode": 0, "time": 0},
    "file_write": {"handle": 1, "size": 2}, "file_append": {"size": 0}, "file_close": {},
    "file_write_many": {"failed": [[0, 13, ""], [7, 0, "why"]]}, "file_read_many": {"data": b"x"},
    "file_list": {"rows": [[b"a", *ROW[1:]], [b"b", *ROW[1:]]], "more": False},
    "file_walk": {"rows": [[b"a", *ROW[1:]], [b"a/b", *ROW[1:]]]},
    "file_stat": {"row": [b"/a/../b", "link", 0o777, 1, 2, b"to"]},
    "file_mkdir": {}, "file_set": {}, "file_link": {}, "file_move": {}, "file_copy": {}, "file_remove": {},
    "file_glob": {"names": [b"../a"], "more": True},
    "file_grep": {"rows": [[b"a", 1, b"text"]], "more": False},
    "file_edit": {"found": 3},
}

VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 2**64 - 1) | st.floats() | st.text(max_size=5)
                      | st.binary(max_size=5), lambda inner: st.lists(inner, max_size=4)
                      | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=8)


def packed(number: object, **fields: Any) -> bytes:
    body: bytes = msgpack.packb({"n": number, **fields})
    return body


@pytest.mark.parametrize("op", ANSWERS)
def test_valid_answers_are_taken(op: str) -> None:
    """And a failure in its place."""
    assert GOOD[op] == read_answer(op, 7, packed(7, **GOOD[op]))
    assert {"errno": 2, "why": "no"} == read_answer(op, 7, packed(7, **failure(2, "no")))
    assert set(GOOD[op]) == set(ANSWERS[op])


@pytest.mark.parametrize("op", ANSWERS)
def test_malformed_answers_are_refused(op: str) -> None:
    """Another call's answer, a field that is missing, one more, and one of another type."""
    good = GOOD[op]
    bodies = [packed(8, **good), packed(True, **good), msgpack.packb(good), packed(7, **good, more_of_it=1),
              packed(7, **good) + b"\0", *([packed(7, **good, errno=2, why="")] if good else []), packed(7, errno=2),
              packed(7, errno=-1, why=""), packed(7, errno=4096, why=""), packed(7, errno=2, why="x" * (MAX_WHY + 1)),
              *(packed(7, **{name: value for name, value in good.items() if name != left}) for left in good),
              *(packed(7, **{**good, name: wrong}) for name in good for wrong in (None, "text", -1, [[]], {}, 1.5))]
    for body in bodies:
        with pytest.raises(PeerError):
            read_answer(op, 7, body)


@pytest.mark.parametrize(("op", "wrong"), [
    *(("file_list", {"rows": [[name, *ROW[1:]]], "more": False}) for name in (
        b"", b".", b"..", b"a/b", b"/", b"a\0", b"x" * 256)),
    *(("file_walk", {"rows": [[name, *ROW[1:]]]}) for name in (b"/a", b"a//b", b"../a", b"a/..", b"a/", b"a/./b")),
    ("file_list", {"rows": [[b"b", *ROW[1:]], [b"a", *ROW[1:]]], "more": True}),
    ("file_list", {"rows": [ROW, ROW], "more": True}),
    ("file_list", {"rows": [ROW[:5]], "more": False}), ("file_list", {"rows": [[*ROW, 1]], "more": False}),
    ("file_stat", {"row": [b"a", "weather", 0, 0, 0, b""]}), ("file_stat", {"row": [b"a", "file", 0o10000, 0, 0, b""]}),
    ("file_stat", {"row": [b"a", [], 0, 0, 0, b""]}), ("file_stat", {"row": [b"a", "file", 0, -1, 0, b""]}),
    ("file_glob", {"names": [b"a"] * (MAX_ROWS + 1), "more": False}), ("file_glob", {"names": [b"\0"], "more": False}),
    ("file_grep", {"rows": [[b"a", 1]], "more": False}),
    ("file_grep", {"rows": [[b"a", 1, b"x" * 1001]], "more": False}),
    ("file_read", {**GOOD["file_read"], "data": bytes(CHUNK + 1)}),
    ("file_read", {**GOOD["file_read"], "handle": 2**53}),
])
def test_names_lead_nowhere_and_numbers_have_bounds(op: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        read_answer(op, 7, packed(7, **wrong))


@given(st.sampled_from(sorted(ANSWERS)), st.binary(max_size=200))
def test_any_bytes_give_an_answer_or_a_peer_error(op: str, data: bytes) -> None:
    try:
        read_answer(op, 7, data)
    except PeerError:
        return


@given(st.sampled_from(sorted(ANSWERS)), st.data())
def test_any_values_give_an_answer_or_a_peer_error(op: str, data: st.DataObject) -> None:
    """In the fields that there are."""
    fields = {name: data.draw(VALUES | st.just(GOOD[op].get(name))) for name in {**ANSWERS[op], **(
        FAILURE if data.draw(st.booleans()) else {})}}
    try:
        got = check_answer(op, fields)
    except PeerError:
        return
    assert got.keys() in (ANSWERS[op].keys(), FAILURE.keys())


def test_a_reason_is_escaped_for_terminals() -> None:
    assert "\\x1b[2J" == read_answer("file_close", 7, packed(7, errno=5, why="\x1b[2J"))["why"]


@pytest.mark.parametrize("bomb", [b"\x81" * MAX_ANSWER, b"\x91" * MAX_ANSWER, b"\xdd\xff\xff\xff\xff", b"", b"\xc0",
                                  b"\x82\xa1n\x07\xa4rows" + b"\xdc\xff\xff" * 100_000])
def test_a_bomb_costs_no_more_memory_than_its_bytes(bomb: bytes) -> None:
    """Plus a little."""
    tracemalloc.start()
    try:
        with pytest.raises(PeerError):
            read_answer("file_list", 7, bomb)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(bomb) + (64 << 10)
    finally:
        tracemalloc.stop()

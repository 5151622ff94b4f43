"""Programs decide what the questions that they were written from say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.isolation.seccomp.compiler import bpf, compile

ARCH = 0xC000_003E
ALL = 0xFFFF_FFFF

#: A question as it is asked, nothing merged: offset, mask, and what comes next in each span.
Asked = Any
NODES: st.SearchStrategy[Asked] = st.recursive(st.integers(0, 2), lambda inner: st.tuples(
    st.sampled_from((bpf.NR_OFFSET, bpf.argument(0), bpf.argument(1))), st.sampled_from((1, 6, 7, ALL)),
    st.dictionaries(st.integers(1, 9), inner, max_size=5), inner), max_leaves=12)


def node(asked: Asked) -> compile.Node:
    if isinstance(asked, int):
        return asked
    offset, mask, spans, first = asked
    return compile.question(offset, mask, [(0, node(first)), *((at, node(spans[at])) for at in sorted(spans)
                                                               if at <= mask)])


def answer(asked: Asked, words: Sequence[int]) -> int:
    while not isinstance(asked, int):
        offset, mask, spans, first = asked
        word = words[offset // 4] & mask
        below = [at for at in spans if at <= word]
        asked = spans[max(below)] if below else first
    return asked


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(NODES, st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=20))
def test_the_shortened_tree_decides_as_the_long_one(asked: Asked, calls: list[tuple[int, int, int]]) -> None:
    """Over random questions and random calls."""
    program = compile.write(node(asked))

    for number, one, other in calls:
        words = bpf.words(ARCH, number, (one, other, 0, 0, 0, 0))
        assert answer(asked, words) == bpf.run(program, words)


def test_neighbours_become_one_span() -> None:
    """Ten numbers with one answer are one comparison."""
    program = compile.write(compile.question(0, ALL, [*((number, 1) for number in range(10)), (10, 0)]))

    assert 4 == len(program)
    assert [1] * 10 + [0] == [bpf.run(program, bpf.words(ARCH, number)) for number in range(11)]


def test_known_words_arent_asked_for() -> None:
    """Where a word has one value, a question for it within is settled; so is one in a row behind another."""
    inner = compile.question(0, ALL, [(0, 5), (7, 6), (8, 5)])

    assert compile.question(0, ALL, [(0, 1), (7, inner), (8, 1)]) == compile.question(0, ALL, [(0, 1), (7, 6), (8, 1)])
    assert 6 == compile.given(inner, 0, 7)


@pytest.mark.parametrize("size", [100, 300, 700])
def test_far_targets_are_reached(size: int) -> None:
    """c045: a conditional jump goes 255 instructions at most; longer ways aren't cut."""
    # every number its own question, so that answers end up far from who jumps there
    spans = [(number, compile.question(16, ALL, [(0, 5), (number + 1, 6), (number + 2, 7)]))
             for number in range(size)]
    program = compile.write(compile.question(0, ALL, spans))

    assert all(max(each.jt, each.jf) <= 255 for each in program)
    for number in range(size):
        for argument, want in ((0, 5), (number, 5), (number + 1, 6), (number + 2, 7)):
            assert want == bpf.run(program, bpf.words(ARCH, number, (argument, 0, 0, 0, 0, 0)))

"""
Shortened filters decide what the long ones do.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.errors import Bug
from leeward.isolation.seccomp import bpf, shorten
from leeward.isolation.seccomp.bpf import Instruction

ARCH = 0xC000_003E
LAST = Instruction(bpf.RET_K, 0, 0, 9)


KINDS = (bpf.LD_ABS, bpf.AND_K, bpf.RET_K, bpf.JA, bpf.JEQ_K, bpf.JGT_K, bpf.JGE_K)


def program_of(draws: list[tuple[int, int, int, int]]) -> list[Instruction]:
    """
    Loads, masks, jumps and returns in any order that a filter can have; it begins with a load.
    """
    made = [Instruction(bpf.LD_ABS, 0, 0, 0)]
    for at, (kind, one, other, k) in enumerate(draws):
        left = len(draws) - at  # LAST included
        if bpf.LD_ABS == kind:
            made.append(Instruction(kind, 0, 0, 4 * (k % 6)))
        elif bpf.AND_K == kind:
            made.append(Instruction(kind, 0, 0, (1, 6, 7, 0xFFFF_FFFF)[k % 4]))
        elif bpf.RET_K == kind:
            made.append(Instruction(kind, 0, 0, k % 3))
        elif bpf.JA == kind:
            made.append(Instruction(kind, 0, 0, one % left))
        else:
            made.append(Instruction(kind, one % left, other % left, k))
    return [*made, LAST]


PROGRAMS = st.lists(st.tuples(st.sampled_from(KINDS), *[st.integers(0, 9)] * 3), max_size=14).map(program_of)


@settings(max_examples=200, deadline=None)
@given(PROGRAMS, st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=20))
def test_any_program_decides_the_same_when_shortened(program: list[Instruction],
                                                     calls: list[tuple[int, int, int]]) -> None:
    """
    Over random programs and random calls.
    """
    short = shorten.write(shorten.read(program, {}))

    for number, low, high in calls:
        data = bpf.words(number % 3, number, (low | high << 32, high, 0, 0, 0, 0))
        assert bpf.run(program, data) == bpf.run(short, data)


def test_neighbours_become_one_span() -> None:
    """
    Ten numbers with one answer are one comparison.
    """
    long = [Instruction(bpf.LD_ABS, 0, 0, 0),
            *(Instruction(bpf.JEQ_K, 9 - number, 0, number) for number in range(10)),
            Instruction(bpf.RET_K, 0, 0, 0)]
    long[10:11] = [Instruction(bpf.JEQ_K, 0, 1, 9), Instruction(bpf.RET_K, 0, 0, 1)]
    short = shorten.write(shorten.read(long, {}))

    assert 4 == len(short)
    assert [1] * 10 + [0] == [bpf.run(short, bpf.words(ARCH, number)) for number in range(11)]


def test_known_words_arent_asked_for() -> None:
    """
    A word that is settled costs nothing.
    """
    program = [Instruction(bpf.LD_ABS, 0, 0, bpf.ARCH_OFFSET), Instruction(bpf.JEQ_K, 0, 1, ARCH),
               Instruction(bpf.RET_K, 0, 0, 1), Instruction(bpf.RET_K, 0, 0, 2)]

    assert 1 == shorten.read(program, {bpf.ARCH_OFFSET: ARCH})
    assert 2 == shorten.read(program, {bpf.ARCH_OFFSET: 0})


@pytest.mark.parametrize("size", [100, 300, 700])
def test_far_targets_are_reached(size: int) -> None:
    """
    c045: a conditional jump goes 255 instructions at most; longer ways aren't cut.
    """
    # every number its own question, so that answers end up far from who jumps there
    spans = [(number, shorten.question(16, 0xFFFF_FFFF, [(0, 5), (number + 1, 6), (number + 2, 7)]))
             for number in range(size)]
    program = shorten.write(shorten.question(0, 0xFFFF_FFFF, spans))

    assert all(max(each.jt, each.jf) <= 255 for each in program)
    for number in range(size):
        for argument, want in ((0, 5), (number, 5), (number + 1, 6), (number + 2, 7)):
            assert want == bpf.run(program, bpf.words(ARCH, number, (argument, 0, 0, 0, 0, 0)))


@pytest.mark.parametrize("program", [
    [Instruction(bpf.AND_K, 0, 0, 1), LAST],
    [Instruction(bpf.JEQ_K, 0, 0, 1), LAST],
    [Instruction(bpf.LD_ABS, 0, 0, 0), Instruction(bpf.JSET_K, 0, 0, 1), LAST],
])
def test_refuses_what_it_cant_read(program: list[Instruction]) -> None:
    """
    Better no filter than a wrong one.
    """
    with pytest.raises(Bug):
        shorten.read(program, {})

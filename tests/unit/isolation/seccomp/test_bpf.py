"""
The interpreters of BPF, ours in Python and the one in C, on programs whose answers are known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward._native import seccomp as native
from leeward.errors import Bug
from leeward.isolation.seccomp import bpf
from leeward.isolation.seccomp.bpf import Instruction
from leeward.isolation.seccomp.plan import Args

ARCH = 0xC000_003E
LOAD_NR = Instruction(bpf.LD_ABS, 0, 0, bpf.NR_OFFSET)
YES, NO = Instruction(bpf.RET_K, 0, 0, 1), Instruction(bpf.RET_K, 0, 0, 0)

Run = Callable[[Sequence[Instruction], Sequence[int]], int]


def in_c(program: Sequence[Instruction], words: Sequence[int]) -> int:
    """
    As bpf.run.
    """
    found = native.answers(bpf.assemble(program), struct.pack("=16I", *words))
    if not found:
        raise Bug("none")
    return found[0]


@pytest.fixture(params=[bpf.run, in_c], ids=["python", "c"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.mark.parametrize(("jump", "k", "yes"), [
    (bpf.JEQ_K, 5, {5}),
    (bpf.JGT_K, 5, {6, 7}),
    (bpf.JGE_K, 5, {5, 6, 7}),
    (bpf.JSET_K, 4, {4, 5, 6, 7}),
])
def test_jumps(jump: int, k: int, yes: set[int], run: Run) -> None:
    """
    Each condition, over eight numbers.
    """
    program = [LOAD_NR, Instruction(jump, 0, 1, k), YES, NO]

    assert yes == {number for number in range(8) if run(program, bpf.words(ARCH, number))}


def test_comparisons_are_unsigned(run: Run) -> None:
    """
    -1 is the greatest number.
    """
    program = [LOAD_NR, Instruction(bpf.JGT_K, 0, 1, 0x7FFF_FFFF), YES, NO]

    assert 1 == run(program, bpf.words(ARCH, -1))
    assert 0 == run(program, bpf.words(ARCH, 5))


def test_a_mask_and_a_long_jump(run: Run) -> None:
    """
    AND works on what was loaded; JA takes any distance.
    """
    program = [LOAD_NR, Instruction(bpf.AND_K, 0, 0, 1), Instruction(bpf.JEQ_K, 0, 1, 1),
               Instruction(bpf.JA, 0, 0, 1), NO, YES]

    assert [0, 1, 0, 1] == [run(program, bpf.words(ARCH, number)) for number in range(4)]


def test_words_are_struct_seccomp_data() -> None:
    """
    nr, arch, instruction_pointer, then six arguments, low half first.
    """
    words = bpf.words(ARCH, 7, (0x1_0000_0002, 0, 0, 0, 0, 0xFFFF_FFFF_0000_0000))

    assert (7, ARCH) == words[:2]
    assert (2, 1) == words[4:6]
    assert (0, 0xFFFF_FFFF) == words[14:]


@pytest.mark.parametrize("program", [
    [LOAD_NR],
    [Instruction(bpf.JA, 0, 0, 5), YES],
    [Instruction(bpf.LD_ABS, 0, 0, 64), YES],
    [Instruction(bpf.LD_ABS, 0, 0, 2), YES],
    [Instruction(0x87, 0, 0, 0), YES],
])
def test_refuses_what_the_kernel_would(program: list[Instruction], run: Run) -> None:
    """
    Past the end, beside a word, or nothing that a filter has.
    """
    with pytest.raises(Bug):
        run(program, bpf.words(ARCH, 0))


def test_assembles_and_disassembles() -> None:
    """
    Eight bytes an instruction, and back.
    """
    program = (LOAD_NR, Instruction(bpf.JEQ_K, 255, 1, 0xFFFF_FFFF), YES, NO)
    encoded = bpf.assemble(program)

    assert 32 == len(encoded)
    assert program == bpf.disassemble(encoded)


@pytest.mark.parametrize("size", [0, 7, 8 * (bpf.MOST_INSTRUCTIONS + 1)])
def test_refuses_what_isnt_a_program(size: int) -> None:
    """
    Empty, torn, or more than the kernel takes.
    """
    with pytest.raises(Bug):
        bpf.disassemble(bytes(size))


WORDS = st.one_of(st.integers(0, 12), st.sampled_from((ARCH, 0x8000_0000, 0xFFFF_FFFF)))
INSTRUCTIONS = st.one_of(
    st.builds(bpf.Instruction, st.sampled_from((bpf.JEQ_K, bpf.JGT_K, bpf.JGE_K, bpf.JSET_K)), st.integers(0, 4),
              st.integers(0, 4), WORDS),
    st.builds(bpf.Instruction, st.just(bpf.LD_ABS), st.just(0), st.just(0), st.sampled_from((*range(0, 64, 4), 64, 2))),
    st.builds(bpf.Instruction, st.sampled_from((bpf.AND_K, bpf.RET_K)), st.just(0), st.just(0), WORDS),
    st.builds(bpf.Instruction, st.just(bpf.JA), st.just(0), st.just(0), st.sampled_from((0, 1, 2, 0xFFFF_FFFF))),
    st.builds(bpf.Instruction, st.sampled_from((0, 0x15 | 0x08, 0x60)), st.just(0), st.just(0), WORDS),
)
CALLS = st.tuples(st.sampled_from((ARCH, 0)), st.integers(-2, 12), st.tuples(*[st.integers(0, (1 << 64) - 1)] * 6))


@settings(max_examples=500, deadline=None)
@given(st.lists(INSTRUCTIONS, min_size=1, max_size=12), st.lists(CALLS, max_size=5))
def test_the_interpreter_in_c_is_this_one(program: list[bpf.Instruction], calls: list[tuple[int, int, Args]]) -> None:
    """
    It gives the same answers, and none where this one says that the program is wrong.
    """
    wanted = []
    for call in calls:
        try:
            wanted.append(bpf.run(program, bpf.words(*call)))
        except Bug:
            break

    assert wanted == native.answers(bpf.assemble(program), b"".join(bpf.data(*call) for call in calls))

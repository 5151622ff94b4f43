"""The interpreter of BPF on programs whose answers are known."""

from __future__ import annotations

import pytest

from kit.bpf import MOST_INSTRUCTIONS, disassemble
from leeward.errors import Bug
from leeward.isolation.seccomp.compiler import bpf
from leeward.isolation.seccomp.compiler.bpf import Instruction

ARCH = 0xC000_003E
LOAD_NR = Instruction(bpf.LD_ABS, 0, 0, bpf.NR_OFFSET)
YES, NO = Instruction(bpf.RET_K, 0, 0, 1), Instruction(bpf.RET_K, 0, 0, 0)


@pytest.mark.parametrize(("jump", "k", "yes"), [
    (bpf.JEQ_K, 5, {5}),
    (bpf.JGT_K, 5, {6, 7}),
    (bpf.JGE_K, 5, {5, 6, 7}),
    (bpf.JSET_K, 4, {4, 5, 6, 7}),
])
def test_every_condition_jumps_right(jump: int, k: int, yes: set[int]) -> None:
    """Each condition, over eight numbers."""
    program = [LOAD_NR, Instruction(jump, 0, 1, k), YES, NO]

    assert yes == {number for number in range(8) if bpf.run(program, bpf.words(ARCH, number))}


def test_comparisons_are_unsigned() -> None:
    """-1 is the greatest number."""
    program = [LOAD_NR, Instruction(bpf.JGT_K, 0, 1, 0x7FFF_FFFF), YES, NO]

    assert 1 == bpf.run(program, bpf.words(ARCH, -1))
    assert 0 == bpf.run(program, bpf.words(ARCH, 5))


def test_a_mask_and_a_long_jump() -> None:
    """AND works on what was loaded; JA takes any distance."""
    program = [LOAD_NR, Instruction(bpf.AND_K, 0, 0, 1), Instruction(bpf.JEQ_K, 0, 1, 1),
               Instruction(bpf.JA, 0, 0, 1), NO, YES]

    assert [0, 1, 0, 1] == [bpf.run(program, bpf.words(ARCH, number)) for number in range(4)]


def test_words_are_struct_seccomp_data() -> None:
    """nr, arch, instruction_pointer, then six arguments, low half first."""
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
def test_the_assembler_refuses_programs_that_the_kernel_would(program: list[Instruction]) -> None:
    """Jumps past the end, loads beside a word, or instructions that no filter has."""
    with pytest.raises(Bug):
        bpf.run(program, bpf.words(ARCH, 0))


def test_assembles_and_disassembles() -> None:
    """Eight bytes an instruction, and back."""
    program = (LOAD_NR, Instruction(bpf.JEQ_K, 255, 1, 0xFFFF_FFFF), YES, NO)
    encoded = bpf.assemble(program)

    assert 32 == len(encoded)
    assert program == disassemble(encoded)


@pytest.mark.parametrize("size", [0, 7, 8 * (MOST_INSTRUCTIONS + 1)])
def test_the_assembler_refuses_malformed_programs(size: int) -> None:
    """Empty, torn, or more than the kernel takes."""
    with pytest.raises(AssertionError):
        disassemble(bytes(size))

"""
Classic BPF for seccomp: instructions, a small assembler, an interpreter.

Source:    <linux/filter.h>, seccomp_check_filter(): only 32-bit loads from struct seccomp_data, no backward jump.
Why:       the kernel runs the bytes of a filter, even if the compiler has a mistake. So `compile` runs every program
           over all numbers before the program gets into the package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from leeward.errors import Bug

# Opcodes: class | mode, or class | operation | source; <linux/bpf_common.h>.
LD_ABS = 0x20   # BPF_LD | BPF_W | BPF_ABS
AND_K = 0x54    # BPF_ALU | BPF_AND | BPF_K
JA = 0x05       # BPF_JMP | BPF_JA
JEQ_K = 0x15    # BPF_JMP | BPF_JEQ | BPF_K
JGT_K = 0x25    # BPF_JMP | BPF_JGT | BPF_K
JGE_K = 0x35    # BPF_JMP | BPF_JGE | BPF_K
JSET_K = 0x45   # BPF_JMP | BPF_JSET | BPF_K
RET_K = 0x06    # BPF_RET | BPF_K

#: The offsets of the fields of struct seccomp_data.
NR_OFFSET = 0
ARCH_OFFSET = 4
_ARGS_OFFSET = 16

_DATA = struct.Struct("=II8xQQQQQQ")
_INSTRUCTION = struct.Struct("=HBBI")


class Instruction(NamedTuple):
    """struct sock_filter."""

    code: int
    jt: int
    jf: int
    k: int


def assemble(instructions: Iterable[Instruction]) -> bytes:
    """The program as bytes for seccomp(2), in this machine's byte order."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)


def argument(number: int) -> int:
    """The offset of the low word of an argument; the high word follows it."""
    return _ARGS_OFFSET + 8 * number


def data(arch: int, number: int, args: Sequence[int] = (0, 0, 0, 0, 0, 0)) -> bytes:
    return _DATA.pack(number & 0xFFFF_FFFF, arch, *args)


def words(arch: int, number: int, args: Sequence[int] = (0, 0, 0, 0, 0, 0)) -> tuple[int, ...]:
    """struct seccomp_data as the sixteen 32-bit words that a filter can load."""
    return struct.unpack("=16I", data(arch, number, args))


def run(program: Sequence[Instruction], data: Sequence[int]) -> int:
    """
    The SECCOMP_RET_ value that *program* returns for a call, *data* as `words` returns it. Bug if seccomp doesn't
    accept an instruction, or the program runs past its end.
    """
    at, a = 0, 0
    try:
        while True:
            code, jt, jf, k = program[at]
            at += 1
            if code == JEQ_K:
                at += jt if a == k else jf
            elif code == JGE_K:
                at += jt if a >= k else jf
            elif code == JGT_K:
                at += jt if a > k else jf
            elif code == RET_K:
                return k
            elif code == LD_ABS:
                if k % 4:
                    raise Bug(f"instruction {at - 1} loads from offset {k}, which isn't a word's")
                a = data[k // 4]
            elif code == AND_K:
                a &= k
            elif code == JSET_K:
                at += jt if a & k else jf
            elif code == JA:
                at += k
            else:
                raise Bug(f"instruction {at - 1} has code {code:#x}, which this filter has no use for")
    except IndexError:
        raise Bug(f"the filter runs or reads past an end at instruction {at - 1}") from None

"""The programs of the package as instructions, for tests that run them."""

from __future__ import annotations

import struct

from leeward.isolation.seccomp.compiler.bpf import Instruction

#: The kernel's limit, BPF_MAXINSNS.
MOST_INSTRUCTIONS = 4096


def disassemble(program: bytes) -> tuple[Instruction, ...]:
    """The reverse of `bpf.assemble`, of a program that the kernel would accept."""
    assert program
    assert not len(program) % 8
    assert len(program) // 8 <= MOST_INSTRUCTIONS
    return tuple(map(Instruction._make, struct.iter_unpack("=HBBI", program)))

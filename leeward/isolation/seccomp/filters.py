"""
Which of the programs in `programs` this host gets.

Runs in:   the daemon; pure.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.errors import Unsupported
from leeward.isolation.seccomp.programs import INIT, PROGRAMS


@dataclass(frozen=True, slots=True)
class Program:
    """
    A filter, ready for seccomp(2).

    Attributes:
        insns: BPF instructions of 8 bytes each.
        rules: rows of the table that it stands for.
    """

    insns: bytes
    rules: int

    @property
    def instructions(self) -> int:
        """
        How many.
        """
        return len(self.insns) // 8


def program(*, memory_counted: bool, affinity_fixed: bool, arch: str) -> Program:
    """
    The filter of a job; for its arguments see `plan.plan`.

    Raises:
        Unsupported: there is none for *arch*.
    """
    rules, insns = PROGRAMS[_known(arch), memory_counted, affinity_fixed]
    return Program(bytes.fromhex(insns), rules)


def init_program(arch: str) -> bytes:
    """
    The filter of the sandbox's init: wait and exit, or be killed.

    Raises:
        Unsupported: there is none for *arch*.
    """
    return bytes.fromhex(INIT[_known(arch)])


def _known(arch: str) -> str:
    if arch not in INIT:
        raise Unsupported("seccomp", have=arch, need=" or ".join(INIT))
    return arch

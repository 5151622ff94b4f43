"""The calls about owners before a filter of the package: those go to the supervisor, all others are that filter's matter."""

from __future__ import annotations

import struct

import pytest

from leeward.isolation.seccomp import filters
from leeward.isolation.seccomp.compiler.bpf import Instruction, run, words
from leeward.isolation.seccomp.rules import NOTIFY
from leeward.isolation.seccomp.syscalls import ARCHES, AUDIT_ARCH, NUMBERS
from leeward.isolation.seccomp.widen_owners import CALLS, with_owners


@pytest.mark.parametrize("arch", ARCHES)
def test_these_calls_alone_are_others(arch: str) -> None:
    usual = filters.program(memory_counted=True, affinity_fixed=False, arch=arch, root=True)
    more = with_owners(usual, arch)
    before, after = ([Instruction(*row) for row in struct.iter_unpack("=HBBI", each.insns)] for each in (usual, more))

    asked = {NUMBERS[arch][name] for name in CALLS if name in NUMBERS[arch]}
    assert len(asked) == more.rules - usual.rules >= 5
    for spoken in AUDIT_ARCH.values():
        for number in (*range(600), 0xFFFF_FFFF, *(0x4000_0000 | each for each in asked)):
            call = words(spoken, number, (1, 2, 3, 4, 5, 6))
            notified = spoken == AUDIT_ARCH[arch] and number in asked
            assert (NOTIFY.ret if notified else run(before, call)) == run(after, call), number

"""
The program that the kernel gets, against the plan, over every number and architecture.
"""

from __future__ import annotations

import platform
import sys
from types import ModuleType

import pyseccomp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.errors import Bug
from leeward.isolation.seccomp import bpf
from leeward.isolation.seccomp.compile import OTHER_ARCHES, check, compile, init_program, samples
from leeward.isolation.seccomp.plan import SeccompPlan, init_plan, plan
from leeward.isolation.seccomp.rules import ALLOW, KILL
from leeward.isolation.seccomp.syscalls import ARCHES

PLANS = [
    pytest.param(plan(memory_counted=counted, affinity_fixed=fixed, arch=arch), id=f"{arch}-{counted}-{fixed}")
    for arch in ARCHES for counted in (True, False) for fixed in (True, False)
]
HERE = plan(memory_counted=True, affinity_fixed=False, arch=platform.machine())
HERE_PROGRAM = bpf.disassemble(compile(HERE).insns)


@pytest.mark.parametrize("wanted", [*PLANS, *(pytest.param(init_plan(arch), id=f"init-{arch}") for arch in ARCHES)])
def test_the_program_does_what_the_plan_says(wanted: SeccompPlan) -> None:
    """
    c045: numbers -1 to 1024, each with x32's bit, on every architecture, with arguments on both sides of each test.
    """
    program = bpf.disassemble(compile(wanted).insns)

    for number in (*range(-1, 1025), *(0x4000_0000 | number for number in range(1025)), 0x3FFF_FFFF, 0x7FFF_FFFF):
        call = wanted.calls.get(number)
        for args in samples(call) if call else ((0,) * 6,):
            assert wanted.decide(wanted.audit_arch, number, args).ret == bpf.run(
                program, bpf.words(wanted.audit_arch, number, args)), (number, args)
        for arch in OTHER_ARCHES - {wanted.audit_arch}:
            assert KILL.ret == bpf.run(program, bpf.words(arch, number))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(HERE.calls)), st.tuples(*[st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)] * 6))
def test_any_arguments(number: int, args: tuple[int, ...]) -> None:
    """
    Registers hold anything.
    """
    assert HERE.decide(HERE.audit_arch, number, args).ret == bpf.run(
        HERE_PROGRAM, bpf.words(HERE.audit_arch, number, args))


def test_libseccomps_own_module_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Debian has no pyseccomp. `seccomp` takes and gives C ints where pyseccomp has 32-bit words.
    """
    class Filter(pyseccomp.SyscallFilter):  # type: ignore[misc]  # pyseccomp carries no types
        def __init__(self, default: int) -> None:
            super().__init__(in_an_int(default))

        def set_attr(self, attr: int, number: int) -> None:
            super().set_attr(attr, in_an_int(number))

        def add_rule_exactly(self, action: int, number: int, *args: object) -> None:
            super().add_rule_exactly(in_an_int(action), number, *args)

    def in_an_int(number: int) -> int:
        assert -0x8000_0000 <= number <= 0x7FFF_FFFF
        return number & 0xFFFF_FFFF

    theirs = ModuleType("seccomp")
    theirs.__dict__.update(pyseccomp.__dict__, SyscallFilter=Filter)
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    monkeypatch.setitem(sys.modules, "seccomp", theirs)

    assert bpf.assemble(HERE_PROGRAM) == compile(HERE).insns


def test_its_size_is_what_a_job_pays_for() -> None:
    """
    Each job installs the filter, at a cost by the instruction: a table that doubles it should be noticed.
    """
    made = compile(HERE)

    assert made.instructions == len(made.insns) // 8
    assert made.rules == HERE.rules
    assert made.instructions < 256


def test_the_inits_is_tiny() -> None:
    """
    One question for the architecture, one for the number.
    """
    assert len(init_program()) // 8 < 20


def test_a_program_that_allows_more_is_found() -> None:
    """
    Control: the check sees one wrong answer among all numbers.
    """
    for at, instruction in enumerate(HERE_PROGRAM):
        if bpf.RET_K == instruction.code and instruction.k != ALLOW.ret:
            wrong = (*HERE_PROGRAM[:at], instruction._replace(k=ALLOW.ret), *HERE_PROGRAM[at + 1:])
            with pytest.raises(Bug, match="syscall filter"):
                check(HERE, wrong)


def test_a_program_with_any_jump_gone_wrong_is_found() -> None:
    """
    Control: the check sees jumps that go one too far.
    """
    found = jumps = 0
    for at, instruction in enumerate(HERE_PROGRAM[:-2]):
        if instruction.code in (bpf.JEQ_K, bpf.JGE_K):
            wrong = (*HERE_PROGRAM[:at], instruction._replace(jt=(instruction.jt + 1) % 256), *HERE_PROGRAM[at + 1:])
            jumps += 1
            try:
                check(HERE, wrong)
            except Bug:
                found += 1

    assert found == jumps


def test_a_program_for_another_architecture_is_found() -> None:
    """
    Control: the check runs the other architectures as well.
    """
    with pytest.raises(Bug, match="syscall filter"):
        check(HERE, (bpf.Instruction(bpf.RET_K, 0, 0, ALLOW.ret),))

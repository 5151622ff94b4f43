"""The program that the kernel gets, against the plan, over every number and architecture."""

from __future__ import annotations

import platform
import tempfile

import pyseccomp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.bpf import disassemble
from leeward.errors import Bug
from leeward.isolation.seccomp.compiler import bpf
from leeward.isolation.seccomp.compiler.compile import OTHER_ARCHES, check, compile, samples
from leeward.isolation.seccomp.compiler.plan import SeccompPlan, init_plan, plan
from leeward.isolation.seccomp.rules import ALLOW, KILL, init
from leeward.isolation.seccomp.syscalls import ARCHES

PLANS = [
    pytest.param(plan(memory_counted=counted, affinity_fixed=fixed, arch=arch), id=f"{arch}-{counted}-{fixed}")
    for arch in ARCHES for counted in (True, False) for fixed in (True, False)
]
PLANS += [
    pytest.param(plan(memory_counted=True, affinity_fixed=False, arch=arch, loopback=True, terminal=True),
                 id=f"{arch}-widened")
    for arch in ARCHES
]
PLANS += [pytest.param(plan(memory_counted=True, affinity_fixed=False, arch=arch, loopback=True, root=True),
                       id=f"{arch}-root") for arch in ARCHES]
HERE = plan(memory_counted=True, affinity_fixed=False, arch=platform.machine())
HERE_PROGRAM = compile(HERE)


@pytest.mark.parametrize("wanted", [*PLANS, *(pytest.param(init_plan(arch), id=f"init-{arch}") for arch in ARCHES)])
def test_the_program_decides_as_the_plan_says(wanted: SeccompPlan) -> None:
    """c045: numbers -1 to 1024, each with x32's bit, on every architecture, with arguments on both sides of each test."""
    program = compile(wanted)

    for number in (*range(-1, 1025), *(0x4000_0000 | number for number in range(1025)), 0x3FFF_FFFF, 0x7FFF_FFFF):
        call = wanted.calls.get(number)
        for args in samples(call) if call else ((0,) * 6,):
            assert wanted.decide(wanted.audit_arch, number, args).ret == bpf.run(
                program, bpf.words(wanted.audit_arch, number, args)), (number, args)
        for arch in OTHER_ARCHES - {wanted.audit_arch}:
            assert KILL.ret == bpf.run(program, bpf.words(arch, number))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(HERE.calls)), st.tuples(*[st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)] * 6))
def test_any_arguments_are_decided_as_by_the_plan(number: int, args: tuple[int, ...]) -> None:
    """Registers hold anything."""
    assert HERE.decide(HERE.audit_arch, number, args).ret == bpf.run(
        HERE_PROGRAM, bpf.words(HERE.audit_arch, number, args))


@pytest.mark.parametrize("wanted", PLANS)
def test_libseccomp_makes_the_same_decisions(wanted: SeccompPlan) -> None:
    """A witness that has never seen our compiler: the same rows, for the calls that it knows."""
    ours, (theirs, known) = compile(wanted), witness(wanted)

    assert len(known) >= 300
    for number in known:
        for args in samples(wanted.calls[number]):
            words = bpf.words(wanted.audit_arch, number, args)
            assert bpf.run(theirs, words) == bpf.run(ours, words), (wanted.calls[number].name, args)


def witness(wanted: SeccompPlan) -> tuple[tuple[bpf.Instruction, ...], set[int]]:
    """
    libseccomp's program, and the numbers of the calls in it. Tests of 64 bits beside others 2.5 compiles wrongly, and
    rows of three tests that begin alike: it lets a socket with protocol -1 pass. Escape tests ask the kernel. It has no
    order of rows either, which those about the init need, nor a row for what is left.
    """
    native, target = pyseccomp.Arch.NATIVE, getattr(pyseccomp.Arch, wanted.arch.upper())
    known: set[int] = set()
    made = pyseccomp.SyscallFilter(wanted.default.ret)
    if (pyseccomp.system_arch() ^ target) & 0xFFFF_FFFF:
        made.add_arch(target)
        made.remove_arch(native)
    for call in wanted.calls.values():
        unlike = any(test.is_wide or init(test.arg) == test or len(tests) > 2 for tests, _ in call.rows for test in tests)
        unlike |= bool(call.rows) and call.otherwise.ret != wanted.default.ret
        if unlike or pyseccomp.resolve_syscall(target, call.name) != call.number:
            continue
        known.add(call.number)
        number = pyseccomp.resolve_syscall(native, call.name)
        if call.otherwise.ret != wanted.default.ret:
            made.add_rule_exactly(call.otherwise.ret, number)
        for tests, action in call.rows:
            if action.ret != wanted.default.ret:  # it takes no rule that says what it would do anyhow
                made.add_rule_exactly(action.ret, number, *(
                    pyseccomp.Arg(test.arg, pyseccomp.MASKED_EQ, test.mask, test.value) for test in tests))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return disassemble(file.read()), known


def test_a_program_that_allows_more_is_found() -> None:
    """Control: the check sees one wrong answer among all numbers."""
    for at, instruction in enumerate(HERE_PROGRAM):
        if bpf.RET_K == instruction.code and instruction.k != ALLOW.ret:
            wrong = (*HERE_PROGRAM[:at], instruction._replace(k=ALLOW.ret), *HERE_PROGRAM[at + 1:])
            with pytest.raises(Bug, match="syscall filter"):
                check(HERE, wrong)


@pytest.mark.thorough
def test_a_program_with_any_jump_gone_wrong_is_found() -> None:
    """Control: the check sees jumps that go one too far; or further, where the next ones lead to the same answers."""
    def is_found(at: int, by: int) -> bool:
        instruction = HERE_PROGRAM[at]
        wrong = instruction._replace(jt=(instruction.jt + by) % 256)
        try:
            check(HERE, (*HERE_PROGRAM[:at], wrong, *HERE_PROGRAM[at + 1:]))
        except Bug:
            return True
        return False

    jumps = [at for at, instruction in enumerate(HERE_PROGRAM[:-2]) if instruction.code in (bpf.JEQ_K, bpf.JGE_K)]
    same = [at for at in jumps if not is_found(at, 1)]

    assert len(same) <= 1
    assert all(any(is_found(at, by) for by in range(2, 8)) for at in same)


def test_a_program_for_another_architecture_is_found() -> None:
    """Control: the check runs the other architectures as well."""
    with pytest.raises(Bug, match="syscall filter"):
        check(HERE, (bpf.Instruction(bpf.RET_K, 0, 0, ALLOW.ret),))

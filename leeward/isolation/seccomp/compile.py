"""
From a plan to the program that the kernel runs, checked against the plan.

Runs in:   the daemon, once per start; imports pyseccomp (it runs ldconfig, 30 ms).

libseccomp makes a binary search over the calls. What it can't say stands before its
program, in some instructions of our own: that x32 is deadly while -1 isn't, what
becomes of numbers that no call has, and calls that are newer than the library.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leeward.errors import Bug, Unsupported
from leeward.isolation.seccomp import bpf
from leeward.isolation.seccomp.bpf import Instruction
from leeward.isolation.seccomp.plan import NEGATIVE_BIT, X32_BIT, Args, Call, SeccompPlan, init_plan
from leeward.isolation.seccomp.rules import KILL, Action

#: SCMP_FLTATR_CTL_OPTIMIZE: 2 is the binary search. A filter of 300 calls installs in
#: 112 us so, in 410 as a list, and each job installs one.
BINARY_SEARCH = 2

#: Numbers that are run through the program at each start; the tests run more.
CHECKED = range(1025)

NO_ARGS: Args = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Program:
    """
    A filter, ready for seccomp(2).

    Attributes:
        insns: BPF instructions of 8 bytes each.
        rules: rows of the table that it stands for.
        instructions: how many.
    """

    insns: bytes
    rules: int
    instructions: int


def compile(plan: SeccompPlan) -> Program:
    """
    Make the program and check it against *plan*, number by number.

    Raises:
        Bug: the program doesn't do what the plan says.
        Unsupported: libseccomp isn't there, or too old.
    """
    import pyseccomp  # noqa: PLC0415  30 ms that only a daemon's start pays

    numbers = _numbers(plan, _compiled(plan, pyseccomp))
    gate = shorten.question(bpf.ARCH_OFFSET, WORD, [(0, KILL.ret), (plan.audit_arch, numbers),
                                                    (plan.audit_arch + 1, KILL.ret)])
    program = shorten.write(gate)
    check(plan, program)
    return Program(bpf.assemble(program), plan.rules, len(program))


def init_program() -> bytes:
    """
    The filter of the sandbox's init on this machine: wait and exit, or be killed.

    Raises: as `compile`.
    """
    return compile(init_plan(platform.machine())).insns


def _body(plan: SeccompPlan, library: ModuleType) -> tuple[tuple[Instruction, ...], list[Call]]:
    """
    libseccomp's part, and the calls whose names it doesn't know.
    """
    native, target = library.Arch.NATIVE, getattr(library.Arch, plan.arch.upper())
    leftover: list[Call] = []
    made = library.SyscallFilter(plan.default.ret)
    try:
        if library.system_arch() != target:
            made.add_arch(target)
            made.remove_arch(native)
        made.set_attr(library.Attr.ACT_BADARCH, KILL.ret)
        made.set_attr(library.Attr.CTL_OPTIMIZE, BINARY_SEARCH)
        for call in plan.calls.values():
            number = library.resolve_syscall(native, call.name)
            if library.resolve_syscall(target, call.name) != call.number:
                leftover.append(call)
                continue
            if call.otherwise != plan.default:
                _only(call)
                made.add_rule_exactly(call.otherwise.ret, number)
            for tests, action in call.rows:
                made.add_rule_exactly(action.ret, number, *(
                    library.Arg(test.arg, library.MASKED_EQ, test.mask, test.value) for test in tests))
        return bpf.disassemble(_export(made)), leftover
    except OSError as refused:
        raise Unsupported("libseccomp", have=f"one that answers {refused.strerror}", need="2.5 or newer",
                          cure="apt-get install libseccomp2") from refused


def _only(call: Call) -> None:
    if call.rows:
        # libseccomp lets a row without arguments swallow those with.
        raise Bug(f"the seccomp table gives {call.name} a default of its own besides rows with arguments")


def _export(made: Any) -> bytes:
    with open(os.memfd_create("leeward_filter", os.MFD_CLOEXEC), "w+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


def _gate(plan: SeccompPlan) -> tuple[Instruction, ...]:
    """
    Another architecture's calls end here, whatever their numbers.
    """
    return (
        Instruction(bpf.LD_ABS, 0, 0, bpf.ARCH_OFFSET),
        Instruction(bpf.JEQ_K, 1, 0, plan.audit_arch),
        Instruction(bpf.RET_K, 0, 0, KILL.ret),
        Instruction(bpf.LD_ABS, 0, 0, bpf.NR_OFFSET),
    )


def _numbers(plan: SeccompPlan) -> Iterator[Instruction]:
    """
    x32, and all numbers above the newest call.
    """
    if KILL == plan.unassigned:
        return  # then libseccomp's part says the same
    yield Instruction(bpf.JSET_K, 2 if plan.has_x32 else 1, 0, NEGATIVE_BIT)
    if plan.has_x32:
        yield Instruction(bpf.JSET_K, 2, 0, X32_BIT)
    yield Instruction(bpf.JGT_K, 0, 2 if plan.has_x32 else 1, plan.newest)
    yield Instruction(bpf.RET_K, 0, 0, plan.unassigned.ret)
    if plan.has_x32:
        yield Instruction(bpf.RET_K, 0, 0, KILL.ret)


def _spans(plan: SeccompPlan, leftover: list[Call]) -> Iterator[Instruction]:
    """
    Runs of numbers that share an action and that libseccomp wasn't told about.
    """
    decided: dict[int, Action] = {}
    for first, last in plan.unassigned_spans():
        decided.update(dict.fromkeys(range(first, last + 1), plan.unassigned))
    for call in leftover:
        if call.rows:
            raise Unsupported("libseccomp", have=f"one that doesn't know {call.name}", need="2.5 or newer",
                              cure="apt-get install libseccomp2")
        decided[call.number] = call.otherwise
    numbers = sorted(number for number, action in decided.items() if action != plan.default)
    at = 0
    while at < len(numbers):
        first = last = numbers[at]
        while at < len(numbers) and numbers[at] == last and decided[last] == decided[first]:
            at, last = at + 1, last + 1
        yield Instruction(bpf.JGE_K, 0, 2, first)
        yield Instruction(bpf.JGT_K, 1, 0, last - 1)
        yield Instruction(bpf.RET_K, 0, 0, decided[first].ret)


def check(plan: SeccompPlan, program: tuple[Instruction, ...]) -> None:
    """
    Run *program* over numbers and arguments, and compare with *plan*.

    Raises:
        Bug: they differ.
    """
    gate = _gate(plan)
    if program[:len(gate)] != gate:  # with it, every other architecture is killed: no need to try them
        raise Bug("the syscall filter doesn't begin by asking for the architecture")
    for number in (-1, -2, *CHECKED, *(X32_BIT | number for number in CHECKED), X32_BIT - 1, NEGATIVE_BIT - 1):
        call = plan.calls.get(number)
        for args in samples(call) if call else (NO_ARGS,):
            want = plan.decide(plan.audit_arch, number, args).ret
            got = bpf.run(program, bpf.words(plan.audit_arch, number, args))
            if want != got:
                raise Bug(f"the syscall filter gives {got:#x} for {call.name if call else 'number'} ({number:#x}) with "
                          f"arguments {', '.join(map(hex, args))}; the plan says {want:#x}")


def samples(call: Call) -> Iterator[Args]:
    """
    Arguments on both sides of each test of *call*, with and without garbage in the bits beside it.
    """
    yield NO_ARGS
    yield (0xFFFF_FFFF_FFFF_FFFF,) * 6
    for tests, _ in call.rows:
        clean, dirty = list(NO_ARGS), [0xFFFF_FFFF_FFFF_FFFF] * 6
        for test in tests:
            clean[test.arg] = test.value
            dirty[test.arg] = test.value | ~test.mask & 0xFFFF_FFFF_FFFF_FFFF
        yield tuple(clean)
        yield tuple(dirty)
        for test in tests:
            for bit in (test.mask & -test.mask, 1 << test.mask.bit_length() - 1):
                broken = list(dirty)
                broken[test.arg] ^= bit
                yield tuple(broken)

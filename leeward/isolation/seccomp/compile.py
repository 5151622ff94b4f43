"""
From a plan to the program that the kernel runs, checked against the plan.

Runs in:   the daemon, once per start; imports pyseccomp (it runs ldconfig, 30 ms), or where that isn't
           libseccomp's own module `seccomp`, which Debian has (python3-seccomp).

libseccomp makes the program. What it can't say is added: that x32 is deadly while -1
isn't, what becomes of numbers that no call has, and calls that are newer than the
library. `shorten` then writes it in fewer instructions. None of the three is trusted:
`check` runs the bytes that the kernel will get.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from leeward._native import seccomp as native
from leeward._native.arguments import value
from leeward._native.memfd import memory_file
from leeward.dataclass import dataclass
from leeward.errors import Bug, Unsupported
from leeward.isolation.seccomp import bpf, shorten
from leeward.isolation.seccomp.bpf import Instruction
from leeward.isolation.seccomp.plan import AUDIT_ARCH, NEGATIVE_BIT, X32_BIT, Args, Call, SeccompPlan, init_plan
from leeward.isolation.seccomp.rules import KILL, WORD, Action, Match
from leeward.isolation.seccomp.shorten import Node

#: Debian's name; where the library is there but the linker's cache isn't, the second command is the cure.
INSTALL = "apt-get install -y libseccomp2; ldconfig"

#: SCMP_FLTATR_CTL_OPTIMIZE: 2 is the binary search, of which `shorten` reads least.
BINARY_SEARCH = 2

#: Numbers that are run through the program at each start; the tests run more.
CHECKED = range(1025)

#: Architectures whose calls an x86_64 or aarch64 kernel takes, and the ends of the range.
OTHER_ARCHES = frozenset((*AUDIT_ARCH.values(), value("AUDIT_ARCH_I386"), value("AUDIT_ARCH_ARM"), 0, WORD))

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
    numbers = _numbers(plan, *_compiled(plan, _library()))
    program = shorten.write(shorten.question(bpf.ARCH_OFFSET, WORD, [
        (0, KILL.ret), (plan.audit_arch, numbers), (plan.audit_arch + 1, KILL.ret)]))
    check(plan, program)
    return Program(bpf.assemble(program), plan.rules, len(program))


def init_program() -> bytes:
    """
    The filter of the sandbox's init on this machine: wait and exit, or be killed.

    Raises: as `compile`.
    """
    return compile(init_plan(os.uname().machine)).insns


def _library() -> ModuleType:
    try:
        return import_module("pyseccomp")
    except RuntimeError:  # how it says that the dynamic linker's cache doesn't list the library
        raise Unsupported("libseccomp", have="none that the dynamic linker knows", need="2.5 or newer",
                          cure=INSTALL) from None
    except ModuleNotFoundError:
        return import_module("seccomp")  # the same interface, written in C


def _signed(word: int) -> int:
    """
    *word* as a C int: `seccomp` takes no greater one, and to `pyseccomp` it is the same.
    """
    return word - (1 << 32) if word > WORD >> 1 else word


def _compiled(plan: SeccompPlan, library: ModuleType) -> tuple[tuple[Instruction, ...], frozenset[int]]:
    """
    libseccomp's program for the calls that it knows, and the numbers of those.
    """
    native, target = library.Arch.NATIVE, getattr(library.Arch, plan.arch.upper())
    known: set[int] = set()
    try:
        made = library.SyscallFilter(_signed(plan.default.ret))
        if (library.system_arch() ^ target) & WORD:
            made.add_arch(target)
            made.remove_arch(native)
        made.set_attr(library.Attr.ACT_BADARCH, _signed(KILL.ret))
        made.set_attr(library.Attr.CTL_OPTIMIZE, BINARY_SEARCH)
        for call in plan.calls.values():
            if library.resolve_syscall(target, call.name) == call.number:
                _add(made, library, library.resolve_syscall(native, call.name), call, plan.default)
                known.add(call.number)
        return bpf.disassemble(_export(made)), frozenset(known)
    except (OSError, RuntimeError) as refused:  # of pyseccomp, of seccomp
        raise _too_old(f"one that answers {getattr(refused, 'strerror', None) or refused}") from refused


def _add(made: Any, library: ModuleType, number: int, call: Call, default: Action) -> None:
    if call.rows and call.otherwise != default:
        # To libseccomp a row without arguments is all that counts of a call.
        raise Bug(f"the seccomp table gives {call.name} a default of its own besides rows with arguments")
    if call.otherwise != default:
        made.add_rule_exactly(_signed(call.otherwise.ret), number)
    for tests, action in call.rows:
        if any(test.is_wide for test in tests):
            continue  # libseccomp 2.5 compiles tests of 64 bits wrongly beside others: `_ahead` does it
        made.add_rule_exactly(_signed(action.ret), number, *(
            library.Arg(test.arg, library.MASKED_EQ, test.mask, test.value) for test in tests))


def _export(made: Any) -> bytes:
    with open(memory_file("leeward_filter"), "w+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


def _numbers(plan: SeccompPlan, compiled: tuple[Instruction, ...], known: frozenset[int]) -> Node:
    """
    The question for the number: libseccomp's answers where it knows the call, else the plan's.
    """
    node = shorten.read(compiled, {bpf.ARCH_OFFSET: plan.audit_arch})
    spans: list[tuple[int, Node]] = []
    for number in range(plan.newest + 1):
        call = plan.calls.get(number)
        if call is None:
            spans.append((number, plan.unassigned.ret))
        elif number in known:
            spans.append((number, _with_wide_rows(call, shorten.given(node, bpf.NR_OFFSET, number))))
        elif call.rows:
            raise _too_old(f"one that doesn't know {call.name}")
        else:
            spans.append((number, call.otherwise.ret))
    spans.append((plan.newest + 1, plan.unassigned.ret))
    if plan.has_x32:
        spans += [(X32_BIT, KILL.ret), (NEGATIVE_BIT, plan.unassigned.ret)]
    return shorten.question(bpf.NR_OFFSET, WORD, spans)


def _with_wide_rows(call: Call, node: Node) -> Node:
    """
    The rows that libseccomp wasn't given, before what it made of the others.

    Raises:
        Bug: one of them doesn't stand before the others.
    """
    wide = [any(test.is_wide for test in tests) for tests, _ in call.rows]
    if wide != sorted(wide, reverse=True):
        raise Bug(f"a row of {call.name} that tests an address has to come first")
    for tests, action in reversed(call.rows[:sum(wide)]):
        node = _ahead(tests, action.ret, node)
    return node


def _ahead(tests: tuple[Match, ...], answer: int, node: Node) -> Node:
    """
    *answer* where all *tests* hold, else what *node* says.

    Raises:
        Bug: a test is neither of a number of 32 bits nor of an address that is null.
    """
    if not tests:
        return answer
    test, *rest = tests
    low, high = bpf.argument(test.arg), bpf.argument(test.arg) + 4
    if WORD == test.mask:
        return _where(low, test.value, _ahead(tuple(rest), answer, shorten.given(node, low, test.value)), node)
    if not test.is_wide or test.value or ~test.mask & 0xFFFF_FFFF_FFFF_FFFF:
        raise Bug(f"a test of {test.text} beside one of an address")
    return _where(high, 0, _where(low, 0, _ahead(tuple(rest), answer, node), node), node)


def _where(offset: int, word: int, then: Node, otherwise: Node) -> Node:
    spans = [(0, otherwise), (word, then), (word + 1, otherwise)]
    return shorten.question(offset, WORD, spans if word else spans[1:])


def _too_old(have: str) -> Unsupported:
    return Unsupported("libseccomp", have=have, need="2.5 or newer", cure="apt-get install libseccomp2")


def check(plan: SeccompPlan, program: tuple[Instruction, ...]) -> None:
    """
    Run *program* over numbers and arguments, and compare with *plan*.

    Raises:
        Bug: they differ.
    """
    asked: list[tuple[int, int, Args]] = []
    for arch in OTHER_ARCHES - {plan.audit_arch}:
        asked += [(arch, number, NO_ARGS) for number in (-1, *CHECKED[::64])]
    for number in (-1, -2, *CHECKED, *(X32_BIT | number for number in CHECKED), X32_BIT - 1, NEGATIVE_BIT - 1):
        call = plan.calls.get(number)
        asked += [(plan.audit_arch, number, args) for args in (samples(call) if call else (NO_ARGS,))]
    got = native.answers(bpf.assemble(program), b"".join([bpf.data(*each) for each in asked]))
    if len(got) < len(asked):
        arch, number, args = asked[len(got)]
        bpf.run(program, bpf.words(arch, number, args))  # says why
        raise Bug(f"the syscall filter has no answer for number {number:#x} of architecture {arch:#x}")
    for (arch, number, args), answer in zip(asked, got, strict=True):
        want = plan.decide(arch, number, args).ret
        if want != answer:
            call = plan.calls.get(number) if arch == plan.audit_arch else None
            raise Bug(f"the syscall filter gives {answer:#x} for {call.name if call else 'number'} ({number:#x}) of "
                      f"architecture {arch:#x} with arguments {', '.join(map(hex, args))}; the plan says {want:#x}")


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
            lowest = test.mask & -test.mask
            for near in (lowest, lowest << 1, 1 << test.mask.bit_length() - 1, test.value ^ (test.value + 1),
                         test.value ^ (test.value - 1)):
                broken = list(dirty)
                broken[test.arg] ^= near & (0xFFFF_FFFF_FFFF_FFFF if test.is_wide else WORD)
                yield tuple(broken)

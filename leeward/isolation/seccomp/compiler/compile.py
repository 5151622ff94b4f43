"""
Compiles a plan to the program that the kernel runs, and checks the program against the plan.

A program is a tree of questions: about the architecture, then about the number, then about the words of the arguments
that rows test. `shorten` writes the tree in few instructions. Neither step is trusted: `check` runs the instructions
that the kernel will get, and the tests compare them with libseccomp as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leeward._native.arguments import value
from leeward.errors import Bug
from leeward.isolation.seccomp.compiler import bpf, shorten
from leeward.isolation.seccomp.compiler.bpf import Instruction
from leeward.isolation.seccomp.compiler.plan import NEGATIVE_BIT, X32_BIT, Args, CallPolicy, SeccompPlan
from leeward.isolation.seccomp.compiler.shorten import Node
from leeward.isolation.seccomp.rules import KILL, WORD, Match
from leeward.isolation.seccomp.syscalls import AUDIT_ARCH

#: The system call numbers with which `check` runs each program.
CHECKED = range(1025)

#: Architectures whose calls an x86_64 or aarch64 kernel accepts, and the ends of the range.
OTHER_ARCHES = frozenset((*AUDIT_ARCH.values(), value("AUDIT_ARCH_I386"), value("AUDIT_ARCH_ARM"), 0, WORD))

NO_ARGS: Args = (0, 0, 0, 0, 0, 0)


def compile(plan: SeccompPlan) -> tuple[Instruction, ...]:
    """Make the program and check it against *plan*, number by number: Bug if it doesn't do what the plan says."""
    program = shorten.write(shorten.question(bpf.ARCH_OFFSET, WORD, [
        (0, KILL.ret), (plan.audit_arch, _numbers(plan)), (plan.audit_arch + 1, KILL.ret)]))
    check(plan, program)
    return program


def _numbers(plan: SeccompPlan) -> Node:
    spans: list[tuple[int, Node]] = []
    for number in range(plan.newest + 2):
        call = plan.calls.get(number)
        spans.append((number, plan.unassigned.ret if call is None else _call(call)))
    if plan.has_x32:
        spans += [(X32_BIT, KILL.ret), (NEGATIVE_BIT, plan.unassigned.ret)]
    return shorten.question(bpf.NR_OFFSET, WORD, spans)


def _call(call: CallPolicy) -> Node:
    node: Node = call.otherwise.ret
    for tests, action in reversed(call.rows):
        node = _where([word for test in tests for word in _words(test)], action.ret, node)
    return node


def _words(test: Match) -> Iterator[tuple[int, int, int]]:
    """Offset, mask and value of each word that *test* compares: one word, or the two words of an address."""
    low = bpf.argument(test.arg)
    if test.is_wide:
        yield low + 4, test.mask >> 32, test.value >> 32
    yield low, test.mask & WORD, test.value & WORD


def _where(words: Sequence[tuple[int, int, int]], answer: int, node: Node) -> Node:
    """A node that returns *answer* if all *words* match, and otherwise continues with *node*."""
    if not words:
        return answer
    (offset, mask, wanted), *rest = words
    spans = [(wanted, _where(rest, answer, node))]
    if wanted > 0:
        spans.insert(0, (0, node))
    if wanted < mask:
        spans.append((wanted + 1, node))
    return shorten.question(offset, mask, spans)


def check(plan: SeccompPlan, program: tuple[Instruction, ...]) -> None:
    """Run *program* over numbers and arguments; Bug if it differs from *plan*."""
    asked: list[tuple[int, int, Args]] = []
    for arch in OTHER_ARCHES - {plan.audit_arch}:
        asked += [(arch, number, NO_ARGS) for number in (-1, *CHECKED[::64])]
    for number in (-1, -2, *CHECKED, *(X32_BIT | number for number in CHECKED), X32_BIT - 1, NEGATIVE_BIT - 1):
        call = plan.calls.get(number)
        asked += [(plan.audit_arch, number, args) for args in (samples(call) if call else (NO_ARGS,))]
    for arch, number, args in asked:
        want, answer = plan.decide(arch, number, args).ret, bpf.run(program, bpf.words(arch, number, args))
        if want != answer:
            call = plan.calls.get(number) if arch == plan.audit_arch else None
            raise Bug(f"the syscall filter gives {answer:#x} for {call.name if call else 'number'} ({number:#x}) of "
                      f"architecture {arch:#x} with arguments {', '.join(map(hex, args))}; the plan says {want:#x}")


def samples(call: CallPolicy) -> Iterator[Args]:
    """Arguments that pass and that fail each test of *call*, with and without garbage in the bits that it ignores."""
    yield NO_ARGS
    yield (1, 1, 1, 1, 1, 1)  # the init's number, among others, which rows of other calls test
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

"""
Writes a filter in as few instructions as possible.

Each job installs a filter, and each instruction of it costs time then: the kernel translates and compiles the program,
and runs it once for every system call number, to find the calls that are always allowed. A program that compares the
number with one call of the table after the other has 437 instructions; this module's programs have 210.

A filter is a tree of questions. A question names a word of the call's data and a mask. It divides the values of the
masked word into spans, and each span leads to an answer or to another question. Neighbouring spans with the same answer
become one span, and each question is written as a binary search.

The caller checks the finished program against the table, so a mistake in this module can't loosen a filter unnoticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from leeward.errors import Bug
from leeward.isolation.seccomp.compiler import bpf
from leeward.isolation.seccomp.compiler.bpf import Instruction

_ALL = 0xFFFF_FFFF

#: The greatest distance of a conditional jump, in instructions.
FARTHEST = 255


@dataclass(frozen=True, slots=True)
class Question:
    """
    Load the word at *offset*, apply *mask*, and find the span of *spans* that has the value. Each span is its first
    value and the next node; they ascend from 0, and each ends where the next one begins.
    """

    offset: int
    mask: int
    spans: tuple[tuple[int, Node], ...]


#: An answer, SECCOMP_RET_*, or a question.
Node = int | Question


def given(node: Node, offset: int, word: int) -> Node:
    """*node* without the questions about the word at *offset*, which is known to be *word*."""
    if isinstance(node, int):
        return node
    if offset == node.offset:
        return given(node.spans[bisect_right(node.spans, word & node.mask, key=_first) - 1][1], offset, word)
    return question(node.offset, node.mask, [(first, given(inner, offset, word)) for first, inner in node.spans])


def question(offset: int, mask: int, spans: Sequence[tuple[int, Node]]) -> Node:
    """A question with as few spans as possible; or the node of all spans, if it is the same."""
    merged: list[tuple[int, Node]] = []
    for first, node in _flat(offset, mask, spans):
        if not merged or merged[-1][1] != node:
            merged.append((first, node))
    return merged[0][1] if len(merged) == 1 else Question(offset, mask, tuple(merged))


def _flat(offset: int, mask: int, spans: Sequence[tuple[int, Node]]) -> Iterator[tuple[int, Node]]:
    """The spans, without inner questions that the span itself answers."""
    for at, (first, node) in enumerate(spans):
        end = spans[at + 1][0] if at + 1 < len(spans) else _ALL + 1
        if mask == _ALL and first + 1 == end:
            yield first, given(node, offset, first)
        elif isinstance(node, Question) and (offset, mask) == (node.offset, node.mask):
            inner = bisect_right(node.spans, first, key=_first) - 1
            yield first, node.spans[inner][1]
            yield from (span for span in node.spans[inner + 1:] if span[0] < end)
        else:
            yield first, node


def _first(span: tuple[int, Node]) -> int:
    return span[0]


def write(node: Node) -> tuple[Instruction, ...]:
    writer = _Writer()
    writer.place(node)
    return tuple(reversed(writer.backwards))


class _Writer:
    """Writes a program from its end to its beginning, since jumps only go forward."""

    def __init__(self) -> None:
        self.backwards: list[Instruction] = []
        self.places: dict[Node, int] = {}  # the instruction of each node, counted from the end

    def place(self, node: Node) -> int:
        """Write *node* if it isn't written yet, and return its place."""
        if node not in self.places:
            self.places[node] = self._answer(node) if isinstance(node, int) else self._question(node)
        return self.places[node]

    def _append(self, code: int, k: int, jt: int = 0, jf: int = 0) -> int:
        self.backwards.append(Instruction(code, jt, jf, k))
        return len(self.backwards) - 1

    def _answer(self, ret: int) -> int:
        return self._append(bpf.RET_K, ret)

    def _question(self, node: Question) -> int:
        for _, following in reversed(node.spans):
            if isinstance(following, Question):
                self.place(following)
        place = self._search(node.spans)
        if len(self.backwards) - 1 != place:  # only a search in one span, which `question` never makes
            raise Bug("a question without a choice")
        if node.mask != _ALL:
            self._append(bpf.AND_K, node.mask)
        return self._append(bpf.LD_ABS, node.offset)

    def _search(self, spans: Sequence[tuple[int, Node]]) -> int:
        if len(spans) == 1:
            return self.place(spans[0][1])
        # One value differs from all others.
        if len(spans) == 3 and spans[0][1] == spans[2][1] and spans[1][0] + 1 == spans[2][0]:
            beside, value = self.place(spans[0][1]), self.place(spans[1][1])
            beside, value = self._near(beside, 2), self._near(value, 1)
            here = len(self.backwards)
            return self._append(bpf.JEQ_K, spans[1][0], here - value - 1, here - beside - 1)
        # A multiple of three, so that groups of three remain for the case above.
        middle = max(3, len(spans) // 6 * 3) if len(spans) > 4 else len(spans) // 2
        above, below = self._search(spans[middle:]), self._search(spans[:middle])
        above, below = self._near(above, 2), self._near(below, 1)
        here = len(self.backwards)
        return self._append(bpf.JGE_K, spans[middle][0], here - above - 1, here - below - 1)

    def _near(self, place: int, room: int) -> int:
        """
        *place*, or the place of a new instruction that does the same or jumps to it: one in reach of a jump that is
        written at most *room* instructions later.
        """
        here = len(self.backwards)
        if here + room - place - 1 <= FARTHEST:
            return place
        target = self.backwards[place]
        if target.code == bpf.RET_K:
            self.places[target.k] = here  # later jumps find this nearer copy
            return self._append(*target[::3])
        return self._append(bpf.JA, here - place - 1)

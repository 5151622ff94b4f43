"""
A filter in few instructions.

Runs in:   a developer's shell, and the tests. Pure.

Each job installs a filter, and that costs by the instruction: the kernel translates and
compiles them, and runs the program for every number to see which calls it may pass
without asking. A list of our table's calls has 437, this module's programs 210.

A filter is a tree of questions: *which word of the call's data, behind which
mask*, and the spans of its values with what comes next, an answer or another question.
Neighbours with the same answer become one span, and each question is written as a
binary search. The caller checks the result; nothing here has to be believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from leeward.dataclass import dataclass
from leeward.errors import Bug
from leeward.isolation.seccomp import bpf
from leeward.isolation.seccomp.bpf import Instruction

_ALL = 0xFFFF_FFFF

#: The farthest that a conditional jump goes, in instructions.
FARTHEST = 255


@dataclass(frozen=True, slots=True)
class Question:
    """
    Load the word at *offset*, apply *mask*, and look between which *spans* it falls.

    Attributes:
        spans: (first value, what comes next), ascending; the first begins at 0 and each
            ends where the next begins.
    """

    offset: int
    mask: int
    spans: tuple[tuple[int, Node], ...]


#: An answer, SECCOMP_RET_*, or a question.
Node = int | Question


def given(node: Node, offset: int, word: int) -> Node:
    """
    What is left of *node* where the word at *offset* is known.
    """
    if isinstance(node, int):
        return node
    if offset == node.offset:
        return given(node.spans[bisect_right(node.spans, word & node.mask, key=_first) - 1][1], offset, word)
    return question(node.offset, node.mask, [(first, given(inner, offset, word)) for first, inner in node.spans])


def question(offset: int, mask: int, spans: Sequence[tuple[int, Node]]) -> Node:
    """
    A question with no needless span; its answer, if it has but one.
    """
    merged: list[tuple[int, Node]] = []
    for first, node in _flat(offset, mask, spans):
        if not merged or merged[-1][1] != node:
            merged.append((first, node))
    return merged[0][1] if 1 == len(merged) else Question(offset, mask, tuple(merged))


def _flat(offset: int, mask: int, spans: Sequence[tuple[int, Node]]) -> Iterator[tuple[int, Node]]:
    """
    The spans, without asking inside of them what is known there.
    """
    for at, (first, node) in enumerate(spans):
        end = spans[at + 1][0] if at + 1 < len(spans) else _ALL + 1
        if _ALL == mask and first + 1 == end:
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
    """
    The program of *node*.
    """
    writer = _Writer()
    writer.place(node)
    return tuple(reversed(writer.backwards))


class _Writer:
    """
    Writes from the end to the beginning, since jumps only go forward.
    """

    def __init__(self) -> None:
        self.backwards: list[Instruction] = []
        self.places: dict[Node, int] = {}  # by node, its instruction, counted from the end

    def place(self, node: Node) -> int:
        """
        Make sure that *node* is written; return where.
        """
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
        if len(self.backwards) - 1 != place:  # a search of one span: `question` makes none
            raise Bug("a question without a choice")
        if _ALL != node.mask:
            self._append(bpf.AND_K, node.mask)
        return self._append(bpf.LD_ABS, node.offset)

    def _search(self, spans: Sequence[tuple[int, Node]]) -> int:
        if 1 == len(spans):
            return self.place(spans[0][1])
        if 3 == len(spans) and spans[0][1] == spans[2][1] and spans[1][0] + 1 == spans[2][0]:  # one value stands out
            beside, value = self.place(spans[0][1]), self.place(spans[1][1])
            beside, value = self._near(beside, 2), self._near(value, 1)
            here = len(self.backwards)
            return self._append(bpf.JEQ_K, spans[1][0], here - value - 1, here - beside - 1)
        middle = max(3, len(spans) // 6 * 3) if len(spans) > 4 else len(spans) // 2  # leaves threes for the case above
        above, below = self._search(spans[middle:]), self._search(spans[:middle])
        above, below = self._near(above, 2), self._near(below, 1)
        here = len(self.backwards)
        return self._append(bpf.JGE_K, spans[middle][0], here - above - 1, here - below - 1)

    def _near(self, place: int, room: int) -> int:
        """
        *place*, or one that leads there, in reach of a jump that is *room* instructions on at most.
        """
        here = len(self.backwards)
        if here + room - place - 1 <= FARTHEST:
            return place
        target = self.backwards[place]
        if bpf.RET_K == target.code:
            self.places[target.k] = here  # the next ones will find this nearer
            return self._append(*target[::3])
        return self._append(bpf.JA, here - place - 1)

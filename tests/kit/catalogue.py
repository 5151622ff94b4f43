"""
The catalogue of attacks, tests/escapes/CATALOGUE.md, beside the tests that cite its numbers.

Runs in:   its test; and `./dev generate`, which writes the column of tests anew.

Tests are read, not imported: a citation is the number in a function's name, a claim the name in its mark `lock`.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kit.features import ROOT

PAGE = ROOT / "tests/escapes/CATALOGUE.md"
HEAD = ["number", "the attack", "held by", "tests"]

_NAME = re.compile(r"test_((?:c\d{3}_(?:to_)?)+)")
_NUMBERS = re.compile(r"c(\d{3})(?: to c(\d{3}))?")


@dataclass(frozen=True, slots=True)
class Row:
    """
    Attributes:
        numbers: one, or several that share a reason for having no test.
        tests: the links to them, or "none: " and the reason.
    """

    numbers: range
    attack: str
    held_by: str
    tests: str

    @property
    def locks(self) -> set[str]:
        """What stands in code: names of locks, and other words."""
        return set(re.findall(r"`([^`]+)`", self.held_by))


@dataclass(frozen=True, slots=True)
class Citation:
    """A test, by its file below tests/, and what its marks say: the locks that they claim, and those beside them."""

    path: Path
    test: str
    locks: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()


def rows(text: str) -> list[Row]:
    """
    The rows of all the page's tables.

    Raises:
        ValueError: a line of a table that is no row.
    """
    found = []
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith("|---"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == HEAD:
            continue
        match = _NUMBERS.fullmatch(cells[0])
        if match is None or len(HEAD) != len(cells):
            raise ValueError(f"no row of the catalogue: {line}")
        first = int(match[1])
        found.append(Row(range(first, int(match[2] or first) + 1), *cells[1:]))
    return found


def cited(name: str) -> list[int]:
    """The numbers in a test's name: test_c095_c164_... cites two, test_c088_to_c092_... five."""
    match = _NAME.match(name)
    if match is None:
        return []
    numbers = [int(number) for number in re.findall(r"c(\d{3})", match[1])]
    return list(range(numbers[0], numbers[1] + 1)) if "_to_" in match[1] else numbers


def citations(folder: Path) -> dict[int, list[Citation]]:
    """
    Who cites which number, in the order of the files' names. Files that only hold tests as text are read as well, and
    hold none.
    """
    found: dict[int, list[Citation]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in cited(node.name):
                    citation = Citation(path.relative_to(folder), node.name, *_claims(node))
                    found.setdefault(number, []).append(citation)
    return found


def _claims(test: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[frozenset[str], frozenset[str]]:
    marks = [mark for mark in test.decorator_list
             if isinstance(mark, ast.Call) and "pytest.mark.lock" == ast.unparse(mark.func)]
    beside = [ast.literal_eval(more.value) for mark in marks for more in mark.keywords if "beside" == more.arg]
    return frozenset(ast.literal_eval(mark.args[0]) for mark in marks), frozenset().union(*beside)


def links(citing: list[Citation]) -> str:
    """The cell of a row: a link to each file, relative to the page, those of its own folder first."""
    paths = sorted({each.path for each in citing}, key=lambda path: ("escapes" != path.parts[0], path))
    return ", ".join(f"[{path.with_suffix('').as_posix().removeprefix('escapes/')}]"
                     f"({os.path.relpath(path, 'escapes')})" for path in paths)


def renewed(text: str, found: dict[int, list[Citation]]) -> str:
    """The page with its column of tests as the tests are. A row whose reason says "none" keeps it."""
    lines = []
    for line in text.splitlines():
        match = re.fullmatch(r"(\| c(\d{3}) \|.*\|) ([^|]*?) ?\|", line)
        if match is not None and not match[3].startswith("none: "):
            line = f"{match[1]} {links(found.get(int(match[2]), []))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def made() -> str:
    return renewed(PAGE.read_text(), citations(ROOT / "tests"))

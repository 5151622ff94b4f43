"""No file and no function of the product is longer than somebody can keep in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("leeward", "cli")

#: Lines of a file in Python or C, and of a function without its docstring.
FILE, FUNCTION = 700, 60

#: Files that may be longer, with the reason.
EXCEPTIONS = {
    "leeward/_native/src/loop_uring.c": "one ring: what is asked of it and what it answers share their state",
    "leeward/clients/c/operations.h": "it is made of the wire's schema",
    "leeward/clients/c/leeward.h": "the public header: a declaration and its description for each function",
}


def sources(*endings: str) -> list[Path]:
    """Without what the build copies for programs in C."""
    return [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*"))
            if path.suffix in endings and "sdk" not in path.parts]


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            described = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node, clean=False) else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - described


def c_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Line and lines of each: of this style, in which only functions have a brace alone in the first column."""
    start = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "{" == line:
            start = number
        elif "}" == line and start:
            yield str(start), number - start + 1
            start = 0


def test_no_file_is_too_long() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in sources(".py", ".c", ".h")}
    long = {path for path, count in lines.items() if count > FILE}

    assert long == set(EXCEPTIONS)
    assert len(lines) > 300


@pytest.mark.thorough
def test_no_function_is_too_long() -> None:
    found = [(str(path.relative_to(ROOT)), name, lines)
             for endings, functions in (((".py",), python_functions), ((".c", ".h"), c_functions))
             for path in sources(*endings) for name, lines in functions(path)]

    assert [] == [each for each in found if each[2] > FUNCTION]
    for ending in (".py", ".c"):  # the check sees them
        assert max(lines for path, _, lines in found if path.endswith(ending)) > FUNCTION // 2

"""In the product the value that is checked stands left: ruff's SIM300 sees to `==` and `<`, this to `is` and to C."""

from __future__ import annotations

import ast
import re

import pytest

from kit.features import ROOT

#: In C a number, NULL or a name in capitals at the beginning of a comparison.
IN_C = re.compile(r"(?:[(=?:!]|&&|\|\||\breturn)\s*(?:-?\d+|NULL|-?[A-Z][A-Z0-9_]{2,}) (?:[!=]=|[<>]=?) ")


def reversed_ones(text: str) -> list[int]:
    """The lines of comparisons by `is` of a constant with something else."""
    return [node.lineno for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
            and is_constant(node.left) and not is_constant(node.comparators[0])]


def is_constant(node: ast.expr) -> bool:
    """A literal, or a name in capitals: a constant or an enum's member."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return isinstance(node, ast.Constant) or (name.isupper() and len(name) > 1)


@pytest.mark.thorough
def test_the_checked_value_stands_left() -> None:
    found = {str(path.relative_to(ROOT)): lines for folder in ("leeward", "cli", "bench", "packaging")
             for path in sorted((ROOT / folder).rglob("*.py")) if (lines := reversed_ones(path.read_text()))}

    assert {} == found


@pytest.mark.thorough
def test_it_does_in_c() -> None:
    texts = {path: path.read_text() for ending in ("c", "h") for path in (ROOT / "leeward").rglob(f"*.{ending}")
             if "sdk" not in path.parts}

    assert [] == [f"{path.name}: {found[0]}" for path, text in texts.items() for found in IN_C.finditer(text)]
    assert IN_C.search("if (NULL == at)")
    assert len(texts) > 30


@pytest.mark.parametrize(("text", "lines"), [
    ("State.OVER is state", [1]),
    ("a = 1\nif None is not box.size: pass", [2]),
    ("state is State.OVER", []),
    ("State.OVER is State.OPEN", []),
])
def test_a_reversed_one_is_found(text: str, lines: list[int]) -> None:
    assert lines == reversed_ones(text)

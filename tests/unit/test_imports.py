"""An import inside of a function has a reason, and says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from kit.features import ROOT

#: Where a module says it once for all of its own.
FOR_ALL = "\n# Imported in functions: "


def unexplained(text: str) -> list[int]:
    """The lines of such imports without a comment there, before them, or before the import just above."""
    if FOR_ALL in text:
        return []
    lines, explained, found = text.splitlines(), set(), []
    for first, last in sorted(inner_imports(ast.parse(text), inside=False)):
        above = lines[first - 2].strip()
        before = first - 1 if above else first - 2
        if any("#" in line for line in lines[first - 1:last]) or above.startswith("#") or before in explained:
            explained.add(last)
        else:
            found.append(first)
    return found


def inner_imports(node: ast.AST, inside: bool) -> Iterator[tuple[int, int]]:
    for child in ast.iter_child_nodes(node):
        if inside and isinstance(child, ast.Import | ast.ImportFrom):
            yield child.lineno, child.end_lineno or child.lineno
        yield from inner_imports(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.thorough
def test_imports_in_functions_say_why() -> None:
    found = {str(path.relative_to(ROOT)): lines for folder in ("leeward", "cli", "bench", "packaging")
             for path in sorted((ROOT / folder).rglob("*.py")) if (lines := unexplained(path.read_text()))}

    assert {} == found


@pytest.mark.parametrize(("text", "lines"), [
    ("import a\n", []),
    ("def f():\n    import a\n", [2]),
    ("def f():\n    import a  # an extra\n    import b\n\n    from c import d\n    e()\n    import g\n", [7]),
    ("def f():\n    # an extra\n    import a\n", []),
    (f"import a{FOR_ALL}\ndef f():\n    import b\n", []),
])
def test_one_without_a_reason_is_found(text: str, lines: list[int]) -> None:
    assert lines == unexplained(text)

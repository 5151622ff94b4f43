"""One thing, one name: no two classes of the product and its benchmarks have the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def classes() -> dict[str, list[str]]:
    """Where each class is defined, by its name; private ones and those inside others as well."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in ("leeward", "cli", "bench"):
        for path in sorted((ROOT / package).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{place}:{node.lineno}")
    return found


@pytest.mark.thorough
def test_no_two_classes_have_the_same_name() -> None:
    twice = {name: places for name, places in classes().items() if len(places) > 1}

    assert not twice


@pytest.mark.thorough
def test_the_public_names_are_there() -> None:
    """The check sees the packages, and what a program imports from leeward keeps its name."""
    found = classes()

    assert {"Client", "AsyncClient", "Session", "AsyncSession", "Result"} <= set(found)
    assert len(found) > 200

"""Injection points: in the product they are nothing, and a test build fills each that the product has."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import loosened
from kit import points as kit_points
from kit.features import ROOT
from leeward.base import points

PACKAGE = Path(leeward.__path__[0])
NAMED = re.compile(r'\bpoint\("([^"]+)"\)')
FILLED = re.compile(r'\b(?:fill|filled|original)\("([^"]+)"')

#: Imports the modules of its arguments, MODULE:NAME each, and says which of these functions aren't the product's own.
LOOK = """
import sys
from functools import reduce
from importlib import import_module

for argument in sys.argv[1:]:
    module, _, name = argument.partition(":")
    *owner, last = name.split(".")
    found = vars(reduce(getattr, owner, import_module(module)))[last]
    if hasattr(getattr(found, "fget", found), "__wrapped__"):
        print(argument)
from leeward.base import points
print(points.__file__, *sorted({name for name in vars(points) if not name.startswith("_")}
                               - {"annotations", "TYPE_CHECKING"}))
"""


def named() -> list[str]:
    """Every point in the product's source."""
    return [name for source in PACKAGE.rglob("*.py") for name in NAMED.findall(source.read_text())]


def filled() -> set[str]:
    """Every point that the tests fill."""
    texts = [source.read_text() for source in (ROOT / "tests/kit").glob("*.py") if "points.py" != source.name]
    return {name for row in loosened._OFF.values() for name in row}.union(*map(FILLED.findall, texts))


def places() -> Iterator[str]:
    """MODULE:NAME of each function that is a point."""
    for source in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(source.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        yield from (f"{module}:{name}" for name in _points_of(ast.parse(source.read_text()), ""))


def _points_of(tree: ast.AST, owner: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and any(map(_is_point, node.decorator_list)):
            yield owner + node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_point(node.value.func):
            yield owner + ast.unparse(node.targets[0])
        elif isinstance(node, ast.ClassDef):
            yield from _points_of(node, f"{owner}{node.name}.")


def _is_point(call: ast.expr) -> bool:
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and "point" == call.func.id


def _python(code: str, *arguments: str) -> list[str]:
    """The lines that an interpreter of its own prints, which is no test build by itself."""
    path = os.pathsep.join((str(PACKAGE.parent), str(ROOT / "tests")))
    done = subprocess.run([sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": path})
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.splitlines()


def test_in_the_product_a_point_is_its_function() -> None:
    """And the module has no other function, so no way to fill one."""
    found = list(places())

    assert len(named()) == len(found)
    assert [f"{PACKAGE}/base/points.py point"] == _python(LOOK, *found)


def test_the_check_sees_a_point_that_can_be_filled() -> None:
    """The control of the test above."""
    assert list(places()) == _python("from kit import points\npoints.build()\n" + LOOK, *places())[:-1]


def test_tests_fill_every_point_and_no_other() -> None:
    """A point that no test fills is dead; one that the product hasn't any more would leave a lock on."""
    assert sorted(named()) == sorted(filled())


def test_a_test_build_has_every_point_of_a_job() -> None:
    """In a process of its own: every lock can be taken out, an unknown point is refused, and a second build as well."""
    code = ("import sys\nfrom kit import points\npoints.build()\nfrom kit import halfway\nhalfway.strip([])\n"
            "from leeward.isolation import rlimits\nassert [] == rlimits.steps(((7, 1, 1),))\n"
            "try:\n    points.fill('keeper.keeps', len)\nexcept LookupError as error:\n    print(error)\n"
            "try:\n    points.build()\nexcept RuntimeError as error:\n    print(error)\n"
            "print(*sorted(points.names()))")
    unknown, late, names = _python(code)

    assert "keeper.keeps is no point of the product's" == unknown
    assert "has been imported" in late
    of_job = set(FILLED.findall((ROOT / "tests/kit/halfway.py").read_text()))
    assert of_job <= set(names.split()) <= set(named())


def test_a_point_is_empty_again_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit_points, "_made", {})
    monkeypatch.setattr(kit_points, "_filled", {})

    @kit_points.point("made")
    def made() -> int:
        return 1

    with kit_points.filled("made", lambda: 2):
        with kit_points.filled("made", lambda: 3):
            assert 3 == made()
        assert 2 == made()
    assert 1 == made()
    with pytest.raises(LookupError), kit_points.filled("other", lambda: 2):
        pass


def test_the_tests_own_process_is_a_test_build() -> None:
    """Without a filled point it is the product; a second build is refused."""
    assert points is kit_points
    with pytest.raises(RuntimeError, match="the product's"):
        kit_points.build()


def assigned(tree: ast.Module) -> list[str]:
    """
    Each place where *tree* assigns to an attribute of something imported from leeward, or replaces one by `setattr`,
    `vars` or `mock.patch`.
    """
    product = {alias.asname or alias.name.partition(".")[0] for node in ast.walk(tree)
               if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
               if (getattr(node, "module", None) or alias.name).startswith("leeward")}
    found = []
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = [node.value]
        elif isinstance(node, ast.Call) and node.args and re.search(r"(set|del)attr\w*$|patch", ast.unparse(node.func)):
            changed = list(node.args[:1])
        found += [ast.unparse(node) for each in changed
                  if not product.isdisjoint(name.id for name in ast.walk(each) if isinstance(name, ast.Name))]
    return found


@pytest.mark.parametrize("code", [
    "from leeward.daemon.pool import engine\nengine.Branch = None",
    "from leeward.daemon.pool.engine import Engine as Other\ndel Other.start",
    "import leeward.daemon.pool.engine\nleeward.pool.engine.Engine.start = None",
    "from leeward.daemon.pool import engine\nvars(engine)['Engine'] = None",
    "from leeward.daemon.pool import engine\nsetattr(engine, 'Engine', None)",
    "from leeward.daemon.pool import engine\nwith mock.patch.object(engine, 'Engine', None): pass",
    "from leeward.daemon.pool import engine\nmonkeypatch.setattr(engine, 'Engine', None)",
])
def test_the_check_below_sees_a_change_of_the_product(code: str) -> None:
    assert 1 == len(assigned(ast.parse(code)))


def test_the_kit_changes_the_product_at_its_points_only() -> None:
    """A control that relies on a private name would go on without its lock, or with it, when the name changes."""
    found = {source.name: assigned(ast.parse(source.read_text())) for source in (ROOT / "tests/kit").glob("*.py")}

    assert {} == {name: places for name, places in found.items() if places}

"""
What is in leeward/base/_generated_initialisers.py: the `__init__` of dataclasses.

A class gets the code of one with as many fields and the same of them with a factory: leeward/base/dataclass.py. Compiling
them at a daemon's start took 7 ms of processor time; reading Python's compiled file of them takes less than one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from leeward.base.dataclass import MISSING, factory, source
from leeward.wire import requests as _  # noqa: F401  # makes the classes
from leeward.wire.schema import ClientRequest

ROOT = Path(__file__).resolve().parent.parent

HEAD = '''\
"""
The `__init__` of each shape of dataclass: frozen or not, and for each field whether it has a factory (+).

Runs in:   anywhere; pure. `dataclass` gives the fields their names.
"""

# ruff: noqa: E501, E702, F821
# mypy: ignore-errors

'''


def shapes(text: str) -> set[tuple[bool, str]]:
    """The shapes of the classes in the module *text* that leeward's `dataclass` decorates, and whether each is frozen."""
    found: set[tuple[bool, str]] = set()
    if re.search(r"^from leeward(\.base\.dataclass)? import .*\bdataclass\b", text, re.MULTILINE) is None:
        return found
    for kind in ast.walk(ast.parse(text)):
        for made in kind.decorator_list if isinstance(kind, ast.ClassDef) else ():
            if "dataclass" not in ast.unparse(made):
                continue
            options = made.keywords if isinstance(made, ast.Call) else []
            frozen = ("frozen", "True") in [(option.arg, ast.unparse(option.value)) for option in options]
            fields = [each for each in kind.body if isinstance(each, ast.AnnAssign)  # type: ignore[attr-defined]  # a ClassDef
                      and not ast.unparse(each.annotation).startswith("ClassVar")]
            found.add((frozen, "".join("-+"["default_factory" in ast.unparse(each)] for each in fields)))
    return found


def requests(kind: type[ClientRequest] = ClientRequest) -> set[tuple[bool, str]]:
    made = sorted(kind.fields.values(), key=lambda one: one.default is not MISSING)
    shape = "".join("-+"[type(one.default) is type(factory(dict))] for one in made)
    return {(True, shape)}.union(*map(requests, kind.__subclasses__()))


def wanted() -> set[tuple[bool, str]]:
    sources = (path.read_text() for folder in ("leeward", "cli") for path in (ROOT / folder).rglob("*.py"))
    return requests().union(*map(shapes, sources))


def written(of: Iterable[tuple[bool, str]]) -> str:
    rows = sorted(of, key=lambda row: (row[0], len(row[1]), row[1]))
    made = [source(frozen, shape, f"_init_{number}") for number, (frozen, shape) in enumerate(rows)]
    table = "".join(f"    {row!r}: _init_{number}.__code__,\n" for number, row in enumerate(rows))
    return HEAD + "".join(made) + "\nCODES = {\n" + table + "}\n"


def made() -> str:
    return written(wanted())

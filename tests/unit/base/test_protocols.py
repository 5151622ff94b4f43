"""A protocol has two implementers or more; with one it would be that class's members written twice."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("leeward", "cli")


class Members:
    """The names that classes have, by the name of the class, and those that protocols ask for."""

    def __init__(self) -> None:
        self.classes: dict[str, tuple[set[str], list[str]]] = {}
        self.protocols: dict[str, tuple[set[str], list[str]]] = {}

    def read(self, source: str) -> None:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                table = self.protocols if "Protocol" in bases else self.classes
                table[node.name] = (_names(node), bases)

    def asked(self, protocol: str) -> set[str]:
        names, bases = self.protocols[protocol]
        return names.union(*(self.asked(base) for base in bases if base in self.protocols))

    def has(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if name not in self.classes or name in seen:
            return set()
        names, bases = self.classes[name]
        return names.union(*(self.has(base, seen | {name}) for base in bases))

    def implementers(self, protocol: str) -> list[str]:
        """Without those that inherit all of it from another one."""
        asked = self.asked(protocol)
        # A class that is based on the protocol has the methods that the protocol defines.
        found = [name for name in self.classes if protocol in self.classes[name][1] or asked <= self.has(name)]
        return [name for name in found if not set(self.classes[name][1]) & set(found)]


def _names(node: ast.ClassDef) -> set[str]:
    """Methods, class variables, and what a method assigns to self."""
    found = set()
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(part.name)
            found.update(target.attr for target in ast.walk(part)
                         if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
                         and isinstance(target.value, ast.Name) and target.value.id == "self")
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, ast.Assign):
            found.update(target.id for target in part.targets if isinstance(target, ast.Name))
    return found


def product() -> Members:
    members = Members()
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            members.read(path.read_text())
    return members


def test_no_protocol_has_one_implementer() -> None:
    members = product()

    # __call__ is a function's signature, which Callable can't spell.
    few = {name: members.implementers(name) for name in members.protocols if members.asked(name) != {"__call__"}}

    assert {} == {name: found for name, found in few.items() if len(found) < 2}
    assert len(members.protocols) > 20  # the check sees them


def test_the_check_counts_what_fits() -> None:
    members = Members()
    members.read('''
class Reader(Protocol):
    size: int
    def read(self): ...

class File:
    def __init__(self):
        self.size = 0
    def read(self): ...

class Deaf:
    size = 0

class Pipe(Reader):
    size = 0
''')

    assert ["File", "Pipe"] == members.implementers("Reader")

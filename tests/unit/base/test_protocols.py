"""A protocol has two implementers or more; with one it would be that class's members written twice."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("leeward", "cli")


#: By the name of a member: a method's parameters behind self, "=" behind those with defaults; None for what has none.
Named = dict[str, tuple[str, ...] | None]


class Members:
    """The members that classes have, by the name of the class, and those that protocols ask for."""

    def __init__(self) -> None:
        self.classes: dict[str, tuple[Named, list[str]]] = {}
        self.protocols: dict[str, tuple[Named, list[str]]] = {}

    def read(self, source: str) -> None:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).partition("[")[0].removeprefix("typing.") for base in node.bases]
                table = self.protocols if "Protocol" in bases else self.classes
                bases = [base.rpartition(".")[2] for base in bases if base != "asyncio.Protocol"]
                table[node.name] = (_names(node), bases)

    def asked(self, protocol: str) -> Named:
        names, bases = self.protocols[protocol]
        return dict(item for base in bases if base in self.protocols for item in self.asked(base).items()) | names

    def has(self, name: str, seen: frozenset[str] = frozenset()) -> Named:
        if name not in self.classes or name in seen:
            return {}
        names, bases = self.classes[name]
        return dict(item for base in bases for item in self.has(base, seen | {name}).items()) | names

    def implementers(self, protocol: str) -> list[str]:
        """Without those that inherit all of it from another one."""
        asked = self.asked(protocol)
        # A class that is based on the protocol has the methods that the protocol defines.
        found = [name for name in self.classes if protocol in self.classes[name][1] or fits(self.has(name), asked)]
        return [name for name in found if not set(self.classes[name][1]) & set(found)]


def fits(has: Named, asked: Named) -> bool:
    """Whether all members are there, methods with these parameters, and perhaps more that have defaults."""
    return all(name in has and (wanted is None or (mine := has[name]) is None or (
        [each.strip("=") for each in mine[:len(wanted)]] == [each.strip("=") for each in wanted]
        and all(each.endswith("=") for each in mine[len(wanted):]))) for name, wanted in asked.items())


def _names(node: ast.ClassDef) -> Named:
    """Methods, class variables, and what a method assigns to self."""
    found = Named()
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.update({target.attr: None for target in ast.walk(part)
                          if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
                          and isinstance(target.value, ast.Name) and target.value.id == "self"})
            found[part.name] = None if part.decorator_list or part.args.vararg else _parameters(part.args)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found[part.target.id] = None
        elif isinstance(part, ast.Assign):
            found.update({target.id: None for target in part.targets if isinstance(target, ast.Name)})
    return found


def _parameters(given: ast.arguments) -> tuple[str, ...]:
    plain = [each.arg for each in (*given.posonlyargs, *given.args)][1:]
    needed = len(plain) - len(given.defaults)
    named = [each.arg + "=" * (default is not None)
             for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return (*plain[:needed], *(f"{name}=" for name in plain[needed:]), *named)


def product() -> Members:
    members = Members()
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            members.read(path.read_text())
    return members


def test_no_protocol_has_one_implementer() -> None:
    members = product()

    # __call__ is a function's signature, which Callable can't spell.
    few = {name: members.implementers(name) for name in members.protocols if [*members.asked(name)] != ["__call__"]}

    assert {} == {name: found for name, found in few.items() if len(found) < 2}
    assert len(members.protocols) > 20  # the check sees them


def test_the_check_counts_what_fits() -> None:
    members = Members()
    members.read('''
class Reader(Protocol):
    size: int
    def read(self): ...

class Sized(Protocol):
    def read(self, most, wait): ...

class File:
    def __init__(self):
        self.size = 0
    def read(self): ...

class Deaf:
    size = 0

class Other:
    size = 0
    def read(self, most=0): ...

class Exact:
    size = 0
    def read(self, most): ...

class Pipe(Reader):
    size = 0
''')

    assert ["File", "Other", "Pipe"] == members.implementers("Reader")
    assert [] == members.implementers("Sized")

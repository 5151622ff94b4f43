"""Our `dataclass` does what the one of `dataclasses` does, as far as anybody here uses it."""

from __future__ import annotations

import ast
import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from leeward.base import dataclass as ours

KINDS = {"leeward's": (ours.dataclass, ours.field), "the library's": (dataclasses.dataclass, dataclasses.field)}


class Place:
    """Two fields that must be given, two that needn't, and one of the class."""

    op: ClassVar[str] = "place"
    name: str
    size: int
    note: str | None = None
    more: Mapping[str, int]

    @property
    def twice(self) -> int:
        """What the class has besides is kept."""
        return 2 * self.size


def made(kind: str, **options: bool) -> Any:
    """A class of its own for each test, as the decorator changes it."""
    dataclass, field = KINDS[kind]
    body = {name: value for name, value in vars(Place).items() if name not in ("__dict__", "__weakref__")}
    decorate: Callable[[type], type] = dataclass(**options)
    return decorate(type("Place", (), {**body, "more": field(default_factory=dict)}))


@ours.dataclass(frozen=True, slots=True)
class Known:
    """One that `pickle` finds by its name."""

    first: int
    second: tuple[str, ...] = ()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("options", [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}], ids=str)
def test_instances_behave_as_the_librarys(kind: str, options: dict[str, bool]) -> None:
    """They are made by position and by name, compare by value and within their class alone, and show their fields."""
    place = made(kind, **options)
    one = place("a", size=2)

    assert ("a", 2, None, {}, 4, "place") == (one.name, one.size, one.note, one.more, one.twice, one.op)
    assert one.more is not place("a", 2).more
    assert place("a", 2, None, {}) == one != place("a", 3)
    assert one != ("a", 2, None, {})
    assert one != made(kind, **options)("a", 2)
    assert one != type("Deeper", (place,), {})("a", 2)
    assert "Place(name='a', size=2, note=None, more={})" == repr(one)
    assert ("name", "size", "note", "more") == place.__match_args__


@pytest.mark.parametrize("arguments", [((), {}), (("a",), {}), (("a", 1, None, {}, 5), {}), (("a", 1), {"wrong": 1}),
                                       (("a", 1), {"name": "b"})], ids=str)
def test_wrong_arguments_are_refused(kind: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """The first time as any other."""
    place = made(kind, frozen=True, slots=True)
    for _ in range(2):
        with pytest.raises(TypeError):
            place(*arguments[0], **arguments[1])


def test_frozen_ones_stay_as_they_are(kind: str) -> None:
    """No field can be set or deleted, and no other attribute."""
    for slots in (False, True):
        one = made(kind, frozen=True, slots=slots)("a", 2)
        for name in ("name", "more", "another"):
            with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
                setattr(one, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.name
        assert "a" == one.name


def test_slots_are_slots(kind: str) -> None:
    """And nothing else can be put there."""
    one = made(kind, slots=True)("a", 2)

    assert not hasattr(one, "__dict__")
    with pytest.raises(AttributeError):
        one.another = 1
    one.size = 3
    assert 6 == one.twice


def test_hashes_are_as_the_librarys(kind: str) -> None:
    """Of frozen ones by value; none of others; of those that don't compare, by identity."""
    frozen, loose = made(kind, frozen=True, slots=True), made(kind, frozen=True, slots=True, eq=False)

    assert hash(frozen("a", 2, None, ())) == hash(frozen("a", 2, None, ()))
    assert loose("a", 2) != loose("a", 2)
    assert 2 == len({loose("a", 2), loose("a", 2)})
    with pytest.raises(TypeError, match="'Place'"):  # of values that all have one
        hash(made(kind, slots=True)("a", 2, None, ()))


@pytest.mark.parametrize("slots", [False, True])
def test_options_of_a_class_are_honoured(kind: str, slots: bool) -> None:
    """Its own methods are kept, and methods that it switches off aren't made."""
    dataclass, _ = KINDS[kind]
    body = {"__annotations__": {"name": "str"}, "__repr__": lambda self: "its own", "__eq__": lambda self, other: True}
    own = dataclass(slots=slots)(type("Own", (), dict(body)))
    bare = made(kind, slots=slots, repr=False)

    assert "its own" == repr(own("a"))
    assert own("a") == own("b")
    assert object.__repr__(one := bare("a", 2)) == repr(one)


def test_the_library_treats_leewards_classes_as_its_own() -> None:
    """`fields`, `replace`, `asdict` and `is_dataclass`, of a class and of an instance."""
    place = made("leeward's", frozen=True, slots=True)
    one = place("a", 2, more={"b": 1})

    known: list[bool] = [dataclasses.is_dataclass(each) for each in (place, one, int, 1)]

    assert [True, True, False, False] == known
    assert [(field.name, field.type) for field in dataclasses.fields(place)] == [
        (field.name, field.type) for field in dataclasses.fields(made("the library's"))]
    assert place("a", 3, more={"b": 1}) == dataclasses.replace(one, size=3) == ours.replace(one, size=3)
    assert {"name": "a", "size": 2, "note": None, "more": {"b": 1}} == dataclasses.asdict(one)
    assert ("name", "size", "note", "more") == ours.names(place)
    assert () == ours.names(int)
    with pytest.raises(TypeError):
        ours.replace(one, wrong=1)


def test_classes_with_as_many_fields_share_only_their_code() -> None:
    """Each has its own names, defaults and factories."""
    def pair(first: str, second: Callable[[], Any], **options: bool) -> Any:
        body = {"__annotations__": {first: "int", "more": "Any"}, "more": ours.field(default_factory=second)}
        decorate: Callable[[type], type] = ours.dataclass(**options)
        return decorate(type("Pair", (), body))

    for options in ({}, {"frozen": True}):
        one, other = pair("a", dict, **options), pair("b", list, **options)

        assert (1, {}, 2, []) == (one(1).a, one(1).more, other(b=2).b, other(2).more)
        assert one.__init__.__code__.co_code == other.__init__.__code__.co_code
        assert "Pair.__init__" == one.__init__.__qualname__ == one.__init__.__code__.co_qualname
        with pytest.raises(TypeError, match="'b'"):
            one(b=1)


def test_a_field_without_a_default_comes_first(kind: str) -> None:
    dataclass, _ = KINDS[kind]
    with pytest.raises(TypeError, match="default"):
        dataclass(type("Wrong", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1}))


def test_instances_can_be_copied_and_pickled() -> None:
    """Frozen or not, with slots or without."""
    one = Known(1, ("a",))

    assert one == pickle.loads(pickle.dumps(one)) == copy.copy(one) == copy.deepcopy(one)


def test_the_module_imports_no_expensive_module() -> None:
    """It exists for that."""
    program = ("import sys; from leeward.spec.outcome import JobError; JobError('a', 'b', 'c');"
               "print([name for name in ('dataclasses', 'inspect', 'typing', 're') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {ROOT!r}); {program}"],
                          capture_output=True, text=True, check=True, timeout=60)

    assert "[]\n" == done.stdout


def imported(program: str) -> set[str]:
    """leeward's modules that are imported once *program* has run."""
    show = "import sys; print(*[name for name in sys.modules if name.startswith('leeward')])"
    done = subprocess.run([sys.executable, "-c", f"{program}; {show}"], capture_output=True, text=True, check=True,
                          timeout=60)
    return set(done.stdout.split())


#: Whose time to start matters: a client, a zygote with its jobs, `leeward run`, `leeward agent start`, and a daemon
#: until it is ready.
STARTS = ("import leeward; leeward.Client, leeward.AsyncClient, leeward.Result", "import leeward.crossing.zygote",
          "import leeward_cli.cold, leeward_cli.once",
          "import leeward_cli.agent_start; from leeward.apps.agents import layers, running, trust",
          "import leeward.spec.egress_policy",
          "import leeward; leeward.Sandbox; import leeward.client.changes, leeward.client.fetching",
          "import leeward.client.applying", "import leeward.client.files",
          "import leeward.daemon.config_sources, leeward.daemon.main")


@pytest.mark.thorough
def test_only_processes_that_start_often_use_it() -> None:
    """All others have the library's, and none of these has."""
    matter = set().union(*map(imported, STARTS))
    ours_in, theirs_in = set(), set()
    for path in sorted(Path(ROOT).glob("leeward/**/*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and "dataclass" in {alias.name for alias in node.names}:
                {"leeward.base.dataclass": ours_in, "dataclasses": theirs_in}.get(node.module or "", set()).add(module)

    assert not ours_in - matter
    assert not theirs_in & matter
    assert theirs_in  # control


ROOT = str(Path(ours.__file__).resolve().parents[2])


@pytest.mark.thorough
def test_no_start_compiles_an_initialiser() -> None:
    """Else run ./dev generate."""
    before = "import leeward.base.dataclass as ours; before = len(ours.CODES)"
    for program in STARTS:
        imported(f"{before}; {program}; assert len(ours.CODES) == before, ours.CODES")
    with pytest.raises(KeyError):
        ours.CODES[True, "-" * 99]  # control: that shape is compiled
    fields = {f"a{number}": "int" for number in range(99)}
    kind = ours.dataclass(frozen=True)(type("Long", (), {"__annotations__": fields}))
    assert 98 == kind(*range(99)).a98
    assert (True, "-" * 99) in ours.CODES

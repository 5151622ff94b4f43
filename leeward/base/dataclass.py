"""
`dataclass`, `field` and `replace` with the interface of `dataclasses`, at a twentieth of the cost.

Why:       `dataclasses` imports `inspect`, and compiles five functions or so for each class that it decorates: this
           takes a millisecond for most classes. Here `__init__` is compiled once for all classes with the same number
           of fields, when leeward is developed (packaging/initialisers.py), and the other methods are closures.
           docs/decisions/0018
For:       modules that a client, a zygote, a job, `leeward run` or a daemon imports until it is ready. This saves 9 ms
           of processor time of a client's imports, 7 of a job's, 65 of a zygote's, 120 of a daemon's; an interpreter
           takes 15 (2026-11-24; docs/measurements/trials.md, Starts). Modules that a daemon imports later, and modules
           of `doctor` or for developers, use the library's; tests/unit/base/test_dataclass.py

This module supports only what leeward uses: fields and class variables, annotations that are text, defaults and
factories, `frozen`, `slots`, `eq`, `repr`; no inheritance of fields, which only messages have (wire/schema.py). The
functions of `dataclasses` accept these classes and their instances; `__dataclass_fields__`, which they read, is made at
its first use.
"""

from __future__ import annotations

from operator import attrgetter
from types import CodeType, FunctionType

from leeward.base._generated_initialisers import CODES

# Imported in functions: what not every start needs; 15 ms of processor time for all of it.

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any

#: In place of a default: the field has none.
MISSING: Any = object()


class _Factory:
    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _LazyFields:
    """`__dataclass_fields__`, by which the functions of `dataclasses` recognize a class. It is made at its first use."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self._defaults = defaults
        self._made: dict[str, Any] = {}

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        if not self._made and self._defaults:
            from dataclasses import field as theirs
            from dataclasses import make_dataclass

            annotations = {name: text for each in reversed(owner.__mro__)
                           for name, text in vars(each).get("__annotations__", {}).items()}
            given = [(name, annotations[name], theirs() if default is MISSING else
                      theirs(default_factory=default.make) if type(default) is _Factory else theirs(default=default))
                     for name, default in self._defaults.items()]
            self._made = vars(make_dataclass(owner.__name__, given))["__dataclass_fields__"]
        return self._made


def names(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a class that `dataclass` has made, in order; () for any other class."""
    found: tuple[str, ...] = getattr(kind, "__leeward_fields__", ())
    return found


def factory(make: Callable[[], Any]) -> Any:
    return _Factory(make)


def _field(*, default_factory: Callable[[], Any]) -> Any:
    return _Factory(default_factory)


def _replace(instance: Any, /, **changes: Any) -> Any:
    for name in names(type(instance)):
        if name not in changes:
            changes[name] = getattr(instance, name)
    return type(instance)(**changes)


def _dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True,
               repr: bool = True) -> Any:
    def made(kind: type) -> type:
        return _made(kind, frozen, slots, eq, repr)
    return made if cls is None else made(cls)


def _made(cls: type, frozen: bool, slots: bool, eq: bool, show: bool) -> type:
    annotations = vars(cls).get("__annotations__", {})
    defaults = {name: vars(cls).get(name, MISSING) for name, kind in annotations.items()
                if not kind.startswith("ClassVar")}
    methods = methods_of(cls.__qualname__, defaults, frozen, slots, eq, show)
    for name, default in defaults.items():
        if type(default) is _Factory or (slots and default is not MISSING):
            delattr(cls, name)
    if slots:  # slots can't be added to an existing class
        methods["__slots__"] = tuple(defaults)
        kept = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        made = type(cls)(cls.__name__, cls.__bases__, {**methods, **kept})
    else:
        made = cls
        for name, value in methods.items():
            if name not in vars(cls) or name == "__hash__":
                setattr(cls, name, value)
    return made


def methods_of(qualname: str, defaults: dict[str, Any], frozen: bool = True, slots: bool = True, eq: bool = True,
               show: bool = True) -> dict[str, Any]:
    """What the body of a class gets; *defaults* are those of its fields, in order, MISSING for none."""
    fields = tuple(defaults)
    return {
        "__leeward_fields__": fields, "__match_args__": fields, "__dataclass_fields__": _LazyFields(defaults),
        "__init__": _initialiser(qualname, defaults, frozen), **(_frozen(fields) if frozen else {}),
        **(_comparable(fields, frozen) if eq else {}), **({"__repr__": _shown} if show else {}),
        **({"__getstate__": _state, "__setstate__": _set_state} if slots else {}),
    }


def _initialiser(qualname: str, defaults: dict[str, Any], frozen: bool) -> Any:
    """An `__init__`, made by renaming the variables in the code for as many fields: ten times as fast as compiling it."""
    shape = "".join(["+" if type(default) is _Factory else "-" for default in defaults.values()])
    template = CODES.get((frozen, shape)) or _compiled(frozen, shape)
    names = {f"_{number}": name for number, name in enumerate(defaults)}
    code = template.replace(
        co_varnames=tuple(names.get(name, name) for name in template.co_varnames),
        co_names=tuple(names.get(name, name) for name in template.co_names),
        co_consts=tuple(names.get(each, each) if type(each) is str else each for each in template.co_consts))
    if hasattr(code, "co_qualname"):  # Python 3.11; an image may have an older one
        code = code.replace(co_qualname=f"{qualname}.__init__")
    known = {"_set": object.__setattr__, "_NONE": MISSING,
             **{f"_make_{number}": default.make for number, default in enumerate(defaults.values())
                if type(default) is _Factory}}
    given = [MISSING if type(default) is _Factory else default for default in defaults.values()]
    required = next((number for number, default in enumerate(defaults.values()) if default is not MISSING), len(given))
    if MISSING in list(defaults.values())[required:]:
        raise TypeError(f"{qualname}: a field without a default follows one that has one")
    return FunctionType(code, known, "__init__", tuple(given[required:]))


def source(frozen: bool, shape: str, name: str) -> str:
    """The source of an `__init__` with numbers for fields' names. *shape* has + for each with a factory, - for others."""
    lines = []
    for number, kind in enumerate(shape):
        value = f"_make_{number}() if _{number} is _NONE else _{number}" if kind == "+" else f"_{number}"
        lines.append(f"_set(self, '_{number}', {value})" if frozen else f"self._{number} = {value}")
    parameters = ", ".join(["self", *(f"_{number}" for number in range(len(shape)))])
    return f"def {name}({parameters}): {'; '.join(lines or ['pass'])}\n"


def _compiled(frozen: bool, shape: str) -> CodeType:
    """Compile the code for a shape that isn't in CODES: no class of leeward had it when that file was generated."""
    found: dict[str, Any] = {}
    exec(source(frozen, shape, "__init__"), found)
    code: CodeType = found["__init__"].__code__
    CODES[frozen, shape] = code
    return code


def _frozen(fields: tuple[str, ...]) -> dict[str, Any]:
    def refuse(self: Any, name: str, done: str) -> None:
        if "__leeward_fields__" in vars(type(self)) or name in fields:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot {done} field {name!r}")

    def __setattr__(self: Any, name: str, value: Any) -> None:
        refuse(self, name, "assign to")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        refuse(self, name, "delete")
        object.__delattr__(self, name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _comparable(fields: tuple[str, ...], frozen: bool) -> dict[str, Any]:
    values: Callable[[Any], Any] = attrgetter(*fields) if fields else lambda self: ()

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _shown(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names(type(self)))
    return f"{type(self).__qualname__}({shown})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in names(type(self))]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(names(type(self)), state, strict=True):
        object.__setattr__(self, name, value)


if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _field, _replace

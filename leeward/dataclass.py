"""
`dataclass`, `field` and `replace` as `dataclasses` has them, at a twentieth of the price.

Runs in:   anywhere; pure. To a type checker these are the ones of `dataclasses`.
Why:       `dataclasses` imports `inspect`, and compiles five functions or so for each class that it decorates:
           a millisecond for most. Here `__init__` is compiled when the first instance is made, and the others are
           closures. docs/decisions/0018
For:       what a client, a zygote, a job, `leeward run` or a daemon imports until it is ready. It saves 9 ms of
           processor time of a client's imports, 7 of a job's, 65 of a zygote's, 120 of a daemon's, where an interpreter
           takes 15 (2026-11-24; docs/decisions/0018 has the table). Modules that a daemon imports later, and those of
           `doctor` or of a developer, use the library's; tests/unit/test_dataclass.py

Only what leeward uses is here: fields and class variables, annotations that are text, defaults and
factories, `frozen`, `slots`, `eq`, `repr`; no inheritance of fields. The functions of `dataclasses` take these
classes and their instances for their own; what they go by is made when one of them asks.
"""

from __future__ import annotations

from operator import attrgetter

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any

#: In place of a default: there is none.
_NONE: Any = object()


class _Factory:
    """
    In place of a default: what makes one.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Asked:
    """
    `__dataclass_fields__`, by which the functions of `dataclasses` know a class.
    """

    def __init__(self, defaults: dict[str, Any], annotations: dict[str, Any]) -> None:
        self._defaults, self._annotations = defaults, annotations
        self._made: dict[str, Any] = {}

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        if not self._made and self._defaults:
            from dataclasses import field as theirs
            from dataclasses import make_dataclass

            given = [(name, self._annotations[name], theirs() if default is _NONE else
                      theirs(default_factory=default.make) if type(default) is _Factory else theirs(default=default))
                     for name, default in self._defaults.items()]
            self._made = vars(make_dataclass(owner.__name__, given))["__dataclass_fields__"]
        return self._made


def names(kind: Any) -> tuple[str, ...]:
    """
    The fields of a class that `dataclass` has made, in order; none of any other.
    """
    found: tuple[str, ...] = getattr(kind, "__leeward_fields__", ())
    return found


#: What compiles `__init__` of each class that has no instance yet.
_late: set[Callable[[], Any]] = set()


def prepare(*kinds: Any) -> None:
    """
    Compile now what these classes will need, or all there are: a clone of this process would do it for itself, and a
    client would wait for it.
    """
    for compiled in [kind.__leeward_compiled__ for kind in kinds] or list(_late):
        compiled()


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
    defaults = {name: vars(cls).get(name, _NONE) for name, kind in annotations.items()
                if not kind.startswith("ClassVar")}
    fields = tuple(defaults)

    def compiled() -> Any:
        _late.discard(compiled)
        made.__init__ = init = _initialiser(made, defaults, frozen)  # type: ignore[misc]  # for the next ones
        return init

    def __init__(self: Any, /, *args: Any, **fields: Any) -> None:
        compiled()(self, *args, **fields)

    _late.add(compiled)
    methods: dict[str, Any] = {
        "__leeward_fields__": fields, "__match_args__": fields, "__dataclass_fields__": _Asked(defaults, annotations),
        "__leeward_compiled__": staticmethod(compiled), "__init__": __init__,
        **(_frozen(fields) if frozen else {}), **(_comparable(fields, frozen) if eq else {}),
    }
    if show:
        methods["__repr__"] = _shown
    for name, default in defaults.items():
        if type(default) is _Factory or (slots and default is not _NONE):
            delattr(cls, name)
    if slots:  # they can't be added to a class
        methods |= {"__slots__": fields, "__getstate__": _state, "__setstate__": _set_state}
        kept = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        made = type(cls)(cls.__name__, cls.__bases__, {**methods, **kept})
    else:
        made = cls
        for name, value in methods.items():
            if name not in vars(cls) or "__hash__" == name:
                setattr(cls, name, value)
    return made


def _initialiser(cls: type, defaults: dict[str, Any], frozen: bool) -> Any:
    """
    `__init__`, compiled.
    """
    known: dict[str, Any] = {"_set": object.__setattr__, "_NONE": _NONE}
    parameters, lines = ["self"], []
    for name, default in defaults.items():
        value = name
        if type(default) is _Factory:
            known[f"_make_{name}"] = default.make
            parameters.append(f"{name}=_NONE")
            value = f"_make_{name}() if {name} is _NONE else {name}"
        elif default is _NONE:
            parameters.append(name)
        else:
            known[f"_default_{name}"] = default
            parameters.append(f"{name}=_default_{name}")
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    exec(f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(lines or ["pass"]), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


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

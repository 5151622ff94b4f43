"""
Frozen dataclasses to plain values and back, by their type hints: the trusted side of the control channels. Bytes from a
client or a job are checked field by field, by `wire.requests` and `wire.job_frames`.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgpack

from leeward.base.dataclass import names
from leeward.errors import PeerError, brief, told

T = TypeVar("T")

#: Types that are packed as they are; most of a message consists of them.
_SCALARS = frozenset({bool, bytes, float, int, str})
#: Their hints as they are written, which need no look at a module.
_SCALAR_HINTS: dict[str, Any] = {kind.__name__: kind for kind in _SCALARS}


def pack(record: Any) -> bytes:
    """One dataclass as MessagePack."""
    packed = msgpack.packb(to_values(record), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def unpack(kind: type[T], data: bytes) -> T:
    """The *kind* that `pack` wrote; PeerError if these bytes aren't one."""
    try:
        value: T = build(kind, msgpack.unpackb(data, raw=False, strict_map_key=False))
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise PeerError(f"not a {kind.__name__}: {told(error)}") from None
    return value


def learn(*kinds: type) -> None:
    """Resolve the type hints of *kinds* now: later their modules may be out of sys.modules."""
    for kind in kinds:
        _builder(kind)


def to_values(value: Any) -> Any:
    """*value* with every dataclass as the list of its fields."""
    if value is None or type(value) in _SCALARS:
        return value
    kind: Any = type(value)
    if hasattr(kind, "__leeward_fields__"):
        return [to_values(getattr(value, name)) for name in names(kind)]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_values(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_values(item) for key, item in value.items()}
    return value


@functools.cache
def _fields(kind: Any) -> tuple[Any, ...]:
    """The type hints of a record, which are kept as text. `typing` would evaluate them, but is expensive to import."""
    known = vars(sys.modules[kind.__module__])
    return tuple(_SCALAR_HINTS.get(hint) or eval(hint, known)
                 for hint in (kind.__annotations__[name] for name in names(kind)))


def build(kind: Any, value: Any) -> Any:
    """The inverse of `to_values`, for the type hint *kind*."""
    return _builder(kind)(value)


@functools.cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """What makes a *kind*, cached: a message has a dozen hints, and interpreting one costs more than converting the value."""
    origin: Any = getattr(kind, "__origin__", None)
    args: Any = getattr(kind, "__args__", ())
    if isinstance(kind, types.UnionType):
        some = _builder(next(arg for arg in args if arg is not type(None)))
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            each = _builder(args[0])
            return lambda value: tuple([each(item) for item in _is(list, value)])
        parts = [_builder(arg) for arg in args]
        return lambda value: tuple([part(item) for part, item in zip(parts, _is(list, value), strict=True)])
    if origin is not None and issubclass(origin, Mapping):
        to_key, to_item = _builder(args[0]), _builder(args[1])
        return lambda value: {to_key(key): to_item(item) for key, item in _is(dict, value).items()}
    if hasattr(kind, "__leeward_fields__"):
        fields = [_builder(hint) for hint in _fields(kind)]
        return lambda value: kind(*[field(item) for field, item in zip(fields, _is(list, value), strict=True)])
    return functools.partial(_plain_value, kind)


def _is(kind: type[T], value: Any) -> T:
    """*value*, if it is of *kind*. Likeness isn't enough: bytes can be iterated like a list of numbers."""
    if type(value) is not kind:
        raise TypeError(f"{brief(value, 80)} is no {kind.__name__}")
    same: T = value
    return same


def _plain_value(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if issubclass(kind, enum.Enum) or (kind is float and isinstance(value, int)):
        return kind(value)
    raise TypeError(f"{brief(value, 80)} is no {kind}")

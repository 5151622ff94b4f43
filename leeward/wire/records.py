"""
Frozen dataclasses to plain values and back, by their type hints.

Runs in:   daemon, zygote, keeper: the trusted side of the control channels.
Not for:   bytes from a client or a job; `wire.messages` and `wire.job` check those field by field.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgpack

from leeward.errors import PeerError

T = TypeVar("T")


def pack(record: Any) -> bytes:
    """
    One dataclass as MessagePack.
    """
    packed = msgpack.packb(plain(record), use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def unpack(kind: type[T], data: bytes) -> T:
    """
    The *kind* that `pack` wrote.

    Raises:
        PeerError: these bytes are no *kind*.
    """
    try:
        value: T = build(kind, msgpack.unpackb(data, raw=False, strict_map_key=False))
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise PeerError(f"not a {kind.__name__}: {error}") from error
    return value


def learn(*kinds: type) -> None:
    """
    Resolve the type hints of *kinds* now: later their modules may be out of sys.modules.
    """
    for kind in kinds:
        _fields(kind)


def plain(value: Any) -> Any:
    """
    *value* with every dataclass as the list of its fields.
    """
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> tuple[Any, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(hints[field.name] for field in dataclasses.fields(kind))


def build(kind: Any, value: Any) -> Any:
    """
    The inverse of `plain`, for the type hint *kind*.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return build(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(build(args[0], item) for item in value)
        return tuple(build(arg, item) for arg, item in zip(args, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return {build(args[0], key): build(args[1], item) for key, item in value.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _fields(kind)
        return kind(*(build(hint, item) for hint, item in zip(hints, value, strict=True)))
    if kind is Any or isinstance(value, kind):
        return value
    if issubclass(kind, enum.Enum) or (kind is float and isinstance(value, int)):
        return kind(value)
    raise TypeError(f"{value!r:.80} is no {kind}")

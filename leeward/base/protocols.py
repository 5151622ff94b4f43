"""
`Protocol` of `typing` for a type checker, and an empty class at run time: no code needs the members of a protocol then,
and making one with `typing.Protocol` takes 20 us more, for some ninety at a daemon's start. A protocol for isinstance
uses that of `typing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol as Protocol
else:
    class Protocol:
        __slots__ = ()

        def __class_getitem__(cls, item):
            return cls

"""
`Protocol` of `typing` for a type checker, and an empty class at run time.

Runs in:   anywhere; pure.
Why:       no code needs the members of a protocol at run time, and it takes 20 us more to make a class with
           `typing.Protocol`: a daemon makes some ninety at its start. A protocol for isinstance uses that of `typing`.
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

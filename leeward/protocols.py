"""
`Protocol` as `typing` has it to a type checker; when leeward runs it is an empty class.

Runs in:   anywhere; pure.
Why:       nobody asks at run time what a protocol has, and a class of `typing.Protocol` takes 20 us more to make: a
           daemon has some ninety when it starts. One that isinstance is to know takes `typing`'s.
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

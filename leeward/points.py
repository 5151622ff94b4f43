"""
Injection points: the functions that a test build replaces by name, among them all that set a lock of a job's.

Runs in:   anywhere; pure.

In the product a point is its function, and no more: nothing is recorded, and there is no way to replace one. A test
build is the same source with another module in place of this one, tests/kit/points.py, whose points can be filled.
Only a process that a test has started can be one: the module is put there before leeward is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Made = TypeVar("Made", bound=Callable[..., Any])


def point(name: str) -> Callable[[Made], Made]:
    """
    Make the decorated function the point *name*; names are unique.
    """
    return _unchanged


def _unchanged(made: Made) -> Made:
    return made

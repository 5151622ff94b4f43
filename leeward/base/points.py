"""
Injection points: functions that a test build replaces by name. All functions that set a job's locks are points.

In the product a point is just its function: nothing is recorded, and there is no way to replace a point. A test build
is the same source with another module, tests/kit/points.py, in place of this one; its points can be filled. Only a
process that a test has started can be a test build: the test installs that module before leeward is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Made = TypeVar("Made", bound=Callable[..., Any])


def point(name: str) -> Callable[[Made], Made]:
    """Make the decorated function the point *name*; names are unique."""
    return _unchanged


def _unchanged(made: Made) -> Made:
    return made

"""
A test build's injection points: the module that takes the place of `leeward.base.points` there.

    from kit import points
    points.build()                                  # before anything of leeward's with points is imported
    from leeward.crossing import zygote
    points.fill("privileges.capabilities-left", lambda: 0)

Runs in:   the tests' own process (tests/conftest.py), and processes that tests start: zygotes (halfway.py), daemons
           (daemon_build.py). Imports nothing of leeward's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Made = TypeVar("Made", bound=Callable[..., Any])

#: The product's functions at the points, and their replacements, by the points' names.
_made: dict[str, Callable[..., Any]] = {}
_filled: dict[str, Callable[..., Any]] = {}


def build() -> None:
    """
    Make leeward a test build in this process.

    Raises:
        RuntimeError: it is too late, since the product's points have been imported.
    """
    if "leeward.base.points" in sys.modules:
        raise RuntimeError("leeward.base.points has been imported: the points in use are the product's")
    sys.modules["leeward.base.points"] = sys.modules[__name__]


def point(name: str) -> Callable[[Made], Made]:
    """
    As `leeward.base.points.point`. The function that it makes checks at each call whether the point was filled.

    Raises:
        ValueError: there is a point of this name already.
    """
    if name in _made:
        raise ValueError(f"{name} is a point already")

    def decorated(made: Made) -> Made:
        _made[name] = made

        @functools.wraps(made)
        def called(*args: Any, **options: Any) -> Any:
            return _filled.get(name, made)(*args, **options)

        return called  # type: ignore[return-value]  # it is called as the other is

    return decorated


def fill(name: str, replacement: Callable[..., Any]) -> None:
    """
    Put *replacement* in the place of the function at a point.

    Raises:
        LookupError: the product has no such point, so the replacement would have no effect.
    """
    if name not in _made:
        raise LookupError(f"{name} is no point of the product's")
    _filled[name] = replacement


@contextmanager
def filled(name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """
    `fill` the point while the block runs. Afterwards it has the former function again.

    Raises:
        LookupError: as `fill`.
    """
    before = _filled.get(name)
    fill(name, replacement)
    try:
        yield
    finally:
        if before is None:
            del _filled[name]
        else:
            _filled[name] = before


def original(name: str) -> Callable[..., Any]:
    """
    Return the product's function at a point.

    Raises:
        LookupError: there is no such point.
    """
    return _made[name]


def names() -> frozenset[str]:
    """Return the names of all points in the modules that were imported."""
    return frozenset(_made)

"""
Where tests take a lock out: each point is one that the product has.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from kit import halfway


@pytest.mark.parametrize(("module", "name"), [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module, names in halfway.POINTS.items() for name in names])
def test_the_product_has_this_point(module: ModuleType, name: str) -> None:
    assert hasattr(module, name)


def test_another_point_is_refused() -> None:
    """
    A name that the product hasn't any more would leave a lock on, and its control would prove nothing.
    """
    with pytest.raises(LookupError, match=r"keeper\.keeps is no point"):
        halfway._put(halfway.keeper, keeps=None)

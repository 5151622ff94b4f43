"""The tools of a work folder, and the packages that have them."""

from __future__ import annotations

from leeward.spec.tools import PACKAGES, TOOLS, package_of


def test_every_tool_is_in_one_package_once() -> None:
    """And no package has a name that is no tool."""
    packaged = [tool for tools in PACKAGES.values() for tool in tools.split()]

    assert len(TOOLS) == len(set(TOOLS))
    assert len(packaged) == len(set(packaged))
    assert set(packaged) <= set(TOOLS)
    assert ("ripgrep", "coreutils") == (package_of("rg"), package_of("cat"))

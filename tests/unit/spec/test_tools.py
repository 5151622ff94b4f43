"""
The tools of a work folder, and the packages that have them.
"""

from __future__ import annotations

from leeward.spec.tools import PACKAGES, TOOLS, package_of


def test_each_tool_is_there_once_and_in_one_package() -> None:
    """
    And no package has what is no tool.
    """
    packaged = [tool for tools in PACKAGES.values() for tool in tools.split()]

    assert len(TOOLS) == len(set(TOOLS))
    assert len(packaged) == len(set(packaged))
    assert set(packaged) <= set(TOOLS)
    assert ("ripgrep", "coreutils") == (package_of("rg"), package_of("cat"))

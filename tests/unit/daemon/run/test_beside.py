"""The leaf of a process that has company."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from leeward.daemon.run.beside import SharedLeaf
from leeward.daemon.run.branches import Family
from leeward.isolation.cgroup.entry import Leaf


def test_it_has_all_that_a_leaf_has() -> None:
    """A lease asks it as any other; what the fast path has seen is the sandbox's."""
    inner = Mock()
    leaf = SharedLeaf(inner, None)
    assert [] == [name for name in vars(Leaf) if not name.startswith("_") and not hasattr(leaf, name)]
    leaf.saw(7)
    inner.saw.assert_called_once_with(7)


def test_a_kernel_has_its_group_whenever_it_has_no_branch() -> None:
    """Also after its second branch has ended; while there is one neither of them has it."""
    held: list[object] = ["the group"]
    kernel, branch = (SimpleNamespace(number=each, host_pid=each, have_group=held.append, group=held) for each in (1, 2))
    of = SimpleNamespace(leave_group=held.pop, process=kernel, number=1, runner=Mock())
    family = Family(cast("Any", of))
    for _ in range(2):
        family.share_group(cast("Any", of))
        family.join(cast("Any", branch))
        family.share_group(cast("Any", of))  # another one, which is refused later
        assert [] == held
        family.left(cast("Any", branch))
        assert ["the group"] == held

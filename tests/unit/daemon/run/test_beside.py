"""The leaf of a process that has company."""

from __future__ import annotations

from unittest.mock import Mock

from leeward.daemon.run.beside import SharedLeaf
from leeward.isolation.cgroup.entry import Leaf


def test_it_has_all_that_a_leaf_has() -> None:
    """A lease asks it as any other; what the fast path has seen is the sandbox's."""
    inner = Mock()
    leaf = SharedLeaf(inner, None)
    assert [] == [name for name in vars(Leaf) if not name.startswith("_") and not hasattr(leaf, name)]
    leaf.saw(7)
    inner.saw.assert_called_once_with(7)

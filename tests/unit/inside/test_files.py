"""
What `collect` finds is what glob.glob would find, without its way of looking.
"""

from __future__ import annotations

import glob
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.inside.files import matching, walk
from leeward.wire.job import MAX_DEPTH

NAMES = ("a", "b.txt", "ab", ".hidden", "d/a", "d/b.txt", "d/.h/x", "d/e/a", "d/e/f/b.txt", ".g/a", "d/e/.z", "[x]")

PARTS = st.sampled_from(("*", "**", "a", "a*", "?", "*.txt", "[ab]*", ".*", "d", "e", "a**", "***", "[[]x]", "[!a]*"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    return top


@given(parts=st.lists(PARTS, min_size=1, max_size=5))
def test_a_pattern_finds_what_glob_finds(tree: Path, parts: list[str]) -> None:
    pattern = "/".join(parts)
    expected = {name for name in glob.glob(pattern, root_dir=tree, recursive=True)
                if not name.endswith("/") and (tree / name).is_file()}  # "file/" is no file, though it finds it

    found = [name for name in matching(pattern, walk(str(tree))) if (tree / name).is_file()]

    assert expected == set(found)
    assert sorted(found) == found


def test_links_lead_nowhere_and_depth_ends(tmp_path: Path) -> None:
    """
    Folders past the depth that a name may have aren't looked into.
    """
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "loop").symlink_to(".")
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH - 1))
    (deep / "d").mkdir(parents=True)
    (deep / "f").write_text("")
    (deep / "d" / "f").write_text("")

    assert ["a", str((deep / "f").relative_to(tmp_path))] == walk(str(tmp_path))

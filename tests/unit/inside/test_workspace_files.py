"""What `collect` brings back, and what it says of the rest."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.inside import workspace_files
from leeward.inside.workspace_files import collect, matching, walk
from leeward.spec.outcome import LeftOutReason
from leeward.wire.job_frames import MAX_DEPTH, MAX_LEFT_OUT

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
def test_a_pattern_finds_the_files_that_glob_finds(tree: Path, parts: list[str]) -> None:
    """A match that glob finds only with hidden files is reported as hidden."""
    pattern = "/".join(parts)
    expected, everything = ({name for name in glob.glob(pattern, root_dir=tree, recursive=True, include_hidden=hidden)
                             if not name.endswith("/") and (tree / name).is_file()}  # "file/" is no file
                            for hidden in (False, True))
    if not glob.has_magic(pattern):
        return

    found = list(matching(pattern, walk(str(tree))))

    assert expected == {name for name, why in found if not why}
    hidden = [name for name, why in found if "hidden" == why]
    assert all(any(name == one or name.startswith(one + "/") for one in hidden) for name in everything - expected)


def test_links_lead_nowhere_and_depth_ends(tmp_path: Path) -> None:
    """Folders past the depth that a name may have aren't looked into."""
    (tmp_path / "a").write_text("")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH - 1))
    (deep / "d").mkdir(parents=True)
    (deep / "f").write_text("")
    (deep / "d" / "f").write_text("")

    entries = dict(walk(str(tmp_path)))

    assert {"a", str((deep / "f").relative_to(tmp_path))} == {name for name, why in entries.items() if not why}
    assert ("link", "link", "special") == (entries["link"], entries["loop"], entries["pipe"])
    assert {str((deep / "d").relative_to(tmp_path))} == {name for name, why in entries.items() if "name" == why}


@pytest.mark.parametrize(("patterns", "brought", "left"), [
    (["d"], {"d/a", "d/b.txt", "d/.h/x", "d/e/a", "d/e/f/b.txt", "d/e/.z"}, []),
    (["d/"], {"d/a", "d/b.txt", "d/.h/x", "d/e/a", "d/e/f/b.txt", "d/e/.z"}, []),
    (["?/"], {"d/a", "d/b.txt", "d/.h/x", "d/e/a", "d/e/f/b.txt", "d/e/.z"}, []),
    (["."], set(NAMES), []),
    (["{a,b}{,.txt}"], {"a", "b.txt"}, []),
    (["a", "a/"], {"a"}, [("a/", "no_match")]),
    (["?"], {"a"}, [("d", "folder")]),
    (["no", "n*"], set(), [("n*", "no_match"), ("no", "no_match")]),
    ([".hidden", "*"], {".hidden", "[x]", "a", "ab", "b.txt"}, [(".g", "hidden"), ("d", "folder")]),
    (["**"], {"[x]", "a", "ab", "b.txt", "d/a", "d/b.txt", "d/e/a", "d/e/f/b.txt"},
     [(".g", "hidden"), (".hidden", "hidden"), ("d/.h", "hidden"), ("d/e/.z", "hidden")]),
])
def test_names_folders_and_braces(tree: Path, patterns: list[str], brought: set[str],
                                  left: list[tuple[str, str]]) -> None:
    """What comes back, and what is said of the rest."""
    found, left_out, _ = collect(patterns, 1000, str(tree))

    assert brought == set(found)
    assert all(found[name] == name.encode() for name in brought)
    assert left == sorted(left_out)


def test_every_reason_to_leave_a_file_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what can't come back."""
    monkeypatch.setattr(workspace_files, "MAX_BYTES", 1000)
    for name, size in (("a", 1), ("b", 2000), ("c", 1), ("d", 1), ("x\ny", 1)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")

    found, left_out, _ = collect(["*", ".*", "folder/x", "link/a"], 2, str(tmp_path))

    assert {"a", "c"} == set(found)
    assert {"b": "too_large", "d": "too_many", "x\\ny": "name", "\\udcff": "name", "link": "link", "pipe": "special",
            "folder": "folder", ".*": "no_match", "folder/x": "no_match", "link/a": "no_match"} == dict(left_out)
    assert {why for _, why in left_out} <= set(LeftOutReason)


def test_the_list_is_bounded(tmp_path: Path) -> None:
    """Its last entry says that there is more."""
    for number in range(MAX_LEFT_OUT + 10):
        (tmp_path / f"{number:04}").write_bytes(b"")

    found, left_out, _ = collect(["*"], 3, str(tmp_path))

    assert (3, MAX_LEFT_OUT + 1, ("", "more")) == (len(found), len(left_out), left_out[-1])
    assert ("0003", "too_many") == left_out[0]


def test_files_up_to_the_bound_are_all_collected(tmp_path: Path) -> None:
    """The control of the above."""
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"")

    found, left_out, _ = collect(["*"], 3, str(tmp_path))

    assert (3, []) == (len(found), left_out)

"""Files that git's index has with their present content: real indexes of each version, and ones that lie."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.apps.agents.git_index import MAX_TRACKED, blobs, tracked_unchanged

GIT = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]


def git(folder: Path, *argv: str, **more: str) -> None:
    subprocess.run([*GIT, *argv], cwd=folder, check=True, capture_output=True, env={**os.environ, **more})


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    git(tmp_path, "init", "-q")
    for path in (".env", "a/b/.env", "a/b/.envrc", "z.env", "x" * 255 + "/.env"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{path}\n")
    git(tmp_path, "add", "-A")
    (tmp_path / "untracked.env").write_text("secret\n")
    return tmp_path


def tracked(folder: Path, *paths: str) -> set[str]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        return set(tracked_unchanged(fd, paths))
    finally:
        os.close(fd)


EVERY = (".env", "a/b/.env", "a/b/.envrc", "z.env", "x" * 255 + "/.env")


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_an_index_of_each_version_is_read(project: Path, version: str) -> None:
    (project / "later").touch()
    git(project, "add", "-N", "later")  # which makes an extended entry
    git(project, "update-index", "--index-version", version)
    assert {*EVERY} == tracked(project, *EVERY, "untracked.env", "absent.env")


def test_an_index_of_sha256_is_read(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / ".env").write_text("A=1\n")
    git(tmp_path, "add", ".env")
    assert {".env"} == tracked(tmp_path, ".env")


def test_an_index_without_a_checksum_is_read(project: Path) -> None:
    git(project, "-c", "index.skipHash=true", "add", "untracked.env")
    assert {".env", "untracked.env"} == tracked(project, ".env", "untracked.env")


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_changed_file_is_not_tracked_whatever_its_flags_and_times_are(project: Path, flag: str) -> None:
    git(project, "update-index", flag, ".env")
    assert {".env"} == tracked(project, ".env")
    before = (project / ".env").stat()
    (project / ".env").write_text(".enV\n")
    os.utime(project / ".env", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert set() == tracked(project, ".env")


def test_a_name_that_was_only_announced_is_not_tracked(project: Path) -> None:
    git(project, "add", "-N", "untracked.env")
    assert set() == tracked(project, "untracked.env")


def test_a_merge_has_no_content(project: Path) -> None:
    blob = subprocess.run([*GIT, "hash-object", "-w", ".env"], cwd=project, check=True, capture_output=True,
                          text=True).stdout.strip()
    rows = "".join(f"100644 {blob} {stage}\t.env\n" for stage in (1, 2, 3))
    subprocess.run([*GIT, "update-index", "--index-info"], cwd=project, check=True,
                   input=f"0 {'0' * 40}\t.env\n{rows}", text=True)
    assert set() == tracked(project, ".env")


def test_links_lead_nowhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A link in the place of the file, of a folder above it, of `.git` and of the index."""
    other = tmp_path_factory.mktemp("other")
    (project / ".env").rename(other / ".env")
    (project / ".env").symlink_to(other / ".env")
    (project / "a/b").rename(other / "b")
    (project / "a/b").symlink_to(other / "b")
    assert {"z.env"} == tracked(project, *EVERY[:4])
    (project / ".git/index").rename(other / "index")
    (project / ".git/index").symlink_to(other / "index")
    assert set() == tracked(project, "z.env")
    (project / ".git/index").unlink()
    (other / "index").rename(project / ".git/index")
    assert {"z.env"} == tracked(project, "z.env")
    (project / ".git").rename(other / "git")
    (project / ".git").symlink_to(other / "git")
    assert set() == tracked(project, "z.env")
    (project / ".git").unlink()
    (project / ".git").write_text(f"gitdir: {other}/git\n")
    assert set() == tracked(project, "z.env")


def test_a_working_tree_elsewhere_does_not_count(project: Path) -> None:
    """`core.worktree` isn't read: the project's own file is compared."""
    git(project, "config", "core.worktree", "/")
    assert {".env"} == tracked(project, ".env")
    (project / ".env").write_text("secret\n")
    assert set() == tracked(project, ".env")


def test_special_and_large_files_are_not_tracked(project: Path) -> None:
    (project / "large.env").write_bytes(bytes(MAX_TRACKED + 1))
    git(project, "add", "large.env")
    (project / ".env").unlink()
    os.mkfifo(project / ".env")
    assert set() == tracked(project, "large.env", ".env")


@given(st.binary(max_size=300), st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_any_index_is_read_or_refused(tail: bytes, at: int, noise: bytes) -> None:
    index = b"DIRC\0\0\0\2\0\0\0\3" + tail
    for each in (index, index[:at] + noise + index[at + len(noise):], b"DIRC\0\0\0\4\xff\xff\xff\xff" + tail):
        try:
            blobs(each, [b"a"])
        except (ValueError, IndexError, struct.error):
            pass

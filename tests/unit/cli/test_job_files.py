"""`--put` and `--collect`: which files go in, and where the job's may land."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from leeward.spec.outcome import LeftOutReason
from leeward_cli import job_files
from leeward_cli.options import UsageError


def test_a_file_a_name_and_a_folder(tmp_path: Path) -> None:
    """Under its own name, under another, and all of a folder but its links."""
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "with:colon").write_bytes(b"c")
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/x").write_bytes(b"x")
    (tmp_path / "data/link").symlink_to("/etc/passwd")

    assert {"a.txt": b"a"} == job_files.put([f"{tmp_path}/a.txt"])
    assert {"b/c.txt": b"a"} == job_files.put([f"{tmp_path}/a.txt:/workspace/b/c.txt"])
    assert {"with:colon": b"c"} == job_files.put([f"{tmp_path}/with:colon"])
    assert {"data/deep/x": b"x"} == job_files.put([f"{tmp_path}/data/"])
    assert {"in/deep/x": b"x"} == job_files.put([f"{tmp_path}/data:in"])


@pytest.mark.parametrize("name", ["x", "deep"])
def test_c494_no_link_is_followed_that_is_laid_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A sandbox that writes to the folder swaps a file, or a folder, for a link between the look and the reading."""
    (tmp_path / "data/deep").mkdir(parents=True)
    for place in ("data/x", "data/deep/y", "secret", "y"):
        (tmp_path / place).write_text(place)
    look = os.stat

    def swapping(path: str, **options: Any) -> os.stat_result:
        about = look(path, **options)
        if path == name and (tmp_path / "data" / name).exists():
            os.rename(tmp_path / "data" / name, tmp_path / "away")
            (tmp_path / "data" / name).symlink_to(tmp_path / ("secret" if "x" == name else ""))
        return about
    monkeypatch.setattr(os, "stat", swapping)
    with pytest.raises(UsageError, match="--put"):
        job_files.put([f"{tmp_path}/data"])

    assert (tmp_path / "data" / name).is_symlink()
    with open(tmp_path / "data" / name / ("" if "x" == name else "y")) as file:  # control
        assert file.read() in ("secret", "y")


def test_a_file_that_cannot_be_put_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, no file, twice the same name, too many, too large: each names the option's value."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").write_bytes(b"12345")
    monkeypatch.setattr(job_files, "MAX_FILES", 4)
    for words in ([f"{tmp_path}/none"], [f"{tmp_path}/fifo"], [f"{tmp_path}/a"]):
        with pytest.raises(UsageError, match="--put"):
            job_files.put(words)
    monkeypatch.setattr(job_files, "MAX_FILES", 100)
    with pytest.raises(UsageError, match="two files"):
        job_files.put([f"{tmp_path}/a"] * 2)
    monkeypatch.setattr(job_files, "MAX_FILE_COUNT", 1)
    with pytest.raises(UsageError, match="1 files at most"):
        job_files.put([f"{tmp_path}/a", f"{tmp_path}/a:b"])


def test_files_come_back(tmp_path: Path) -> None:
    """Into folders that are made; a file that is there stays unless it may be replaced."""
    into = tmp_path / "out"
    assert [] == job_files.bring({"a": b"1", "d/e/f": memoryview(b"2")}, str(into), replace=False)
    assert (b"1", b"2") == ((into / "a").read_bytes(), (into / "d/e/f").read_bytes())

    (left,) = job_files.bring({"a": b"3", "g": b"4"}, str(into), replace=False)
    assert "'a' is there already" in left
    assert (b"1", b"4") == ((into / "a").read_bytes(), (into / "g").read_bytes())
    assert [] == job_files.bring({"a": b"3"}, str(into), replace=True)
    assert b"3" == (into / "a").read_bytes()
    assert ["a", "d", "g"] == sorted(os.listdir(into))


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "link/x", "d/link/x", "", ".", "a\0b", "dir", "to_file"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_hostile_name_leads_nowhere(name: str, replace: bool, tmp_path: Path) -> None:
    """Nothing is written outside the folder, through a link that lies there, or in place of what is no plain file."""
    outside, into = tmp_path / "outside", tmp_path / "into"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (into / "d").mkdir(parents=True)
    (into / "dir").mkdir()
    for link in (into / "link", into / "d/link"):
        link.symlink_to(outside)
    (into / "to_file").symlink_to(outside / "kept")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

    assert 1 == len(job_files.bring({name: b"hostile"}, str(into), replace=replace))
    assert before == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert b"kept" == (outside / "kept").read_bytes()


def test_files_left_out_are_listed_in_one_bounded_line() -> None:
    """Names are the job's, so they are quoted; the rest of many is counted as more."""
    assert "not collected: 'a*' (nothing there), 'l\\x1b' (a link)" == job_files.left_out(
        [("a*", "no_match"), ("l\x1b", "link")])
    many = job_files.left_out([(str(number), "hidden") for number in range(9)])
    assert many.endswith("'5' (a hidden file), and more: --json lists them")
    assert "not collected: 'a' (not a regular file), and more: --json lists them" == job_files.left_out(
        [("a", "special"), ("", "more")])
    assert {str(reason) for reason in LeftOutReason} - {"more"} == set(job_files._WHY)

"""The file in a folder for temporary files by which an agent outside learns in which folder a line has ended."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from leeward_cli.shell_prefix import _write_folder


@pytest.fixture
def file() -> Iterator[Path]:
    path = Path(f"/tmp/claude-{secrets.token_hex(8)}-cwd")
    yield path
    path.unlink()


def write(file: Path) -> None:
    box = SimpleNamespace(files=SimpleNamespace(read=lambda path, limit: b"/project/sub\n"))
    _write_folder(box, f"cd sub && pwd -P >| {file}", "/home/me/project", "/project")


def test_the_folder_outside_is_written(file: Path) -> None:
    for _ in range(2):
        write(file)
        assert "/home/me/project/sub\n" == file.read_text()
    file.write_text("x" * 100)
    write(file)
    assert "/home/me/project/sub\n" == file.read_text()


@pytest.mark.timeout(10)
def test_a_fifo_of_another_user_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file)
    write(file)
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(file)
        assert b"" == os.read(reader, 100)
    finally:
        os.close(reader)


def test_a_file_of_another_user_is_left(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("theirs")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    write(file)
    assert "theirs" == file.read_text()


def test_another_name_of_a_file_is_left(file: Path) -> None:
    """Another user can make it, of any file of ours, where fs.protected_hardlinks is 0."""
    own = file.with_name(f"{file.name}.own")
    own.write_text("ours")
    try:
        file.hardlink_to(own)
        write(file)
        assert "ours" == own.read_text()
    finally:
        own.unlink()

"""
A cgroup file system made of plain files: enough of one for a driver's file logic.

What is real there and isn't here: enforcement, processes moving, EBUSY for processes within.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leeward.isolation.cgroup import group
from leeward.isolation.cgroup.group import Group

Fill = Callable[[Path], dict[str, str]]


class FakeCgroups:
    """
    Folders that get control files when they are made, and a record of what was written.

    Attributes:
        fill: the files of a new group, by its path.
        written: (path below the root, text) in order.
        refused: path below the root to errno: such a write fails.
        owners: (path below the root, uid) in order.
    """

    def __init__(self, root: Path, fill: Fill) -> None:
        self.root, self.fill = root, fill
        self.written: list[tuple[str, str]] = []
        self.refused: dict[str, int] = {}
        self.owners: list[tuple[str, int]] = []
        self.populate(root)

    def populate(self, folder: Path) -> None:
        """Put the files into *folder* that a group has now and didn't have."""
        folder.mkdir(exist_ok=True, parents=True)
        for name, text in self.fill(folder).items():
            if "cgroup.controllers" == name or not (folder / name).exists():
                (folder / name).write_text(text)

    def below(self, path: str | Path) -> str:
        return os.path.relpath(path, self.root)

    def tidy(self, path: str) -> None:
        """
        Remove the group *path*, as somebody on the host may do with an empty one. Files that are open stay readable
        here, which the kernel's aren't: `gone`.
        """
        shutil.rmtree(self.root / path)

    def groups(self) -> list[str]:
        """All groups but the root."""
        return sorted(self.below(folder) for folder, _, _ in os.walk(self.root) if folder != str(self.root))


@pytest.fixture
def fake_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fill], FakeCgroups]:
    """Make one; from then on every Group lives on it."""
    def make(fill: Fill) -> FakeCgroups:
        fake = FakeCgroups(tmp_path / "cgroup", fill)
        real_rmdir = os.rmdir

        def made(self: Group, name: str) -> Group:
            try:
                os.mkdir(name, dir_fd=self.fd)
            except FileNotFoundError:  # somebody removed the group
                raise group.KernelRefusal("mkdir", f"{self.path}/{name}", errno.ENOENT) from None
            fake.populate(Path(self.path, name))
            return self.child(name)

        def write(self: Group, name: str, text: str) -> None:
            path = fake.below(f"{self.path}/{name}")
            if path in fake.refused:
                raise group.KernelRefusal("write", path, fake.refused[path])
            os.close(self.open(name, os.O_WRONLY))  # ENOENT where there is no such file
            fake.written.append((path, text))
            if "cgroup.subtree_control" == name:
                for word in text.split():
                    have = set(Path(self.path, name).read_text().split())
                    (have.add if "+" == word[0] else have.discard)(word[1:])
                    Path(self.path, name).write_text(" ".join(sorted(have)))
                for child in self.children():
                    fake.populate(Path(self.path, child))
            else:
                Path(self.path, name).write_text(text)

        def give(self: Group, uid: int, *names: str) -> None:
            fake.owners.extend((fake.below(f"{self.path}/{name}"), uid) for name in names)

        def rmdir(path: str, *, dir_fd: int | None = None) -> None:
            folder = Path(f"/proc/self/fd/{dir_fd}", path).resolve() if dir_fd is not None else Path(path)
            if any(entry.is_dir() for entry in folder.iterdir()):
                raise OSError(errno.EBUSY, "groups are in it")
            for file in folder.iterdir():
                file.unlink()
            real_rmdir(folder)

        monkeypatch.setattr(Group, "make", made)
        monkeypatch.setattr(Group, "write", write)
        monkeypatch.setattr(Group, "give", give)
        monkeypatch.setattr(group.os, "rmdir", rmdir)
        return fake

    return make

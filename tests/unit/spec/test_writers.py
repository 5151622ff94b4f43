"""Who may have written a file."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.spec.writers import cure, distrust, others_write

ME, GROUP = os.geteuid(), 4321


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a database of users, in which this user is `me`, and a group whose members it says."""
    def made(*users: tuple[str, int, int], name: str = "me", members: tuple[str, ...] = ()) -> None:
        rows = [SimpleNamespace(pw_name=user, pw_uid=uid, pw_gid=gid) for user, uid, gid in users]

        def of(uid: int) -> Any:
            return next(row for row in rows if uid == row.pw_uid) if any(uid == row.pw_uid for row in rows) else _none()
        monkeypatch.setattr(pwd, "getpwuid", of)
        monkeypatch.setattr(pwd, "getpwall", lambda: rows)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=name, gr_mem=list(members)))
    return made


def _none() -> None:
    raise KeyError


def look(mode: int, uid: int = ME, gid: int = GROUP) -> Any:
    return SimpleNamespace(st_mode=0o100000 | mode, st_uid=uid, st_gid=gid)


def test_a_group_with_its_owner_alone_is_no_other(database: Callable[..., None], tmp_path: Path) -> None:
    own = ("me", ME, GROUP)
    file = str(tmp_path)
    for users, name, members, others in (
            ((own,), "me", (), False), ((own, ("other", ME + 1, 9)), "me", ("me",), False),
            ((own,), "staff", (), True), ((own,), "me", ("bob",), True), ((own,), "me", ("me", "bob"), True),
            ((own, ("bob", ME + 1, GROUP)), "me", (), True), ((("me", ME, 9),), "me", (), True), ((), "me", (), True)):
        database(*users, name=name, members=members)
        assert others is others_write(file, look(0o664)), (users, name, members)
        assert others is others_write(file, look(0o775))
        assert others_write(file, look(0o666))
        assert others_write(file, look(0o602))
        assert not others_write(file, look(0o644))


def test_an_access_list_may_let_others_write(database: Callable[..., None], tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's rights are the list's mask then."""
    database(("me", ME, GROUP))
    assert not others_write(str(tmp_path), look(0o664))
    monkeypatch.setattr(os, "getxattr", lambda place, name: b"list")
    assert others_write(str(tmp_path), look(0o664))

    def fails(place: object, name: str) -> bytes:
        raise OSError(errno.EIO, "")
    monkeypatch.setattr(os, "getxattr", fails)
    assert others_write(str(tmp_path), look(0o664))


@pytest.mark.parametrize("name", ["plain", "with blanks", "it's", "$(x)"])
def test_the_cure_helps(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    path.chmod(0o666)
    assert ["chmod", "go-w", str(path)] == shlex.split(cure(str(path)))
    subprocess.run(["sh", "-c", cure(str(path))], check=True)
    assert not others_write(str(path), path.stat())


def said(path: Path, uid: int = ME) -> tuple[str, str]:
    with open(path) as file:
        return distrust(str(path), file.fileno(), os.fstat(file.fileno()), uid)


def test_who_can_put_another_file_in_its_place_decides_what_it_says(tmp_path: Path) -> None:
    """As for a file that others can write: any folder above it, by its own path and by that of a link."""
    file = tmp_path / "a/b/file"
    file.parent.mkdir(parents=True)
    file.write_text("x")
    link = tmp_path / "links/link"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "a")
    assert ("", "") == said(file) == said(link / "b/file")
    for folder, seen in ((tmp_path / "a/b", 2), (tmp_path / "a", 2), (tmp_path / "links", 1)):
        folder.chmod(0o777)
        answers = [said(file), said(link / "b/file")]
        assert seen == sum("another file in its place" in why and "chmod go-w" in help_ for why, help_ in answers), answers
        folder.chmod(0o1777)  # as /tmp: only its owner can replace a file
        assert [("", "")] * 2 == [said(file), said(link / "b/file")]
        folder.chmod(0o755)


@pytest.mark.skipif(0 != ME, reason="needs root, which can give a folder away")
def test_another_users_folder_is_that_users_word(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    file = folder / "file"
    file.write_text("x")
    os.chown(folder, 4711, 4711)
    assert "user 4711 can put another file in its place" in said(file)[0]
    os.chown(folder, 65534, 65534)  # what a user namespace shows of root's
    assert ("", "") == said(file)
    os.chown(file, 4711, 4711)
    assert ("belongs to user 4711", "it must be yours or root's") == said(file)

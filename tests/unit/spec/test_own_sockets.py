"""The registry of leeward's own sockets, and what counts as their place."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from leeward.spec import own_sockets


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the default sockets."""
    folder = tmp_path / "run/leeward"
    monkeypatch.setattr(own_sockets, "default_socket", lambda environ, uid: str(folder / "leeward.sock"))
    return folder


def bound(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def paths(own: Path) -> set[str]:
    return {place.path for place in own_sockets.places((), [(os.geteuid(), str(own))])}


def test_a_socket_elsewhere_is_known_until_it_is_forgotten(own: Path, tmp_path: Path) -> None:
    path = bound(tmp_path / "elsewhere/s")
    link = own_sockets.register(str(path))
    assert {str(own), str(path)} == paths(own)
    assert 0o700 == own.stat().st_mode & 0o777
    own_sockets.forget(link)
    assert {str(own)} == paths(own)


def test_the_default_folder_needs_no_link(own: Path) -> None:
    assert "" == own_sockets.register(str(bound(own / "leeward.sock")))


def test_what_killed_listeners_have_left_does_not_pile_up(own: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = bound(tmp_path / name / "s")
        assert own_sockets.register(str(path)) == own_sockets.register(str(path))
        path.unlink()
    own_sockets.register(str(bound(tmp_path / "c/s")))

    assert 1 == len(os.listdir(own / "sockets"))


def test_a_registry_that_others_can_write_to_is_refused(own: Path, tmp_path: Path) -> None:
    (own / "sockets").mkdir(parents=True)
    os.chmod(own / "sockets", 0o777)
    with pytest.raises(PermissionError):
        own_sockets.register(str(bound(tmp_path / "s")))


def test_another_users_folder_is_no_registry(own: Path, tmp_path: Path) -> None:
    """In /tmp anybody can make the folder of a user first."""
    own_sockets.register(str(bound(tmp_path / "elsewhere/s")))

    assert [] == [*own_sockets.places((), [(os.geteuid() + 1, str(own))])]


@pytest.mark.parametrize(("folder", "found"), [
    (".", True), ("held", True), ("held/s", True), ("beside", False), ("held-not", False)])
def test_a_place_is_known_by_its_path(tmp_path: Path, folder: str, found: bool) -> None:
    place = own_sockets.OwnPlace(str(bound(tmp_path / "held/s")))

    assert found is place.is_in(str(tmp_path / folder), 0, 0)


@pytest.mark.parametrize(("folder", "found"), [("held", True), (".", True), ("beside", False)])
def test_a_place_is_known_by_its_folders_inode(tmp_path: Path, folder: str, found: bool) -> None:
    """As of a bind mount, whose path is another one."""
    place = own_sockets.OwnPlace(str(bound(tmp_path / "held/s")))
    (tmp_path / "beside").mkdir()
    about = (tmp_path / folder).stat()

    assert found is place.is_in("/another/path", about.st_dev, about.st_ino)


def test_a_socket_with_another_name_may_be_anywhere_on_its_file_system(tmp_path: Path) -> None:
    path = bound(tmp_path / "held/s")
    (tmp_path / "beside").mkdir()
    os.link(path, tmp_path / "beside/other")
    about = (tmp_path / "beside").stat()

    assert own_sockets.OwnPlace(str(path)).is_in("/another/path", about.st_dev, about.st_ino)
    assert not own_sockets.OwnPlace(str(path)).is_in("/another/path", about.st_dev + 1, about.st_ino)


def test_the_folders_of_a_user_are_named_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another user's file system, which may never answer."""
    monkeypatch.setattr(os, "access", lambda *_: pytest.fail("it looked"))
    other = os.geteuid() + 7

    assert (f"/run/user/{other}/leeward", f"/tmp/leeward-{other}") == own_sockets.folders_of(other)
    assert ("/run/leeward",) == own_sockets.folders_of(0)

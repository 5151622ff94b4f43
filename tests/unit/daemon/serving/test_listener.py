"""The socket's place: made private, taken once, left clean."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from leeward.daemon.serving.listener import Listener
from leeward.errors import BadRequest
from leeward.spec import writers


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_the_socket_is_0600_in_a_0700_folder(tmp_path: Path) -> None:
    """Whatever the umask is; and both descriptors go with close."""
    before = sorted(os.listdir("/proc/self/fd"))
    path = tmp_path / "new" / "leeward.sock"
    mask = os.umask(0)
    try:
        listener = Listener(str(path), own_folder=True)
    finally:
        os.umask(mask)

    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    assert connects(path)
    listener.close()
    listener.close()
    assert not path.exists()
    assert before == sorted(os.listdir("/proc/self/fd"))


def test_c109_a_second_daemon_refuses(tmp_path: Path) -> None:
    """The first one goes on, its socket untouched."""
    path = tmp_path / "leeward.sock"
    first = Listener(str(path), own_folder=False)
    inode = path.stat().st_ino
    with pytest.raises(BadRequest, match="already answers"):
        Listener(str(path), own_folder=False)

    assert inode == path.stat().st_ino
    assert connects(path)
    first.close()


def test_c104_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    """One that nobody answers, as SIGKILL leaves it."""
    path = tmp_path / "leeward.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    assert not connects(path)  # control
    listener = Listener(str(path), own_folder=False)

    assert connects(path)
    listener.close()


@pytest.mark.parametrize("kind", ["file", "link", "folder", "fifo"])
def test_c104_a_file_that_is_no_socket_stays(kind: str, tmp_path: Path) -> None:
    """No file of the user's is removed by accident, and a link isn't followed."""
    path, target = tmp_path / "leeward.sock", tmp_path / "target"
    target.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(BadRequest, match="no socket"):
        Listener(str(path), own_folder=False)

    assert before.st_ino == path.lstat().st_ino
    assert "precious" == target.read_text()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o707])
def test_c104_a_folder_that_others_can_write_is_refused(mode: int, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else could put another socket there."""
    monkeypatch.setattr(writers, "_has_owner_alone", lambda group, owner: False)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(BadRequest, match="can be written by others") as refused:
        Listener(str(folder / "leeward.sock"), own_folder=False)
    assert ("chmod" in str(refused.value)) == (mode != 0o1777)  # nobody is to do that to /tmp
    folder.chmod(0o755)
    Listener(str(folder / "leeward.sock"), own_folder=False).close()  # control


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755])
def test_a_named_folder_stays_as_it_is(mode: int, tmp_path: Path) -> None:
    """It may serve something else as well; its mode is there to be warned of."""
    folder = tmp_path / "named"
    folder.mkdir()
    folder.chmod(mode)
    listener = Listener(str(folder / "leeward.sock"), own_folder=False)
    listener.close()

    assert mode == listener.folder_mode
    assert mode == stat.S_IMODE(folder.stat().st_mode)


def test_leewards_own_folder_is_closed_to_others(tmp_path: Path) -> None:
    """An old one may have been made by hand."""
    folder = tmp_path / "leeward"
    folder.mkdir()
    folder.chmod(0o755)
    listener = Listener(str(folder / "leeward.sock"), own_folder=True)
    listener.close()

    assert 0o700 == listener.folder_mode
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


def test_c104_a_folder_by_a_link_is_refused(tmp_path: Path) -> None:
    """Whoever made the link decides where it goes."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with pytest.raises(BadRequest, match="symbolic link"):
        Listener(str(link / "leeward.sock"), own_folder=False)

    assert [] == list(real.iterdir())


def test_c104_a_strangers_folder_is_refused(tmp_path: Path) -> None:
    """Even if it is closed to everybody else."""
    folder = Path("/usr")  # root's; as root we can make one that isn't ours
    if os.geteuid() == 0:
        folder = tmp_path / "theirs"
        folder.mkdir(mode=0o700)
        os.chown(folder, 4711, 4711)
    with pytest.raises(BadRequest, match="belongs to user"):
        Listener(str(folder / "leeward.sock"), own_folder=True)


def test_another_socket_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """Closing removes only what it made."""
    path = tmp_path / "leeward.sock"
    first = Listener(str(path), own_folder=False)
    path.unlink()
    second = Listener(str(path), own_folder=False)
    first.close()

    assert connects(path)
    second.close()


def test_a_long_path_works(tmp_path: Path) -> None:
    """A sockaddr_un has 108 bytes; the folder's descriptor makes up for it."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir(mode=0o700)
    listener = Listener(str(folder / "leeward.sock"), own_folder=False)

    assert (folder / "leeward.sock").is_socket()
    listener.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Only the last part is made."""
    with pytest.raises(BadRequest, match="nowhere"):
        Listener(str(tmp_path / "nowhere" / "leeward" / "s"), own_folder=True)

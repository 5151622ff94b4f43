"""What a veil hides and what it shows, with folders in the place of mounts. tests/escapes/test_host_view.py has mounts."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from leeward._native.mounts import MountAttr
from leeward.crossing import veil
from leeward.errors import KernelRefusal, LeewardError


class Mounts:
    """A cover is a new folder in the place of the old one, whose descriptor stays good; what is mounted is copied."""

    def __init__(self) -> None:
        self.covers: dict[int, int] = {}
        self.sealed: list[tuple[str, MountAttr]] = []
        self.refuses: dict[str, int] = {}

    def filesystem(self, kind: str, options: dict[str, str], attributes: MountAttr) -> int:
        assert "tmpfs" == kind
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.covers[fd] = int(options["mode"], 8)
        return fd

    def copy(self, source: str) -> int:
        if (number := self.refuses.get(os.path.basename(source))) is not None:
            raise KernelRefusal("open_tree", source, number)
        return os.open(source, os.O_PATH | os.O_CLOEXEC)

    def move_mount(self, mount: int, to: str) -> None:
        if mount in self.covers:
            os.rename(to, f"{to}.below")
            os.mkdir(to)
            os.chmod(to, self.covers.pop(mount))
        elif os.path.isdir(to):
            shutil.copytree(f"/proc/self/fd/{mount}/.", to, symlinks=True, dirs_exist_ok=True)
        else:
            os.chmod(to, 0o600)
            shutil.copyfile(f"/proc/self/fd/{mount}", to)

    def remount(self, path: str, attributes: MountAttr) -> None:
        self.sealed.append((path, attributes))


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    made = Mounts()
    for name in ("filesystem", "copy", "move_mount", "remount"):
        monkeypatch.setattr(veil.native, name, getattr(made, name))
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    for name in (".ssh/id", ".config/gh/hosts", ".config/app/settings", "open", "a.env", "project/.env"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "way").symlink_to(".ssh/id")
    os.mkfifo(folder / "fifo")
    folder.chmod(0o750)
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_names_are_hidden_and_the_others_are_shown(mounts: Mounts, home: Path) -> None:
    """A path hides its last name alone. A link is shown as it is, and leads nowhere; a FIFO isn't shown."""
    assert [str(home)] == veil.hide([(str(home), (".ssh", ".config/gh", "*.env", ".pgpass"))])

    assert {".config", ".config/app", ".config/app/settings", "open", "way", "project", "project/.env"} == names(home)
    assert "open" == (home / "open").read_text()
    assert (".ssh/id", False) == (os.readlink(home / "way"), (home / "way").exists())
    assert 0o750 == stat.S_IMODE(home.stat().st_mode)
    assert [(str(home), MountAttr.NOSUID | MountAttr.NODEV | MountAttr.RDONLY)] == mounts.sealed


def test_a_name_that_isnt_there_is_covered_as_well(mounts: Mounts, home: Path) -> None:
    """The host may make it later."""
    assert [str(home)] == veil.hide([(str(home), (".netrc",))])

    (Path(f"{home}.below") / ".netrc").write_text("later")
    assert ".netrc" not in names(home)


def test_paths_that_are_no_folders_are_left_alone(mounts: Mounts, home: Path) -> None:
    rows = [("/", ("*",)), (str(home / "open"), ("*",)), (str(home / "missing"), ("*",))]

    assert [] == veil.hide(rows)
    assert [] == mounts.sealed


def test_a_link_to_a_folder_hides_in_the_folder(mounts: Mounts, home: Path) -> None:
    link = home.parent / "link"
    link.symlink_to(home)

    assert [str(home)] == veil.hide([(str(link), (".ssh",))])
    assert ".ssh" not in names(home)


def test_a_folder_that_cant_be_listed_is_hidden_whole(mounts: Mounts, home: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a name there could be read by that name still. So it is for a folder on the way to a name."""
    real = os.listdir

    def refused(path: str) -> list[str]:
        if path.endswith((str(closed), f"/{closed.name}")):
            raise PermissionError(errno.EACCES, "closed")
        return real(path)

    monkeypatch.setattr(os, "listdir", refused)
    closed = home / ".config"
    assert [str(home)] == veil.hide([(str(home), (".config/gh",))])
    assert {name for name in names(home) if name.startswith(".config")} == {".config"}

    closed = home / "project"
    assert [str(closed)] == veil.hide([(str(closed), (".env",))])
    assert set() == names(closed)


@pytest.mark.parametrize("secret", [".ssh", ".config/gh"])
def test_a_folder_with_secrets_and_too_much_is_refused(mounts: Mounts, home: Path, secret: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is covered. One on the way to a secret is refused too."""
    before = names(home)
    monkeypatch.setattr(veil, "MOST", 4)
    with pytest.raises(LeewardError, match="has secrets, and more than 4 entries"):
        veil.hide([(str(home), (secret,))])
    assert before == names(home)

    for number in range(8):
        (home / ".config" / str(number)).touch()
    monkeypatch.setattr(veil, "MOST", len(os.listdir(home)))
    with pytest.raises(LeewardError, match=r"\.config' has secrets, and more than"):
        veil.hide([(str(home), (".config/gh",))])


def test_a_folder_without_secrets_and_too_much_is_shown_as_it_is(mounts: Mounts, home: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes there later is seen: docs/shell.md says so."""
    before = names(home)
    monkeypatch.setattr(veil, "MOST", 4)

    assert [] == veil.hide([(str(home), (".netrc",))])
    assert before == names(home)


def test_an_entry_that_goes_meanwhile_is_no_error(mounts: Mounts, home: Path) -> None:
    mounts.refuses["open"] = errno.ENOENT

    assert [str(home)] == veil.hide([(str(home), (".ssh",))])


def test_an_entry_that_cant_be_mounted_is_an_error(mounts: Mounts, home: Path) -> None:
    """Nothing is shown in another way than by the mount."""
    mounts.refuses["open"] = errno.EINVAL

    with pytest.raises(LeewardError, match="open_tree"):
        veil.hide([(str(home), (".ssh",))])

"""Layers are shared, names are given last, and what nobody names goes."""

from __future__ import annotations

import fcntl
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.images import file, folder, imported, layer, oci
from leeward.apps.images import packing
from leeward.apps.images import store as of_store
from leeward.apps.images.sources import find
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import BadImage, ImageBounds
from leeward.daemon import images as of_daemon
from leeward.daemon.held_locks import HeldLocks
from leeward.errors import BadRequest, PoolFailed
from leeward.spec import images

BASE, ONE, TWO = layer(folder("etc"), file("base", b"b" * 1000)), layer(file("one")), layer(file("two"))


@pytest.fixture
def store(tmp_path: Path) -> Images:
    return Images(str(tmp_path / "store"), size=1 << 20)


def layers(store: Images) -> list[str]:
    return sorted(name for name in os.listdir(Path(store.folder) / "layers") if not name.endswith(".json"))


def test_layers_are_unpacked_once_and_removed_with_the_last_image(tmp_path: Path, store: Images) -> None:
    one = imported(store, oci(tmp_path / "1", [BASE, ONE]), "one")
    two = imported(store, oci(tmp_path / "2", [BASE, TWO]), "two")

    assert one.layers[0] == two.layers[0]
    assert 3 == len(layers(store))
    assert 0o700 == stat.S_IMODE(os.stat(store.folder).st_mode)
    assert ["one", "two"] == list(store.names())
    assert (9728, 10240) == (store.size_of(one), store.used())  # a folder, a file's block, and 512 bytes for each name

    store.remove("one")

    assert (1, 512, 0) == store.prune()
    assert sorted(two.layers) == layers(store)
    with pytest.raises(BadRequest, match=r"no image 'one'; there are: two"):
        store.image("one")
    with pytest.raises(BadRequest, match="no image 'one'"):
        store.remove("one")


def test_a_layer_that_is_repeated_is_there_once_where_it_was_last(tmp_path: Path, store: Images) -> None:
    """Builders repeat empty ones; the kernel's overlays have none twice."""
    one, two = (imported(store, oci(tmp_path / str(number), [each])).layers[0] for number, each in enumerate((ONE, TWO)))
    assert (one, two) == imported(store, oci(tmp_path / "all", [TWO, ONE, ONE, TWO])).layers


def test_what_can_not_be_recorded_is_refused(tmp_path: Path, store: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that nobody could read again would make all of the store unusable."""
    monkeypatch.setattr(images, "MOST_WRITTEN", 1000)
    with pytest.raises(BadImage, match="list of folders above its files is longer than 1000 bytes"):
        imported(store, oci(tmp_path / "1", [layer(*(file(f"{number}/file") for number in range(200)))]))
    with pytest.raises(BadImage, match="configuration is longer"):
        imported(store, oci(tmp_path / "2", [ONE], {"Env": [f"A={'x' * 1000}"]}))
    imported(store, oci(tmp_path / "3", [ONE]))
    assert ["image"] == list(store.names())


def test_names_are_counted_over_all_layers(tmp_path: Path, store: Images) -> None:
    many = [layer(*(file(f"{which}{number}") for number in range(6))) for which in "ab"]
    with pytest.raises(BadImage, match=r"more names than the (4|10)"):
        imported(store, oci(tmp_path / "1", many), bounds=ImageBounds(names=10))
    assert 2 == len(imported(store, oci(tmp_path / "2", many)).layers)
    with pytest.raises(BadImage, match=r"more names than the (4|10)"):
        imported(store, oci(tmp_path / "3", many), bounds=ImageBounds(names=10))  # of layers that are there already


def test_a_layer_in_use_stays(tmp_path: Path, store: Images) -> None:
    image = imported(store, oci(tmp_path / "1", [BASE]))
    store.remove("image")
    with open(Path(store.folder) / "layers" / f"{image.layers[0]}.json") as held:
        fcntl.flock(held, fcntl.LOCK_SH)

        assert (0, 0, 1) == store.prune()

    assert (1, 9216, 0) == store.prune()


def test_a_name_stands_for_another_image_after_an_import(tmp_path: Path, store: Images) -> None:
    first = imported(store, oci(tmp_path / "1", [BASE]))
    second = imported(store, oci(tmp_path / "2", [BASE], {"User": "7"}))

    assert first.hash != second.hash
    assert second == store.image("image")


def test_what_was_left_half_made_goes(tmp_path: Path, store: Images) -> None:
    imported(store, oci(tmp_path / "1", [BASE]))
    half = Path(store.folder) / "layers" / "half"
    (half / "closed").mkdir(parents=True)
    (half / "closed").chmod(0)
    record = Path(store.folder) / "images/.name.json.0123"
    record.touch()

    store.prune()

    assert 1 == len(layers(store))
    assert not record.exists()


def test_the_room_is_bounded(tmp_path: Path, store: Images) -> None:
    with pytest.raises(BadImage, match="more than"):
        imported(store, oci(tmp_path / "1", [layer(file("big", bytes(2 << 20)))]))

    assert [] == layers(store)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "1st", "a" * 65, "ä"])
def test_names(name: str, tmp_path: Path, store: Images) -> None:
    with pytest.raises(BadRequest, match="can't be an image's name"):
        imported(store, oci(tmp_path / "1", [BASE]), name)


@pytest.mark.parametrize(("uid", "alone"), [(0, False), (1000, True)])
def test_two_exports_of_an_ordinary_user_are_made_one_after_the_other(
        tmp_path: Path, store: Images, monkeypatch: pytest.MonkeyPatch, uid: int, alone: bool) -> None:
    """Each opens files of mode 000 to itself for a moment, and the other one would write down that mode."""
    def written(*_: object) -> None:
        with open(Path(store.folder, ".lock")) as held:
            if not alone:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            with pytest.raises(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)

    imported(store, oci(tmp_path / "oci", [layer(file("a", mode=0))]), "image")
    monkeypatch.setattr(packing, "write", written)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    store.export("image", str(tmp_path / "out.tar"))


def test_an_export_is_the_same_image(tmp_path: Path, store: Images) -> None:
    top = layer(file(".wh.base"), folder("etc"), file("etc/.wh..wh..opq"), file("etc/x", b"x", mode=0o600))
    before = imported(store, oci(tmp_path / "1", [BASE, top], {"User": "7", "Env": ["A=1"], "Cmd": ["x"]}))
    store.export("image", str(tmp_path / "out.tar"))
    with tarfile.open(tmp_path / "out.tar") as archive:  # an engine of an ordinary user's gives what isn't said to root
        rows = {each.name: (each.uid, each.gid) for each in archive}
    assert {(os.geteuid(), os.getegid())} == {*rows.values()}
    assert {"blobs", "blobs/sha256"} < {*rows}

    after = imported(Images(str(tmp_path / "other")), tmp_path / "out.tar")
    made = tmp_path / "other" / "layers" / after.layers[1]

    assert before.config == after.config
    assert stat.S_ISCHR((made / "base").lstat().st_mode)
    assert b"y" == os.getxattr(made / "etc", "user.overlay.opaque")
    assert 0o600 == stat.S_IMODE((made / "etc/x").stat().st_mode)
    with pytest.raises(FileExistsError):
        store.export("image", str(tmp_path / "out.tar"))


def test_a_folder_has_its_name_last(tmp_path: Path, store: Images) -> None:
    """A failure of the second layer leaves the first one, and no image."""
    with pytest.raises(BadImage), find(str(oci(tmp_path / "1", [BASE, b"nonsense" * 100])), ImageBounds()) as found:
        store.add("image", found, "here", ImportProgress(), ImageBounds())

    assert 1 == len(layers(store))
    assert {} == store.names()


@pytest.mark.parametrize("how", ["cut", "folder", "link", "fifo"])
def test_what_is_spoiled_costs_itself_alone(tmp_path: Path, store: Images, how: str) -> None:
    """The same import mends it, or `prune` where a folder is in its place."""
    one, two = (imported(store, oci(tmp_path / name, [each]), name) for name, each in (("one", ONE), ("two", TWO)))
    for place in (images.name_path(store.folder, "one"), images.image_path(store.folder, one.hash),
                  images.layer_record_path(store.folder, one.layers[0]), images.name_path(store.folder, "three")):
        spoil(Path(place), how)

    assert {"one": None, "three": None, "two": two} == store.names()
    assert (512, 512, 0) == (store.size_of(two), store.used(), store.size_of(one))
    store.remove("three")
    store.remove("one")
    if how == "folder":
        store.prune()
    assert one == replace(imported(store, oci(tmp_path / "again", [ONE]), "one"), created=one.created, source=one.source)
    assert 1024 == store.used()
    assert (0, 0, 0) == store.prune()


def spoil(place: Path, how: str) -> None:
    """Put what can't be read as a record in the place of one, if there is one."""
    place.unlink(missing_ok=True)
    if how == "cut":
        place.write_text("{")
    elif how == "folder":
        (place / "more").mkdir(parents=True)
    elif how == "link":
        place.symlink_to(place.parent)
    else:
        os.mkfifo(place)


@pytest.mark.parametrize("reader", ["store", "daemon"])
def test_a_name_that_is_given_anew_while_it_is_followed_is_followed_again(
        reader: str, tmp_path: Path, store: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it stood for may have been removed meanwhile, record and layers. Without another meaning it is an error."""
    module: Any = {"store": of_store, "daemon": of_daemon}[reader]
    imported(store, oci(tmp_path / "1", [ONE]))
    oci(tmp_path / "2", [TWO])
    read = module._read
    monkeypatch.setattr(of_daemon, "on_tmpfs", lambda: True)

    def follow() -> tuple[str, ...]:
        if reader == "store":
            return store.image("image").layers
        return tuple(map(os.path.basename, of_daemon.find(store.folder, "image", "", HeldLocks(8)).layers))

    def changed(path: str) -> bytes | None:
        found: bytes | None = read(path)
        monkeypatch.setattr(module, "_read", read)
        imported(store, tmp_path / "2")
        assert (1, 512, 0) == store.prune()
        return found

    monkeypatch.setattr(module, "_read", changed)

    found = follow()
    assert store.image("image").layers == found

    os.unlink(images.image_path(store.folder, store.image("image").hash))
    with pytest.raises((BadRequest, PoolFailed), match="was removed"):
        follow()


def test_nobody_begins_to_use_what_is_removed(tmp_path: Path, store: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither meanwhile nor with a record that was opened before, of which a daemon had a lock that kept nothing."""
    record = images.layer_record_path(store.folder, imported(store, oci(tmp_path / "1", [ONE])).layers[0])
    store.remove("image")
    discard, opened, tried = store._discard, os.open, list[str]()

    def use(when: str) -> None:
        with pytest.raises(BadRequest, match="just being removed"):
            HeldLocks(1).hold(record)
        tried.append(when)

    def opened_before(path: str, flags: int) -> int:
        monkeypatch.setattr(os, "open", opened)
        fd = os.open(path, flags)
        assert (1, 512, 0) == store.prune()
        return fd

    monkeypatch.setattr(store, "_discard", lambda digest: (use("meanwhile"), discard(digest)))
    monkeypatch.setattr(os, "open", opened_before)
    use("afterwards")

    assert ["meanwhile", "afterwards"] == tried

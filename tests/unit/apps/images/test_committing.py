"""What a sandbox has changed of its image's root becomes a layer, by all that a stranger's layer goes through."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.images import file, folder, imported, layer, link, oci
from leeward._native.memfd import memory_file
from leeward.apps.images.committing import commit, diff
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import BadImage
from leeward.apps.images.unpacking import OPAQUE
from leeward.client.arena import SEALS
from leeward.crossing import walk
from leeward.errors import BadRequest, RequestRejected
from leeward.spec.images import Image, image_path, layer_path, write_image
from leeward.wire.replies import Reply

BASE = layer(folder("etc"), file("etc/passwd", b"me:x:7:8::/home/me:/bin/sh\n"), folder("old"), file("old/a", b"a"))


class Box:
    """A sandbox whose root's changes are in the folder *upper*, which is read as a porter reads it."""

    id = "a sandbox"

    def __init__(self, upper: Path, image: str, layers: tuple[str, ...]) -> None:
        self.upper, self.image, self.layers = upper, image, layers
        self.gone = b""  # a file that isn't one any more when it is read
        self.targets = list[str]()  # of folders of the host
        self._connections = self

    def info(self) -> dict[str, Any]:
        return {"image": self.image, "layers": [*self.layers], "mounts": [{"target": target} for target in self.targets]}

    def call(self, op: str, fields: Mapping[str, Any]) -> tuple[Reply, list[int]]:
        assert "/" == fields["target"]
        upper, into = os.open(self.upper, os.O_PATH), memory_file("answer")
        try:
            if op == "overlay_diff":
                walk.rows(upper, into)
            elif self.gone and self.gone in (fields["path"], *fields.get("paths", ())):
                raise RequestRejected("it isn't a file any more")
            elif paths := fields.get("paths"):
                walk.whole_files(upper, [fields["path"], *paths], into)
            else:
                walk.piece(upper, fields["path"], fields["offset"], into)
        finally:
            os.close(upper)
        if size := os.fstat(into).st_size:
            fcntl.fcntl(into, fcntl.F_ADD_SEALS, SEALS)
            return Reply(1, {"size": size}, "", "", [size]), [into]
        os.close(into)
        return Reply(1, {"size": 0}, "", "", []), []


@pytest.fixture
def store(tmp_path: Path) -> Images:
    return Images(str(tmp_path / "store"), size=1 << 22)


@pytest.fixture
def box(tmp_path: Path, store: Images) -> Box:
    base = imported(store, oci(tmp_path / "oci", [BASE], {"User": "me", "Env": ["A=1"]}), "base")
    upper = tmp_path / "upper"
    upper.mkdir()
    return Box(upper, "base", base.layers)


def committed(box: Box, store: Images, name: str = "new") -> tuple[Image, Mapping[str, int], Path]:
    made, left = commit(box, store, name, ImportProgress())  # type: ignore[arg-type]  # what it asks of a Sandbox
    return made, left, Path(layer_path(store.folder, made.layers[-1]))


def test_changes_are_one_more_layer_with_the_images_configuration(box: Box, store: Images) -> None:
    (box.upper / "etc").mkdir()
    (box.upper / "etc/passwd").write_bytes(b"me:x:7:9::/srv:/bin/sh\n")
    (box.upper / "app").mkdir()
    (box.upper / "app/run").write_bytes(b"#!/bin/sh\n")
    (box.upper / "app/run").chmod(0o755)
    os.utime(box.upper / "app/run", ns=(0, 5 * 10**9 + 5 * 10**8))
    (box.upper / "app/link").symlink_to("../run")
    (box.upper / "app/\udcff").write_bytes(b"")
    (box.upper / "big").write_bytes(b"b" * (100 << 10))
    (box.upper / "hole").touch()
    os.truncate(box.upper / "hole", 200 << 10)

    made, left, there = committed(box, store)

    assert {} == left
    assert made == store.image("new")
    assert (*box.layers, there.name) == made.layers
    assert (7, 9, "/srv") == made.identity("")
    assert (("A", "1"),) == made.config.env
    about = (there / "app/run").stat()
    assert (0o755, 5_500_000_000) == (stat.S_IMODE(about.st_mode), about.st_mtime_ns)
    assert ("../run", b"b" * (100 << 10)) == (os.readlink(there / "app/link"), (there / "big").read_bytes())
    assert ["link", "run", "\udcff"] == sorted(os.listdir(there / "app"))
    assert (200 << 10, 0) == ((there / "hole").stat().st_size, (there / "hole").stat().st_blocks)
    assert [] == [name for name in os.listdir(Path(store.folder, "layers")) if name.startswith("half")]


def test_what_is_missing_is_marked(box: Box, store: Images) -> None:
    os.mknod(box.upper / "old", stat.S_IFCHR, 0)
    (box.upper / "etc").mkdir()
    os.setxattr(box.upper / "etc", OPAQUE, b"y")

    _, _, there = committed(box, store)

    assert stat.S_ISCHR((there / "old").stat().st_mode)
    assert b"y" == os.getxattr(there / "etc", OPAQUE)


def test_what_is_not_the_sandboxs_or_no_layers_is_left_out(box: Box, store: Images) -> None:
    """Leeward's own files; names by which a program would mark what is missing; FIFOs; set-id bits."""
    for name in ("proc", "dev", "etc", "home", ".wh.etc", "home/.wh.old", "home/.wh.old/in"):
        (box.upper / name).mkdir()
    for name in ("etc/hosts", "etc/resolv.conf", ".wh.old", "home/.wh..wh..opq", "home/set", "home/gone", ".wh.etc/a",
                 "home/.wh.old/in/a"):
        (box.upper / name).write_bytes(b"x")
    (box.upper / "home/set").chmod(0o6755)
    os.mkfifo(box.upper / "fifo")
    box.gone = b"home/gone"

    _, left, there = committed(box, store)

    assert {"names that begin with .wh.": 7, "special files": 1, "set-id bits": 1, "files that changed meanwhile": 1} == left
    assert (["home"], ["set"]) == (os.listdir(there), os.listdir(there / "home"))
    assert 0o755 == stat.S_IMODE((there / "home/set").stat().st_mode)


def test_folders_that_leeward_makes_are_no_changes(box: Box, store: Images) -> None:
    """Those of each sandbox, and the targets of mounts, unless the sandbox has changed them or put something there."""
    box.targets = ["/srv/project", "/home/me/data", "/old", "/root/own"]
    for name, mode in (("tmp", 0o1777), ("workspace", 0o755), ("etc", 0o755), ("srv", 0o755), ("srv/project", 0o755),
                       ("home", 0o755), ("home/me", 0o755), ("home/me/data", 0o755), ("old", 0o755), ("root", 0o700),
                       ("empty", 0o755)):
        (box.upper / name).mkdir()
        (box.upper / name).chmod(mode)
    (box.upper / "root/own").touch(0o444)
    (box.upper / "home/me/note").write_bytes(b"x")
    found = {change.path for change in diff(box, store)}  # type: ignore[arg-type]  # as for `commit`
    _, _, there = committed(box, store)

    assert {"home", "home/me", "home/me/note", "root", "empty"} == found
    assert ["empty", "home", "old", "root"] == sorted(os.listdir(there))  # `old` is the image's: its mode may be new
    assert ["note"] == os.listdir(there / "home/me")
    (box.upper / "tmp").chmod(0o755)
    (box.upper / "workspace/note").write_bytes(b"x")
    assert {"tmp", "workspace", "workspace/note"} < {
        change.path for change in diff(box, store)}  # type: ignore[arg-type]


def test_what_can_not_be_committed(box: Box, store: Images) -> None:
    """And nothing is left of it."""
    before = sorted(os.listdir(Path(store.folder, "layers")))
    (box.upper / "large").touch()
    os.truncate(box.upper / "large", 1 << 40)  # as a program can: its holes cost nothing
    with pytest.raises(BadRequest, match="images_size"):
        committed(box, store)
    (box.upper / "large").unlink()
    os.makedirs(box.upper / "/".join(["d"] * 300))
    with pytest.raises(BadImage, match="deeper than 256"):
        committed(box, store)
    with pytest.raises(BadRequest, match="can't be an image's name"):
        committed(box, store, "../x")
    box.layers = ("0" * 64,)
    with pytest.raises(BadRequest, match="'base' aren't in"):
        committed(box, store)
    box.image = ""
    with pytest.raises(BadRequest, match="has the host's files"):
        committed(box, store)

    assert ["base"] == list(store.names())
    assert before == sorted(os.listdir(Path(store.folder, "layers")))


def test_an_image_of_as_many_layers_as_there_may_be_gets_no_more(box: Box, store: Images) -> None:
    base = store.image("base")
    full = Image(base.layers * 128, base.config, base.users, base.groups, "", 0)
    Path(image_path(store.folder, base.hash)).write_bytes(write_image(full))
    box.layers = full.layers

    with pytest.raises(BadRequest, match="has 128 layers"):
        committed(box, store)


def test_changes_are_compared_with_all_layers_together(box: Box, store: Images, tmp_path: Path) -> None:
    """As an overlay of them shows them: what an upper layer has removed or covered isn't there to be removed."""
    lower = layer(folder("a"), file("a/one", b"1"), file("a/two", b"2"), folder("b"), file("b/x"), folder("c"), file("c/y"),
                  file("f", b"f"), link("l", "f"), folder("d"), folder("d/e"), file("d/e/z"))
    upper = layer(folder("a"), file("a/.wh.one"), file("a/two", b"second"), folder("b"), file("b/.wh..wh..opq"),
                  file(".wh.c"), file("new"))
    box.layers = imported(store, oci(tmp_path / "two", [lower, upper]), "base").layers
    for name in ("a", "b", "d"):
        (box.upper / name).mkdir()
    for name, content in (("a/one", b"1"), ("a/two", b"second"), ("b/x", b""), ("new", b"n"), ("f", b"g")):
        (box.upper / name).write_bytes(content)
        (box.upper / name).chmod(0o644)
    (box.upper / "l").symlink_to("elsewhere")
    os.mknod(box.upper / "c", stat.S_IFCHR, 0)
    os.setxattr(box.upper / "d", OPAQUE, b"y")

    found = {change.path: change.kind for change in diff(box, store)}  # type: ignore[arg-type]  # as for `commit`

    assert {"a/one": "created", "b/x": "created", "new": "modified", "f": "modified", "l": "modified", "d/e": "deleted",
            "d/e/z": "deleted"} == found

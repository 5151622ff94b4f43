"""Images are found in what others write, and what they say is checked."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.images import file, folder, imported, layer, link, oci, tarred
from leeward.apps.images.sources import find
from leeward.apps.images.store import Images
from leeward.apps.images.streams import BadImage, ImageBounds
from leeward.errors import BadRequest, Unsupported

BASE, TOP = layer(folder("etc"), file("etc/passwd", b"root:x:0:0:r:/root:/bin/sh\nwww:x:33:34:w:/var/www:\n"),
                  file("etc/group", b"root:x:0:\nweb:x:55:\n")), layer(file("app", b"program"))
CONFIG = {"Env": ["A=1", "B=x=y"], "WorkingDir": "app", "User": "www:web", "Entrypoint": ["/init"], "Cmd": ["serve"]}


@pytest.fixture
def store(tmp_path: Path) -> Images:
    return Images(str(tmp_path / "store"))


def docker(path: Path, to: Path, *, linked: bool = False) -> Path:
    """An archive as `docker save` writes it, from an OCI layout without compression."""
    row = json.loads((path / "index.json").read_text())["manifests"][0]
    manifest = json.loads((path / "blobs/sha256" / row["digest"][7:]).read_text())
    with tarfile.open(to, "w") as archive:
        for number, each in enumerate(manifest["layers"]):
            archive.add(path / "blobs/sha256" / each["digest"][7:], f"{number}/layer.tar")
            if linked:
                info = tarfile.TarInfo(f"{number}/again.tar")
                info.type, info.linkname = tarfile.SYMTYPE, f"../{number}/layer.tar"
                archive.addfile(info)
        archive.add(path / "blobs/sha256" / manifest["config"]["digest"][7:], "config.json")
        name = "again.tar" if linked else "layer.tar"
        about = path / "manifest.json"
        about.write_text(json.dumps([{"Config": "config.json", "RepoTags": ["test:1"],
                                      "Layers": [f"{number}/{name}" for number, _ in enumerate(manifest["layers"])]}]))
        archive.add(about, "manifest.json")
        about.unlink()
    return to


MAKERS: dict[str, Callable[[Path], Path]] = {
    "layout": lambda at: oci(at / "oci", [BASE, TOP], CONFIG),
    "plain layout": lambda at: oci(at / "oci", [BASE, TOP], CONFIG, zipped=False),
    "archive of a layout": lambda at: tarred(oci(at / "oci", [BASE, TOP], CONFIG), at / "a.tar"),
    "compressed archive": lambda at: tarred(oci(at / "oci", [BASE, TOP], CONFIG), at / "a.tgz", "w:gz"),
    "docker": lambda at: docker(oci(at / "oci", [BASE, TOP], CONFIG, zipped=False), at / "d.tar"),
    "docker with links": lambda at: docker(oci(at / "oci", [BASE, TOP], CONFIG, zipped=False), at / "d.tar", linked=True),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_form_is_the_same_image(kind: str, tmp_path: Path, store: Images) -> None:
    image = imported(store, MAKERS[kind](tmp_path))
    base, top = (Path(store.folder) / "layers" / digest for digest in image.layers)

    assert b"program" == (top / "app").read_bytes()
    assert (base / "etc/group").exists()
    assert (("A", "1"), ("B", "x=y")) == image.config.env
    assert ("/app", "www:web", ("/init",), ("serve",)) == (
        image.config.cwd, image.config.user, image.config.entrypoint, image.config.cmd)
    assert (33, 55, "/var/www") == image.identity("")
    assert (0, 0, "/root") == image.identity("root")
    assert (7, 0, "/") == image.identity("7")
    assert (7, 8, "/") == image.identity("7:8")
    assert image == store.image("image")
    for user in ("nobody", "www:none", "-1", "99999999999", "٣"):
        with pytest.raises(BadRequest, match="the image has no"):
            image.identity(user)


def test_a_root_is_an_image_of_one_layer(tmp_path: Path, store: Images) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "bin").symlink_to("usr/bin")
    (root / "program").write_bytes(b"x")
    (root / "again").hardlink_to(root / "program")
    os.mkfifo(root / "pipe")
    archive = tmp_path / "root.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(root, ".")

    for source in (root, archive):
        image = imported(store, source)
        made = Path(store.folder) / "layers" / image.layers[0]

        assert 1 == len(image.layers)
        assert "usr/bin" == os.readlink(made / "bin")
        assert (made / "again").samefile(made / "program")
        assert (made / "pipe").is_fifo()
        assert "/root" == image.identity("")[2]


def _spoil(at: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the manifest, and name it anew."""
    index = json.loads((at / "index.json").read_text())
    row = index["manifests"][0]
    manifest = json.loads((at / "blobs/sha256" / row["digest"][7:]).read_text())
    change(manifest)
    data = json.dumps(manifest).encode()
    row["digest"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    (at / "blobs/sha256" / row["digest"][7:]).write_bytes(data)
    (at / "index.json").write_text(json.dumps(index))
    return at


def _kind(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["mediaType"] += "+encrypted"


def _digest(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["digest"] = "sha512:" + "0" * 128


@pytest.mark.parametrize(("change", "why"), [
    (_kind, "is encrypted"), (_digest, "isn't sha256's"), (lambda each: each["layers"].pop(), "1 layers, and 2 digests"),
    (lambda each: each.pop("config"), "lacks a part"), (lambda each: each.update(layers="x"), "lacks its list"),
    (lambda each: each["layers"][0].update(digest="sha256:" + "0" * 64), "isn't there")])
def test_manifests_that_are_refused(change: Callable[[dict[str, Any]], object], why: str, tmp_path: Path,
                                    store: Images) -> None:
    with pytest.raises(BadImage, match=why):
        imported(store, _spoil(oci(tmp_path / "oci", [BASE, TOP]), change))


def test_another_machine_is_refused(tmp_path: Path, store: Images) -> None:
    with pytest.raises(Unsupported, match="another machine"):
        imported(store, oci(tmp_path / "oci", [BASE], architecture="sparc64"))


def test_a_digest_that_is_wrong_leaves_nothing(tmp_path: Path, store: Images) -> None:
    at = oci(tmp_path / "oci", [BASE, TOP], zipped=False)
    blob = next(each for each in (at / "blobs/sha256").iterdir() if TOP == each.read_bytes())
    blob.write_bytes(TOP.replace(b"program", b"changed"))

    with pytest.raises(BadImage, match="should have"):
        imported(store, at)

    assert {} == store.names()
    assert (1, 0) == (store.prune()[0], store.prune()[0])  # the layer below it was right
    assert [] == os.listdir(Path(store.folder) / "layers")


def test_several_images_are_chosen_by_a_tag(tmp_path: Path, store: Images) -> None:
    at = oci(tmp_path / "oci", [BASE], tag="one")
    rows = json.loads((at / "index.json").read_text())["manifests"]
    oci(at, [BASE, TOP], tag="two")
    rows += json.loads((at / "index.json").read_text())["manifests"]
    (at / "index.json").write_text(json.dumps({"manifests": rows}))

    with pytest.raises(BadRequest, match=r"choose one by --tag: 'one', 'two'"):
        imported(store, at)
    with pytest.raises(BadRequest, match="no image 'three'"):
        imported(store, at, tag="three")
    assert 2 == len(imported(store, at, tag="two").layers)


def test_a_layer_that_writes_through_a_lower_link_is_refused(tmp_path: Path, store: Images) -> None:
    lower = layer(folder("usr/bin"), link("bin", "usr/bin"))

    with pytest.raises(BadImage, match="through 'bin', a link"):
        imported(store, oci(tmp_path / "a", [lower, layer(file("bin/new"))]))
    imported(store, oci(tmp_path / "b", [lower, layer(folder("bin"), file("bin/new"))]))  # a folder in place of the link


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda below: st.lists(below, max_size=3) | st.dictionaries(
                        st.sampled_from(["manifests", "digest", "config", "Config", "Layers", "RepoTags", "layers",
                                         "platform", "annotations", "mediaType", "rootfs", "diff_ids"]), below, max_size=4)))
def test_any_document_gives_an_image_or_its_error(tmp_path_factory: pytest.TempPathFactory, about: object) -> None:
    for name, beside in (("index.json", "oci-layout"), ("manifest.json", "other")):
        at = tmp_path_factory.mktemp("any")
        (at / name).write_text(json.dumps(about))
        (at / beside).touch()
        with contextlib.suppress(BadRequest, Unsupported), find(str(at), ImageBounds()) as found:
            assert found.layers

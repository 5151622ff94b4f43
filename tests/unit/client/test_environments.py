"""
The folder of environments that `leeward env` has made, without a sandbox.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from leeward.client import environments
from leeward.client.environments import BuildFailed, Environments, PackageSource, seal
from leeward.errors import BadRequest
from leeward.spec.stored import Manifest, Named, Recipe, built_path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """
    pip installs one file, without a sandbox.
    """
    def install(path: str, recipe: Recipe, source: PackageSource, said: object, check: object) -> dict[str, str]:
        if "bad" in recipe.requirements:
            raise BuildFailed("pip failed")
        Path(path, "lib", "package.py").write_text("1\n")
        if "worse" in recipe.requirements:
            Path(path, "bin", "python").unlink()
            Path(path, "bin", "python").write_text("#!/bin/sh\n")
        return {"package": "1"}

    monkeypatch.setattr(environments, "_install", install)
    return Environments(str(tmp_path / "store"))


def create(store: Environments, name: str, *requirements: str, size: int = 1 << 30) -> tuple[Manifest, bool]:
    source = PackageSource(size=size)
    return store.create(name, store.recipe(requirements, source, from_source=False), source, Named, lambda piece: None)


def built(store: Environments) -> list[str]:
    return sorted(os.listdir(os.path.join(store.folder, "built")))


def test_the_same_is_made_once(store: Environments) -> None:
    first, made = create(store, "one", "package")
    second, again = create(store, "two", "package ")

    assert made
    assert not again
    assert first == second
    assert {"one", "two"} == set(store.names())
    assert store.named("one").built == store.named("two").built
    assert not os.access(built_path(store.folder, store.named("one").built) + "/lib/package.py", os.W_OK) or (
        0 == os.stat(built_path(store.folder, store.named("one").built) + "/lib/package.py").st_mode & 0o222)


@pytest.mark.parametrize(("requirement", "why"), [("bad", "pip failed"), ("worse", "replaced the interpreter")])
def test_what_fails_leaves_nothing(store: Environments, requirement: str, why: str) -> None:
    """
    The name isn't there either, and a second attempt fails for the same reason.
    """
    for _ in range(2):
        with pytest.raises(BuildFailed, match=why):
            create(store, "one", requirement)
        assert [] == built(store)
        assert {} == store.names()


def test_what_was_interrupted_is_made_anew(store: Environments) -> None:
    """
    A folder without a manifest is what a kill leaves.
    """
    manifest, _ = create(store, "one", "package")
    hash = store.named("one").built
    os.unlink(f"{built_path(store.folder, hash)}.json")
    assert store.manifest(hash) is None

    again, made = create(store, "one", "package")

    assert made
    assert again.content == manifest.content


def test_the_bound_holds_for_all_together(store: Environments) -> None:
    manifest, _ = create(store, "one", "package")
    with pytest.raises(BadRequest, match="environments_size"):
        create(store, "two", "package", "another", size=manifest.size + 1)
    with pytest.raises(BadRequest, match="leeward env prune"):
        create(store, "two", "package", "another", size=manifest.size)
    assert {"one"} == set(store.names())


def test_prune_removes_what_no_name_stands_for(store: Environments) -> None:
    create(store, "one", "package")
    create(store, "two", "package", "another")
    kept, gone = store.named("one").built, store.named("two").built
    store.remove("two")

    fd = os.open(built_path(store.folder, gone), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as a daemon does
    assert ([], [gone]) == store.prune()
    os.close(fd)

    assert ([gone], []) == store.prune()
    assert [kept, f"{kept}.json"] == built(store)
    with pytest.raises(BadRequest, match="there is no environment 'two'"):
        store.remove("two")
    with pytest.raises(BadRequest, match="it has: one"):
        store.named("two")


def test_a_sealed_tree_is_files_folders_and_links(tmp_path: Path) -> None:
    """
    Nobody may write, a link isn't followed, and what has changed has another hash.
    """
    outside = tmp_path / "outside"
    outside.write_text("kept")
    outside.chmod(0o644)
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_text("12345")
    (tree / "link").symlink_to(outside)

    size, content = seal(str(tree))

    assert 5 == size
    assert 0o644 == outside.stat().st_mode & 0o777
    assert 0o444 == (tree / "below" / "file").stat().st_mode & 0o7777
    assert 0o555 == (tree / "below").stat().st_mode & 0o7777
    assert content == seal(str(tree))[1]
    (tree / "below" / "file").chmod(0o755)
    assert content != seal(str(tree))[1]
    tree.chmod(0o755)
    os.mkfifo(tree / "pipe")
    with pytest.raises(BuildFailed, match="'pipe' is no file"):
        seal(str(tree))


def test_requirements_are_no_options(store: Environments) -> None:
    for requirement in ("--index-url=x", "-r/etc/passwd", " "):
        with pytest.raises(BadRequest, match="requirement"):
            create(store, "one", requirement)

"""The folder of environments that `leeward env` has made, without a sandbox, and the recipe for another Python."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from kit.waiting import PATIENCE_S
from leeward.base.dataclass import replace
from leeward.client import environments
from leeward.client.environments import BuildFailed, Environments, PackageSource, of_another, seal
from leeward.client.folder_size import SizeWatch, size_of
from leeward.errors import BadRequest, Unsupported
from leeward.spec.stored import Manifest, Named, Recipe, built_path, manifest_path, name_path, packages_name


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """pip installs one file, without a sandbox."""
    def install(path: str, recipe: Recipe, source: PackageSource, said: object, check: object,
                room: int, grew: object) -> dict[str, str]:
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


def test_an_environment_of_the_same_packages_is_made_once(store: Environments) -> None:
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
def test_a_failed_creation_leaves_no_environment(store: Environments, requirement: str, why: str) -> None:
    """The name doesn't exist either, and a second attempt fails for the same reason."""
    for _ in range(2):
        with pytest.raises(BuildFailed, match=why):
            create(store, "one", requirement)
        assert [] == built(store)
        assert {} == store.names()


def test_an_interrupted_creation_is_repeated(store: Environments) -> None:
    """A folder without a manifest is left by a kill."""
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


def test_prune_removes_unnamed_environments(store: Environments) -> None:
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


def test_prune_removes_environments_made_by_packages_alone(store: Environments) -> None:
    """Unless a daemon uses one, or a user has given it a name."""
    recipe = store.recipe(["package"], PackageSource(), from_source=False)
    create(store, packages_name(recipe.hash), "package")
    fd = os.open(built_path(store.folder, recipe.hash), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert ([], [recipe.hash]) == store.prune()
    os.close(fd)
    create(store, "one", "package")
    assert ([], []) == store.prune()
    assert {"one", packages_name(recipe.hash)} == set(store.names())
    store.remove("one")

    assert ([recipe.hash], []) == store.prune()
    assert ({}, []) == (store.names(), built(store))


@pytest.mark.parametrize("how", ["{", "", None])
def test_a_spoiled_record_costs_its_environment_alone(store: Environments, how: str | None) -> None:
    """None: a FIFO is in its place. The same creation mends it."""
    create(store, "one", "package")
    create(store, "two", "other")
    two = store.named("two")
    for place in (name_path(store.folder, "one"), manifest_path(store.folder, store.named("one").built)):
        os.unlink(place)
        if how is None:
            os.mkfifo(place)
        else:
            Path(place).write_text(how)
    os.mkdir(name_path(store.folder, "three"))

    assert {"one": None, "three": None, "two": two} == store.names()
    store.remove("three")
    assert create(store, "one", "package")[1]
    assert store.manifest(store.named("one").built) is not None


def test_a_tree_without_end_is_removed(store: Environments, tmp_path: Path) -> None:
    """One that is too deep for a path and for Python's own walk, with folders that nobody may enter."""
    create(store, "one", "package")
    top = built_path(store.folder, store.named("one").built)
    os.chmod(top, 0o755)
    at = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 8, dir_fd=at)
        below = os.open("d" * 8, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.fchmod(at, 0)
    os.close(at)
    assert size_of(top, 1 << 40) > 1 << 40
    store.remove("one")

    assert 1 == len(store.prune()[0])
    assert [] == built(store)


def test_a_folders_size(tmp_path: Path) -> None:
    """A link isn't followed, a hole counts, and what can't be looked at is too much."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "hole").touch()
    os.truncate(tmp_path / "a" / "hole", 5 << 20)
    (tmp_path / "link").symlink_to("/usr")

    found = size_of(str(tmp_path), 6 << 20)
    assert 5 << 20 <= found <= (5 << 20) + 4096
    assert size_of(str(tmp_path), 4 << 20) > 4 << 20
    assert 0 == size_of(str(tmp_path / "missing"), 1)
    (tmp_path / "loop").symlink_to("loop")
    assert size_of(str(tmp_path / "loop"), 1) > 1


def test_a_watch_stops_a_creation_beyond_its_bound(tmp_path: Path) -> None:
    """Once, and not at all where it ends before."""
    called, sizes = threading.Event(), list[int]()
    with SizeWatch(str(tmp_path), 1000, called.set, sizes.append) as watch:
        (tmp_path / "file").write_bytes(bytes(2000))
        assert called.wait(PATIENCE_S)
    assert watch.over
    assert sizes[-1] > 1000
    with SizeWatch(str(tmp_path), 1 << 20, called.clear) as watch:
        pass
    assert (False, True) == (watch.over, called.is_set())


def test_a_sealed_tree_is_files_folders_and_links(tmp_path: Path) -> None:
    """Nobody may write, a link isn't followed, and what has changed has another hash."""
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


# --- another Python -----------------------------------------------------------------

RECIPE = Recipe(("flavour",), os.path.realpath(getattr(sys, "_base_executable", sys.executable)), sys.version_info[:2])


def program(folder: Path, says: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_the_own_interpreter_leaves_the_recipe_unchanged() -> None:
    assert RECIPE is of_another(RECIPE, sys.executable)


def test_another_interpreter_gets_leewards_own_packages(tmp_path: Path) -> None:
    """Its base and its library are as it reports them; so the environment has another name."""
    python = program(tmp_path, """echo '["cpython", [3, 13], "/py/bin/python3.13", "/py"]'""")
    made = of_another(RECIPE, python)
    assert replace(RECIPE, requirements=("flavour", "cffi", "msgpack"), python="/py/bin/python3.13", version=(3, 13),
                   prefix="/py") == made
    assert RECIPE.hash != made.hash


@pytest.mark.parametrize(("says", "error", "why"), [
    ("""echo '["pypy", [3, 11], "/py", "/py"]'""", Unsupported, "pypy 3.11"),
    ("""echo '["cpython", [3, 10], "/py", "/py"]'""", Unsupported, "CPython 3.11 or later"),
    ("echo nothing", BadRequest, "version can't be read"), ("echo '[1]'", BadRequest, "version can't be read"),
    ("exit 1", BadRequest, "version can't be read"),
])
def test_an_interpreter_that_leeward_does_not_run_on_is_refused(tmp_path: Path, says: str, error: type[Exception],
                                                                why: str) -> None:
    with pytest.raises(error, match=why):
        of_another(RECIPE, program(tmp_path, says))


def test_a_missing_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no such program"):
        of_another(RECIPE, str(tmp_path / "none"))

"""Who could swap what a path leads to: owners and modes of all that is on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leeward.errors import BadRequest
from leeward.isolation import ownership
from leeward.spec import writers


@pytest.fixture
def way(tmp_path: Path) -> Path:
    """.../outer/inner/end, all of it ours alone."""
    end = tmp_path / "outer" / "inner" / "end"
    end.mkdir(parents=True)
    for folder in (end, *end.parents[:2]):
        folder.chmod(0o755)
    return end


def refusal(path: Path) -> str:
    with pytest.raises(BadRequest) as caught:
        ownership.check(str(path), "python_env")
    return str(caught.value)


def test_a_path_owned_by_the_user_is_accepted(way: Path):
    """Through a link of ours, by way of "..", and through pytest's folder in a sticky /tmp."""
    (way.parent / "absolute").symlink_to(way)
    (way.parent / "relative").symlink_to("../inner/./end")

    for path in (way, way.parent / "absolute", way.parent / "relative", way / ".." / "end", Path("/"), Path("/usr")):
        ownership.check(str(path), "python_env")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_path_that_others_can_write_is_refused(way: Path, mode: int, up: int, monkeypatch: pytest.MonkeyPatch):
    """At the end or on the way there; the folder and the cure are named."""
    monkeypatch.setattr(writers, "_has_owner_alone", lambda group, owner: False)
    folder = (way, *way.parents)[up]
    folder.chmod(mode)

    said = refusal(way)

    assert f"{str(folder)!r} can be written by others (mode {mode:04o})" in said
    assert f"`chmod go-w {folder}`" in said
    folder.chmod(0o755)
    ownership.check(str(way), "python_env")  # the cure helps


def test_a_sticky_folder_will_do_on_the_way_alone(way: Path):
    """Nobody can replace what is ours there; but at the end anybody could add to it."""
    way.parent.chmod(0o1777)
    ownership.check(str(way), "python_env")

    assert "can be written by others (mode 1777)" in refusal(way.parent)
    assert "chmod" not in refusal(way.parent)
    assert "can be written by others (mode 1777)" in refusal(way / "..")


def test_a_link_out_of_a_folder_that_others_can_write_is_refused(way: Path):
    """It leads to a good place today."""
    swap = way.parents[1] / "swap"
    swap.mkdir()
    (swap / "link").symlink_to(way)
    ownership.check(str(swap / "link"), "python_env")  # control
    swap.chmod(0o777)

    assert f"{str(swap)!r} can be written by others" in refusal(swap / "link")


@pytest.mark.needs("root")
@pytest.mark.parametrize("up", [0, 1])
def test_a_path_of_another_owner_is_refused(way: Path, up: int):
    """Whatever the mode: its owner can change it."""
    folder = (way, *way.parents)[up]
    os.chown(folder, 4711, 0)
    folder.chmod(0o500)

    said = refusal(way)

    assert f"{str(folder)!r} belongs to uid 4711" in said
    assert f"`chown -h 0 {folder}`" in said


@pytest.mark.needs("root")
def test_a_link_of_another_is_refused(way: Path):
    """In a sticky folder he can make it lead elsewhere."""
    way.parent.chmod(0o1777)
    link = way.parent / "link"
    link.symlink_to(way)
    ownership.check(str(link), "python_env")  # control
    os.chown(link, 4711, 0, follow_symlinks=False)

    assert f"{str(link)!r} belongs to uid 4711" in refusal(link)


def test_a_way_without_an_end_is_refused(way: Path):
    """A link to itself, and a name that isn't there."""
    (way / "loop").symlink_to("loop")

    assert "too many levels of symbolic links" in refusal(way / "loop")
    assert "no such file" in refusal(way / "nothing")
    assert "not a directory" in refusal(Path("/etc/passwd/x"))

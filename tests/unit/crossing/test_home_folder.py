"""Which folders of a project can't be renamed, so that what is protected in them stays where it is."""

from __future__ import annotations

from leeward.crossing.home_folder import between


def test_folders_between_a_mount_and_a_protected_name() -> None:
    assert ["/p/.git"] == between(["/p/.git/hooks", "/p/.leeward", "/p/.git/info"], ["/p", "/q"])
    assert ["/p/a", "/p/a/b", "/q/c"] == between(["/p/a/b/c", "/q/c/d"], ["/p", "/q"])


def test_a_mount_itself_and_an_outside_path_have_no_folder_between() -> None:
    assert [] == between(["/p", "/p/a", "/elsewhere/x/y", "/pp/a/b"], ["/p"])

"""Paths that lead through what agents write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leeward.apps.agents.definition import definition_names, load_definition
from leeward.apps.agents.written import home_path, open_beside, open_real, real_beside, state_folders
from leeward.client.host_paths import open_own
from leeward.errors import RequestRejected


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("written/sub", "own/keys"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own/keys/id").write_text("secret")
    return tmp_path


def beside(folders: Path, path: str) -> str:
    before = len(os.listdir("/proc/self/fd"))
    try:
        return real_beside(str(folders / path), lambda _: [str(folders / "written")])
    finally:
        assert before == len(os.listdir("/proc/self/fd"))


def test_the_users_own_links_are_followed(folders: Path) -> None:
    (folders / "own/link").symlink_to("../own/./keys")
    (folders / "far").symlink_to(folders / "own/link")
    (folders / "state").symlink_to("written")  # into what agents write, and not out of it
    assert f"{folders}/own/keys/id" == beside(folders, "far/id")
    assert f"{folders}/written/sub" == beside(folders, "state/sub")


@pytest.mark.parametrize("target", ["../own/keys", "/etc", "sub", "nothing"])
def test_an_agents_link_is_refused_wherever_it_leads(folders: Path, target: str) -> None:
    (folders / "written/d").symlink_to(target)
    (folders / "state").symlink_to("written")
    for path in ("written/d", "written/d/id", "state/d", "written/../written/d"):
        with pytest.raises(RequestRejected, match="that an agent can have made"):
            beside(folders, path)


def test_links_without_end(folders: Path) -> None:
    (folders / "own/a").symlink_to("b")
    (folders / "own/b").symlink_to("a")
    assert "" == beside(folders, "own/a")
    with pytest.raises(OSError, match="symbolic links"):
        open_beside(str(folders / "own/a"), lambda _: ())


def test_what_is_not_there(folders: Path) -> None:
    assert "" == beside(folders, "written/none/x")
    assert "" == beside(folders, "own/keys/id/x")


def test_the_state_of_all_agents(tmp_path: Path) -> None:
    own = tmp_path / ".config/leeward/agents"
    for name, text in (("mine", 'command = ["x"]\nstate = ["~/.mine"]\n'), ("broken", "state = 3\n"),
                       ("worse", "state = [\n"), ("lines", 'state = [  # "~/no"\n  "~/.one", # ]\n  \'~/.two\']\n'),
                       ("escaped", 'state = ["~/.\\u0078"]\n'), ("odd", 'state = ["~/a]b", "~/.last"]\n'),
                       ("several", 'state = ["~/.s1",\n  "~/.s2",\n]\n')):
        (own / name).mkdir(parents=True)
        (own / name / "agent.toml").write_text(text)
    found = state_folders({"HOME": str(tmp_path)})
    names = (".mine", ".claude", ".codex", ".local/share/opencode", ".one", ".two", ".x", "a]b", ".last", ".s1", ".s2")
    assert {f"{tmp_path}/{name}" for name in names} <= set(found)
    assert f"{tmp_path}/no" not in found


def test_the_definitions_are_read_as_the_parser_reads_them() -> None:
    home = {"HOME": "/nonexistent"}
    parsed = {home_path(path, "/nonexistent") for name in definition_names("/nonexistent")
              for path in load_definition(name, "/nonexistent").state}
    assert parsed == set(state_folders(home))


def test_links_of_others_are_refused_in_what_a_user_names(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "link").symlink_to("own")
    found = open_own(str(folders / "link/keys"))
    assert str(folders / "own/keys") == os.readlink(f"/proc/self/fd/{found}")
    os.close(found)

    monkeypatch.chdir(folders)
    owner = os.lstat("link").st_uid
    for path in ("link/keys", "own/../link"):
        found = open_own(path)
        os.close(found)
    if owner:  # root's links are everybody's
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        for path in ("link/keys", "own/../link", str(folders / "link")):
            with pytest.raises(RequestRejected, match=f"is a link of user {owner}, and isn't followed"):
                open_own(path)


def test_a_descriptor_of_a_folder_that_is_gone_is_followed_by_the_kernel(folders: Path) -> None:
    held = os.open(folders / "written/sub", os.O_PATH)
    (folders / "written/sub").rmdir()
    found = open_own(f"/proc/self/fd/{held}")
    assert os.path.sameopenfile(held, found)
    os.close(found)
    os.close(held)


def test_a_real_path_has_no_link(folders: Path) -> None:
    (folders / "link").symlink_to("own")
    os.close(open_real(str(folders / "own/keys")))
    with pytest.raises(RequestRejected, match="has become a link since it was looked at"):
        open_real(str(folders / "link/keys"))

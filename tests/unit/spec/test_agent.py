"""What a client may ask for with the profile `agent`."""

from __future__ import annotations

from typing import Any

import pytest

from leeward.errors import BadRequest
from leeward.spec.folders import Folder
from leeward.spec.profiles.agent import MOST_NAMES, home_plan, needless
from leeward.spec.sandbox import Bind, Scratch, View

VIEW = View((Bind("/usr", "/usr"), Bind("/home/a/.pyenv", "/home/a/.pyenv")), (), (),
            Scratch(("/workspace", "/tmp", "/dev/shm")))
PROJECT = Folder("/home/a/p", "/home/a/p", writable=True)


def plan(path: str = "/home/a", user: str = "a", hide: Any = (), protect: Any = (), mounts: Any = (PROJECT,),
         pin: Any = ()) -> Any:
    return home_plan(path, user, hide, protect, mounts, VIEW, 1000, pin)


def test_the_account_is_the_callers() -> None:
    made = dict(plan(user="anna").texts)
    assert b"anna:x:1000:1000:anna:/home/a:/bin/sh\n" in made["/etc/passwd"]
    assert b"anna:x:1000:\n" in made["/etc/group"]
    assert b"sandbox:x:1000" in dict(plan(user="").texts)["/etc/passwd"]
    root = dict(plan(user="root").texts)
    assert 1 == root["/etc/passwd"].count(b"root:x:")
    assert b"root:x:1000:\n" in root["/etc/group"]


def test_a_home_that_no_line_can_hold() -> None:
    assert b":/workspace:" in dict(plan("/home/a:b\nroot::0", mounts=()).texts)["/etc/passwd"]


@pytest.mark.parametrize(("fields", "why"), [
    ({"path": ""}, "not an absolute path"),
    ({"path": "home"}, "not an absolute path"),
    ({"path": "/"}, "the sandbox's own"),
    ({"path": "/usr/home"}, "the sandbox's own"),
    ({"path": "/workspace"}, "own '/workspace'"),
    ({"path": "/home/a/.pyenv/x"}, "own '/home/a/.pyenv'"),
    ({"path": "/home/a/p/q"}, "is the home folder"),
    ({"mounts": (Folder("/kept", "/home/a"),)}, "is the home folder"),
    ({"mounts": (Folder("/kept", "/home/a", overlay=True),)}, "is the home folder"),
    ({"user": "a:b"}, "can't be a user's name"),
    ({"user": "a\nroot"}, "can't be a user's name"),
    ({"hide": ("/home/a/other",)}, "lies in no mount"),
    ({"hide": ("/home/a/p/../x",)}, "lies in no mount"),
    ({"protect": ("/etc",)}, "lies in no mount"),
    ({"pin": ("/etc",)}, "lies in no mount"),
    ({"hide": ("/home/a/p/x",) * (MOST_NAMES + 1)}, "are the most"),
    ({"hide": ("/home/a/p/x",) * MOST_NAMES, "pin": ("/home/a/p",)}, "are the most"),
    ({"hide": tuple(f"/home/a/p/{'x' * 4000}{n}" for n in range(11))}, "bytes together"),
])
def test_an_unsuitable_agent_folder_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        plan(**fields)


def test_a_mount_may_be_the_home() -> None:
    assert "/home/a" == plan(mounts=(Folder("/kept", "/home/a", writable=True), PROJECT)).path


def test_names_are_kept_once() -> None:
    made = plan(hide=("/home/a/p/.env", "/home/a/p/.env"), protect=("/home/a/p/.git/hooks",), pin=("/home/a/p/c",) * 2)
    assert ("/home/a/p/c",) == made.pin
    assert ("/home/a/p/.env",) == made.hide
    assert ("/home/a/p/.git/hooks",) == made.protect


@pytest.mark.parametrize(("folder", "known"), [
    (Folder("/usr/lib/x", "/usr/lib/x"), True),
    (Folder("/home/a/.pyenv/versions/3", "/home/a/.pyenv/versions/3"), True),
    (Folder("/home/a/.pyenv/x", "/home/a/.pyenv/x", writable=True), False),
    (Folder("/home/a/.pyenv/x", "/usr/x"), False),
    (Folder("/srv", "/srv"), False),
])
def test_folders_that_the_view_shows_are_not_needed(folder: Folder, known: bool) -> None:
    assert known is needless(folder, VIEW)

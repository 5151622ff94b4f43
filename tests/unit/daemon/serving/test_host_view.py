"""Who may have a view of the host, and what is hidden from it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from leeward.daemon.config import Config
from leeward.daemon.sandboxes.mounting import Mounts
from leeward.daemon.serving import profiles
from leeward.daemon.serving.profiles import check_view, hiding
from leeward.errors import BadRequest, Forbidden
from leeward.spec.folders import Folder
from leeward.spec.profiles import Profile
from leeward.spec.profiles.shell import SECRETS, SECRETS_HERE
from leeward.wire.sandbox_requests import SandboxOpen

ME = os.geteuid()
NO_SECRETS = Config(show_secrets=False)
HERE = Folder("/tmp/a", "/tmp/a")


def opening(**fields: Any) -> SandboxOpen:
    return SandboxOpen(1, **{"profile": "shell", **fields})


@pytest.mark.parametrize("fields", [{}, {"cwd": "/srv", "home": "/home/a"}, {"cwd": "/tmp/a", "mounts": (HERE,)},
                                    {"show_secrets": True}])
def test_the_daemons_own_user_has_a_host_view(fields: dict[str, Any]) -> None:
    assert check_view(opening(**fields), ME, Config())


@pytest.mark.parametrize("profile", ["python", "workdir", "own"])
def test_other_profiles_have_no_host_view(profile: str) -> None:
    assert not check_view(opening(profile=profile), ME, Config())
    assert not check_view(opening(profile=profile), ME + 1, NO_SECRETS)
    own = Config(profiles={"own": Profile(base="workdir")})
    for fields in ({"cwd": "/srv"}, {"home": "/home/a"}, {"show_secrets": True}):
        with pytest.raises(BadRequest, match="of the profile"):
            check_view(opening(profile=profile, **fields), ME, own)


@pytest.mark.parametrize("profile", ["agent", "approved", "own"])
def test_profiles_with_a_home_accept_one(profile: str) -> None:
    assert not check_view(opening(profile=profile, home="/home/a"), ME, Config(profiles={"own": Profile(base="agent")}))


@pytest.mark.parametrize("user", [ME + 1, 0 if ME else 1000])
def test_another_user_is_refused(user: int) -> None:
    """Root too, by the daemon of another one."""
    with pytest.raises(Forbidden, match="with other rights than that user has"):
        check_view(opening(), user, Config())


def test_an_operator_can_forbid_to_show_secrets() -> None:
    assert check_view(opening(), ME, NO_SECRETS)
    with pytest.raises(Forbidden, match="show_secrets = false"):
        check_view(opening(show_secrets=True), ME, NO_SECRETS)


@pytest.mark.parametrize(("fields", "why"), [
    ({"environment": "data"}, "no environment"),
    ({"egress": "web"}, "no egress"),
    ({"cwd": "/tmp/a", "mounts": (Folder("/tmp/a", "/tmp/a", writable=True),)}, "no mount but that of cwd"),
    ({"cwd": "/tmp/a", "mounts": (Folder("/tmp/a", "/tmp/a", overlay=True),)}, "no mount but that of cwd"),
    ({"cwd": "/tmp/a", "mounts": (Folder("/tmp/a", "/data"),)}, "no mount but that of cwd"),
    ({"cwd": "/tmp/a", "mounts": (HERE, Folder("/tmp/b", "/tmp/b"))}, "no mount but that of cwd"),
    ({"mounts": (HERE,)}, "no mount but that of cwd"),
])
def test_an_unsuitable_host_view_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        check_view(opening(**fields), ME, Config())


def test_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the account and by the client's own list, and in the current folder. Mounts of the profile stay."""
    monkeypatch.setattr(profiles, "owners_home", lambda: "/home/a")
    there = Mounts((HERE,), [], (ME, ME), [], 0, [])

    for mounts in (None, there):
        made = hiding(opening(home="/srv/b", cwd="/srv/b/c"), mounts, (ME, ME))
        assert [("/home/a", SECRETS), ("/srv/b", SECRETS), ("/srv/b/c", SECRETS_HERE)] == list(made.hides or ())
        assert (made is there) is (mounts is there)
    assert () == hiding(opening(home="/srv/b", show_secrets=True), None, (ME, ME)).hides

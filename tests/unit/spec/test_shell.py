"""The profile `shell`, decided without looking at any host."""

from __future__ import annotations

import pytest

from leeward.spec import profiles
from leeward.spec.limits import Limits
from leeward.spec.profiles import HostPython
from leeward.spec.profiles.shell import OWN, SECRETS, SECRETS_HERE, hidden, needs_mount, never_shown, passed, shell
from leeward.spec.sandbox import Bind, SandboxSpec, Symlink

HOST = HostPython("/usr/bin/python3.11", (3, 11), "/usr")
LINKS = {"/bin": "usr/bin", "/lib": "usr/lib", "/lib64": "usr/lib64", "/sbin": "usr/sbin"}


def spec(binds: tuple[str, ...] = ("/usr", "/home", "/etc"), links: tuple[str, ...] = ("/bin",)) -> SandboxSpec:
    base = profiles.python(HOST, LINKS, limits=Limits())
    return shell(base, [Bind(path, path) for path in binds], [Symlink(path, f"usr{path}") for path in links], uid=1234)


def test_variables_by_name() -> None:
    given = dict.fromkeys(("PATH", "LC_ALL", "LC_", "LANG", "LANGUAGE", "COLORTERM", "TERM", "TERMCAP", "HOME2", "path",
                           "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "DISPLAY", "XLC_ALL"), "1")

    assert {"PATH", "LC_ALL", "LC_", "LANG", "COLORTERM", "TERM"} == set(passed(given))


@pytest.mark.parametrize(("cwd", "needed"), [
    ("/tmp/a", True), ("/var/lib/a", True), ("/run/user/1", True), ("/workspace/a", True), ("/dev/shm/a", True),
    ("/tmp", False), ("/var", False), ("/tmpa/b", False), ("/home/tmp/a", False), ("/dev/a", False), ("/", False)])
def test_a_folder_that_a_sandbox_has_for_itself(cwd: str, needed: bool) -> None:
    assert needed is needs_mount(cwd)


def test_hidden_folders_are_listed_from_outside_in() -> None:
    """Each folder once. The root and malformed paths are left out."""
    assert [("/a/b", SECRETS), ("/a/b/c", SECRETS_HERE)] == hidden(["/a/b", "/a/b", "/", "", "here"], "/a/b/c")
    assert [("/a", SECRETS_HERE), ("/a/b", SECRETS)] == hidden(["/a/b"], "/a")
    both = hidden(["/a"], "/a")
    assert 1 == len(both)
    assert {*SECRETS, *SECRETS_HERE} == set(both[0][1])
    assert len(both[0][1]) == len(set(both[0][1]))
    assert [] == hidden(["/"], "/")


def test_the_list_has_the_documented_secrets() -> None:
    for name in (".ssh", ".gnupg", ".aws", ".config/gcloud", ".kube", ".docker", ".netrc", ".pypirc", ".npmrc",
                 ".local/share/keyrings", ".mozilla", ".config/google-chrome*", ".config/chromium*", ".*_history",
                 ".env"):
        assert name in SECRETS
    assert {".env", ".env.*"} <= set(SECRETS_HERE)
    for name in (*SECRETS, *SECRETS_HERE):
        assert not name.startswith("/")
        assert ".." not in name.split("/")


@pytest.mark.parametrize(("path", "never"), [
    ("/proc", True), ("/sys", True), ("/dev", True), ("/tmp", True), ("/var", True), ("/run", True),
    ("/workspace", True), ("/var/lib", True), ("/lost+found", True), ("/.autofsck", True), ("/usr", False),
    ("/home", False), ("/home/.ssh", False), ("/procedures", False), ("/root", False)])
def test_some_folders_of_the_root_are_never_shown(path: str, never: bool) -> None:
    assert never is never_shown(path)


def test_the_hosts_folders_take_the_place_of_the_profiles() -> None:
    """No target is there twice, nothing is made of the host's /etc, and devices stay."""
    made = spec()
    targets = [bind.target for bind in made.view.binds] + [link.target for link in made.view.links]

    assert len(targets) == len(set(targets))
    assert {"/usr", "/home", "/etc", "/bin", "/dev/null"} <= set(targets)
    assert not {target for target in targets if target.startswith(("/usr/", "/etc/"))}
    assert all(text.target.startswith("/sys") for text in made.view.texts)
    assert set(OWN) == set(made.view.scratch.targets)


def test_the_shell_profile_has_the_callers_uid_and_marks_the_host() -> None:
    made = spec()

    assert ("shell", 1234, True) == (made.profile, made.uid, made.host)
    assert not {"HOME", "USER", "LOGNAME"} & {name for name, _ in made.environment}
    assert "TMPDIR" in {name for name, _ in made.environment}

"""The profile `agent`: a project at its own path, a home of its own, names that are hidden, hosts by a client's policy."""

from __future__ import annotations

import grp
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, model_api
from kit.host_folders import as_user
from kit.live_daemon import LiveDaemon
from kit.stalling import standing_still

pytestmark = pytest.mark.needs("user-namespaces")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """One without a configuration, whose broker asks the tests' resolver."""
    with egress.live(tmp_path_factory.mktemp("daemon"), "", "--pool-size", "1") as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    (made / "project/sub").mkdir(parents=True)
    (made / "project/.env").write_text("TOKEN=1")
    (made / "project/sub/key").write_text("secret")
    (made / "project/code.py").write_text("print('code')")
    (made / "private").write_text("private")
    monkeypatch.setenv("HOME", str(made))
    return made


def test_home_name_and_project_are_the_callers(daemon: LiveDaemon, home: Path) -> None:
    """The project is written at its own path; nothing else of the home is there, and what is written there is gone."""
    project = str(home / "project")
    with leeward.Sandbox(socket=daemon.socket, profile="agent",
                         mounts=[leeward.Mount(project, project, writable=True)]) as box:
        got = box.shell("echo $HOME; cd; pwd; id -un; id -gn; ls -A; echo 1 >private; echo made >project/made; pwd -P",
                        cwd=project)
        name = pwd.getpwuid(os.geteuid()).pw_name
        assert [str(home), str(home), name, name, "project", str(home)] == got.stdout_text.splitlines()
        assert "code\n" == box.run(["python3", "code.py"], cwd=project).stdout_text
        assert f"{name} {home}\n" == box.execute("import pwd, os; print(*pwd.getpwuid(os.getuid())[0:6:5])").stdout_text
    assert "private" == (home / "private").read_text()
    assert "made\n" == (home / "project/made").read_text()
    assert os.geteuid() == (home / "project/made").stat().st_uid


@pytest.mark.parametrize("cgroup", [pytest.param(None, id="groups"), "none"])
def test_an_agent_finds_the_machines_processors(tmp_path: Path, home: Path, cgroup: str | None) -> None:
    """
    Also where no controller counts its time: as many as its limit of four is worth. Where one has to do, because the job
    could fill its memory unseen, it has one.
    """
    there = len(os.sched_getaffinity(0))
    code = "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))"
    with standing_still(tmp_path, "--pool-size", "1", cgroup=cgroup) as daemon:
        with daemon.client() as client:
            is_counted = "none" != client.status()["layers"]["cgroup"]["driver"]
        own = there if is_counted else min(4, there)
        with leeward.Sandbox(socket=daemon.socket, profile="agent") as box:
            assert f"{min(4, there)}\n{min(4, there)} {own}\n" == box.shell(f"nproc; python3 -c '{code}'").stdout_text
            assert f"{min(4, there)} {own}\n" == box.execute(code).stdout_text
        with leeward.Sandbox(socket=daemon.socket, profile="agent", memory="40M") as box:
            assert box.run(["python3", "-c", code]).stdout_text.endswith(f" {there if is_counted else 1}\n")
        with leeward.Sandbox(socket=daemon.socket) as box:
            assert box.execute(code).stdout_text.startswith("1 ")


@pytest.mark.parametrize("overlay", [False, True])
def test_the_profile_hides_secrets_and_protects_settings(daemon: LiveDaemon, home: Path, overlay: bool) -> None:
    project = str(home / "project")
    (home / "project/.git/hooks").mkdir(parents=True)
    (home / "project/link").symlink_to("/etc")
    with leeward.Sandbox(socket=daemon.socket, profile="agent",
                         hide=[f"{project}/{name}" for name in (".env", "sub", "missing", "link/passwd", "link")],
                         protect=[f"{project}/.git/hooks", f"{project}/none"],
                         mounts=[leeward.Mount(project, project, writable=not overlay, overlay=overlay)]) as box:
        got = box.shell("cat .env; ls -A sub; echo x >.env; rm .env; mv .env a; ln .env b; mv sub c; rmdir sub;"
                        " chmod 777 .env; echo x >sub/x; echo x >.git/hooks/x; rm -r .git; echo ok >other; cat other;"
                        " wc -c <.env; stat -c %s .env; cat link/passwd | head -1",
                        cwd=project)
        assert ["ok", "0"] == got.stdout_text.splitlines()[:2]
        assert "TOKEN" not in got.stdout_text + got.stderr_text
        assert 10 <= len(got.stderr_text.splitlines())
        changed = {change.path for change in box.diff()} if overlay else set()
    assert ({"other"} if overlay else set()) == changed
    assert "TOKEN=1" == (home / "project/.env").read_text()
    assert "secret" == (home / "project/sub/key").read_text()
    assert [] == os.listdir(home / "project/.git/hooks")
    assert overlay is not (home / "project/other").exists()


def test_a_folder_above_a_project_that_an_agent_moves_takes_no_new_name_along(daemon: LiveDaemon, home: Path) -> None:
    """In its /tmp it may rename what lies above the project. The name can't be hidden then, and its client hears that."""
    project = home / "project"
    with leeward.Sandbox(socket=daemon.socket, profile="agent",
                         mounts=[leeward.Mount(str(project), "/tmp/a/p", writable=True)]) as box:
        box.ask("sandbox_hide", {"hide": ["/tmp/a/p/.env"]})
        assert "" == box.shell("cat /tmp/a/p/.env; mv /tmp/a /tmp/b").stdout_text
        assert "secret" == box.shell("cat /tmp/b/p/sub/key").stdout_text  # control: it is elsewhere now
        with pytest.raises(leeward.RequestRejected, match="was moved"):
            box.ask("sandbox_hide", {"hide": ["/tmp/a/p/sub/key"]})


def test_the_clients_hosts_and_no_others(daemon: LiveDaemon, home: Path) -> None:
    """A daemon of the user's own needs no configuration for it. Its policy is for no job, and for no other profile."""
    with model_api.serving_for_agents(["word"]) as api, leeward.Sandbox(
            socket=daemon.socket, profile="agent", egress="agent",
            policy={"allow": [f"web.example.org:{api.port}"], "addresses": ["127.0.0.1/32"]}) as box:
        got = box.run(["curl", "-sS", f"http://web.example.org:{api.port}/models"])
        assert '"data"' in got.stdout_text, got.stderr_text
        assert "Could not resolve" in box.run(["curl", "-sS", f"http://evil.example.org:{api.port}/"]).stderr_text
        assert '"data"' not in box.run(["curl", "-sS", "-m", "5", f"http://127.0.0.1:{api.port}/models"]).stdout_text
    for profile in ("python", "workdir"):
        with pytest.raises(leeward.RequestRejected, match="egress 'agent' is unknown"), leeward.Sandbox(
                socket=daemon.socket, profile=profile, egress="agent", policy={"allow": ["a.example"]}) as box:
            assert box.id


@pytest.mark.needs("root")
def test_another_users_agent_has_no_hosts() -> None:
    """The daemon of root's lets it reach nothing, unless its configuration says so."""
    with tempfile.TemporaryDirectory(prefix="leeward-guests-") as folder:
        os.chmod(folder, 0o755)
        with LiveDaemon(Path(folder), "--pool-size", "1", "--group", grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
                        ) as daemon:
            def refused() -> None:
                with pytest.raises(leeward.Forbidden, match="allow_network"), leeward.Sandbox(
                        socket=daemon.socket, profile="agent", egress="agent", policy={"allow": ["a.example"]}) as box:
                    assert box.id
                leeward.Sandbox(socket=daemon.socket).close()

            assert as_user(4245, refused)


def test_fields_of_other_profiles(daemon: LiveDaemon, home: Path) -> None:
    for fields, why in (({"hide": ["/x"]}, "of the profile 'agent'"), ({"protect": ["/x"]}, "lies in no mount"),
                        ({"pin": ["/x"]}, "lies in no mount")):
        with pytest.raises(leeward.RequestRejected, match=why), leeward.Sandbox(
                socket=daemon.socket, **fields) as box:  # type: ignore[arg-type]  # one of them
            assert box.id
    project = str(home / "project")
    for where, names, why in ((project, ["/usr/bin"], "lies in no mount"), (str(home), [], "is the home folder")):
        with pytest.raises(leeward.RequestRejected, match=why), leeward.Sandbox(
                socket=daemon.socket, profile="agent", hide=names, mounts=[leeward.Mount(where, where)]) as box:
            assert box.id


@pytest.mark.parametrize("profile", ["python", "workdir", "approved"])
def test_names_are_protected_in_any_profile(daemon: LiveDaemon, home: Path, profile: str) -> None:
    project = home / "project"
    (project / "a/b").mkdir(parents=True, exist_ok=True)
    (project / "a/b/kept").write_text("kept")
    with leeward.Sandbox(socket=daemon.socket, profile=profile, workdir=project,
                         protect=["/workspace/a/b/kept", "/workspace/missing"], pin=["/workspace/a"]) as box:
        box.shell("echo x >a/b/kept; mv a c; mv a/b a/c; rm -rf a; echo x >missing; echo x >a/new")
    assert "kept" == (project / "a/b/kept").read_text()
    assert "x\n" == (project / "missing").read_text()  # what isn't there is left as it is

"""`leeward agent start` with --profile, --approved and packages of the system's."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import leeward
from kit import model_api
from kit.agents import ASK, AgentHome, agents_daemon, approvals
from kit.live_daemon import PATIENCE, LiveDaemon, command

DAEMON_BY = agents_daemon
CONFIGURATION = """\
[profiles.big]
base = "agent"
limits = { processes = 40 }
variables = { OF_THE_PROFILE = "1" }
"""

pytestmark = pytest.mark.needs("user-namespaces")


def test_a_profile_based_on_agent_has_a_home_and_hidden_names(home: AgentHome) -> None:
    """An operator's that is based on `agent` has a home and hidden names as that has; one that isn't is refused."""
    (home.project / ".env").write_text("SECRET")
    got = home.run("start", "sh", ".", "--profile", "big", "--", "-c", "pwd; echo $HOME $OF_THE_PROFILE; cat .env")
    assert f"{home.project}\n{home.path} 1\n" == got.stdout
    assert "SECRET" not in got.stderr
    for name, why in (("none", "profile 'none' is unknown; this daemon has: "), ("workdir", "home is of the profiles")):
        got = home.run("start", "sh", ".", "--profile", name, "--", "-c", "true")
        assert (1, True) == (got.returncode, why in got.stderr), got.stderr


# --- hosts ------------------------------------------------------------------------


@pytest.mark.needs("usr-curl")
def test_an_unrestricted_network_is_all_public_names_and_no_private_address(home: AgentHome, tmp_path: Path) -> None:
    """
    The tests' names lead to this host, which the settings allow; any name of it is reached then, on the ports that
    agents have, and what is private otherwise isn't. Without the option none is that nobody has listed.
    """
    with model_api.serving_for_agents(["word"]) as api:
        home.settings(f'[network]\nallow = ["listed.example.org:{api.port}", "127.0.0.1:{api.port}"]\n')
        line = (f"for name in listed.example.org unlisted.example.org private.example.org metadata.example.org; do"
                f" echo $name $(curl -sS -m 5 http://$name:{api.port}/models 2>&1 | grep -c '.data.:'); done")
        dump = tmp_path / "dump"

        def reached(*options: str) -> list[str]:
            got = home.run("start", "sh", ".", *options, "--dump-network-access", str(dump), "--", "-c", line)
            assert 0 == got.returncode, got.stderr
            return [row.split()[0] for row in got.stdout.splitlines() if row.endswith(" 1")]

        assert ["listed.example.org"] == reached()
        assert "denied unlisted.example.org" in dump.read_text().splitlines()
        assert ["listed.example.org", "unlisted.example.org"] == reached("--unrestricted-network")
        names = dump.read_text().splitlines()
        assert "allowed unlisted.example.org" in names
        assert {"denied private.example.org", "denied metadata.example.org"} <= {*names}
        home.settings("")
        assert [] == reached("--unrestricted-network"), "this host is no public one"


# --- packages ---------------------------------------------------------------------


def packed(folder: Path, version: str) -> None:
    """A folder with a package `leeward-tests-tool` of this version, and the list of it, as apt takes them."""
    tree = folder / f"tree-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: leeward-tests-tool\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <n@example.org>\n"
        "Description: of a test\n")
    (tree / "DEBIAN/postinst").write_text("#!/bin/sh\ntouch /tmp/ran\n")
    (tree / "DEBIAN/postinst").chmod(0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/tests-tool").write_text(f"#!/bin/sh\necho version {version}\n")
    (tree / "usr/bin/tests-tool").chmod(0o755)
    name = f"leeward-tests-tool_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(folder / name)], check=True,
                   capture_output=True)
    about = (folder / name).stat()
    digest = subprocess.run(["sha256sum", str(folder / name)], check=True, capture_output=True,
                            text=True).stdout.split()[0]
    (folder / "Packages").write_text((tree / "DEBIAN/control").read_text()
                                     + f"Filename: ./{name}\nSize: {about.st_size}\nSHA256: {digest}\n")


@pytest.mark.needs("debian")
def test_packages_are_unpacked_once_and_made_anew(home: AgentHome) -> None:
    """
    From a folder of the test's own: fetched and unpacked in a sandbox, kept for the next start, and none of its scripts
    run. A project's list is asked about.
    """
    source = home.path / "packages"
    source.mkdir()
    packed(source, "1.0")
    apt = home.path / "config/leeward/apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [trusted=yes] file:{source} ./\n")
    home.settings('dependencies = ["leeward-tests-tool"]\n')
    use = ("start", "sh", ".", "--", "-c", "tests-tool; command -v tests-tool; touch /opt/packages/x; ls /tmp/ran")
    got = home.run(*use)
    assert "version 1.0\n/opt/packages/usr/bin/tests-tool\n" == got.stdout, got.stderr
    assert "1 packages were unpacked" in got.stderr
    assert "Read-only" in got.stderr
    assert "cannot access '/tmp/ran'" in got.stderr
    assert not Path("/usr/bin/tests-tool").exists()
    packed(source, "2.0")
    got = home.run(*use)
    assert got.stdout.startswith("version 1.0")
    assert "were unpacked" not in got.stderr
    assert home.run("start", "sh", ".", "--rebuild", *use[3:]).stdout.startswith("version 2.0")
    assert home.run(*use).stdout.startswith("version 2.0")
    layers = home.path / ".cache/leeward/agents/layers"
    assert 1 == len([name for name in os.listdir(layers) if name[0] != "." and not name.endswith(".json")])
    assert 0o700 == layers.stat().st_mode & 0o777

    home.settings('dependencies = ["leeward-tests-none"]\n')
    got = home.run(*use)
    assert (1, True) == (got.returncode, "leeward-tests-none" in got.stderr)
    assert 1 == len([name for name in os.listdir(layers) if name[0] != "." and not name.endswith(".json")])
    home.settings("")
    (home.project / ".leeward").mkdir()
    (home.project / ".leeward/agent.toml").write_text('dependencies = ["leeward-tests-tool"]\n')
    got = home.run(*use)
    assert (1, "") == (got.returncode, got.stdout)
    assert "is fetched and unpacked" in got.stderr


# --- approved ----------------------------------------------------------------------


@pytest.mark.needs("extra-web", "usr-curl")
def test_a_person_is_asked_about_a_host_where_a_service_for_approvals_runs(home: AgentHome) -> None:
    """The connection waits, the terminal says so, and the request names project and agent; without it, it is denied."""
    line = "curl -sS -m 60 -o /dev/null -w '%{http_code}' http://asked.example.org/"
    with approvals(home) as env, home.popen("start", "sh", "--", "-c", line, **env) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "the agent waits for your decision by `leeward approvals` about asked.example.org" in said
        operator = home.environment(**env)
        [row] = [json.loads(row) for row in subprocess.run(
            command("approvals", "list", "--json"), env=operator, capture_output=True, text=True,
            check=True).stdout.splitlines()]
        assert ("network", str(home.project), "sh") == (row["category"], row["project"], row["asker"])
        subprocess.run(command("approvals", "deny", str(row["id"])), env=operator, check=True, capture_output=True)
        out, _ = process.communicate(timeout=PATIENCE * 4)
        assert "403" == out
    got = home.run("start", "sh", ".", "--", "-c", line, LEEWARD_APPROVALS_SOCKET=str(home.path / "nobody"))
    assert "000" == got.stdout


@pytest.mark.needs("extra-web")
def test_a_person_approves_each_change_of_the_host(home: AgentHome, daemon: LiveDaemon) -> None:
    """
    The agent works on a copy in its own home, and can ask; its changes become requests, and are on the host once one
    is approved. Without the service no agent starts.
    """
    (home.project / "old").write_text("old")
    (home.project / ".env").write_text("SECRET")
    line = f'echo new >old; cat .env; echo $HOME; python3 -c "{ASK}"; exit 5'
    use = ("start", "sh", ".", "--approved", "--", "-c", line)
    with approvals(home) as env:
        got = home.run(*use, **env)
        assert (5, f"{home.path}\npending\n") == (got.returncode, got.stdout), got.stderr
        assert "SECRET" not in got.stderr
        assert "1 requests about files wait" in got.stderr
        assert "old" == (home.project / "old").read_text()
        rows = [json.loads(row) for row in subprocess.run(
            command("approvals", "list", "--json"), env=home.environment(**env), capture_output=True, text=True,
            check=True).stdout.splitlines()]
        assert [("network", "sh"), ("filesystem", "sh")] == [(row["category"], row["asker"]) for row in rows]
        subprocess.run(command("approvals", "approve", str(rows[1]["id"])), env=home.environment(**env), check=True,
                       capture_output=True)
        until = PATIENCE * 10
        while "new\n" != (home.project / "old").read_text() and until:
            subprocess.run(["sleep", "0.1"], check=True)
            until -= 1
        assert "new\n" == (home.project / "old").read_text()
        many = "i=0; while [ $i -lt 130 ]; do echo x >new.$i; i=$((i+1)); done"
        got = home.run("start", "sh", ".", "--approved", "--", "-c", many, **env)
        assert "130 requests about files wait: leeward approvals approve --all filesystem" in got.stderr
        got = home.run("start", "sh", ".", "--approved", "--", "-c", "head -c 17000000 /dev/zero >large", **env)
        assert "large: can't be asked for" in got.stderr
        [kept] = re.findall("`leeward sandbox kill ([a-z0-9]{26})`", got.stderr)
        with leeward.Sandbox.attach(kept, socket=daemon.socket) as box:
            assert ["large"] == [change.path for change in box.diff()]
    got = home.run(*use, LEEWARD_APPROVALS_SOCKET=str(home.path / "nobody"))
    assert (1, "") == (got.returncode, got.stdout)
    assert "no service for approvals answers" in got.stderr
    assert [] == home.left()

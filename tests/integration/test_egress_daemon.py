"""
Egress through a real daemon: the configuration's policy, named by a job, a session, a sandbox and the command line.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit import egress
from kit.egress import Servers
from kit.live_daemon import PLACES, LiveDaemon, command, environment
from leeward.errors import RequestRejected

GET = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as got:
        print(got.status, got.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(error)
"""

CONFIG = """\
pool_size = 1
[egress.web]
allow = ["http://web.example.org:{port}", "127.0.0.1:{port}"]
addresses = ["127.0.0.1/32"]
"""

#: Python runs it at its start: the daemon's broker asks the tests' resolver.
CUSTOM = f"""\
import leeward.pool.broker
leeward.pool.broker.ENTRY = {egress.ENTRY!r}
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Servers]:
    with egress.servers() as made:
        yield made


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    config = folder / "c.toml"
    config.write_text(CONFIG.format(port=host.http))
    config.chmod(0o600)
    (folder / "sitecustomize.py").write_text(CUSTOM)
    with LiveDaemon(folder, "--config", str(config), env={"PYTHONPATH": f"{folder}{os.pathsep}{PLACES}"}) as daemon:
        yield daemon


def test_a_policy_is_named_by_all_that_run_code(daemon: LiveDaemon, host: Servers) -> None:
    """
    A name that it allows is reached, another one isn't there; and without a policy nothing is.
    """
    allowed, denied = f"http://web.example.org:{host.http}/x", f"http://evil.example.org:{host.http}/"
    answer = f"200 GET web.example.org:{host.http} /x\n"
    with daemon.client() as client:
        assert answer == client.execute(GET, args=[allowed], egress="web").stdout_text
        assert "not known" in client.execute(GET, args=[denied], egress="web").stdout_text
        assert "200" not in client.execute(GET, args=[allowed]).stdout_text
        with client.session(egress="web") as session:
            assert answer == session.execute(GET, args=[allowed]).stdout_text
        with pytest.raises(RequestRejected, match="egress 'nothing' is unknown; this daemon has: web"):
            client.execute("1", egress="nothing")
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        assert answer == box.run(["python", "-c", GET, allowed]).stdout_text
        direct = box.run(["python", "-c", GET, f"http://127.0.0.1:{host.http}/x"])
        assert f"200 GET 127.0.0.1:{host.http} /x\n" == direct.stdout_text
        assert "not known" in box.run(["python", "-c", GET, denied]).stdout_text
    done = daemon.run("exec", "--egress", "web", GET, "--", allowed)
    assert answer.encode() == done.stdout, done


def test_what_was_tried_is_shown_and_explained(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """
    A row each, by job and sandbox, with the names as a file; and the line that would have allowed what was denied.
    """
    allowed, denied = f"http://web.example.org:{host.http}/logged", f"http://logged.example.org:{host.http}/"
    with daemon.client() as client:
        refused = client.execute(GET, args=[denied], egress="web", label="refused")
        client.execute(GET, args=[allowed], egress="web", label="fetches")
        with client.session(egress="web") as session:
            in_session = session.execute(GET, args=[denied], label="in-a-session")
    with leeward.Sandbox(socket=daemon.socket, egress="web") as box:
        box.run(["python", "-c", GET, denied])
        box.run(["python", "-c", GET, allowed])
        mine = _rows(daemon, box.id, "closed")
    assert {("denied", "logged.example.org", 0), ("allowed", "web.example.org", host.http),
            ("closed", "web.example.org", host.http)} <= {(row["verdict"], row["name"], row["port"]) for row in mine}
    [closed] = [row for row in mine if "closed" == row["verdict"]]
    assert closed["sent"] > 0 < closed["received"]
    assert ("sandbox", "web", os.geteuid()) == (closed["kind"], closed["policy"], closed["user"])
    names = tmp_path / "names"
    assert 0 == daemon.run("egress", "log", "--names", str(names), box.id).returncode
    assert "allowed web.example.org\ndenied logged.example.org\n" == names.read_text()
    [row] = _rows(daemon, str(refused.job), "denied")
    assert ("job", "logged.example.org") == (row["kind"], row["name"])
    for job in (refused.job, in_session.job):
        said = daemon.run("explain", str(job)).stdout.decode()
        assert 'in [egress.web]: allow = ["logged.example.org"]' in said, said
    shown = daemon.run("egress", "log", str(refused.job)).stdout.decode()
    assert f"job {refused.job}  denied   logged.example.org  domain not in allowlist" in shown


def _rows(daemon: LiveDaemon, asked: str, until: str) -> list[dict[str, Any]]:
    """
    What the log has of *asked*, followed until a row with the verdict *until*.
    """
    found = []
    with subprocess.Popen(command("egress", "log", "-f", "--json", asked), env=environment(daemon.socket),
                          stdout=subprocess.PIPE) as log:
        assert log.stdout is not None
        for line in log.stdout:
            found.append(json.loads(line))
            if until == found[-1]["verdict"]:
                break
        log.terminate()
    return found

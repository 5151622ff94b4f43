"""
Egress through a real daemon: the configuration's policy, named by a job, a session, a sandbox and the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import leeward
from kit import egress
from kit.egress import Servers
from kit.live_daemon import PLACES, LiveDaemon
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

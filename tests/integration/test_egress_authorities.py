"""
Programs that people use trust the authorities of their sandbox's policy, without a further setting, and those of no
other policy: each has a request of its own, which reaches the host or doesn't.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import leeward
from kit.egress_secrets import Mirrors, live_sealed, mirrors
from kit.live_daemon import LiveDaemon
from kit.skip_policy import require

SERVERS = mirrors

pytestmark = pytest.mark.needs("user-namespaces")

CONFIG = """\
pool_size = 2
[egress.known]
allow = ["*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
authorities = "{authorities}"
[egress.unknown]
allow = ["*.example.org:{tls}"]
addresses = ["127.0.0.1/32"]
"""

#: Lines of a shell by the program that they are about, and the beginning of the path that the host is asked for.
LINES = {
    "python3": ("python3 -c 'import os, urllib.request as r; r.urlopen(os.environ[\"URL\"] + \"/python\")'", "/python"),
    "pip": ("python3 -m venv /tmp/v && /tmp/v/bin/pip download --retries 0 --index-url $URL/pip/ x", "/pip/x/"),
    "node": ("node -e 'fetch(process.env.URL + \"/node\")'", "/node"),
    "npm": ("npm view x --fetch-retries 0 --registry $URL/npm/", "/npm/x"),
    "git": ("git ls-remote $URL/git", "/git/info/refs"),
    "curl": ("curl -sS $URL/curl", "/curl"),
    "wget": ("wget -q -t 1 -O - $URL/wget", "/wget"),
    "go": ("GOPROXY=$URL/go GOCACHE=/tmp/go go list -m -versions example.org/m", "/go/example.org/m/@v/list"),
    "java": ("java -Xmx100m -XX:+UseSerialGC A.java $URL/java", "/java"),
    "cargo": ("CARGO_HOME=/tmp /tool/bin/cargo search --index $URL/cargo x", "/cargo/info/refs"),
}


JAVA = """\
import java.net.*;
public class A { public static void main(String[] a) throws Exception { URI.create(a[0]).toURL().openStream(); } }
"""


@pytest.fixture(scope="module")
def daemon(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with live_sealed(tmp_path_factory.mktemp("daemon"), host, CONFIG) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def boxes(daemon: LiveDaemon) -> Iterator[dict[str, leeward.Sandbox]]:
    tools = []
    if shutil.which("rustc") is not None:
        found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True, timeout=60)
        tools.append(leeward.Mount(found.stdout.strip(), "/tool"))
    with ExitStack() as stack:
        yield {policy: stack.enter_context(leeward.Sandbox(socket=daemon.socket, egress=policy, mounts=tools,
                                                           memory=1 << 30, processes=64))
               for policy in ("known", "unknown")}


@pytest.mark.parametrize("program", LINES)
def test_a_program_trusts_the_policys_authorities(boxes: dict[str, leeward.Sandbox], host: Mirrors,
                                                  program: str) -> None:
    line, path = LINES[program]
    if program not in ("python3", "pip"):
        require(f"usr-{program}")
    said = {}
    for policy, box in boxes.items():
        box.files.write("A.java", JAVA)
        host.said.clear()
        got = box.shell(line, env={"URL": f"https://{program}.example.org:{host.tls}"}, timeout=300)
        assert (policy == "known") == any(each.startswith(f"GET {path}".encode()) for each in host.said), got.stderr_text
        said[policy] = got.stdout_text + got.stderr_text
    assert "cert" in said["unknown"].lower() or program == "wget"  # which says nothing


def test_code_of_a_job_does(daemon: LiveDaemon, host: Mirrors) -> None:
    """And its repository of certificates is the policy's alone: another one's job doesn't know the host."""
    code = f"import urllib.request as r; print(r.urlopen('https://job.example.org:{host.tls}/').status)"
    with leeward.Client(daemon.socket) as client:
        assert "200\n" == client.execute(code, egress="known").stdout_text
        refused = client.execute(code, egress="unknown")
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr_text + str(refused.error)


def test_a_clients_narrower_policy_keeps_them(daemon: LiveDaemon, host: Mirrors) -> None:
    narrower = {"allow": [f"a.example.org:{host.tls}"], "addresses": ["127.0.0.1/32"]}
    with leeward.Sandbox(socket=daemon.socket, egress="known", policy=narrower) as box:
        got = box.shell(f"curl -sS https://a.example.org:{host.tls}/narrow")
    assert got.stdout_text.startswith("GET /narrow"), got.stderr_text

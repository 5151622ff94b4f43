"""
The own tests of E2B's clients and of OpenSandbox's, against `leeward serve`, by command; checkouts of
github.com/e2b-dev/E2B and github.com/opensandbox-group/OpenSandbox have them.

    python tests/clients/sdk_tests.py python CHECKOUT/packages/python-sdk PYTHON
    python tests/clients/sdk_tests.py node CHECKOUT/packages/js-sdk
    python tests/clients/sdk_tests.py opensandbox CHECKOUT/tests/python PYTHON

Runs in:   leeward's environment. PYTHON is of an environment with the client in that version, and pytest with its plugins
           asyncio, timeout and dotenv, for OpenSandbox order; `npm install` has been run in the folder of Node's. Some ten
           minutes.
Result:    1 if a test fails that isn't in ABSENT: those that need what isn't offered, or their cloud. With LEEWARD_RECORD=1
           docs/runs has what passed.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kit import runs
from kit.egress_names import HERE, OF_OTHERS
from kit.far_network import certificate
from kit.live_daemon import LiveDaemon
from kit.served import Served

CONFIG = """
sandbox_idle = 86400
sandbox_lifetime = 86400
[profiles.e2b]
base = "workdir"
home = "/home/user"
terminal = true
max = 32
"""

#: Why tests of E2B's fail, by what their names or files have.
_OF_E2B = {
    "pauses and snapshots of the files alone aren't offered, and /proc has no id of the boot":
        r"filesystem.only|keep_memory|keepMemory|reboots",
    "a sandbox where a program runs isn't paused": r"auto_resume_wakes|long running process|with http server",
    "metadata of files, and what events say of them, aren't offered":
        r"files/(test_)?metadata|xattr|entry.info|network.mounts",
    "rules by address and for requests, and its proxy, aren't offered, and no host of the Internet is there":
        r"update.?network|network|egress.?proxy|egress rules|allow_|allow |den(y|ies)|firewall|transform|mask.?request.?host|"
        r"injected header",
    "no Internet is given by default": r"internet.access",
    "MCP in a sandbox, iam and secrets aren't offered": r"mcp|MCP|iam|credentials|token is accepted|tokens map",
    "there is one user, and no sudo": r"bash.command.scoped|as root user",
    "only the home, /tmp and the work folder can be written": r"write multiple files",
    "three events of inotify for one write of a new file": r"test_watch_iterated|test_watch_recursive_directory_changes",
    "names below localhost, which the C library and Node don't resolve": r"ping.server|traffic",
    "an answer of their cloud's address is played, or expected": r"tests/sandbox/(iam|egressProxy|lifecycle(Payload|Request)|"
        r"networkTransform|configPropagation)|stable.host|caller object|autoResume",
}
#: Those of OpenSandbox's.
_OF_OPENSANDBOX = {
    "calls of a sandbox don't prolong its life": r"network_policy_get_and_patch_with_server_proxy",
    "a sandbox has one user, and files no other owner": r"basic_filesystem_operations",
    "a sandbox without a timeout has its tenant's longest": r"manual_cleanup",
}
#: The volumes that its tests expect, with the text of the files `marker.txt` there; a policy with the names that they reach.
VOLUMES = {"host": {"": "opensandbox-e2e-marker"},
           "opensandbox-e2e-pvc-test": {"": "pvc-marker-data", "datasets/train": "pvc-subpath-marker"}}
POLICY = """
[egress.others]
allow = ["*"]
addresses = ["127.0.0.1/32"]
authorities = {authorities!r}
"""
#: Why tests fail, by what their names or files have; what is run, from its folder; and the package whose client it is.
ABSENT = {"python": _OF_E2B, "node": _OF_E2B, "opensandbox": _OF_OPENSANDBOX}
_PYTEST = ("-m", "pytest", "-q", "--timeout", "180", "-p", "no:cacheprovider", "--tb=short", "-rf")
COMMANDS = {
    "python": (*_PYTEST, *(f"tests/{each}/{part}_{each}" for each in ("sync", "async") for part in ("sandbox", "api"))),
    "node": ("vitest", "run", "--no-file-parallelism", "tests/sandbox", "tests/api", "tests/envd"),
    "opensandbox": (*_PYTEST, *(f"tests/test_sandbox_{part}e2e{each}.py" for part in ("", "manager_")
                               for each in ("", "_sync"))),
}
PACKAGES = {"python": "e2b", "node": "e2b (Node)", "opensandbox": "opensandbox"}


def run(kind: str, folder: str, served: Served, python: str) -> tuple[set[str], int, str]:
    """Run them; returns those that fail, how many pass, and the version of the client."""
    env = {**os.environ, "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token,
           "OPENSANDBOX_TEST_DOMAIN": served.url.removeprefix("http://"), "OPENSANDBOX_TEST_API_KEY": served.token,
           "OPENSANDBOX_TEST_HOST_VOLUME_DIR": str(served.tokens.parents[1] / "host"), "PYTHONPATH": ".", "NO_COLOR": "1"}
    program = "npx" if "node" == kind else python
    done = subprocess.run([program, *COMMANDS[kind]], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    print(done.stdout)
    if done.returncode not in (0, 1):
        sys.exit("they didn't run")
    asks = f"import importlib.metadata as found; print(found.version({kind if kind == 'opensandbox' else 'e2b'!r}), end='')"
    version = json.loads(Path(folder, "package.json").read_text())["version"] if "node" == kind else subprocess.run(
        [python, "-c", asks], capture_output=True, text=True, check=True).stdout
    passed = int(re.findall(r"(\d+) passed", done.stdout)[-1])
    failed = {one or other for one, other in re.findall(r"^FAILED (\S+)|^ FAIL +(.*)$", done.stdout, re.MULTILINE)}
    return failed, passed, version


class Head(BaseHTTPRequestHandler):
    """Answers to `curl -I`."""

    def do_HEAD(self) -> None:
        self.send_response(204)
        self.end_headers()


@contextmanager
def others(work: Path) -> Iterator[str]:
    """What the tests of OpenSandbox's expect of their host: volumes, and hosts on the Internet. Gives the daemon's policy."""
    for name, texts in VOLUMES.items():
        for below, text in texts.items():
            (work / name / below).mkdir(parents=True, exist_ok=True)
            (work / name / below / "marker.txt").write_text(f"{text}\n")
    certificate(work, *(f"DNS:{name}" for name in OF_OTHERS))
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(work / "cert.pem", work / "key.pem")
    with ThreadingHTTPServer((HERE, 443), Head) as server:
        server.socket = trust.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield POLICY.format(authorities=str(work / "ca.pem"))
        finally:
            server.shutdown()
            thread.join()


def main(kind: str, folder: str, python: str = "python3") -> int:
    with tempfile.TemporaryDirectory(prefix="leeward-sdk-") as text, ExitStack() as held:
        work = Path(text)
        config, options = work / "config.toml", ["--quota", "rate=5000", "--quota", "sandboxes=64"]
        face, profile = ("opensandbox", "workdir") if "opensandbox" == kind else ("e2b", "e2b")
        config.write_text(CONFIG + (held.enter_context(others(work)) if "opensandbox" == kind else ""))
        if "opensandbox" == kind:
            options += ["--egress", "others", *(word for name in VOLUMES for word in ("--volume", f"{name}={work / name}"))]
        with (LiveDaemon(work, "--config", str(config), build={"kit.resolving": {}}) as daemon,
              Served(daemon.socket, work, face, "ports", "--profile", profile) as served):
            served.token = served.new_token("sdk", *options)
            failed, passed, version = run(kind, folder, served, python)
    of = passed + len(failed)
    for why, pattern in ABSENT[kind].items():
        known = {each for each in failed if re.search(pattern, each)}
        failed -= known
        print(f"{len(known):4} fail: {why}")
    print(*sorted(failed), sep="\n")
    if not failed:
        runs.record("frameworks", f"client-{kind}", version, package=PACKAGES[kind], passed=passed, of=of)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

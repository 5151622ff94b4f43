"""
E2B's own tests of its clients, against `leeward serve`, by command; a checkout of github.com/e2b-dev/E2B has them.

    python tests/clients/e2b_sdk_tests.py python CHECKOUT/packages/python-sdk PYTHON
    python tests/clients/e2b_sdk_tests.py node CHECKOUT/packages/js-sdk

Runs in:   leeward's environment. PYTHON is of an environment with e2b in that version, and pytest with its plugins asyncio,
           timeout and dotenv; `npm install` has been run in the folder of Node's. Some ten minutes.
Result:    1 if a test fails that isn't in ABSENT: those that need what isn't offered, or their cloud.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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

#: Why tests fail, by what their names or files have.
ABSENT = {
    "pauses and snapshots of the files alone aren't offered, and /proc has no id of the boot":
        r"filesystem.only|keep_memory|keepMemory|reboots",
    "a sandbox where a program runs isn't paused": r"auto_resume_wakes|long running process|with http server",
    "metadata of files, and what events say of them, aren't offered":
        r"files/(test_)?metadata|xattr|entry.info|network.mounts",
    "changes of the network, rules by address and its proxy aren't offered":
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


def run(kind: str, folder: str, served: Served, python: str) -> set[str]:
    """Run them; returns those that fail."""
    commands = {
        "python": [python, "-m", "pytest", "-q", "--timeout", "60", "-p", "no:cacheprovider", "--tb=short", "-rf",
                   *(f"tests/{each}/{part}_{each}" for each in ("sync", "async") for part in ("sandbox", "api"))],
        "node": ["npx", "vitest", "run", "--no-file-parallelism", "tests/sandbox", "tests/api", "tests/envd"]}
    env = {**os.environ, "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token,
           "PYTHONPATH": ".", "NO_COLOR": "1"}
    done = subprocess.run(commands[kind], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    print(done.stdout)
    if done.returncode not in (0, 1):
        sys.exit("they didn't run")
    return {one or other for one, other in re.findall(r"^FAILED (\S+)|^ FAIL +(.*)$", done.stdout, re.MULTILINE)}


def main(kind: str, folder: str, python: str = "python3") -> int:
    with tempfile.TemporaryDirectory(prefix="leeward-e2b-") as work:
        config = Path(work, "config.toml")
        config.write_text(CONFIG)
        with (LiveDaemon(Path(work), "--config", str(config)) as daemon,
              Served(daemon.socket, Path(work), "e2b", "ports", "--profile", "e2b") as served):
            served.token = served.new_token("sdk", "--quota", "rate=5000", "--quota", "sandboxes=64")
            failed = run(kind, folder, served, python)
    for why, pattern in ABSENT.items():
        known = {each for each in failed if re.search(pattern, each)}
        failed -= known
        print(f"{len(known):4} fail: {why}")
    print(*sorted(failed), sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

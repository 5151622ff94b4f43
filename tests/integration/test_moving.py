"""Both sides of each pair of docs/moving.md print 42, where the other can be run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon, environment
from kit.served import Served, client_python

PAGE = (ROOT / "docs/moving.md").read_text()
PAIRS = {title: re.findall(r"^```(python|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
         for title, text in re.findall(r"^## From (.+)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE)}
#: Of the other sides the ones that can run: the interpreter, and what it needs.
OTHERS = {
    "E2B": (client_python("e2b"), "client-e2b"), "SandboxFusion": (client_python("sandbox-fusion"), "client-sandbox-fusion"),
    "subprocess": (sys.executable, "system-python"),
    "Jupyter": (str(ROOT / ".venv-framework-jupyter/bin/python"), "framework-jupyter"),
    "Anthropic's sandbox-runtime": ("", "srt"),
}

SRT = ROOT / ".venv-client-node/node_modules/.bin"

DAEMON = ("--pool-size", "2")


def ran(kind: str, code: str, python: str, env: dict[str, str]) -> str:
    argv = [python, "-W", "ignore", "-c", code] if kind == "python" else ["sh", "-c", code]
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("title", PAIRS)
def test_the_same_with_leeward(daemon: LiveDaemon, title: str) -> None:
    _, (kind, code) = PAIRS[title]
    env = environment(daemon.socket, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    assert "42" == ran(kind, code, sys.executable, env).strip()
    assert code.count("\n") <= 5


@pytest.mark.parametrize("title", [pytest.param(title, marks=pytest.mark.needs(need, "extra-serve"))
                                   for title, (_, need) in OTHERS.items()])
def test_the_other_side(daemon: LiveDaemon, tmp_path: Path, title: str) -> None:
    """As it is: the clients of E2B and SandboxFusion talk to `leeward serve`."""
    (kind, code), _ = PAIRS[title]
    with Served(daemon.socket, tmp_path, "e2b", "run-code") as served:
        printed = ran(kind, code, OTHERS[title][0], {
            **os.environ, "HOME": str(tmp_path), "PATH": f"{SRT}:{os.environ['PATH']}",
            "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token,
            "SANDBOX_FUSION_ENDPOINT": served.url.replace("://", f"://x:{served.token}@")})

    assert "42" == printed.strip().splitlines()[-1]

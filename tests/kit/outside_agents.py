"""Agents that run outside of a sandbox, for tests: a program that runs lines as Claude Code does, in a project."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon, environment

#: An agent: it runs each line that it is told as Claude Code does, and says what came of it.
AGENT = """
import json, os, subprocess, shlex, sys
for asked in map(json.loads, sys.stdin):
    file = f"/tmp/claude-{os.getpid():x}-cwd"
    line = f"eval {shlex.quote(asked['line'])} < /dev/null && pwd -P >| {file}"
    done = subprocess.run(["bash", "-c", f"{shlex.quote(sys.argv[1])} {shlex.quote(line)}"], capture_output=True,
                          text=True, errors="surrogateescape", cwd=asked["cwd"])
    told = ""
    if os.path.exists(file):
        told = open(file).read()
        os.unlink(file)
    print(json.dumps([done.returncode, done.stdout, done.stderr, told]), flush=True)
"""


class OutsideAgent:
    """A process of AGENT, in the folder of a project."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process = subprocess.Popen([sys.executable, "-c", AGENT, str(place.prefix)], cwd=place.project,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=place.environ)
        self.pid = self._process.pid

    def line(self, text: str, cwd: Path | None = None) -> tuple[int, str, str, str]:
        self.send(text, cwd)
        return self.answer()

    def send(self, text: str, cwd: Path | None = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"line": text, "cwd": str(cwd or self._place.project)}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[int, str, str, str]:
        assert self._process.stdout is not None
        code, out, err, told = json.loads(self._process.stdout.readline())
        return code, out, err, told

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Place:
    """A project, a home, and the program for a prefix."""

    def __init__(self, folder: Path, daemon: LiveDaemon) -> None:
        self.project, home = folder / "pro ject", folder / "home"
        (self.project / "sub").mkdir(parents=True)
        home.mkdir()
        (self.project / ".env").write_text("SECRET")
        (home / "private").write_text("PRIVATE")
        self.home, self.daemon = home, daemon
        self.prefix = folder / "leeward-shell-prefix"
        self.prefix.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c 'import sys; from"
                               " leeward_cli.shell_prefix import main; sys.exit(main())' \"$@\"\n")
        self.prefix.chmod(0o755)
        self.environ = environment(daemon.socket, HOME=str(home), XDG_STATE_HOME=str(folder / "state"),
                                   XDG_CONFIG_HOME=str(folder / "config"), TMPDIR="/tmp")

    def shell(self, script: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run *script* by an agent's bash to its end. `$1` is the program for a prefix, `$2` and so on are *argv*."""
        agent = "import subprocess, sys; sys.exit(subprocess.call(['bash', '-c', sys.argv[1], *sys.argv[1:]]))"
        return subprocess.run([sys.executable, "-c", agent, script, str(self.prefix), *argv], cwd=self.project,
                              env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * PATIENCE, check=False)

    def sandboxes(self) -> list[str]:
        return [row["sandbox"] for row in leeward.Sandbox.list(socket=self.daemon.socket)
                if "agent-outside" in row["metadata"]]

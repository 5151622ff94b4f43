"""`leeward agent` in tests: a home of the test's own, definitions in it, a daemon whose broker asks the tests' resolver."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import leeward
from kit import egress
from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from kit.operator_terminal import OperatorTerminal
from kit.waiting import poll_until

#: Code that asks for a host.
ASK = ("from leeward.approvals import Agent; print(Agent().request_permission('network', host='asked.example.org',"
       " port=443, wait=False)['status'])")


class AgentHome:
    """
    Attributes:
        path: the home folder.
        project: a folder in it.
    """

    def __init__(self, folder: Path, daemon: LiveDaemon) -> None:
        self.path, self.project, self._daemon = folder, folder / "project", daemon
        self.project.mkdir(parents=True)

    def environment(self, **more: str) -> dict[str, str]:
        found = environment(self._daemon.socket, HOME=str(self.path), XDG_STATE_HOME=str(self.path / "state"),
                            XDG_CONFIG_HOME=str(self.path / "config"))
        return {**found, **more}

    def define(self, name: str, text: str) -> None:
        """Write a definition of the user's own."""
        self._write(self.path / "config/leeward/agents" / name / "agent.toml", text)

    def settings(self, text: str) -> None:
        """Write the user's settings."""
        self._write(self.path / "config/leeward/agents.toml", text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def run(self, *argv: str, input: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `leeward agent` to its end."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        return subprocess.run(command("agent", *argv), env=self.environment(**env), capture_output=True, text=True,
                              timeout=4 * PATIENCE, check=False, cwd=self.project, **given)

    def popen(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(command("agent", *argv), env=self.environment(**env), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.project)

    def on_terminal(self, *argv: str, **env: str) -> OperatorTerminal:
        return OperatorTerminal(command("agent", *argv), self.environment(**env), (24, 80))

    def left(self) -> list[Path]:
        """Return the files of the registry."""
        return sorted((self.path / "state").glob("leeward/agents/instances/*.json"))

    def gone(self) -> None:
        """Wait until the daemon has no sandbox, and nothing that belonged to one is left."""
        poll_until(lambda: not leeward.Sandbox.list(socket=self._daemon.socket), "the daemon has no sandbox", PATIENCE)
        self._daemon.idle()


@contextmanager
def agents_daemon(folder: Path, *options: str) -> Iterator[LiveDaemon]:
    """Start a daemon without a configuration of its own."""
    given = os.environ.get("LEEWARD_TESTS_OUTSIDE_TMP")  # this user has all folders below /tmp
    env = {"XDG_RUNTIME_DIR": given} if given else None
    with egress.live(folder, "", "--pool-size", "1", *options, env=env) as made:
        yield made


@contextmanager
def approvals(home: AgentHome) -> Iterator[dict[str, str]]:
    """The service for approvals; the variables by which it is found."""
    with tempfile.TemporaryDirectory(prefix="lw-", dir="/tmp") as folder:  # a socket's path has 107 bytes at most
        env = home.environment(LEEWARD_APPROVALS_SOCKET=f"{folder}/approvals")
        with subprocess.Popen(command("approvals", "serve"), env=env, stderr=subprocess.PIPE, text=True) as service:
            yield from _decided_by(service, env)


def _decided_by(service: subprocess.Popen[str], env: dict[str, str]) -> Iterator[dict[str, str]]:
    try:
        assert service.stderr is not None
        line = service.stderr.readline()
        assert "decides on" in line, line + service.stderr.read()
        yield {"LEEWARD_APPROVALS_SOCKET": env["LEEWARD_APPROVALS_SOCKET"]}
    finally:
        service.terminate()
        service.communicate(timeout=PATIENCE)

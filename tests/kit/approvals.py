"""A real service for approvals beside a real daemon, with folders of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from kit.live_daemon import PATIENCE, LiveDaemon, command, environment
from leeward.apps.approvals.operator_connection import ApprovalsAway, OperatorConnection
from leeward.client.sandbox import Sandbox


class ServedApprovals:
    """
    `leeward approvals serve`, from ready to its end.

    Args:
        daemon: whose client it is.
        folder: for its state.
        options: of its command line.
        socket: the operator's; "" for one of its own.
        dies_at: the step before which it ends itself by SIGKILL (`dying_service`), once `die` was called; "" for none.

    Attributes:
        socket: the operator's.
        connection: to it.
        process: of the service.
    """

    def __init__(self, daemon: LiveDaemon, folder: Path, *options: str, dies_at: str = "", socket: str = "") -> None:
        self.daemon, self.folder = daemon, folder
        self._runtime = tempfile.mkdtemp(prefix="lw-")  # a socket's path has 107 bytes
        self.socket = socket or f"{self._runtime}/approvals.sock"
        self.env = environment(daemon.socket, XDG_STATE_HOME=str(folder / "state"), HOME=str(folder),
                               LEEWARD_APPROVALS_SOCKET=self.socket)
        self.connection = OperatorConnection(self.socket)
        self._armed = folder / "armed"
        argv, env = command("approvals", "serve", *options), self.env
        if dies_at:
            argv = [sys.executable, "-P", "-m", "kit.dying_service", dies_at, str(self._armed), *options]
            env = {**env, "PYTHONPATH": f"{env['PYTHONPATH']}{os.pathsep}{Path(__file__).parent.parent}"}
        self.process = subprocess.Popen(argv, env=env, text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self) -> ServedApprovals:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "decides on" in line, line + self.process.stderr.read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.end()

    def die(self, cause: Callable[[], object]) -> None:
        """Let the service end itself at the step of `dies_at`, to which *cause* brings it."""
        self._armed.touch()
        with contextlib.suppress(ApprovalsAway):
            cause()
        assert -signal.SIGKILL == self.process.wait(PATIENCE)
        self._armed.unlink()

    def end(self) -> int:
        """Send SIGTERM, and return the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            if self.process.stderr is not None:
                self.process.stderr.close()
            shutil.rmtree(self._runtime, ignore_errors=True)

    def run(self, *argv: str, seconds: float = PATIENCE, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `leeward approvals ...` as the operator."""
        return subprocess.run(command("approvals", *argv), env=self.env, capture_output=True, text=True,
                              timeout=seconds, check=False, stdin=subprocess.DEVNULL, **options)

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        """Start `leeward approvals ...` as the operator, on pipes."""
        return subprocess.Popen(command("approvals", *argv), env=self.env, text=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def open(self, project: Path, **options: Any) -> Sandbox:
        """Open a sandbox over a copy of *project*, whose processes can ask."""
        return Sandbox.attach(self.connection.open_sandbox(str(project), **options)["sandbox"], socket=self.daemon.socket)

    def request(self, number: int, wait: float = 0.0) -> dict[str, Any]:
        """Return a request as soon as it is decided, or after *wait* seconds."""
        found: dict[str, Any] = self.connection.call("GET", f"/api/requests/{number}?wait={wait}")
        return found

    def pending(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.connection.call("GET", "/api/requests")["requests"]
        return found

    def decide(self, number: int, word: str = "approve", **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.connection.call("POST", f"/api/requests/{number}/{word}", more)
        return found

    def audit(self) -> list[dict[str, Any]]:
        """Return the record, the newest line first."""
        found: list[dict[str, Any]] = self.connection.call("GET", "/api/audit?limit=1000")["rows"]
        return found


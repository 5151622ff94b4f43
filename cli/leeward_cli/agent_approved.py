"""
`leeward agent start --approved`: an agent's sandbox that is registered with the service for approvals. Its processes
ask before anything leaves the sandbox, and a person decides.

Runs in:   the CLI.
Holds:     without the service no agent is started, since nobody would decide. When the service ends, it ends the
           sandbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from leeward.approvals.boxes import environment_of
from leeward.approvals.link import OperatorLink
from leeward.errors import LeewardError
from leeward_cli.approvals import ask_at_end, close_asked


class ApprovedAgent:
    """
    The registration of an agent's sandbox with the service.

    Args:
        project: the real path of the project. The agent works on a copy of it.
        socket: the daemon's; None for the default.

    Raises:
        LeewardError: the service for approvals doesn't answer.
    """

    def __init__(self, project: str, socket: str | None) -> None:
        self._project, self._link, self._socket = project, OperatorLink(), socket
        self._link.call("GET", "/api/status")
        self._sandbox, self._git = "", False

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that the agent gets in addition to *env*."""
        own = environment_of(self._project)
        if env.get("PYTHONPATH"):
            own["PYTHONPATH"] = f"{own['PYTHONPATH']}:{env['PYTHONPATH']}"
        return own

    def opened(self, sandbox: str) -> None:
        made = self._link.open_sandbox(self._project, sandbox=sandbox)
        self._sandbox, self._git = sandbox, bool(made.get("git"))

    def ending(self) -> bool:
        """Make requests for the changes and pushes in the sandbox. Returns whether it stays, since some have none yet."""
        sandbox, self._sandbox = self._sandbox, ""
        if not sandbox:
            return False
        with contextlib.suppress(LeewardError):  # the service has ended after `ask_at_end`
            return not ask_at_end(self._link, sandbox, self._socket, git=self._git) or close_asked(self._link, sandbox)
        return True

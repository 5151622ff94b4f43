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
from leeward_cli.approvals import tell_sync


class ApprovedAgent:
    """
    The registration of an agent's sandbox with the service.

    Args:
        project: the real path of the project. The agent works on a copy of it.

    Raises:
        LeewardError: the service for approvals doesn't answer.
    """

    def __init__(self, project: str) -> None:
        self._project, self._link = project, OperatorLink()
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

    def sync(self) -> None:
        """Make requests for the changes and pushes in the sandbox."""
        tell_sync("files", self._link.call("POST", "/api/sync/files", {"sandbox": self._sandbox}))
        if self._git:
            tell_sync("branches", self._link.call("POST", "/api/sync/git", {"sandbox": self._sandbox}))

    def ending(self) -> None:
        sandbox, self._sandbox = self._sandbox, ""
        if sandbox:
            with contextlib.suppress(LeewardError):  # the sandbox has ended with the service
                self._link.close_sandbox(sandbox)

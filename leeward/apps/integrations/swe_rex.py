"""
SWE-ReX in a live sandbox.

Runs in:   anybody's program; needs the extra `swe-rex`, here and in the sandbox: `packages=["swe-rex"]`.
Trust:     none in SWE-ReX's server, since code in the sandbox can take its place. SWE-ReX's client calls what a server
           names as an exception's class, `os.system` for instance; the one here knows the names of exceptions.

    from leeward.apps.integrations.swe_rex import LeewardDeployment

    deployment = LeewardDeployment(packages=["swe-rex"])
    await deployment.start()
    await deployment.runtime.execute(Command(command="echo hello", shell=True))
"""

from __future__ import annotations

import builtins
import secrets
from typing import Any

from swerex import exceptions
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError, SwerexException
from swerex.runtime.abstract import IsAliveResponse
from swerex.runtime.remote import RemoteRuntime
from swerex.utils.log import get_logger

from leeward.client.aio_ports import AsyncPublished
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.errors import LeewardError

#: The server's port in the sandbox, and the seconds that it may take to listen.
_PORT, _PATIENCE_S = 8880, 60.0
#: Elsewhere a file of the system's sets the shell's first prompt. Where none does, SWE-ReX takes that for the end of its
#: first command, and each command's for the end of the one before.
_PROMPT = "[ -e ~/.bashrc ] || echo \"PS1='$ '\" >~/.bashrc; "


class LeewardDeployment(AbstractDeployment):
    """
    A deployment of SWE-ReX's server in a live sandbox, whose profile allows terminals and loopback; `agent` by default.

    Keyword Args: those of leeward.Sandbox.
    """

    def __init__(self, *, logger: Any = None, **options: Any) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._options: dict[str, Any] = {"profile": "agent", "held": True, **options}
        self._hooks = CombinedDeploymentHook()
        self._box: AsyncSandbox | None = None
        self._published: AsyncPublished | None = None
        self._runtime: RemoteRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        """Add what is told of the steps."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> RemoteRuntime:
        """The runtime; DeploymentNotStartedError before `start`."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the server answers; it doesn't once the sandbox has ended."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """
        Open a sandbox, and start the server.

        Raises:
            DeploymentStartupError: there is no sandbox.
            TimeoutError: the server didn't listen within a minute.
        """
        self._hooks.on_custom_step("Opening a sandbox")
        token = secrets.token_hex()
        box = self._box = AsyncSandbox(**self._options)
        try:
            await box.start(_PROMPT + 'exec >/dev/null 2>&1; exec python3 -m swerex.server --host 127.0.0.1 --port "$PORT"'
                            ' --auth-token "$TOKEN"', env={"PORT": str(_PORT), "TOKEN": token, "TERM": "dumb"})
            self._published = await box.publish(_PORT)
            self._runtime = _Runtime(auth_token=token, host="http://127.0.0.1", port=self._published.port)
            await self._runtime.wait_until_alive(timeout=_PATIENCE_S)
        except LeewardError as error:
            await self.stop()
            raise DeploymentStartupError(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the sandbox, with all that runs in it."""
        self._runtime = None
        if self._published is not None:
            await self._published.close()
            self._published = None
        if self._box is not None:
            await self._box.close()
            self._box = None


class _Runtime(RemoteRuntime):
    """SWE-ReX's client, which takes nothing but an exception from a server that names one."""

    def _handle_transfer_exception(self, exc_transfer: Any) -> None:
        home, _, name = exc_transfer.class_path.rpartition(".")
        known = {"builtins": builtins, "swerex.exceptions": exceptions}.get(home)
        kind = getattr(known, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = SwerexException
        error: Any
        try:
            error = kind(exc_transfer.message)
        except TypeError:
            error = SwerexException(exc_transfer.message)
        error.extra_info = exc_transfer.extra_info
        raise error from None

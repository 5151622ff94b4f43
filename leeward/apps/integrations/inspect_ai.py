"""
A live sandbox for each sample of an evaluation with Inspect.

Runs in:   anybody's program; needs the extra `inspect-ai`. Inspect finds this module by the entry point `leeward`:
           `Task(..., sandbox="leeward")`, or `sandbox=("leeward", LeewardConfig(memory="1G"))`.
"""

from __future__ import annotations

import errno
import posixpath
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from inspect_ai.util._sandbox.environment import SandboxConnection, SandboxUnavailableError
from pydantic import BaseModel, ConfigDict, Field

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox_calls import OpenOptions, StartOptions
from leeward.errors import DaemonAway, SandboxOver
from leeward.spec.outcome import Outcome

_NOT_EXECUTABLE = 126
#: The limits of a sample without a configuration.
_MEMORY, _PROCESSES, _TIME_S = "1G", 128, 600.0


class LeewardConfig(BaseModel):
    """
    The configuration of a sample's sandbox.

    Attributes:
        memory: bytes, or a size such as "1G", for all processes and files of a sample together.
        processes: processes and threads of a sample at once.
        timeout: seconds for each command that doesn't set its own.
        idle: seconds without a call after which a sample's sandbox ends. By default the daemon's limit holds.
        env: environment variables.
        socket: path of the daemon's socket; as for leeward.Client.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: int | str = _MEMORY
    processes: int = _PROCESSES
    timeout: float = _TIME_S
    idle: float | None = None
    env: dict[str, str] = Field(default_factory=dict)
    socket: str | None = None


@sandboxenv(name="leeward")
class LeewardSandboxEnvironment(SandboxEnvironment):
    """A sandbox environment of Inspect, in the live sandbox *box*, which the caller closes."""

    def __init__(self, box: AsyncSandbox) -> None:
        super().__init__()
        self._box = box
        self._users: tuple[str, ...] = ()

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Make the sandbox of a sample, with the name "default"."""
        asked = config if isinstance(config, LeewardConfig) else LeewardConfig.model_validate(config or {})
        options = OpenOptions(memory=asked.memory, processes=asked.processes, timeout=asked.timeout, idle=asked.idle,
                              env=asked.env, held=True, metadata={"task": task_name})
        return {"default": cls(AsyncSandbox(socket=asked.socket, **options))}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment],
                             interrupted: bool) -> None:
        """Close the sandboxes of a sample."""
        for environment in environments.values():
            await environment.as_type(cls)._box.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """*config* as a LeewardConfig."""
        return LeewardConfig.model_validate(config)

    # --- commands ---------------------------------------------------------------

    async def exec(self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None,
                   env: dict[str, str] | None = None, user: str | None = None, timeout: int | None = None,
                   timeout_retry: bool = True, concurrency: bool = True) -> ExecResult[str]:
        """
        Run a command, as SandboxEnvironment.exec describes; never again, since the connection to the sandbox is
        reliable.
        """
        await self._check_user(user)
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        options = StartOptions(cwd=_below(cwd or "."), env=env or {}, stdin=input or b"", output=2 * most,
                               overflow="end")
        if timeout is not None:
            options["timeout"] = float(timeout)
        result = await self._ask(self._box.run(cmd, **options))
        if result.outcome is Outcome.TIMED_OUT:
            raise TimeoutError(f"the command didn't end within {timeout} s")
        if result.outcome is Outcome.OUTPUT_LIMIT or len(result.stdout) > most or len(result.stderr) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout_text[:most])
        if result.exit_code == _NOT_EXECUTABLE and not result.stdout and "ermission denied" in result.stderr_text:
            raise PermissionError(errno.EACCES, result.stderr_text.strip(), cmd[0])
        return ExecResult(result.ok, result.exit_code, result.stdout_text, result.stderr_text)

    async def _check_user(self, user: str | None) -> None:
        """SandboxUserUnsupportedError if *user* isn't the only one that the sandbox has."""
        if user is None:
            return
        if not self._users:
            found = await self._ask(self._box.shell("id -u; id -un"))
            self._users = tuple(found.stdout_text.split())
        if user not in self._users:
            raise SandboxUserUnsupportedError(f"a sandbox has only the user {self._users[-1]!r}, not {user!r}")

    # --- files ------------------------------------------------------------------

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, as SandboxEnvironment.write_file describes."""
        await self._ask(self._box.files.write(_below(file), contents))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as SandboxEnvironment.read_file describes."""
        try:
            data: bytes = await self._ask(self._box.files.read(
                _below(file), limit=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
            raise
        return data.decode() if text else data

    # --- the sandbox ------------------------------------------------------------

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """The command that gives a person a shell in the sandbox."""
        await self._check_user(user)
        return SandboxConnection(type="leeward", command=f"leeward shell {await self._ask(self._box.id())}")

    async def _ask(self, call: Any) -> Any:
        try:
            return await call
        except (SandboxOver, DaemonAway) as error:
            raise SandboxUnavailableError(str(error)) from error


def _below(path: str) -> str:
    return posixpath.join("/workspace", path)

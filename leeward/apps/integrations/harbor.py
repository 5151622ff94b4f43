"""
Live sandboxes with the root of an image, as an environment of Harbor.

Runs in:   a program of Harbor's; needs the extra `harbor`, and Python 3.12.

    harbor run -p TASKS -a oracle -e leeward.apps.integrations.harbor:LeewardHarborEnvironment

A task's `docker_image` is an image of leeward's, by that name or by the option `images`. Commands run as root, unless Harbor
names a user. What leeward can't do as it was asked is refused: Dockerfiles, compose files, graphics processors, mounts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import NetworkMode
from pydantic import Field

from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.aio_waiting import shielded
from leeward.client.sandbox_calls import StartOptions
from leeward.errors import DaemonError, LeewardError, RequestRejected
from leeward.spec.outcome import Outcome

#: The greatest output of a command that is kept.
_OUTPUT = "16M"
_ROOT = ("root", "0")


@contextmanager
def _told() -> Iterator[None]:
    """RuntimeError where the sandbox has ended, or the daemon; what is wrong with a file is its OSError."""
    try:
        yield
    except DaemonError as error:
        raise RuntimeError(f"the sandbox: {error}") from error


class LeewardHarborOptions(EnvironmentOptions):
    """
    What `--ek NAME=VALUE` sets.

    Attributes:
        sandbox: options of leeward.Sandbox. With `egress` that policy stands for all networks but none.
        images: for each `docker_image`, the options that stand for it. Others are images of leeward's.
        offline: tasks that may reach the Internet get no network either. Otherwise the daemon has to allow it to them.
        socket: path of the daemon's socket; as for leeward.Client.
    """

    sandbox: dict[str, Any] = Field(default_factory=dict)
    images: dict[str, dict[str, Any]] = Field(default_factory=dict)
    offline: bool = False
    socket: str | None = None


class LeewardHarborEnvironment(BaseEnvironment):
    """A task's environment, in one live sandbox from `start` to `stop`."""

    options_model = LeewardHarborOptions
    options: LeewardHarborOptions

    _box: AsyncSandbox | None = None

    @staticmethod
    def type() -> str:
        """The name in Harbor's results."""
        return "leeward"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """No network, and networks by names."""
        return EnvironmentCapabilities(disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True,
                                       network_allowlist_wildcard_hostnames=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Memory is a limit; processors aren't."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image:
            raise ValueError("leeward builds no Dockerfile: the task needs `docker_image` in [environment]")
        if self._host_mounts:
            raise ValueError("leeward mounts no folders of the host into a task's image")

    async def start(self, force_build: bool) -> None:
        """
        Open the sandbox.

        Raises:
            SandboxBuildFailedError: the daemon refuses what was asked for.
        """
        try:
            self._box = AsyncSandbox(socket=self.options.socket, **self._asked())
            await self._box.id()
            if self.task_env_config.workdir:
                await self._box.files.mkdir(self.task_env_config.workdir, exist_ok=True)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException as error:
            await self.stop(delete=True)
            if isinstance(error, (RequestRejected, TypeError)):
                raise SandboxBuildFailedError(str(error)) from error
            raise

    def _asked(self) -> dict[str, Any]:
        name, memory = str(self.task_env_config.docker_image), self._resource_limit_value("memory", auto_mode="limit")
        sandbox, mode = dict(self.options.sandbox), self._network_policy.network_mode
        reached: dict[str, Any] = {} if "egress" in sandbox else {"allow_network": True}
        if mode is NetworkMode.NO_NETWORK or (mode is NetworkMode.PUBLIC and self.options.offline):
            reached, _ = {}, sandbox.pop("egress", None)
        elif mode is NetworkMode.ALLOWLIST:
            reached["policy"] = {"allow": list(self._network_policy.allowed_hosts)}
        sizes = {"memory": memory, "files": self._effective_storage_mb}
        return {"profile": "workdir", "held": True, "user": "root", "env": self._startup_env(),
                "metadata": {"task": self.session_id}, **{what: size << 20 for what, size in sizes.items() if size},
                **sandbox, **reached, **self.options.images.get(name, {"image": name})}

    async def stop(self, delete: bool) -> None:
        """End the sandbox; without *delete* it stays until its idle time."""
        box, self._box = self._box, None
        if box is not None:
            await (box.close() if delete else box.detach())

    async def exec(self, command: str, cwd: str | None = None, env: dict[str, str] | None = None,
                   timeout_sec: int | None = None, user: str | int | None = None) -> ExecResult:
        """
        Run a line by bash. Without *timeout_sec* its time isn't bounded.

        Raises:
            TimeoutError: the time was up; all that the line has started is killed.
            RuntimeError: the sandbox has ended, or the daemon.
        """
        who, argv = self._resolve_user(user), ["bash", "-c", command]
        if who is not None and str(who) not in _ROOT:
            argv = ["bash", "-c", f'who=$(id -nu -- {shlex.quote(str(who))}) && exec su -s /bin/bash -- "$who" -c "$1"',
                    "su", command]
        options = StartOptions(env=self._merge_env(env) or {}, stdin=b"", output=_OUTPUT, overflow="cut")
        if cwd or self.task_env_config.workdir:
            options["cwd"] = cwd or self.task_env_config.workdir
        if timeout_sec is not None:
            options["timeout"] = float(timeout_sec)
        try:
            process = await self._opened().start(argv, **options)
            try:
                result = await process.result()
            except BaseException:
                await shielded(process.kill)
                raise
        except (LeewardError, UnicodeError) as error:
            raise RuntimeError(f"the sandbox: {error}") from error
        if result.outcome is Outcome.TIMED_OUT:
            raise TimeoutError(f"the command timed out after {timeout_sec} s")
        return ExecResult(stdout=result.stdout_text, stderr=result.stderr_text, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of the host into the sandbox, with its mode, and the folders that lead to it."""
        source = Path(source_path)
        with source.open("rb") as file, _told():
            await self._opened().files.write(target_path, file, mode=source.stat().st_mode & 0o777)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder of the host into the sandbox, with modes and links."""
        with _told():
            await self._opened().files.upload(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to the host."""
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        with _told():
            await self._opened().files.download(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder of the sandbox to the host; what could lead out of it is left out."""
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with _told():
            await self._opened().files.download(source_dir, target_dir)

    def _opened(self) -> AsyncSandbox:
        if self._box is None:
            raise RuntimeError("the environment isn't started")
        return self._box

"""
Live sandboxes as a provider of NeMo Gym.

Runs in:   a program of NeMo Gym's; needs the extra `nemo-gym`. NeMo Gym finds this module by the entry point `leeward`:
           `sandbox: {leeward: {options: {memory: 2G}, images: {"python:3.12": {packages: [numpy]}}}}`.

What leeward can't do as it was asked is refused: other users, graphics processors, an entry point, images that neither
`images` nor leeward has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)

from leeward.client.aio_ports import AsyncPublished
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox_calls import StartOptions
from leeward.errors import DaemonError, LeewardError, SandboxOver
from leeward.spec.outcome import Outcome

#: The exit code in NeMo Gym's results of what never ran, or was ended by the sandbox.
_NO_EXIT_CODE = 125
#: A command's seconds where neither call nor options say.
_TIME_S = 180.0
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass
class _Opened:
    """One sandbox, with its folder and the ports that are published."""

    box: AsyncSandbox
    workdir: str
    published: dict[int, AsyncPublished] = field(default_factory=dict)


class LeewardProvider:
    """
    A provider of NeMo Gym's.

    Args:
        options: options of leeward.Sandbox, for every sandbox; `provider_options` of a request come on top.
        images: for each name of an image, the options that stand for it. Other names are images of leeward's.
        default_timeout_s: seconds for a command that has no time of its own.
        socket: path of the daemon's socket; as for leeward.Client.
    """

    name = "leeward"

    def __init__(self, options: Mapping[str, Any] | None = None, images: Mapping[str, Mapping[str, Any]] | None = None,
                 default_timeout_s: float = _TIME_S, socket: str | None = None) -> None:
        self._options, self._images = dict(options or {}), dict(images or {})
        self._timeout, self._socket = default_timeout_s, socket
        self._opened: dict[str, _Opened] = {}

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """
        Open a sandbox.

        Raises:
            SandboxCreateError: it can't be opened, or was asked for what leeward hasn't.
        """
        box = None
        try:
            box = AsyncSandbox(socket=self._socket, **self._asked(spec))
            found = await box.id()
            if spec.workdir:
                await box.files.mkdir(spec.workdir, exist_ok=True)
            for path, content in spec.files.items():
                await box.files.write(path, content)
        except BaseException as error:
            if box is not None:
                await box.close()
            if isinstance(error, (LeewardError, OSError, TypeError)):
                raise SandboxCreateError(str(error)) from error
            raise
        self._opened[found] = opened = _Opened(box, spec.workdir or "/workspace")
        return SandboxHandle(found, self.name, opened)

    def _asked(self, spec: SandboxSpec) -> dict[str, Any]:
        resources = spec.resources
        for what, asked in {"graphics processors": resources.gpu, "an entry point": spec.entrypoint}.items():
            if asked:
                raise SandboxCreateError(f"leeward has no sandboxes with {what}")
        asked = {"profile": "workdir", "held": True, **self._options}
        if spec.image:
            asked |= self._images.get(spec.image, {"image": spec.image})
        asked |= {name: value for name, value in {
            "env": spec.env, "metadata": spec.metadata, "lifetime": spec.ttl_s,
            "memory": resources.memory_mib and resources.memory_mib * _MIB,
            "files": resources.disk_gib and resources.disk_gib * _GIB}.items() if value}
        return asked | spec.provider_options

    async def exec(self, handle: SandboxHandle, command: str, *, cwd: str | None = None, env: dict[str, str] | None = None,
                   timeout_s: float | None = None, user: str | int | None = None) -> SandboxExecResult:
        """Run a line by bash; a limit that ended it, or the sandbox's end, is the result's `error_type`."""
        if user is not None:
            raise ValueError(f"a sandbox has one user, and can't run a command as {user!r:.40}")
        opened = self._of(handle)
        limit = self._timeout if timeout_s is None else timeout_s
        options = StartOptions(cwd=cwd or opened.workdir, env=env or {})
        if math.isfinite(limit):
            options["timeout"] = float(limit)
        try:
            result = await opened.box.run(["bash", "-c", command], **options)
        except (DaemonError, UnicodeError) as error:
            return SandboxExecResult(None, str(error), _NO_EXIT_CODE, "sandbox")
        if result.outcome is Outcome.TIMED_OUT:
            return SandboxExecResult(result.stdout_text, result.stderr_text, _NO_EXIT_CODE, "timeout")
        return SandboxExecResult(result.stdout_text, result.stderr_text, result.exit_code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy a file of the host into the sandbox, with its mode."""
        with Path(source_path).open("rb") as file:
            await self._of(handle).box.files.write(self._path(handle, target_path), file,
                                                   mode=Path(source_path).stat().st_mode & 0o777)

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file of the sandbox to the host."""
        content = await self._of(handle).box.files.read(self._path(handle, source_path))
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(content)

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        """Where a server of the sandbox can be reached on this host."""
        opened = self._of(handle)
        if port not in opened.published:
            opened.published[port] = await opened.box.publish(port)
        return SandboxEndpoint(f"http://127.0.0.1:{opened.published[port].port}")

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """Whether the sandbox is there."""
        try:
            await self._of(handle).box.info()
        except (SandboxOver, KeyError):
            return SandboxStatus.STOPPED
        except DaemonError:
            return SandboxStatus.ERROR
        return SandboxStatus.RUNNING

    async def close(self, handle: SandboxHandle) -> None:
        """End the sandbox, with all that runs in it."""
        opened = self._opened.pop(handle.sandbox_id, None)
        if opened is not None:
            for one in opened.published.values():
                await one.close()
            await opened.box.close()

    async def aclose(self) -> None:
        """End all sandboxes."""
        for found, opened in list(self._opened.items()):
            await self.close(SandboxHandle(found, self.name, opened))

    def _of(self, handle: SandboxHandle) -> _Opened:
        opened: _Opened = handle.raw
        return opened

    def _path(self, handle: SandboxHandle, path: str) -> str:
        return path if path.startswith("/") else f"{self._of(handle).workdir}/{path}"

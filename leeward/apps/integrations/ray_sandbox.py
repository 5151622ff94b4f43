"""
leeward's sandboxes behind the interface of `ray.experimental.sandbox`, which is an alpha.

Runs in:   anybody's program, or an actor of Ray's; needs the extra `ray`.

    from leeward.apps.integrations.ray_sandbox import LeewardRuntime

    runtime = LeewardRuntime(leeward.fleet.connect("auto"), images={"python:3.12": {"packages": ["numpy==2.2"]}})
    box = runtime.create("python:3.12")
    print(runtime.exec(box, "python -c 'print(6 * 7)'").stdout)

Ray's SandboxRuntime makes its gVisor backend itself, so LeewardRuntime stands in its place, also where Ray takes a
`runtime_factory`. What leeward can't do as it was asked is refused: other users than the sandbox's own, capabilities,
name servers, a root that can be written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ray.experimental.sandbox.backend.base import BaseSandboxBackend, ExecResult, SandboxStatus
from ray.experimental.sandbox.config import SandboxConfig, parse_memory_bytes
from ray.experimental.sandbox.exceptions import (
    SandboxCreationError,
    SandboxError,
    SandboxExecError,
    SandboxNotFoundError,
    SandboxTimeoutError,
)
from ray.experimental.sandbox.runtime import SandboxRuntime

from leeward.apps.fleet.fleet import Fleet, FleetSandbox
from leeward.errors import DaemonError, SandboxOver
from leeward.spec.outcome import Outcome

#: What Ray's own ids of sandboxes begin with.
_PREFIX = "ray-sandbox-"
#: The network modes that leeward has, and the option of a sandbox for each.
_NETWORKS: dict[str, dict[str, Any]] = {"none": {}, "public": {"allow_network": True}}


class LeewardBackend(BaseSandboxBackend):
    """
    Sandboxes of *fleet*, by their ids there after _PREFIX.

    Args:
        images: for each name of an image that is taken, the options of Fleet.sandbox that stand for it, such as
            `packages`, `environment` or `profile`.
    """

    def __init__(self, fleet: Fleet, images: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(_NoImages())
        self._fleet, self._images = fleet, images
        self._boxes: dict[str, FleetSandbox] = {}
        self._sandbox_metadata: dict[str, dict[str, Any]] = {}  # Ray's Sandbox.get_config looks here

    def create_sandbox(self, config: SandboxConfig) -> str:
        unable = _unable(config, self._images)
        if unable:
            raise SandboxCreationError(f"leeward has no {unable}")
        options: dict[str, Any] = {"env": dict(config.env), **_NETWORKS[config.network], **self._images[config.image]}
        memory = parse_memory_bytes(config.memory)
        if memory:
            options["memory"] = memory
        if config.ttl_seconds and config.ttl_seconds > 0:
            options["lifetime"] = float(config.ttl_seconds)
        box = self._fleet.sandbox(**options)
        try:
            found = f"{_PREFIX}{box.id}"
            if config.workdir is not None:
                box.run(["mkdir", "-p", "--", config.workdir])
        except DaemonError as error:
            raise SandboxCreationError(str(error)) from error
        self._boxes[found], self._sandbox_metadata[found] = box, {"config": config}
        return found

    def delete_sandbox(self, sandbox_id: str) -> None:
        self._sandbox_metadata.pop(sandbox_id, None)
        box = self._boxes.pop(sandbox_id, None)
        if box is not None:
            box.close()

    def exec_command(self, sandbox_id: str, command: str | list[str], timeout: float | None = None,
                     cwd: str | None = None, env: dict[str, str] | None = None, shell: str | None = None,
                     user: str | None = None) -> ExecResult:
        if user is not None:
            raise SandboxExecError("leeward has no other user in a sandbox than its own")
        box, config = self._known(sandbox_id)
        argv = command if isinstance(command, list) else [shell or config.shell, "-c", command]
        with _told(sandbox_id):
            result = box.run(argv, cwd=cwd or config.workdir, env=env, timeout=timeout)
        if result.outcome is Outcome.TIMED_OUT:
            raise SandboxTimeoutError(f"the command ran longer than {timeout} s")
        if result.outcome is Outcome.INTERNAL:
            raise SandboxExecError("the sandbox was lost while the command ran")
        return ExecResult(result.exit_code, result.stdout_text, result.stderr_text, result.duration)

    def write_file(self, sandbox_id: str, path: str, content: str | bytes, append: bool = False) -> None:
        box, config = self._known(sandbox_id)
        keeps = 'mkdir -p -- "$(dirname -- "$1")" && cat >> "$1"'
        with _told(sandbox_id):
            result = box.run(["sh", "-c", keeps if append else keeps.replace(">>", ">"), "--", path], stdin=content,
                             cwd=config.workdir)
        if not result.ok:
            raise SandboxError(f"the file can't be written: {result.stderr_text:.500}")

    def read_file(self, sandbox_id: str, path: str) -> bytes:
        box, config = self._known(sandbox_id)
        with _told(sandbox_id):
            try:
                return box.files.read(path if path.startswith("/") or config.workdir is None
                                      else f"{config.workdir}/{path}")
            except OSError as error:
                raise SandboxError(f"the file can't be read: {error.strerror}") from error

    def get_status(self, sandbox_id: str) -> SandboxStatus:
        box = self._boxes.get(sandbox_id)
        if box is None:
            return SandboxStatus.TERMINATED
        try:
            box.info()
        except SandboxOver:
            return SandboxStatus.TERMINATED
        except DaemonError:
            return SandboxStatus.ERROR
        return SandboxStatus.RUNNING

    def _known(self, sandbox_id: str) -> tuple[FleetSandbox, SandboxConfig]:
        if sandbox_id not in self._boxes:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r:.100}")
        return self._boxes[sandbox_id], self._sandbox_metadata[sandbox_id]["config"]


class LeewardRuntime(SandboxRuntime):
    """A SandboxRuntime of Ray's with a LeewardBackend."""

    def __init__(self, fleet: Fleet, images: Mapping[str, Mapping[str, Any]]) -> None:
        self._backend = LeewardBackend(fleet, images)
        self._image_manager = self._backend.image_manager
        self._ttl_timers: dict[str, threading.Timer] = {}


class _NoImages:
    """In the place of Ray's ImageManager: no image is pulled."""

    def pull_image(self, image: str, timeout_seconds: float = 0.0, instance_id: str | None = None) -> str:
        return ""


def _unable(config: SandboxConfig, images: Mapping[str, Mapping[str, Any]]) -> str:
    """What *config* asks for that leeward can't do; "" if it can do all of it."""
    if config.image not in images:
        return f"image {config.image!r:.100}; there are {', '.join(map(repr, images)) or 'none'}"
    if config.network not in _NETWORKS:
        return f"network {config.network!r:.40}"
    wanted = {"name servers of one's own (dns)": config.dns, "capabilities": config.capabilities,
              "root that can be written (readonly=False)": not config.readonly,
              "OCI runtime to configure": config._oci_spec_transform_fn}
    return next((what for what, asked in wanted.items() if asked), "")


@contextlib.contextmanager
def _told(sandbox_id: str) -> Iterator[None]:
    """leeward's errors as Ray's."""
    try:
        yield
    except SandboxOver as error:
        raise SandboxNotFoundError(f"{sandbox_id}: {error}") from error
    except DaemonError as error:
        raise SandboxExecError(f"{sandbox_id}: {error}") from error

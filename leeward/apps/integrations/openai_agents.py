"""
Live sandboxes as a sandbox client of openai-agents.

Runs in:   anybody's program; needs the extra `openai-agents`.

    from agents.run import RunConfig
    from agents.sandbox import SandboxRunConfig
    from leeward.apps.integrations.openai_agents import LeewardSandboxClient, LeewardSandboxClientOptions

    where = SandboxRunConfig(client=LeewardSandboxClient(), options=LeewardSandboxClientOptions(sandbox={"memory": "1G"}))
    await Runner.run(agent, "...", run_config=RunConfig(sandbox=where))

A sandbox has one user, and no folders of the host but those that its options name: what asks for other users or for mounts
is refused. Terminals of a sandbox aren't offered to agents.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint
from pydantic import Field

from leeward.client.aio_ports import AsyncPublished
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox_calls import StartOptions
from leeward.errors import LeewardError, SandboxOver
from leeward.spec.outcome import Outcome

#: The greatest output of a command, which an agent's tools cut further.
_OUTPUT = 8 << 20


class LeewardSandboxClientOptions(BaseSandboxClientOptions):
    """
    What sandboxes a client opens.

    Attributes:
        sandbox: options of leeward.Sandbox. The profile is `workdir` by default.
        exposed_ports: the ports of servers in the sandbox that may be asked for.
    """

    type: Literal["leeward"] = "leeward"
    sandbox: dict[str, Any] = Field(default_factory=dict)
    exposed_ports: tuple[int, ...] = ()


class LeewardSandboxSessionState(SandboxSessionState):
    """What another program needs to find a session's sandbox again, or to open one like it."""

    type: Literal["leeward"] = "leeward"
    sandbox_id: str = ""
    sandbox: dict[str, Any] = Field(default_factory=dict)


class LeewardSandboxSession(BaseSandboxSession):
    """A session of openai-agents in one live sandbox."""

    state: LeewardSandboxSessionState

    def __init__(self, state: LeewardSandboxSessionState, box: AsyncSandbox, socket: str | None = None) -> None:
        self.state = state
        self._box, self._socket = box, socket
        self._published: dict[int, AsyncPublished] = {}

    # --- commands ---------------------------------------------------------------

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: Any) -> list[str]:
        _refuse_user("exec", user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        options = StartOptions(cwd=self.state.manifest.root, env=await self._environment(), output=_OUTPUT)
        if timeout is not None:
            options["timeout"] = timeout
        try:
            result = await self._box.run(words, **options)
        except (LeewardError, UnicodeError) as error:
            raise ExecTransportError(command=words, cause=error, message=str(error), retryable=False,
                                     context={"backend": "leeward", "sandbox_id": self.state.sandbox_id}) from error
        if result.outcome is Outcome.TIMED_OUT:
            raise ExecTimeoutError(command=words, timeout_s=timeout)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def _environment(self) -> dict[str, str]:
        return {name: value for name, value in (await self.state.manifest.environment.resolve()).items()
                if value is not None}

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            if port not in self._published:
                self._published[port] = await self._box.publish(port)
        except LeewardError as error:
            raise ExposedPortUnavailableError(port=port, exposed_ports=self.state.exposed_ports,
                                              reason="backend_unavailable", cause=error) from error
        return ExposedPortEndpoint(host="127.0.0.1", port=self._published[port].port)

    # --- files ------------------------------------------------------------------

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """The content of a file."""
        _refuse_user("read", user)
        with _reads(path):
            return io.BytesIO(await self._box.files.read((await self._validate_path_access(path)).as_posix()))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        with _reads(path):
            return await self._box.files.read((await self._validate_path_access(path)).as_posix(), size=max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        """Write a file, with the folders that lead to it."""
        _refuse_user("write", user)
        inside = await self._validate_path_access(path, for_write=True)
        with _writes(inside):
            await self._box.files.write(inside.as_posix(), _content(inside, data))

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as an archive, without what its manifest calls ephemeral."""
        skipped = [PurePosixPath(path.as_posix()) for path in self._persist_workspace_skip_relpaths()]
        whole, kept = io.BytesIO(), io.BytesIO()
        with _reads(self._workspace_root_path()):
            await self._box.files.export_tar(self.state.manifest.root, whole)
        whole.seek(0)
        if not skipped:
            return whole
        with tarfile.open(fileobj=whole) as source, tarfile.open(fileobj=kept, mode="w") as target:
            for member in source:
                if not any(PurePosixPath(member.name).is_relative_to(path) for path in skipped):
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
        kept.seek(0)
        return kept

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack an archive into the workspace."""
        root = self._workspace_root_path()
        with _writes(root):
            await self._box.files.import_tar(io.BytesIO(_content(root, data)), self.state.manifest.root)

    # --- its life ---------------------------------------------------------------

    async def _ensure_backend_started(self) -> None:
        """A sandbox that has ended is replaced; the base then brings back what was persisted."""
        try:
            if self.state.sandbox_id:
                try:
                    await self._box.info()
                    return
                except SandboxOver:
                    await self._box.close()
                    self._box = _unopened(self.state.sandbox, self._socket)
            self.state.sandbox_id, self.state.workspace_root_ready = await self._box.id(), False
            self._set_start_state_preserved(False)
        except LeewardError as error:
            raise WorkspaceStartError(path=self._workspace_root_path(), cause=error, message=str(error)) from error

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            await self._box.files.mkdir(root.as_posix(), exist_ok=True)
        except (LeewardError, OSError) as error:
            raise WorkspaceStartError(path=root, cause=error, message=str(error)) from error

    async def running(self) -> bool:
        """Whether the sandbox is there."""
        try:
            await self._box.info()
        except LeewardError:
            return False
        return True

    async def _shutdown_backend(self) -> None:
        for one in self._published.values():
            await one.close()
        self._published.clear()
        await self._box.close()


class LeewardSandboxClient(BaseSandboxClient[LeewardSandboxClientOptions]):
    """
    A sandbox client of openai-agents. Sandboxes outlive this program, until their idle time, so that `resume` finds them;
    the option `"held": True` ends them with it.

    Args:
        socket: path of the daemon's socket; as for leeward.Client.
    """

    backend_id = "leeward"
    supports_default_options = True

    def __init__(self, *, socket: str | None = None, instrumentation: Any = None, dependencies: Any = None) -> None:
        super().__init__()
        self._socket, self._instrumentation, self._dependencies = socket, instrumentation, dependencies

    async def create(self, *, snapshot: SnapshotSpec | SnapshotBase | None = None, manifest: Manifest | None = None,
                     options: LeewardSandboxClientOptions | None = None) -> SandboxSession:
        """Open a sandbox for a session."""
        asked = options or LeewardSandboxClientOptions()
        wanted = self._validate_manifest_for_create(manifest or Manifest())
        if any(grant.read_only or grant.host_path is not None for grant in wanted.extra_path_grants):
            raise _refused("start", "paths of the host, or only to read: name folders as `mounts` of the sandbox instead")
        session = uuid.uuid4()
        state = LeewardSandboxSessionState(session_id=session, manifest=wanted, exposed_ports=asked.exposed_ports,
                                           snapshot=resolve_snapshot(snapshot, str(session)), sandbox=asked.sandbox)
        inner = LeewardSandboxSession(state, _unopened(asked.sandbox, self._socket), self._socket)
        await inner._ensure_backend_started()
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session's sandbox."""
        if not isinstance(session._inner, LeewardSandboxSession):
            raise TypeError("the session is another client's")
        await session._inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of *state*, in its sandbox, or in another one with what was persisted if that has ended."""
        if not isinstance(state, LeewardSandboxSessionState):
            raise TypeError("the state is another client's")
        state.assert_path_grants_rebound()
        try:
            box, found = await AsyncSandbox.attach(state.sandbox_id, socket=self._socket), True
        except LeewardError:
            box, found = _unopened(state.sandbox, self._socket), False
            state.sandbox_id, state.workspace_root_ready = "", False
        inner = LeewardSandboxSession(state, box, self._socket)
        await inner._ensure_backend_started()
        inner._set_start_state_preserved(found)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """What `serialize_session_state` has made of a state."""
        return self._deserialize_session_state_payload(payload, LeewardSandboxSessionState)


def _unopened(options: Mapping[str, Any], socket: str | None) -> AsyncSandbox:
    return AsyncSandbox(socket=socket, **{"profile": "workdir", **options})


def _content(path: Path, data: io.IOBase) -> bytes:
    content = data.read()
    if isinstance(content, str):
        return content.encode()
    if not isinstance(content, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
    return bytes(content)


def _refuse_user(op: Any, user: Any) -> None:
    if user is not None:
        raise _refused(op, "another user: a sandbox has one")


def _refused(op: Any, what: str) -> ConfigurationError:
    return ConfigurationError(message=f"leeward has no sandboxes with {what}", op=op, context={"backend": "leeward"},
                              error_code=ErrorCode.SANDBOX_CONFIG_INVALID)


@contextmanager
def _reads(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise WorkspaceReadNotFoundError(path=path, cause=error) from error
    except (LeewardError, OSError, ValueError) as error:
        raise WorkspaceArchiveReadError(path=path, cause=error, retryable=False) from error


@contextmanager
def _writes(path: Path) -> Iterator[None]:
    try:
        yield
    except (LeewardError, OSError, ValueError, tarfile.TarError) as error:
        raise WorkspaceArchiveWriteError(path=path, cause=error, retryable=False, message=str(error)) from error

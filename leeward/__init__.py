"""
leeward runs untrusted Python code in warm, fully confined processes.

    import leeward

    with leeward.Client() as client:
        print(client.execute("print('hello')").stdout_text)

Each name is imported on first use, because the daemon's processes import parts of this package alone.
"""

from __future__ import annotations

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from leeward.client.aio import AsyncClient
    from leeward.client.aio_files import AsyncFiles
    from leeward.client.aio_ports import AsyncPublished
    from leeward.client.aio_process import AsyncKernel, AsyncProcess
    from leeward.client.aio_sandbox import AsyncSandbox
    from leeward.client.aio_session import AsyncSession
    from leeward.client.aio_snapshot import AsyncSnapshot
    from leeward.client.aio_workdir import AsyncWorkdirSandbox
    from leeward.client.blocking import Client
    from leeward.client.changes import FolderChange
    from leeward.client.connecting import RemoteHost
    from leeward.client.egress_asks import EgressAsk
    from leeward.client.environments import BuildFailed
    from leeward.client.fetching import Fetched
    from leeward.client.file_calls import FileChange, FileInfo, FileMatch
    from leeward.client.file_trees import Transfer
    from leeward.client.files import Files
    from leeward.client.many import MapEnd, MapProgress
    from leeward.client.mounts import Mount
    from leeward.client.ports import Published
    from leeward.client.process import Kernel, Process
    from leeward.client.sandbox import Sandbox
    from leeward.client.sandbox_calls import Chunk
    from leeward.client.session import Session
    from leeward.client.snapshot import Snapshot
    from leeward.client.snapshot_store import SnapshotStore
    from leeward.client.workdir import WorkdirSandbox
    from leeward.client.workdir_errors import (
        CommandNotFound,
        Destroyed,
        FetchError,
        NetworkingDisabled,
        PathTraversal,
        Timeout,
        ToolboxNotAvailable,
        WorkdirError,
        WorkdirIoError,
        WorkdirRuntimeError,
    )
    from leeward.client.workdir_files import WorkdirEntry
    from leeward.errors import (
        BadReply,
        Busy,
        Cancelled,
        DaemonAway,
        DaemonError,
        EditError,
        FetchFailed,
        FilesFailed,
        Forbidden,
        LeewardError,
        NoAnswer,
        PoolFailed,
        ProcessOver,
        QueueTimeout,
        Refused,
        RequestRejected,
        SandboxOver,
        SessionOver,
        ShuttingDown,
        SnapshotFailed,
        Stale,
        VersionMismatch,
    )
    from leeward.spec.outcome import JobError, LeftOut, LeftOutReason, Limit, Outcome, Result

__all__ = [
    "AsyncClient", "AsyncFiles", "AsyncKernel", "AsyncProcess", "AsyncPublished", "AsyncSandbox", "AsyncSession",
    "AsyncSnapshot", "AsyncWorkdirSandbox", "BadReply", "BuildFailed", "Busy", "Cancelled", "Chunk", "Client",
    "CommandNotFound", "DaemonAway", "DaemonError", "Destroyed", "EditError", "EgressAsk", "FetchError", "FetchFailed",
    "Fetched", "FileChange", "FileInfo", "FileMatch", "Files", "FilesFailed", "FolderChange", "Forbidden", "JobError",
    "Kernel", "LeewardError", "LeftOut", "LeftOutReason", "Limit", "MapEnd", "MapProgress", "Mount", "NetworkingDisabled",
    "NoAnswer", "Outcome", "PathTraversal", "PoolFailed", "Process", "ProcessOver", "Published", "QueueTimeout",
    "Refused", "RemoteHost", "RequestRejected", "Result", "Sandbox", "SandboxOver", "Session", "SessionOver",
    "ShuttingDown", "Snapshot", "SnapshotFailed", "SnapshotStore", "Stale", "Timeout", "ToolboxNotAvailable", "Transfer",
    "VersionMismatch", "WorkdirEntry", "WorkdirError", "WorkdirIoError", "WorkdirRuntimeError", "WorkdirSandbox",
    "on_restore",
]

#: The modules of leeward.client that have the names; all others are in leeward.spec.outcome or leeward.errors.
_IN_CLIENT = {
    "AsyncClient": "aio", "AsyncFiles": "aio_files", "AsyncKernel": "aio_process", "AsyncProcess": "aio_process",
    "AsyncPublished": "aio_ports", "AsyncSandbox": "aio_sandbox", "AsyncSession": "aio_session",
    "AsyncSnapshot": "aio_snapshot", "AsyncWorkdirSandbox": "aio_workdir", "BuildFailed": "environments",
    "Chunk": "sandbox_calls", "Client": "blocking", "CommandNotFound": "workdir_errors", "Destroyed": "workdir_errors",
    "EgressAsk": "egress_asks", "FetchError": "workdir_errors", "Fetched": "fetching", "FileChange": "file_calls",
    "FileInfo": "file_calls", "FileMatch": "file_calls", "Files": "files", "FolderChange": "changes", "Kernel": "process",
    "MapEnd": "many", "MapProgress": "many", "Mount": "mounts", "NetworkingDisabled": "workdir_errors",
    "PathTraversal": "workdir_errors", "Process": "process", "Published": "ports", "RemoteHost": "connecting",
    "Sandbox": "sandbox", "Session": "session", "Snapshot": "snapshot", "SnapshotStore": "snapshot_store",
    "Timeout": "workdir_errors",
    "ToolboxNotAvailable": "workdir_errors", "Transfer": "file_trees", "WorkdirEntry": "workdir_files",
    "WorkdirError": "workdir_errors", "WorkdirIoError": "workdir_errors", "WorkdirRuntimeError": "workdir_errors",
    "WorkdirSandbox": "workdir",
}
_IN_OUTCOME = ("JobError", "LeftOut", "LeftOutReason", "Limit", "Outcome", "Result")


class _Known:
    """Finds `leeward.approvals`, `leeward.fleet` and `leeward.integrations`, names that programs have, in `leeward.apps`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
        if not name.startswith(("leeward.approvals", "leeward.fleet", "leeward.integrations")):
            return None
        from importlib.util import find_spec, spec_from_loader  # most processes never come here

        name_now = name.replace("leeward.", "leeward.apps.", 1)
        return None if find_spec(name_now) is None else spec_from_loader(name, cls(name_now))  # type: ignore[arg-type]

    def create_module(self, spec: object) -> object:
        """The one module, which is imported by its own name."""
        from importlib import import_module  # as above

        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: object) -> None:
        """It has been; the import system has just replaced its spec."""
        module.__spec__ = self._spec  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Known)  # type: ignore[arg-type]


def on_restore(function: Callable[[], object]) -> Callable[[], object]:
    """
    Have *function* called in each copy of the kernel's state, before the copy's first code, in the order in which they
    were given: to reseed a generator, or to make a key anew. If it raises, the copy isn't begun. For code in a kernel,
    also as a decorator; elsewhere it does nothing. Where leeward isn't installed inside, `import leeward` has this alone.
    """
    register = getattr(sys, "__leeward_on_restore__", None)
    if register is not None:
        register(function)
    return function


def __getattr__(name: str) -> object:
    if name in _IN_CLIENT:
        home = f"leeward.client.{_IN_CLIENT[name]}"
    elif name in __all__:
        home = "leeward.spec.outcome" if name in _IN_OUTCOME else "leeward.errors"
    else:
        raise AttributeError(f"module 'leeward' has no attribute {name!r}")
    from importlib import import_module  # 0.5 ms that a job needn't wait for

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

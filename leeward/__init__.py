"""
leeward runs untrusted Python code in warm, fully confined processes.

    import leeward

    with leeward.Client() as client:
        print(client.execute("print('hello')").stdout_text)

Each name is imported on first use, because the daemon's processes import parts of this
package and shouldn't pay for the rest.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from leeward.client.aio import AsyncClient as AsyncClient
    from leeward.client.aio_files import AsyncFiles as AsyncFiles
    from leeward.client.aio_process import AsyncKernel as AsyncKernel
    from leeward.client.aio_process import AsyncProcess as AsyncProcess
    from leeward.client.aio_sandbox import AsyncSandbox as AsyncSandbox
    from leeward.client.aio_session import AsyncSession as AsyncSession
    from leeward.client.aio_workdir import AsyncWorkdirSandbox as AsyncWorkdirSandbox
    from leeward.client.blocking import Client as Client
    from leeward.client.changes import FolderChange as FolderChange
    from leeward.client.egress_asks import EgressAsk as EgressAsk
    from leeward.client.environments import BuildFailed as BuildFailed
    from leeward.client.fetching import Fetched as Fetched
    from leeward.client.file_calls import FileChange as FileChange
    from leeward.client.file_calls import FileInfo as FileInfo
    from leeward.client.file_calls import FileMatch as FileMatch
    from leeward.client.file_trees import Transfer as Transfer
    from leeward.client.files import Files as Files
    from leeward.client.mounts import Mount as Mount
    from leeward.client.process import Kernel as Kernel
    from leeward.client.process import Process as Process
    from leeward.client.sandbox import Sandbox as Sandbox
    from leeward.client.sandbox_calls import Chunk as Chunk
    from leeward.client.session import Session as Session
    from leeward.client.workdir import WorkdirSandbox as WorkdirSandbox
    from leeward.client.workdir_errors import CommandNotFound as CommandNotFound
    from leeward.client.workdir_errors import Destroyed as Destroyed
    from leeward.client.workdir_errors import FetchError as FetchError
    from leeward.client.workdir_errors import NetworkingDisabled as NetworkingDisabled
    from leeward.client.workdir_errors import PathTraversal as PathTraversal
    from leeward.client.workdir_errors import Timeout as Timeout
    from leeward.client.workdir_errors import ToolboxNotAvailable as ToolboxNotAvailable
    from leeward.client.workdir_errors import WorkdirError as WorkdirError
    from leeward.client.workdir_errors import WorkdirIoError as WorkdirIoError
    from leeward.client.workdir_errors import WorkdirRuntimeError as WorkdirRuntimeError
    from leeward.client.workdir_files import WorkdirEntry as WorkdirEntry
    from leeward.errors import BadReply as BadReply
    from leeward.errors import Busy as Busy
    from leeward.errors import Cancelled as Cancelled
    from leeward.errors import DaemonAway as DaemonAway
    from leeward.errors import DaemonError as DaemonError
    from leeward.errors import EditError as EditError
    from leeward.errors import FetchFailed as FetchFailed
    from leeward.errors import Forbidden as Forbidden
    from leeward.errors import LeewardError as LeewardError
    from leeward.errors import NoAnswer as NoAnswer
    from leeward.errors import PoolFailed as PoolFailed
    from leeward.errors import ProcessOver as ProcessOver
    from leeward.errors import QueueTimeout as QueueTimeout
    from leeward.errors import Refused as Refused
    from leeward.errors import RequestRejected as RequestRejected
    from leeward.errors import SandboxOver as SandboxOver
    from leeward.errors import SessionOver as SessionOver
    from leeward.errors import ShuttingDown as ShuttingDown
    from leeward.errors import Stale as Stale
    from leeward.errors import VersionMismatch as VersionMismatch
    from leeward.outcome import JobError as JobError
    from leeward.outcome import LeftOut as LeftOut
    from leeward.outcome import LeftOutReason as LeftOutReason
    from leeward.outcome import Limit as Limit
    from leeward.outcome import Outcome as Outcome
    from leeward.outcome import Result as Result

__all__ = [
    "AsyncClient", "AsyncFiles", "AsyncKernel", "AsyncProcess", "AsyncSandbox", "AsyncSession", "AsyncWorkdirSandbox",
    "BadReply", "BuildFailed", "Busy", "Cancelled", "Chunk", "Client", "CommandNotFound", "DaemonAway", "DaemonError",
    "Destroyed", "EditError", "EgressAsk", "FetchError", "FetchFailed", "Fetched", "FileChange", "FileInfo",
    "FileMatch", "Files", "FolderChange", "Forbidden", "JobError", "Kernel", "LeewardError", "LeftOut",
    "LeftOutReason", "Limit", "Mount", "NetworkingDisabled", "NoAnswer", "Outcome", "PathTraversal", "PoolFailed",
    "Process", "ProcessOver", "QueueTimeout", "Refused", "RequestRejected", "Result", "Sandbox", "SandboxOver",
    "Session", "SessionOver", "ShuttingDown", "Stale", "Timeout", "ToolboxNotAvailable", "Transfer",
    "VersionMismatch", "WorkdirEntry", "WorkdirError", "WorkdirIoError", "WorkdirRuntimeError", "WorkdirSandbox",
]

_HOMES = {
    **dict.fromkeys(__all__, "leeward.errors"),
    **dict.fromkeys(("JobError", "LeftOut", "LeftOutReason", "Limit", "Outcome", "Result"), "leeward.outcome"),
    "AsyncClient": "leeward.client.aio",
    "AsyncWorkdirSandbox": "leeward.client.aio_workdir",
    "BuildFailed": "leeward.client.environments",
    **dict.fromkeys(("AsyncKernel", "AsyncProcess"), "leeward.client.aio_process"),
    **dict.fromkeys(("FileChange", "FileInfo", "FileMatch"), "leeward.client.file_calls"),
    "AsyncFiles": "leeward.client.aio_files",
    "Files": "leeward.client.files",
    "Transfer": "leeward.client.file_trees",
    "AsyncSandbox": "leeward.client.aio_sandbox",
    "AsyncSession": "leeward.client.aio_session",
    "Chunk": "leeward.client.sandbox_calls",
    "EgressAsk": "leeward.client.egress_asks",
    "Fetched": "leeward.client.fetching",
    **dict.fromkeys(("Kernel", "Process"), "leeward.client.process"),
    "Sandbox": "leeward.client.sandbox",
    "Client": "leeward.client.blocking",
    "FolderChange": "leeward.client.changes",
    "Mount": "leeward.client.mounts",
    "Session": "leeward.client.session",
    "WorkdirSandbox": "leeward.client.workdir",
    "WorkdirEntry": "leeward.client.workdir_files",
    **dict.fromkeys(("CommandNotFound", "Destroyed", "FetchError", "NetworkingDisabled", "PathTraversal", "Timeout",
                     "ToolboxNotAvailable", "WorkdirError", "WorkdirIoError", "WorkdirRuntimeError"),
                    "leeward.client.workdir_errors"),
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leeward' has no attribute {name!r}")
    from importlib import import_module  # 0.5 ms that a job needn't wait for

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

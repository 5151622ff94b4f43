"""
What the calls of a `WorkdirSandbox` raise: one class for each kind.

Runs in:   anybody's program.
"""

from __future__ import annotations

from typing import ClassVar

from leeward.errors import LeewardError
from leeward.outcome import Limit, Result
from leeward.spec.stand_ins import DISABLED


class WorkdirError(LeewardError):
    """
    The base class. It is raised itself for what is of no other kind.

    Attributes:
        kind: one word for each class, the same in all languages.
    """

    kind: ClassVar[str] = "other"


class WorkdirRuntimeError(WorkdirError):
    """
    The sandbox couldn't be opened, or couldn't take the call; the daemon's error is its cause.
    """

    kind = "runtime"


class WorkdirIoError(WorkdirError, OSError):
    """
    A file or folder isn't there, or can't be read or written; `errno`, `strerror` and `filename` say what and why.
    """

    kind = "io"

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class PathTraversal(WorkdirError):
    """
    A path leads out of the work folder: by `..`, as an absolute path, or by a link.
    """

    kind = "path_traversal"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"path traversal blocked: {path!r:.200} escapes sandbox root")


class CommandNotFound(WorkdirError):
    """
    The command is no tool of `workdir`, or the host lacks it.
    """

    kind = "command_not_found"

    def __init__(self, command: str) -> None:
        self.command = command
        super().__init__(f"command not found: {command!r:.200}")


class Timeout(WorkdirError):
    """
    A command took longer than it may, or more of the processor's time.

    Attributes:
        limit: `Limit.TIME` or `Limit.CPU`.
        result: what it wrote before, and what it used.
    """

    kind = "timeout"

    def __init__(self, result: Result) -> None:
        self.limit, self.result = result.limit or Limit.TIME, result
        what, cure = ("processor time", "cpu=") if Limit.CPU is self.limit else ("time", "timeout=")
        super().__init__(f"the command reached its limit of {what}, after {result.duration:.3g} s; {cure} of the"
                         " WorkdirSandbox sets it")


class Destroyed(WorkdirError):
    """
    `destroy` was called, or a sandbox that worked on a copy has ended by itself.
    """

    kind = "destroyed"


class ToolboxNotAvailable(WorkdirError):
    """
    There is no Node for `exec_js`.
    """

    kind = "toolbox_not_available"


class NetworkingDisabled(WorkdirError):
    """
    The sandbox has no policy of egress, and so no network.
    """

    kind = "networking_disabled"

    def __init__(self) -> None:
        super().__init__(DISABLED)


class FetchError(WorkdirError):
    """
    A fetch has no response: the policy refuses it, a limit was hit, or the host can't be reached.

    Attributes:
        cause: a word for it, as `FetchFailed.cause`.
        url: of the hop that failed.
    """

    kind = "fetch"

    def __init__(self, message: str, cause: str = "http", url: str = "") -> None:
        self.cause, self.url = cause, url
        super().__init__(message)

"""The exceptions of a `WorkdirSandbox`: one class for each kind of error."""

from __future__ import annotations

from typing import ClassVar

from leeward.errors import LeewardError
from leeward.spec.outcome import Limit, Result
from leeward.spec.stand_ins import DISABLED


class WorkdirError(LeewardError):
    """The base class of these exceptions, raised itself for what no other describes. `kind` is one word for each class."""

    kind: ClassVar[str] = "other"


class WorkdirRuntimeError(WorkdirError):
    """The sandbox couldn't be opened, or refused the call; `__cause__` is the daemon's error, if there was one."""

    kind = "runtime"


class WorkdirIoError(WorkdirError, OSError):
    """A file or folder, `filename`, doesn't exist, or can't be read or written; `errno` and `strerror` are the reason."""

    kind = "io"

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class PathTraversal(WorkdirError):
    """A path leads out of the work folder: by `..`, as an absolute path, or by a link."""

    kind = "path_traversal"

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"path traversal blocked: {path!r:.200} escapes sandbox root")


class CommandNotFound(WorkdirError):
    """The command isn't one of the tools of the profile `workdir`, or this host doesn't have it."""

    kind = "command_not_found"

    def __init__(self, command: str) -> None:
        self.command = command
        super().__init__(f"command not found: {command!r:.200}")


class Timeout(WorkdirError):
    """
    A command ran longer than `timeout`, or used more processor time than `cpu`.

    Attributes:
        limit: `Limit.TIME` or `Limit.CPU`.
        result: the command's Result, with its output until then, and the time and memory that it used.
    """

    kind = "timeout"

    def __init__(self, result: Result) -> None:
        self.limit, self.result = result.limit or Limit.TIME, result
        what, cure = ("processor time", "cpu=") if self.limit is Limit.CPU else ("time", "timeout=")
        super().__init__(f"the command reached its limit of {what}, after {result.duration:.3g} s; {cure} of the"
                         " WorkdirSandbox sets it")


class Destroyed(WorkdirError):
    """`destroy` was called, or a sandbox with `overlay` has ended, and with it the copy of the folder."""

    kind = "destroyed"


class ToolboxNotAvailable(WorkdirError):
    """This host has no Node for `exec_js`."""

    kind = "toolbox_not_available"


class NetworkingDisabled(WorkdirError):
    """The sandbox has no egress policy, and so no network."""

    kind = "networking_disabled"

    def __init__(self) -> None:
        super().__init__(DISABLED)


class FetchError(WorkdirError):
    """A fetch got no response. The attributes `cause`, `url` and `may_have_been_sent` are those of `FetchFailed`."""

    kind = "fetch"

    def __init__(self, message: str, cause: str = "http", url: str = "", may_have_been_sent: bool = False) -> None:
        self.cause, self.url, self.may_have_been_sent = cause, url, may_have_been_sent
        super().__init__(message)

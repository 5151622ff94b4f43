"""The answer to a call that fails: a status of HTTP, and a sentence. Each face gives it its own form."""

from __future__ import annotations

import errno
import math

from leeward.errors import (
    BadRequest,
    Busy,
    DaemonAway,
    DaemonError,
    Forbidden,
    LeewardError,
    NoAnswer,
    PoolFailed,
    ProcessOver,
    QueueTimeout,
    RequestRejected,
    SandboxOver,
    SessionOver,
    SnapshotFailed,
    told,
)

#: Seconds of Retry-After where the daemon names none.
TRY_AGAIN_S = 1
#: Said also where a sandbox is another tenant's.
GONE = "The sandbox was not found"
#: Said where nobody listens.
CLOSED = "The sandbox is running but port is not open"


class ServeProblem(LeewardError):
    """
    A call that is refused.

    Args:
        status: of HTTP.
        message: for people.
        retry_after: seconds; None if trying again changes nothing.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        self.status, self.message, self.retry_after = status, message, retry_after
        super().__init__(message)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def bad(message: str) -> ServeProblem:
    return ServeProblem(400, message)


def missing(message: str) -> ServeProblem:
    return ServeProblem(404, message)


def no_sandbox() -> ServeProblem:
    return missing(GONE)


def not_offered(what: str = "this") -> ServeProblem:
    return ServeProblem(501, f"{what} isn't offered here; docs/serve.md lists what is")


def unknown_token() -> ServeProblem:
    return ServeProblem(401, "this needs a token: `leeward serve token create` makes one")


def too_large(most: int) -> ServeProblem:
    return ServeProblem(413, f"a body has {most} bytes at most here")


def busy(message: str, after: float | None = None) -> ServeProblem:
    return ServeProblem(429, message, TRY_AGAIN_S if after is None else max(TRY_AGAIN_S, math.ceil(after)))


#: The answers to errors that aren't ServeProblem or Busy: the first kind that fits counts.
_KINDS: tuple[tuple[type[LeewardError], int], ...] = (
    (SandboxOver, 404), (ProcessOver, 404), (SessionOver, 409), (QueueTimeout, 504), (Forbidden, 403),
    (RequestRejected, 400), (SnapshotFailed, 400), (BadRequest, 400), (PoolFailed, 500), (DaemonError, 503))

#: The answers to errors of files.
_OF_FILES = {errno.ENOENT: 404, errno.ENOTDIR: 400, errno.EISDIR: 400, errno.EEXIST: 409, errno.EACCES: 403, errno.EPERM: 403,
             errno.EROFS: 403, errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EFBIG: 413}


class Unplaced(DaemonAway):
    """No node of a fleet takes a request, or the one that did is lost; its text names none."""


def for_caller(error: Exception) -> Exception:
    """*error*; one without its text, if that names the daemon's place."""
    if isinstance(error, NoAnswer):
        return NoAnswer("no answer from the daemon in time")
    if isinstance(error, DaemonAway) and not isinstance(error, Unplaced):
        return DaemonAway("no daemon answers")
    return error


#: Reasons of a fleet for the end of a sandbox, whose own texts name nodes.
_OF_NODES = {"node_lost": "node_lost: the sandbox's node doesn't answer any more",
             "drained": "drained: the sandbox's node takes no work any more"}


def gone(error: SandboxOver) -> ServeProblem:
    """The answer where a sandbox has ended, or there is none; with the reason if that is its node's."""
    return missing(_OF_NODES.get(error.reason, GONE))


def problem_of(error: Exception) -> ServeProblem:
    """The answer to a caller for *error*; without details for an unexpected one."""
    if isinstance(error, ServeProblem):
        return error
    if isinstance(error, Busy):
        return busy(told(error), error.retry_after)
    for kind, status in _KINDS:
        if isinstance(error, kind):
            text = _OF_NODES.get(error.reason) if isinstance(error, SandboxOver) else None
            return ServeProblem(status, text or told(for_caller(error)), TRY_AGAIN_S if status == 503 else None)
    if isinstance(error, TimeoutError):
        return ServeProblem(408, "this took too long")
    if isinstance(error, OSError) and error.errno is not None:
        return ServeProblem(_OF_FILES.get(error.errno, 400), told(error))
    return ServeProblem(500, "this failed; the log of the server has more")

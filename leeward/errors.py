"""
Every error that leeward raises: whose fault, what was tried, what to do.

Runs in:   anywhere.
Not here:  a job's own failure. That is an Outcome, never an exception.
"""

from __future__ import annotations

import errno as _errno
import os


class LeewardError(Exception):
    """
    The root of every error that leeward raises on purpose.
    """


class BadRequest(LeewardError):
    """
    The caller asked for something impossible.
    """


class Unsupported(LeewardError):
    """
    This kernel or host can't do what a layer needs.

    Args:
        feature: the field's name for it, e.g. "landlock".
        have: what the host offers.
        need: what leeward asked for.
        cure: the line to type, or the thing to change; may be empty.
    """

    def __init__(self, feature: str, *, have: str, need: str, cure: str = "") -> None:
        self.feature, self.have, self.need, self.cure = feature, have, need, cure
        text = f"{feature}: have {have}, need {need}"
        super().__init__(f"{text}; {cure}" if cure else text)


class KernelRefusal(LeewardError):
    """
    A system call failed.

    Args:
        call: its name as in section 2 of the manual.
        arguments: the arguments that matter, as text.
        errno: a positive errno.
        hint: what this errno means for this call, where errno(3) doesn't say.
    """

    def __init__(self, call: str, arguments: str, errno: int, hint: str = "") -> None:
        self.call, self.arguments, self.errno, self.hint = call, arguments, errno, hint
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"{call}({arguments}): {name}: {hint or os.strerror(errno).lower()}")


class PeerError(LeewardError):
    """
    The other end broke the protocol.
    """


class Bug(LeewardError):
    """
    Ours: please report.
    """


class DaemonError(LeewardError):
    """
    The daemon could not take or finish a request; the root of what a client raises.
    """


class DaemonAway(DaemonError):
    """
    Nobody answers on the socket, or the daemon went away before it answered.
    """


class NoAnswer(DaemonError):
    """
    The daemon is there, but its answer didn't come before the caller's deadline.
    """


class BadReply(DaemonError):
    """
    What came from the daemon isn't what docs/wire.md says.
    """


class Refused(DaemonError):
    """
    The daemon is there and refused the request.

    Args:
        kind: a word of the wire, e.g. "busy"; docs/wire.md lists them.
        message: what the daemon said.
    """

    kind = "refused"

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


class Busy(Refused):
    """
    The queue is full; try again later.
    """

    kind = "busy"


class QueueTimeout(Refused):
    """
    No worker came free before the request's deadline in the queue.
    """

    kind = "queue_timeout"


class ShuttingDown(Refused):
    """
    The daemon is draining and takes no new jobs.
    """

    kind = "shutting_down"


class VersionMismatch(Refused):
    """
    Client and daemon speak different versions of the wire.
    """

    kind = "version"


class RequestRejected(Refused):
    """
    The daemon found the request impossible: an unknown field, a limit above its ceiling.
    """

    kind = "bad_request"


class Cancelled(Refused):
    """
    The request was taken back before it had a result.
    """

    kind = "cancelled"


class SessionOver(Refused):
    """
    There is no such session on this connection, or its process has ended and its state with it.
    """

    kind = "session_over"


class Forbidden(Refused):
    """
    The daemon doesn't serve this user.
    """

    kind = "forbidden"


#: The error that a client raises for each kind of refusal on the wire.
BY_KIND: dict[str, type[Refused]] = {
    error.kind: error
    for error in (Busy, QueueTimeout, ShuttingDown, VersionMismatch, RequestRejected, Cancelled, SessionOver,
                  Forbidden)
}

"""The exceptions that leeward raises: each says who has to act, what was tried, and what to do."""

from __future__ import annotations

import errno as _errno
import os

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: The errors of a call when this process or the host has no descriptor or memory left, which is often temporary.
#: ETOOMANYREFS: too many descriptors of this user are in flight between processes.
SHORT = (_errno.EMFILE, _errno.ENFILE, _errno.ENOMEM, _errno.ETOOMANYREFS)


def brief(value: object, most: int = 40) -> str:
    """
    The first *most* characters of repr(*value*), in a time that doesn't depend on the size of *value*: it may be
    whatever a client has sent, and the repr of 64 MiB takes a second.
    """
    if isinstance(value, (str, bytes)):
        return repr(value[:most])[:most]
    if isinstance(value, memoryview):
        return repr(bytes(value[:most]))[:most]
    if not isinstance(value, (list, tuple, dict)):
        return repr(value)[:most]
    around = {list: "[]", tuple: "()"}.get(type(value), "{}")
    said = around[0]
    for item in value:
        if len(said) > most:
            break
        said += ", " * (len(said) > 1) + brief(item, most)
        if isinstance(value, dict):
            said += ": " + brief(value[item], most)
    return (said + around[1])[:most]


#: Characters that are invisible, or reorder the text around them, so that it reads as another text; first and last of
#: each range: soft hyphen, fillers, zero-width characters, marks and overrides of direction, line and paragraph
#: separators, tags, variants. leeward/clients/c/text.c has the same list.
HIDING = ((0xad, 0xad), (0x61c, 0x61c), (0x115f, 0x1160), (0x180e, 0x180e), (0x200b, 0x200f), (0x2028, 0x202e),
          (0x2060, 0x206f), (0x3164, 0x3164), (0xfeff, 0xfeff), (0xffa0, 0xffa0), (0xfff9, 0xfffb), (0xe0000, 0xe0fff))


def quoted(name: str | bytes | os.PathLike[str]) -> str:
    r"""
    *name* in quotes, with escapes for control characters and those in HIDING, and \xNN for bytes that aren't UTF-8, as
    leeward/clients/c/text.c has it.
    """
    text = os.fsencode(name).decode("utf-8", "surrogateescape")
    quote = '"' if "'" in text and '"' not in text else "'"
    if text.isascii() and text.isprintable() and quote not in text and "\\" not in text:
        return quote + text + quote  # as most are: a client makes such a text whenever it ends a connection
    return quote + "".join(_shown(one, quote) for one in text) + quote


def _shown(one: str, quote: str) -> str:
    code = ord(one)
    if 0xdc80 <= code <= 0xdcff:
        return f"\\x{code & 0xff:02x}"
    if one == quote:
        return f"\\{one}"
    if code < 0x80:
        return repr(one)[1:-1]
    if code >= 0xa0 and not any(first <= code <= last for first, last in HIDING):
        return one
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


#: What the errors of limits mean, and their cures.
LIMITS = {
    _errno.EAGAIN: "no process or thread can be started: this user has as many as a limit allows; raise it (ulimit -u,"
                   " TasksMax= of a service), or end other processes of this user",
    _errno.ENOMEM: "there isn't enough memory for this command; raise its limits, if it has any (ulimit -v, ulimit -d,"
                   " MemoryMax= of a service)",
    _errno.EMFILE: "this command needs more open files than a limit allows; raise it (ulimit -n, LimitNOFILE= of a"
                   " service)",
    _errno.ENFILE: "this host has no open file left; raise the limit (sysctl fs.file-max), or end other programs",
}
#: What further errors of calls by which a sandbox is made mean.
_HINTS = {_errno.EFBIG: "a file would be larger than a limit allows; raise it (ulimit -f, LimitFSIZE= of a service)"}


class LeewardError(Exception):
    """The base class of leeward's exceptions."""


def reason_of(error: OSError) -> str:
    """Why a call has failed, in the system's words: "permission denied"."""
    return (error.strerror or str(error) or "an error").lower()


def told(error: BaseException) -> str:
    """
    A text for *error* without a byte of anybody else's: that of leeward's own exceptions, the kernel's for an errno,
    else the type's name. The texts of libraries quote what they were given.
    """
    if isinstance(error, LeewardError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _errno.errorcode and error.strerror == os.strerror(error.errno or 0):
        return os.strerror(error.errno or 0).lower()
    return type(error).__name__


def told_with_type(error: BaseException) -> str:
    """As `told`, after the name of the error's type."""
    name, text = type(error).__name__, told(error)
    return name if text == name else f"{name}: {text}"


def told_with_place(error: BaseException) -> str:
    """As `told_with_type`, with the functions through which *error* came, for the log of a program."""
    import traceback  # here, because most programs never need it

    frames = [f"{os.path.basename(each.filename)}:{each.lineno} {each.name}"
              for each in traceback.extract_tb(error.__traceback__, -16)]
    return f"{told_with_type(error)}, at {', '.join(frames) or 'no place'}"


class BadRequest(LeewardError):
    """The caller asked for something impossible."""


class Unsupported(LeewardError):
    """
    This kernel or host lacks something that a layer needs.

    Args:
        feature: the feature's usual name, e.g. "landlock".
        have: what the host offers.
        need: what leeward needs.
        cure: a command or a change that helps; may be empty.
    """

    def __init__(self, feature: str, *, have: str, need: str, cure: str = "") -> None:
        self.feature, self.have, self.need, self.cure = feature, have, need, cure
        text = f"{feature}: have {have}, need {need}"
        super().__init__(f"{text}; {cure}" if cure else text)


class KernelRefusal(LeewardError):
    """
    A system call failed.

    Args:
        call: its name in section 2 of the manual.
        arguments: the arguments that matter, as text.
        errno: a positive errno.
        hint: the meaning of this errno for this call, if errno(3) doesn't say it.
    """

    def __init__(self, call: str, arguments: str, errno: int, hint: str = "") -> None:
        self.call, self.arguments, self.errno, self.hint = call, arguments, errno, hint
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"{call}({arguments}): {name}: {hint or _HINTS.get(errno) or os.strerror(errno).lower()}")


class PeerError(LeewardError):
    """The other end of a connection broke the protocol."""


class Bug(LeewardError):
    """A bug in leeward; please report it."""


class EditError(LeewardError, ValueError):
    """`files.edit` has changed nothing: the text to replace isn't in the file *path* exactly once, but *found* times."""

    def __init__(self, path: str, found: int) -> None:
        self.path, self.found = path, found
        times = f"is there {found} times; give more of what is around it" if found else "isn't there"
        super().__init__(f"{path}: the text to replace {times}")


class FilesFailed(LeewardError, OSError):
    """
    `files.write_many` or `files.read_many` couldn't write or read some of the files; all others were.

    Attributes:
        errors: by path, as the caller gave it: what `write` or `read` would have raised.
        found: what `read_many` has read, by path.
    """

    def __init__(self, errors: Mapping[Any, Exception], found: Mapping[Any, bytes]) -> None:
        self.errors, self.found = errors, found
        first = next(iter(errors.values()))
        more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
        super().__init__(f"{first}{more}")
        self.errno = getattr(first, "errno", None)


class DaemonError(LeewardError):
    """
    The daemon couldn't accept or finish a request. The base class of the exceptions that a client raises.

    Attributes:
        may_have_run: whether the job, or a part of it, may have run. False is certain: the request can be sent again.
            True if the daemon may have received a byte of the request, and didn't answer that the job hasn't run.
    """

    may_have_run = True


class DaemonAway(DaemonError):
    """No daemon listens on the socket, or it closed the connection before it answered."""


class NoAnswer(DaemonError):
    """The daemon is connected, but didn't answer before the caller's deadline, or didn't respond to a ping."""


class BadReply(DaemonError):
    """The daemon's bytes aren't the protocol that docs/wire.md describes."""


class Refused(DaemonError):
    """
    The daemon refused the request. Subclasses say why.

    Args:
        message: the daemon's explanation, for people.
        retry_after: seconds after which the daemon may accept the same request; None if the daemon doesn't know.

    Attributes:
        kind: the reason as a word of the protocol, e.g. "busy"; docs/wire.md lists them.
    """

    kind = "refused"
    may_have_run = False

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.message, self.retry_after = message, retry_after
        super().__init__(message)


class Busy(Refused):
    """The queue or another bounded resource is full; try again later."""

    kind = "busy"


class QueueTimeout(Refused):
    """No worker became free before the request's deadline in the queue."""

    kind = "queue_timeout"


class ShuttingDown(Refused):
    """The daemon is stopping and accepts no new jobs. Jobs that it has started are answered by a result."""

    kind = "shutting_down"


class VersionMismatch(Refused):
    """The client and the daemon use different versions of the protocol."""

    kind = "version"


class RequestRejected(Refused):
    """The request is invalid: it has an unknown field, for instance, or a limit above its ceiling."""

    kind = "bad_request"


class Cancelled(Refused):
    """The client cancelled the request before it had a result; its job may have been running."""

    kind = "cancelled"
    may_have_run = True


class SessionOver(Refused):
    """The connection has no such session, or the session's process has ended and its state is lost."""

    kind = "session_over"


class SandboxOver(Refused):
    """
    There is no such sandbox for this user: it has ended, or there never was one.

    Attributes:
        reason: one word of docs/wire.md: "idle", "lifetime", "killed", "parted", "memory", "files", "exited",
            "shutdown", "restart", "lost", "unopened" or "unknown"; or of a fleet (docs/fleet.md), "node_lost" or "drained".
        when: the time of the sandbox's end, in seconds since the epoch; 0.0 if it isn't known.
        limit: the limit that ended the sandbox, "memory", "time" or "files"; or None.
        may_have_run: False if the sandbox had ended before the request arrived.
    """

    kind = "sandbox_over"
    may_have_run = True  # the sandbox may have ended while the program ran

    def __init__(self, message: str, reason: str = "unknown", when: float = 0.0, limit: str | None = None, *,
                 may_have_run: bool = True) -> None:
        super().__init__(message)
        self.reason, self.when, self.limit, self.may_have_run = reason, when, limit, may_have_run


class ProcessOver(Refused):
    """The sandbox has no such process: it never had one, or the process ended a while ago."""

    kind = "process_over"


class SnapshotFailed(Refused):
    """
    A snapshot couldn't be taken, and the kernel is as it was; it couldn't be loaded; or there is no such snapshot. The
    message says why.
    """

    kind = "snapshot_failed"


class Stale(LeewardError):
    """
    A file or folder of the host, `path`, has changed since the sandbox was opened, so it isn't overwritten. `applied`
    has the paths of the changes that `apply` had applied before.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path, self.applied = path, tuple[str, ...]()


class FetchFailed(LeewardError):
    """
    A fetch has no response: the policy refused it, a limit was hit, or the host can't be reached.

    Attributes:
        cause: one word of docs/wire.md, such as "unlisted", "private", "dns" or "total".
        url: the URL of the request or redirect that failed; "" if it isn't known.
        may_have_been_sent: whether a host may have got the request, or a part of it, so that a second try could have a
            second effect.
    """

    def __init__(self, message: str, cause: str = "http", url: str = "", may_have_been_sent: bool = True) -> None:
        super().__init__(message)
        self.cause, self.url, self.may_have_been_sent = cause, url, may_have_been_sent


class PoolFailed(Refused):
    """The processes of this profile or environment can't be started on this host. Requests for others are served."""

    kind = "pool_failed"


class Forbidden(Refused):
    """The daemon doesn't serve this user."""

    kind = "forbidden"


#: The exception that a client raises for each kind of refusal.
BY_KIND: dict[str, type[Refused]] = {
    error.kind: error
    for error in (Busy, QueueTimeout, ShuttingDown, VersionMismatch, RequestRejected, Cancelled, SessionOver,
                  SandboxOver, ProcessOver, SnapshotFailed, PoolFailed, Forbidden)
}

"""
Mounts of a sandbox: the folders of the host that a program asks for, and how the daemon gets their descriptors. The
program opens the folders itself, so its own rights apply: a path is only their name.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from _socket import SCM_RIGHTS, SOL_SOCKET  # as connection.py does
from _socket import socket as Socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.base.closing import Closing, on_failure
from leeward.base.dataclass import dataclass
from leeward.client.connection import BlockingConnection
from leeward.client.conversation import checked
from leeward.client.retry import Retry
from leeward.errors import BadReply, DaemonAway, DaemonError, RequestRejected, reason_of
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole

# Imported in functions: what not every start needs; 46 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.folder_state import FolderState

#: The target of the folder of `workdir=`.
WORKDIR = "/workspace"

#: Why a daemon on another machine gets none.
ELSEWHERE = ("folders of this machine can't be shown on another one: `copy=True`, or the option --copy, copies them"
             " into the sandbox, and `Files.upload` later")


@dataclass(frozen=True, slots=True)
class Mount:
    """
    A folder of the host that a sandbox shows, or a single file, which is read-only.

        leeward.Sandbox(mounts=[leeward.Mount("data/", "/data")])

    Attributes:
        source: the path on the host.
        target: the path in the sandbox. It is absolute, and no file of the sandbox itself is in it.
        writable: the sandbox can write to the folder; its writes change the host's folder.
        overlay: the sandbox can write to a copy of the folder, and the host's folder is unchanged; `Sandbox.diff` lists
            the changes, and `Sandbox.apply` makes them on the host.
        compare: for a writable folder: all of it is read when the sandbox is opened, so that `Sandbox.diff` can list
            the changes since then.
        copy: the folder isn't shown, but copied to *target* when the sandbox is opened, also to another machine. The copy
            is the sandbox's: `Files.download` brings it back.
    """

    source: str | os.PathLike[str]
    target: str
    writable: bool = False
    overlay: bool = False
    compare: bool = False
    copy: bool = False


def mounts_of(mounts: Iterable[Mount], workdir: str | os.PathLike[str] | None, overlay: bool, compare: bool = False,
              copy: bool = False) -> tuple[Mount, ...]:
    """*mounts*, and before them one for *workdir*; RequestRejected if one is no Mount, or has wrong options."""
    found = tuple(mounts)
    for mount in found:
        if not isinstance(mount, Mount):
            raise RequestRejected(f"mounts hold leeward.Mount, not {type(mount).__name__}")
    if workdir is not None:
        found = (Mount(workdir, WORKDIR, not (overlay or copy), overlay, compare, copy), *found)
    elif overlay or compare or copy:
        given = "overlay" if overlay else "compare" if compare else "copy"
        raise RequestRejected(f"{given}=True needs a workdir; a mount has its own")
    for mount in found:
        if mount.copy and (mount.writable or mount.overlay or mount.compare):
            raise RequestRejected(f"mount {mount.target!r:.80}: a copy is the sandbox's own, neither writable, overlay nor"
                                  " compare")
        if mount.compare and (mount.overlay or not mount.writable):
            raise RequestRejected(f"mount {mount.target!r:.80}: compare=True is for a folder that is written, and not"
                                  " for an overlay, whose `diff` needs no comparison")
    return found


class OpenFolders(Closing):
    """Opens the folders of *mounts*, or raises RequestRejected; a context that closes them."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        mounts = tuple(mounts)
        if any(mount.overlay for mount in mounts):
            from leeward.client.changes import next_tick

            next_tick()
        self.descriptors: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.states: dict[str, FolderState] = {}
        with on_failure(self.close):
            for mount in mounts:
                self._open(mount)

    def _open(self, mount: Mount) -> None:
        if sys.platform != "linux":
            raise RequestRejected(ELSEWHERE)
        source = os.fspath(mount.source)
        try:
            fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise RequestRejected(f"mount {source!r}: {reason_of(error)}") from None
        self.descriptors.append(fd)
        folder = os.path.isdir(f"/proc/self/fd/{fd}")
        if not folder and not os.path.isfile(f"/proc/self/fd/{fd}"):
            raise RequestRejected(f"mount {source!r}: it is neither a folder nor a file")
        target = _plain(mount.target)
        if mount.compare:
            if not folder:
                raise RequestRejected(f"mount {source!r}: a folder can be compared, and not a file")
            from leeward.client.folder_state import FolderState

            self.states[target] = FolderState(fd)
        self.rows.append({"path": os.readlink(f"/proc/self/fd/{fd}"), "target": target,
                          "writable": bool(mount.writable), "overlay": bool(mount.overlay), "file": not folder})

    def send(self, reply: Reply, descriptors: list[int]) -> int:
        """Send the descriptors over the dock, the socket that came with *reply*; returns its number. Closes *descriptors*."""
        try:
            number = checked(whole, reply, "dock", 1)
            if len(descriptors) != 1:
                raise BadReply("the daemon's dock has no socket")
            dock = Socket(fileno=os.dup(descriptors[0]))
            try:
                rights = struct.pack(f"{len(self.descriptors)}i", *self.descriptors)
                dock.sendmsg([b"\0"], [(SOL_SOCKET, SCM_RIGHTS, rights)])
            finally:
                dock.close()
        except (BrokenPipeError, ConnectionResetError):
            gone = DaemonAway("the daemon went away before it took the folders")
            gone.may_have_run = False
            raise gone from None
        except OSError as error:
            raise BadReply(f"the daemon's dock takes no descriptors: {error}") from None
        finally:
            for fd in descriptors:
                os.close(fd)
        return number

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def _plain(target: str) -> str:
    if not isinstance(target, str):
        raise RequestRejected(f"a mount's target must be text, not {type(target).__name__}")
    return target.rstrip("/") or target[:1]


class Meanwhile:
    """Calls *work*, once, while a call waits for the daemon's answer."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def wait(self, _connection: BlockingConnection, _number: int, answer: Callable[[Callable[[Reply], None]], Any]) -> Any:
        work, self._work = self._work, None
        if work is not None:
            work()
        return answer(lambda _other: None)


def open_with(connection: BlockingConnection, fields: Mapping[str, Any], mounts: Iterable[Mount],
              states: dict[str, FolderState], beside: Callable[[], None] | None) -> Reply:
    """
    Open a sandbox with *mounts*; each attempt sends the descriptors again. *states* gets the state of each folder with
    `compare`, by target. *beside* is called once, when the request was sent; what it raises ends the attempt.
    """
    attempts: Retry | None = None
    meanwhile = None if beside is None else Meanwhile(beside)
    with OpenFolders(mounts) as folders:
        states.update(folders.states)
        while True:
            try:
                number = folders.send(*connection.call("sandbox_dock", {}))
                return connection.call("sandbox_open", {**fields, "mounts": folders.rows, "dock": number}, retry=False,
                                 retry_busy=False, reconnect=False, functions=meanwhile)[0]
            except DaemonError as error:
                attempts = attempts or Retry(True, False, None, connection.retry_busy)
                pause = attempts.pause(error, time.monotonic())
                if pause is None:
                    raise
            time.sleep(pause)

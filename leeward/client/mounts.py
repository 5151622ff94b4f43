"""
Folders of the host for a sandbox: a program's request for them, and how the daemon gets them.

Runs in:   anybody's program. The program opens the folders itself, so its own rights apply: the daemon gets
           descriptors, and a path is only their name.
"""

from __future__ import annotations

import os
import struct
import time
from _socket import SCM_RIGHTS, SOL_SOCKET  # as link.py does
from _socket import socket as Socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.client.link import Link
from leeward.client.retry import Retry
from leeward.client.sandbox_calls import checked
from leeward.dataclass import dataclass
from leeward.errors import BadReply, DaemonError, RequestRejected
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole

if TYPE_CHECKING:
    from leeward.client.folder_state import FolderState

#: Where a program's folder is, of `workdir=`.
WORKDIR = "/workspace"


@dataclass(frozen=True, slots=True)
class Mount:
    """
    A folder of the host that a sandbox shows, or a single file to read.

        leeward.Sandbox(mounts=[leeward.Mount("data/", "/data")])

    Attributes:
        source: a path of the host's.
        target: where the sandbox has it; an absolute path, in which nothing of the sandbox's own is.
        writable: what the sandbox writes there is written on the host.
        overlay: the sandbox may write there, and the host's folder stays as it is: `Sandbox.diff` and `apply`.
        compare: of a writable folder: it is read in full when the sandbox is opened, for `Sandbox.diff`.
    """

    source: str | os.PathLike[str]
    target: str
    writable: bool = False
    overlay: bool = False
    compare: bool = False


def mounts_of(mounts: Iterable[Mount], workdir: str | os.PathLike[str] | None, overlay: bool,
              compare: bool = False) -> tuple[Mount, ...]:
    """
    All mounts of a sandbox.

    Raises:
        RequestRejected: something else than a Mount is among *mounts*, an overlay of nothing is asked for, or a
            comparison of what has an overlay or can't be written.
    """
    found = tuple(mounts)
    for mount in found:
        if not isinstance(mount, Mount):
            raise RequestRejected(f"mounts hold leeward.Mount, not {type(mount).__name__}")
    if workdir is not None:
        found = (Mount(workdir, WORKDIR, writable=not overlay, overlay=overlay, compare=compare), *found)
    elif overlay or compare:
        raise RequestRejected(f"{'overlay' if overlay else 'compare'}=True needs a workdir; a mount has its own")
    for mount in found:
        if mount.compare and (mount.overlay or not mount.writable):
            raise RequestRejected(f"mount {mount.target!r:.80}: compare=True is for a folder that is written, and not"
                                  " for an overlay, whose `diff` needs no comparison")
    return found


class OpenFolders:
    """
    The folders of *mounts*, opened; a context that closes them.

    Raises:
        RequestRejected: one isn't there, or may not be opened.
    """

    def __init__(self, mounts: Iterable[Mount]) -> None:
        mounts = tuple(mounts)
        if any(mount.overlay for mount in mounts):
            from leeward.client.overlay import next_tick

            next_tick()
        self.descriptors: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.states: dict[str, FolderState] = {}
        try:
            for mount in mounts:
                self._open(mount)
        except BaseException:
            self.close()
            raise

    def _open(self, mount: Mount) -> None:
        source = os.fspath(mount.source)
        try:
            fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise RequestRejected(f"mount {source!r}: {(error.strerror or str(error)).lower()}") from None
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
        """
        Put the descriptors on the socket that came with *reply*, which is closed; the dock's number.

        Raises:
            BadReply: there is none.
        """
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
        except OSError as error:
            raise BadReply(f"the daemon's dock takes no descriptors: {error}") from None
        finally:
            for fd in descriptors:
                os.close(fd)
        return number

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> OpenFolders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain(target: str) -> str:
    if not isinstance(target, str):
        raise RequestRejected(f"a mount's target must be text, not {type(target).__name__}")
    return target.rstrip("/") or target[:1]


def open_with(link: Link, fields: Mapping[str, Any], mounts: Iterable[Mount],
              states: dict[str, FolderState] | None = None) -> Reply:
    """
    Open a sandbox that is to have *mounts*. Each attempt leaves the descriptors anew.

    Args:
        states: gets what those that are to be compared had before, by target.
    """
    attempts: Retry | None = None
    with OpenFolders(mounts) as folders:
        if states is not None:
            states.update(folders.states)
        while True:
            try:
                number = folders.send(*link.call("sandbox_dock", {}))
                return link.call("sandbox_open", {**fields, "mounts": folders.rows, "dock": number}, retry=False,
                                 retry_busy=False)[0]
            except DaemonError as error:
                attempts = attempts or Retry(True, False, None, True)
                pause = attempts.pause(error, time.monotonic())
                if pause is None:
                    raise
            time.sleep(pause)


async def open_with_await(ask: Callable[[str, Mapping[str, Any]], Awaitable[tuple[Reply, list[int]]]],
                          fields: Mapping[str, Any], mounts: Sequence[Mount],
                          states: dict[str, FolderState]) -> Reply:
    """
    As `open_with`, over a connection of asyncio's. A refusal isn't tried again. A thread reads what is to be compared.
    """
    if any(mount.compare for mount in mounts):
        import asyncio  # blocking programs go without

        opened = await asyncio.to_thread(OpenFolders, mounts)
    else:
        opened = OpenFolders(mounts)
    with opened as folders:
        states.update(folders.states)
        number = folders.send(*await ask("sandbox_dock", {}))
        return (await ask("sandbox_open", {**fields, "mounts": folders.rows, "dock": number}))[0]

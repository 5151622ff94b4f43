"""Clients that give folders of the host to sandboxes: one that makes its requests itself, and one of another user."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable

import leeward
from kit.live_daemon import LiveDaemon
from leeward.client.connection import BlockingConnection
from leeward.wire.replies import Reply


class Sent:
    """A client that makes its requests itself."""

    def __init__(self, daemon: LiveDaemon) -> None:
        self.connection = BlockingConnection(str(daemon.socket))

    def open(self, rows: list[dict[str, object]], descriptors: list[int], leave: bool = True) -> str:
        """An id, or why there is none."""
        reply, fds = self.connection.call("sandbox_dock", {})
        assert reply.ok is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fds[0]) as dock:
            if leave:
                socket.send_fds(dock, [b"\0"], descriptors)
            try:
                opened: Reply = self.connection.call("sandbox_open", {"mounts": rows, "dock": reply.ok["dock"]},
                                               retry=False)[0]
            except leeward.Refused as why:
                return str(why)
        assert opened.ok is not None
        self.connection.call("sandbox_kill", {"sandbox": opened.ok["sandbox"]})
        return "opened"


def as_user(uid: int, does: Callable[[], None]) -> bool:
    """Run *does* in a process of another user, who is in the group that the daemon serves. Returns whether it succeeded."""
    child = os.fork()
    if not child:
        try:
            group = pwd.getpwnam("nobody").pw_gid
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(uid, uid, uid)
            does()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    return 0 == os.waitpid(child, 0)[1]

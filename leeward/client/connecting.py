"""Connects a client to a daemon, checks the daemon's user, and starts a daemon if there is none."""

from __future__ import annotations

import os
import struct
import sys
from _socket import AF_UNIX, SO_RCVTIMEO, SO_SNDTIMEO, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket

from leeward.errors import DaemonAway, quoted, reason_of
from leeward.spec.paths import TRUSTED_VARIABLE
from leeward.spec.paths import RemoteHost as RemoteHost

if sys.platform == "linux":
    from _socket import SO_PEERCRED
else:
    SO_PEERCRED = 0  # no daemon is there to ask about

# Imported in functions: what not every start needs; 15 ms of processor time for all of it.

#: Seconds that connecting may take while the daemon's backlog is full.
CONNECT_S = 5.0
#: Seconds of silence before the connection sends a ping. Longer than any pause of a daemon on a
#: busy machine, short enough for a user who waits.
PATIENCE_S = 10.0

#: Requests about the daemon itself; no daemon is started for them.
ASKING = frozenset({"ping", "status", "recall", "egress_log", "egress_asks", "egress_answer", "shutdown"})

#: Longest path in a sockaddr_un; unix(7).
MAX_PATH = 107


def away(path: str, reason: str, may_have_run: bool = False) -> DaemonAway:
    """The error for a daemon that can't be reached. It *may have run* if the kernel got a byte of the request."""
    if isinstance(path, RemoteHost):
        far = DaemonAway(f"no daemon answers at {path} ({reason})")
        far.may_have_run = may_have_run
        return far
    error = DaemonAway(f"no daemon answers on {quoted(path)} ({reason}); start one with `leeward daemon start`,"
                       " or use `leeward run`, which needs none")
    error.may_have_run = may_have_run
    return error


def locked_out(path: str) -> DaemonAway:
    """The error for a socket to which this user may not connect, with its owner and the cure."""
    from leeward.client.ownership import who_may

    error = DaemonAway(f"permission denied on {quoted(path)}: {who_may(path)}")
    error.may_have_run = False
    return error


def timeval(seconds: float) -> bytes:
    # Never zero, which means no timeout to the kernel.
    micros = max(1, int(seconds * 1e6))
    return struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)


def _connect(sock: Socket, path: str) -> None:
    raw = os.fsencode(path)
    if not raw or b"\0" in raw:
        raise away(path, "a path can't be empty or have a zero byte")
    if len(raw) <= MAX_PATH:
        sock.connect(raw)
        return
    from leeward.client.host_paths import PLACE

    folder, name = os.path.split(raw)
    fd = os.open(folder, PLACE | os.O_DIRECTORY)
    try:
        sock.connect(b"/proc/self/fd/%d/%s" % (fd, name))
    finally:
        os.close(fd)


def peer(sock: Socket) -> int:
    """The user whose process is at the other end."""
    uid: int = struct.unpack("3i", sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))[1]
    return uid


def connect(path: str, wait: bool = True) -> Socket | None:
    """
    Connect to the daemon, if its user is root, our own, or that of LEEWARD_TRUSTED_UID; else DaemonAway. Waits up to
    CONNECT_S while its backlog is full; without *wait* the socket is non-blocking, and the result is None then. To a
    RemoteHost it connects by remote.py, and waits.
    """
    if isinstance(path, RemoteHost):
        from leeward.client import remote  # what most clients don't need

        return remote.connect(path)
    if sys.platform != "linux":
        raise DaemonAway("leeward's daemon needs Linux, and this system is a client of one elsewhere: LEEWARD_HOST, or"
                         " socket=, is https://NAME or ssh://USER@NAME (docs/other-systems.md)")
    sock = Socket(AF_UNIX, SOCK_STREAM)
    try:
        if wait:
            # connect(2) on a Unix socket waits by the send timeout while the backlog is full.
            sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, timeval(CONNECT_S))
        else:
            sock.setblocking(False)
        _connect(sock, path)
        sock.setsockopt(SOL_SOCKET, SO_RCVTIMEO, timeval(PATIENCE_S))
        sock.setsockopt(SOL_SOCKET, SO_SNDTIMEO, timeval(PATIENCE_S))
        uid = peer(sock)
        # The default folder of a user without XDG_RUNTIME_DIR is in /tmp, where any user
        # may have made it first. In root's default folder only root can make a socket.
        if os.geteuid() not in (0, uid) and uid != 0 and os.environ.get(TRUSTED_VARIABLE) != str(uid):
            raise away(path, f"the socket is of user {uid}, neither root nor you, nor {TRUSTED_VARIABLE}")
    except BlockingIOError:
        sock.close()
        if not wait:
            return None
        raise away(path, "no program accepted the connection") from None
    except PermissionError:
        sock.close()
        raise locked_out(path) from None
    except OSError as error:
        sock.close()
        raise away(path, reason_of(error)) from None
    except DaemonAway:
        sock.close()
        raise
    return sock


def started(path: str, op: str) -> bool:
    """Start a daemon on *path* for a request *op*, unless a client mustn't: whether it did; DaemonAway if it can't."""
    if op in ASKING or type(path) is str:
        return False
    from leeward.client import autostart  # imports subprocess, which a client with a daemon doesn't need

    if not autostart.may_start(path):
        return False
    autostart.start(path)
    return True

"""
Messages of a service to systemd, and the sockets that systemd passes: our own sd_notify(3) and sd_listen_fds(3).

Without systemd nothing here does anything. The variables are removed, so that no child process uses them.

    NOTIFY_SOCKET       a datagram socket, a path or "@" and an abstract name, for lines such as READY=1
    WATCHDOG_USEC       microseconds within which WATCHDOG=1 has to come again, for WATCHDOG_PID
    LISTEN_FDS          how many sockets are open from descriptor 3 on, for LISTEN_PID
    STATE_DIRECTORY     the folder of StateDirectory=, which outlives the service; the first, if there are several
    JOURNAL_STREAM      device and inode of the stream that goes to the journal (telling/log.py)
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import MutableMapping

from leeward.errors import BadRequest, reason_of

#: The first descriptor that is passed; sd_listen_fds(3).
FIRST_FD = 3


class Manager:
    """The service manager that started us, if one did. *watchdog*: seconds to the next WATCHDOG=1; 0 if none is expected."""

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        period, of = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self.watchdog = int(period) / 1e6 if _is_number(period) and of in ("", str(pid)) else 0.0
        count, of = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
        environ.pop("LISTEN_FDNAMES", None)
        self.state = environ.pop("STATE_DIRECTORY", "").partition(":")[0]
        self._given = int(count) if _is_number(count) and str(pid) == of else 0

    def notify(self, *lines: str) -> None:
        """Send *lines*, such as "READY=1", to the manager. Never waits, never fails."""
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                                             | socket.SOCK_NONBLOCK)
            name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
            self._socket.sendto("\n".join(lines).encode(), name)
        except OSError:
            pass

    def ready(self, status: str) -> None:
        self.notify("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        self.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self.notify("STOPPING=1", f"STATUS={status}")

    def extend(self, seconds: float) -> None:
        """The end may take so many seconds from now on, whatever TimeoutStopSec= says."""
        self.notify(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def alive(self) -> None:
        self.notify("WATCHDOG=1")

    def listener(self) -> socket.socket | None:
        """
        Return the socket that the manager has passed, close-on-exec and non-blocking, once; None if there is none.
        BadRequest if there are several, or the daemon can't serve on it.
        """
        count, self._given = self._given, 0
        if not count:
            return None
        if count > 1:
            raise BadRequest(f"{count} sockets were passed (LISTEN_FDS); the daemon serves on one")
        try:
            # One that is passed has outlived an exec. One that would not is ours, and none was passed.
            if not os.get_inheritable(FIRST_FD):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            os.set_inheritable(FIRST_FD, False)
            sock = socket.socket(fileno=FIRST_FD)
        except OSError as error:
            why = reason_of(error)
            raise BadRequest(f"descriptor {FIRST_FD}, which LISTEN_FDS passes: {why}") from None
        kind = sock.family, sock.type & 0xF, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if kind != (socket.AF_UNIX, socket.SOCK_STREAM, 1):
            sock.close()
            raise BadRequest(f"descriptor {FIRST_FD}, which LISTEN_FDS passes, is no listening Unix stream socket"
                             " (in a .socket unit: ListenStream= with a path, Accept=no)")
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20

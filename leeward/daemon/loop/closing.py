"""
Keeps the loop's thread from closing descriptors that a client, or a kernel's branch, has passed though nobody asked for one.

Runs in: the daemon: on the loop's thread, in a thread of the closer, and in a small process that this thread starts.
Trust: the sender decides how long the last close takes (a TCP socket that lingers, a memory file of gigabytes).

Theory of operation. From Linux 6.16 on the kernel refuses the sender (refuse_descriptors). On older kernels,
and on a connection made before the option was set, the daemon peeks before it receives: recvmsg(2) with MSG_PEEK and no
room for control messages reports by MSG_CTRUNC that there are descriptors, and takes none. Then exactly the bytes that
were seen are received, and no descriptor behind them. A connection with descriptors is ended.

The descriptors are then still in the socket's queue, and closing the socket would close them. First it is shut down, so
that it accepts nothing more from its peer; then its queue is received in the same manner. If the end is reached, no
descriptor is left, and the socket is closed here; that is the usual case. Otherwise it is passed to a process that
receives such sockets and exits. The kernel then closes the descriptors there, where TCP doesn't linger, and the daemon
doesn't wait. unix(7), SO_PASSRIGHTS; recv(2), MSG_CTRUNC; socket(7), SO_LINGER.
"""

from __future__ import annotations

import array
import contextlib
import queue
import socket
import sys
import threading
from _socket import socket as Socket
from typing import TYPE_CHECKING

from leeward.base.points import point

if TYPE_CHECKING:
    import subprocess

#: setsockopt(2), Linux 6.16; the socket module doesn't have its name.
_SO_PASSRIGHTS = 83
#: A socket that is to be closed counts as suspect if so many reads of so many bytes don't reach the end of its queue.
_CHUNK, _LOOKS = 1 << 16, 8

#: Suspect sockets that may wait to be passed on. With more the daemon accepts no connection for a while.
MOST = 64
#: Sockets that one process takes; processes at once, at most; seconds between two checks whether a process has ended.
_TAKES, _PROCESSES, _LOOK_S = 64, 4, 0.05

#: The process's program. The process has no other descriptor, and closes nothing by itself.
_PROGRAM = """
import os, socket
near = socket.socket(fileno=0)
while socket.recv_fds(near, 1, 1)[0]:
    pass
os._exit(0)
"""


class DescriptorsPassed(OSError):
    """Descriptors come with the next bytes."""


def may_pass(sock: object) -> bool:
    """Whether descriptors can come by *sock*; asked once, since it has the option from its listener at connect(2)."""
    if not isinstance(sock, socket.socket) or sock.family != socket.AF_UNIX:
        return False
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS))
    except OSError:
        return True


@point("listener.refuse-descriptors")
def refuse_descriptors(sock: Socket) -> bool:
    """
    Let the kernel refuse descriptors that peers pass: EPERM at their sendmsg(2). Returns whether it can, from Linux
    6.16 on.

    No peer has a reason to pass any. Otherwise the kernel closes them in the thread that reads, and the sender can
    make that take long: by a socket that lingers, or a memory file of gigabytes. Connections inherit it from a
    listener.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


@point("connection.guarded")
def guarded(sock: socket.socket) -> bool:
    """
    Whether the daemon must peek before it receives. Then SO_OOBINLINE is set: else the kernel would drop an out-of-band
    byte together with the descriptors beside it.
    """
    if not may_pass(sock):
        return False
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    return True


def receive(sock: socket.socket, size: int) -> bytes:
    """
    Receive at most *size* bytes where descriptors may come; DescriptorsPassed if some come with the next bytes or right
    behind them, and nothing was received; else OSError as recv(2).
    """
    seen, _, flags, _ = sock.recvmsg(size, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    if flags & socket.MSG_CTRUNC:
        raise DescriptorsPassed
    return sock.recv(len(seen), socket.MSG_DONTWAIT) if seen else b""


def _is_clean(sock: socket.socket) -> bool:
    """Shut the socket down, and empty its queue. Returns whether no descriptor is in the queue; none can come later."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    try:
        return any(not receive(sock, _CHUNK) for _ in range(_LOOKS))
    except OSError:
        return False


class Closer:
    """Closes clients' sockets. Its thread runs only while there is a suspect socket."""

    def __init__(self) -> None:
        self._suspects: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.passed_on = 0

    @property
    def full(self) -> bool:
        return self._suspects.qsize() >= MOST

    def close(self, sock: socket.socket) -> None:
        """Close *sock*, which must not be used any more, without waiting for the descriptors in its queue."""
        if sock.fileno() < 0:
            return
        if not guarded(sock) or _is_clean(sock):
            sock.close()
        else:
            self.pass_on(sock)

    def pass_on(self, sock: socket.socket) -> None:
        """Close *sock*, in whose queue there may be descriptors, elsewhere."""
        self._suspects.put(sock)
        with self._lock:  # nobody holds it for long
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="closer", daemon=True)
                self._thread.start()

    # --- the thread -----------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._suspects.empty() and not self._processes:
                    self._thread = None
                    return
            self._processes = [process for process in self._processes if process.poll() is None]
            if self._suspects.empty() or len(self._processes) >= _PROCESSES:
                threading.Event().wait(_LOOK_S)
                continue
            with contextlib.suppress(OSError, ImportError):  # no descriptor or no memory: tried again later
                self._pass_on()

    def _pass_on(self) -> None:
        import subprocess  # most daemons never do this

        near, far = socket.socketpair()
        with near:
            with far:
                try:
                    process = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=far.fileno(), stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, cwd="/", env={})
                except subprocess.SubprocessError as error:
                    raise OSError(str(error)) from error
            self._processes.append(process)
            for _ in range(_TAKES):
                try:
                    sock = self._suspects.get_nowait()
                except queue.Empty:
                    return
                try:
                    near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))])
                except OSError:  # too many are in flight, or the process is gone: the next process gets the socket
                    self._suspects.put(sock)
                    threading.Event().wait(_LOOK_S)
                    return
                sock.close()  # not the socket's last descriptor, which is in flight
                self.passed_on += 1

"""
A kernel's branch: a fork of its process, with its own pipes.

Trust:     none in what earlier jobs left, as in `session`. A branch has every lock of its kernel: filter, Landlock,
           namespaces, capabilities and limits are inherited, and none can be taken off.

The daemon sends five descriptors over the *door*, a socket of the kernel's process, and then the frame that asks for a
branch: a door for the branch, job, reply, stdout, stderr. The branch is a grandchild whose parent has exited, so that
the sandbox's init reaps it, and no job can. It sends two messages over its door, by which the daemon learns its process
number from the system (SCM_CREDENTIALS).
"""

from __future__ import annotations

import _socket
import array
import contextlib
import os

from leeward.wire import job as wire

#: Descriptors that come with the request.
_ENDS = 5

_OUT, _ERR = 1, 2


class Doorway:
    """The socket *door*, or -1, on which the daemon sends the descriptors of a branch."""

    def __init__(self, door: int) -> None:
        self._door = door
        if door >= 0:
            os.set_inheritable(door, False)

    def shut(self) -> None:
        door, self._door = self._door, -1
        if door >= 0:
            os.close(door)

    def fork(self, job_fd: int, reply_fd: int) -> bool:
        """
        Make a branch, or raise OSError. True in the branch, whose own pipes then have the numbers *job_fd* and
        *reply_fd*.
        """
        ends = _received(self._door)
        gate_read, gate_write = os.pipe()
        try:
            middle = os.fork()
            if not middle:
                _middle(gate_write)
                self._become(ends, gate_read, job_fd, reply_fd)
                return True
            _, status = os.waitpid(middle, 0)
        finally:
            for fd in (*ends, gate_read, gate_write):
                with contextlib.suppress(OSError):  # the descriptor is closed already
                    os.close(fd)
        if status:
            raise OSError("a second fork failed")
        return False

    def _become(self, ends: list[int], gate: int, job_fd: int, reply_fd: int) -> None:
        """In the branch: take the ends, and report."""
        os.read(gate, 1)
        os.setsid()
        for source, target in zip(ends, (self._door, job_fd, reply_fd, _OUT, _ERR), strict=True):
            os.dup2(source, target, inheritable=target in (_OUT, _ERR))
        door = _socket.socket(fileno=os.dup(self._door))
        try:
            door.sendall(wire.BRANCH_WORD)
            if door.recv(1) != wire.BRANCH_WORD:
                os._exit(0)  # the branch isn't wanted any more
            door.sendall(wire.BRANCH_WORD)
        finally:
            door.close()


def _middle(gate: int) -> None:
    """In the child: fork again, and exit. Returns in the grandchild."""
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.close(gate)


def _received(door: int) -> list[int]:
    channel = _socket.socket(fileno=os.dup(door))
    try:
        _, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(_ENDS * 4), _socket.MSG_CMSG_CLOEXEC
                                             | _socket.MSG_DONTWAIT)
    finally:
        channel.close()
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
    if len(fds) != _ENDS:
        for fd in fds:
            os.close(fd)
        raise OSError(f"{len(fds)} of {_ENDS} descriptors have come")
    return list(fds)

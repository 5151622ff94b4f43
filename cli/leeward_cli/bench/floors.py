"""
The floors: what the same answer costs where less, or nothing, is done for it.

Runs in:   the CLI.
"""

from __future__ import annotations

import os
import subprocess
import sys
from socket import AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM, socket, socketpair
from types import TracebackType
from typing import Protocol, Self

from leeward.errors import LeewardError
from leeward_cli.bench import peers

CODE = 'print("hello world")'
PRINTED = b"hello world\n"

#: Bytes of a ping-pong message: about a request's.
_MESSAGE = b"x" * 128


class Subject(Protocol):
    """
    Something whose calls are timed. `call` answers one and raises LeewardError if it answers wrong.
    """

    name: str

    def call(self) -> None: ...


def check(name: str, printed: bytes) -> None:
    """
    A fast wrong answer is no figure.

    Raises:
        LeewardError: it isn't what CODE prints.
    """
    if printed != PRINTED:
        raise LeewardError(f"bench: {name} printed {printed[:80]!r}")


class Peer:
    """
    A process of peers.py, and our end of its socket.
    """

    def __init__(self, what: str, kind: int) -> None:
        self.socket, theirs = socketpair(AF_UNIX, kind)
        with theirs:
            self._process = subprocess.Popen([interpreter(), "-I", "-S", peers.__file__, what], stdin=theirs.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.socket.close()  # which ends it
        self._process.wait()


def interpreter() -> str:
    """
    What `python3` is for this installation: the interpreter itself, not its virtual environment.
    """
    return str(getattr(sys, "_base_executable", sys.executable))


class Hops(Peer):
    """
    Client, daemon, worker, daemon, client: four hops through three processes, with nothing done.
    """

    name = "four hops"

    def __init__(self) -> None:
        super().__init__("hops", SOCK_STREAM)

    def call(self) -> None:
        self.socket.send(_MESSAGE)
        if self.socket.recv(peers.MOST) != _MESSAGE:
            raise LeewardError("bench: the ping-pong lost its ball")


class Fork(Peer):
    """
    A warm interpreter that forks when asked, without isolation.
    """

    name = "fork on request"

    def __init__(self) -> None:
        # Packets: 8 requests may be on their way, and each answer comes from another process.
        super().__init__("fork", SOCK_SEQPACKET)

    def call(self) -> None:
        self.socket.send(CODE.encode())
        check(self.name, self.socket.recv(peers.MOST))


class Spawn:
    """
    A program, started by posix_spawn, read to its end and reaped.
    """

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._arguments = arguments

    def call(self) -> None:
        read, write = os.pipe()
        try:
            pid = os.posix_spawn(self._arguments[0], self._arguments, {},
                                 file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
        finally:
            os.close(write)
        printed = b""
        with open(read, "rb") as pipe:
            printed = pipe.read()
        os.waitpid(pid, 0)
        check(self.name, printed)


def python() -> Spawn:
    return Spawn("python3 -I -S -c", [interpreter(), "-I", "-S", "-c", CODE])


def echo() -> Spawn:
    return Spawn("/bin/echo", ["/bin/echo", PRINTED.decode().strip()])


def fork_rate(peer: socket, callers: int, jobs: int) -> None:
    """
    *jobs* forks on request, *callers* of them asked for at any time.
    """
    for _ in range(min(callers, jobs)):
        peer.send(CODE.encode())
    for done in range(1, jobs + 1):
        check(Fork.name, peer.recv(peers.MOST))
        if done + callers <= jobs:
            peer.send(CODE.encode())

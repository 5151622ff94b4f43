"""
The floors: what the same answer costs where less, or nothing, is done for it.

Runs in:   the CLI.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from socket import AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM, socket, socketpair
from types import TracebackType
from typing import Self

from leeward.errors import LeewardError
from leeward.protocols import Protocol
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
    A process at the other end of our socket: peers.py's *what*, or another *command*.
    """

    def __init__(self, what: str, kind: int, command: Sequence[str] = ()) -> None:
        self.socket, theirs = socketpair(AF_UNIX, kind)
        with theirs:
            self._process = subprocess.Popen(command or [interpreter(), "-I", "-S", peers.__file__, what],
                                             stdin=theirs.fileno())

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
    Client, daemon, worker, daemon, client: four hops through three processes, with nothing done. Or there and back.

    Args:
        count: "four" or "two".
        program: compiled.py's; None for peers.py's.
    """

    name = "four hops"

    def __init__(self, count: str = "four", program: str | None = None) -> None:
        super().__init__(count, SOCK_STREAM, [program, count] if program else ())
        self.name = f"{count} hops"

    def call(self) -> None:
        self.socket.send(_MESSAGE)
        if self.socket.recv(peers.MOST) != _MESSAGE:
            raise LeewardError("bench: the ping-pong lost its ball")


class Through(Peer):
    """
    Four hops, and behind the third an interpreter that stays, runs the code and answers what it printed: what a call
    costs that goes to a warm CPython in another process, with nothing around it and nothing fresh.

    Args:
        program: compiled.py's.
    """

    name = "four hops and a warm interpreter"

    def __init__(self, program: str) -> None:
        super().__init__("run", SOCK_STREAM, [program, "through", interpreter(), "-I", "-S", peers.__file__, "run"])

    def call(self) -> None:
        self.socket.send(CODE.encode())
        check(self.name, self.socket.recv(peers.MOST))


class Pour(Peer):
    """
    *size* bytes by a pipe, from one process into a memory file of another.

    Args:
        program: compiled.py's.
        size: a multiple of 1 MiB.
    """

    name = "as much by a pipe into a memory file"

    def __init__(self, program: str, size: int) -> None:
        super().__init__("pour", SOCK_STREAM, [program, "pour", str(size)])

    def call(self) -> None:
        self.socket.send(b"x")
        if self.socket.recv(1) != b"x":
            raise LeewardError("bench: the pipe has run dry")


class Fork(Peer):
    """
    A warm interpreter that forks when asked, without isolation.
    """

    name = "fork on request"
    _what = "fork"

    def __init__(self) -> None:
        # Packets: 8 requests may be on their way, and each answer comes from another process.
        super().__init__(self._what, SOCK_SEQPACKET)

    def call(self) -> None:
        self.socket.send(CODE.encode())
        check(self.name, self.socket.recv(peers.MOST))


class Confined(Fork):
    """
    The same, into namespaces with two mounts of its own, behind a filter: what no sandbox of this kind can do without.
    """

    name = "fork into namespaces"
    _what = "confined"


class Warm:
    """
    The code in an interpreter that has run it before, our own: no process, no isolation, nothing between.
    """

    name = "exec in a warm interpreter"

    def call(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(CODE, "<string>", "exec"), {"__name__": "__main__"})
        check(self.name, printed.getvalue().encode())


class Spawn:
    """
    A program, started by posix_spawn, read to its end and reaped.

    Args:
        environment: of the program; none unless told.
        printed: what it has to print.
    """

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None,
                 printed: bytes = PRINTED) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._printed = printed

    def start(self) -> tuple[int, int]:
        """
        Its pid, and the end of a pipe that it prints to.
        """
        read, write = os.pipe()
        try:
            pid = os.posix_spawn(self._arguments[0], self._arguments, self._environment,
                                 file_actions=[(os.POSIX_SPAWN_DUP2, write, 1),
                                               (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        return pid, read

    def end(self, pid: int, pipe: int) -> None:
        """
        Wait for one that was started.
        """
        with open(pipe, "rb") as file:
            printed = file.read()
        os.waitpid(pid, 0)
        if printed != self._printed:
            raise LeewardError(f"bench: {self.name} printed {printed[:80]!r}")

    def call(self) -> None:
        self.end(*self.start())

    def rate(self, callers: int, jobs: int) -> None:
        """
        Run it *jobs* times, *callers* of them at any time.
        """
        running: dict[int, int] = {}
        poll = select.poll()
        started = 0
        while running or started < jobs:
            while started < jobs and len(running) < callers:
                pid, pipe = self.start()
                poll.register(pipe, select.POLLIN)
                running[pipe] = pid
                started += 1
            for pipe, _ in poll.poll():
                poll.unregister(pipe)
                self.end(running.pop(pipe), pipe)


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

"""
The floors: the time that the same answer takes with less isolation, or with none.

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

#: A ping-pong message, about as long as a request.
_MESSAGE = b"x" * 128


class Subject(Protocol):
    """Something whose calls are timed. `call` makes one call, and raises LeewardError if the answer is wrong."""

    name: str

    def call(self) -> None: ...


def check(name: str, printed: bytes) -> None:
    """
    Check an answer, since the time of a wrong answer means nothing.

    Raises:
        LeewardError: *printed* isn't what CODE prints.
    """
    if printed != PRINTED:
        raise LeewardError(f"bench: {name} printed {printed[:80]!r}")


class Peer:
    """A process at the other end of a socket pair: the function *what* of peers.py, or another *command*."""

    def __init__(self, what: str, kind: int, command: Sequence[str] = ()) -> None:
        self.socket, theirs = socketpair(AF_UNIX, kind)
        with theirs:
            self._process = subprocess.Popen(command or [interpreter(), "-I", "-S", peers.__file__, what],
                                             stdin=theirs.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.socket.close()  # ends the process
        self._process.wait()


def interpreter() -> str:
    """The path of this installation's base interpreter, outside of its virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


class Hops(Peer):
    """
    Four hops of a message through three processes that do nothing else: client, daemon, worker, daemon, client. Or two
    hops, without the worker.

    Args:
        count: "four" or "two".
        program: the path of the compiled program; None for peers.py.
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
    Four hops, where the worker is an interpreter that stays, runs the code and answers with what it
    printed: the cost of a call to a warm CPython in another process, without isolation and without a new process.

    Args:
        program: the path of the compiled program.
    """

    name = "four hops and a warm interpreter"

    def __init__(self, program: str) -> None:
        super().__init__("run", SOCK_STREAM, [program, "through", interpreter(), "-I", "-S", peers.__file__, "run"])

    def call(self) -> None:
        self.socket.send(CODE.encode())
        check(self.name, self.socket.recv(peers.MOST))


class Pour(Peer):
    """
    A transfer of *size* bytes by a pipe from one process into a memory file of another.

    Args:
        program: the path of the compiled program.
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
    """A warm interpreter that forks for each request, without isolation."""

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
    As `Fork`, but each process is in new namespaces with two mounts of its own, under a filter: the least that a
    sandbox of this kind needs.
    """

    name = "fork into namespaces"
    _what = "confined"


class Warm:
    """The code in this process, whose interpreter has run it before: no other process and no isolation."""

    name = "exec in a warm interpreter"

    def call(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(CODE, "<string>", "exec"), {"__name__": "__main__"})
        check(self.name, printed.getvalue().encode())


class Spawn:
    """
    A program that is started by posix_spawn. Its output is read to the end, and the process is reaped.

    Args:
        environment: the program's environment; empty by default.
        printed: the output that the program must print.
    """

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str] | None = None,
                 printed: bytes = PRINTED) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._printed = printed

    def start(self) -> tuple[int, int]:
        """Start the program. Returns its pid, and the end of a pipe from which its output is read."""
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
        """Read the output of a started program, and wait for its end."""
        with open(pipe, "rb") as file:
            printed = file.read()
        os.waitpid(pid, 0)
        if printed != self._printed:
            raise LeewardError(f"bench: {self.name} printed {printed[:80]!r}")

    def call(self) -> None:
        self.end(*self.start())

    def rate(self, callers: int, jobs: int) -> None:
        """Run the program *jobs* times, *callers* of them at the same time."""
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
    """Make *jobs* fork requests, *callers* of them pending at any time."""
    for _ in range(min(callers, jobs)):
        peer.send(CODE.encode())
    for done in range(1, jobs + 1):
        check(Fork.name, peer.recv(peers.MOST))
        if done + callers <= jobs:
            peer.send(CODE.encode())

"""The floors: the time that the same answer takes with less isolation, or with none."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM, socketpair
from typing import Self

from leeward.base.protocols import Protocol
from leeward.errors import LeewardError
from leeward_cli.bench import floor_peers

CODE = 'print("hello world")'
PRINTED = b"hello world\n"
FOUR_HOPS, FORK, BARE_JOB, THROUGH = "four hops", "fork on request", "a bare job", "four hops and a warm interpreter"

#: A ping-pong message, about as long as a request.
_MESSAGE = b"x" * 128
SOURCE, LIBRARY = (Path(__file__).with_name(name) for name in ("floors.c", "floor_jobs.c"))


@contextlib.contextmanager
def compiled() -> Iterator[str | None]:
    """
    A context with the path of floors.c, compiled, for the bench alone, and with .so behind it floor_jobs.c; None without a
    compiler: then peers.py serves.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        program = f"{folder}/floors"
        made = [subprocess.run([*compiler, "-std=c11", "-O2", "-o", *more], stdin=subprocess.DEVNULL, capture_output=True,
                               check=False).returncode
                for more in ((program, str(SOURCE)), (f"{program}.so", "-shared", "-fPIC", str(LIBRARY)))]
        yield None if any(made) else program


class Subject(Protocol):
    """Something whose calls are timed. `call` makes one call, and raises LeewardError if the answer is wrong."""

    name: str

    def call(self) -> None: ...


@dataclass(slots=True)
class CalledSubject:
    name: str
    call: Callable[[], None]


def printing(name: str, printed: Callable[[], bytes]) -> CalledSubject:
    """A subject whose calls return what CODE prints."""
    return CalledSubject(name, lambda: check(name, printed()))


def check(name: str, printed: bytes, expected: bytes = PRINTED) -> None:
    """Raise LeewardError for a wrong answer, since its time means nothing."""
    if printed != expected:
        raise LeewardError(f"bench: {name} printed {printed[:80]!r}")


class Peer:
    """A process at the other end of a socket pair: the function *what* of peers.py, or another *command*."""

    def __init__(self, name: str, what: str, message: bytes = CODE.encode(), answer: bytes = PRINTED,
                 command: Sequence[str] = (), kind: int = SOCK_STREAM) -> None:
        self.name, self._message, self._answer = name, message, answer
        self.socket, theirs = socketpair(AF_UNIX, kind)
        with theirs:
            self._process = subprocess.Popen(command or [interpreter(), "-I", "-S", floor_peers.__file__, what],
                                             stdin=theirs.fileno())

    def call(self) -> None:
        self.socket.send(self._message)
        check(self.name, self.socket.recv(floor_peers.MOST), self._answer)

    def rate(self, callers: int, jobs: int) -> None:
        """Make *jobs* calls, *callers* of them pending at any time."""
        for _ in range(min(callers, jobs)):
            self.socket.send(self._message)
        for done in range(1, jobs + 1):
            check(self.name, self.socket.recv(floor_peers.MOST), self._answer)
            if done + callers <= jobs:
                self.socket.send(self._message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()  # ends the process
        self._process.wait()


def interpreter() -> str:
    """The path of this installation's base interpreter, outside of its virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


def hops(count: str, program: str | None) -> Peer:
    """Four hops of a message ("four": client, daemon, worker, daemon, client, who do nothing else), or without the worker."""
    return Peer(f"{count} hops", count, _MESSAGE, _MESSAGE, [program, count] if program else ())


def through(program: str) -> Peer:
    """Four hops, where the worker is an interpreter that stays and runs the code, without isolation."""
    return Peer(THROUGH, "run", command=[program, "through", interpreter(), "-I", "-S", floor_peers.__file__, "run"])


def pour(program: str, size: int) -> Peer:
    """A transfer of *size* bytes, a multiple of 1 MiB, by a pipe from one process into a memory file of another."""
    return Peer("as much by a pipe into a memory file", "pour", b"x", b"x", [program, "pour", str(size)])


def command(program: str) -> Peer:
    """A program in a sandbox that is as bare as can be, started by another process with two pipes, to its end."""
    return Peer("a command by bare C", "command", _MESSAGE, _MESSAGE, [program, "command"])


def fork() -> Peer:
    # Packets: 8 requests may be on their way, and each answer comes from another process.
    return Peer(FORK, "fork", kind=SOCK_SEQPACKET)


def bare_job(program: str) -> Peer:
    """As `fork`, with the locks and groups of a job, through as many processes: the least that does the same."""
    command = [interpreter(), "-I", "-S", floor_peers.__file__, "jobs", f"{program}.so"]
    return Peer(BARE_JOB, "jobs", command=command, kind=SOCK_SEQPACKET)


def printed_by(code: str) -> str:
    """Run *code*, and return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def warm() -> Subject:
    """The code in this process, whose interpreter has run it before: no other process and no isolation."""
    return printing("exec in a warm interpreter", lambda: printed_by(CODE).encode())


class Spawn:
    """A program that is started by posix_spawn, and whose output must be *printed*. The environment is empty by default."""

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
        with open(pipe, "rb") as file:
            printed = file.read()
        os.waitpid(pid, 0)
        check(self.name, printed, self._printed)

    def call(self) -> None:
        self.end(*self.start())

    def rate(self, callers: int, jobs: int) -> None:
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

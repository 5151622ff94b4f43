"""
The program that a process of a live sandbox is started with, its standard streams, and how the process ended.

Trust: none in a client's arguments: `block` refuses arguments that execve(2) can't take.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

from leeward.base.dataclass import dataclass, field
from leeward.errors import BadRequest, LeewardError
from leeward.isolation.channel import Channel
from leeward.isolation.terminals import pseudo_terminal

#: struct lw_command_head of _native/src/command.h: paths, arguments, variables, bytes.
_HEAD = struct.Struct("=IIII")
#: Strings of each kind, and bytes of all together. execve(2) takes 128 KiB a string, and 2 MiB in all (a quarter of
#: RLIMIT_STACK, which is 8 MiB).
MOST_STRINGS, MOST_BYTES, MOST_STRING = 4096, 4 << 20, (128 << 10) - 1

#: The search path if a program's environment has no PATH; as in glibc.
_PATH = b"/bin:/usr/bin"
#: Exit codes of shells for a program that can't be started: MISSING if there is no such file, else CANNOT.
MISSING, CANNOT = 127, 126
_MISSING = (errno.ENOENT, errno.ENOTDIR)


class Stdio(enum.Enum):
    """A standard stream of a process for which the caller passes no descriptor."""

    NULL = "null"  # /dev/null
    PIPE = "pipe"  # a new pipe. Its other end is the LiveProcess's
    OUT = "out"    # for stderr only: the same as stdout


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments. The first of *argv* is its path, or its name, looked for as execvp(3) does."""

    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes] = field(default_factory=dict)  # the whole environment
    cwd: bytes = b"/workspace"  # an absolute path in the sandbox
    terminal: bool = False  # stdin is the slave of a pty, and becomes the controlling terminal (TIOCSCTTY)
    size: tuple[int, int] | None = None  # rows and columns of a new terminal, which becomes all three streams


@dataclass(frozen=True, slots=True)
class Exit:
    """
    How the direct child ended. *refused*: the errno for which the program could not be started, or 0; *status* is then
    that of exit code 127 (ENOENT, ENOTDIR) or 126. *denied*: refused calls of the child and its descendants so far, by
    name.
    """

    status: int | None  # the wait status as of waitpid(2); None if it isn't known, because the runner was lost
    refused: int = 0
    layer: str = ""  # if *refused* isn't 0, the step that failed: "cwd", "exec", or the lock that couldn't be set
    reason: str = ""  # if *status* is None, why
    cpu_time: float = 0.0  # processor seconds of the child and of those of its own children that it waited for
    memory_peak: int = 0  # bytes; the largest resident set of the child or of a child that it waited for
    denied: Mapping[str, int] = field(default_factory=dict)
    duration: float = 0.0  # seconds from the order to the child's end
    left: bool = False  # a descendant may still hold the child's stdout or stderr
    stuck: bool = False  # it was killed and hasn't ended, because it waits in the kernel


def block(command: Command) -> bytes:
    """*command* in the form that a keeper reads (command.h); BadRequest if execve(2) can't take it."""
    if not command.argv or not command.argv[0]:
        raise BadRequest("argv has no program")
    if not command.cwd.startswith(b"/"):
        raise BadRequest(f"cwd {command.cwd!r:.80} isn't an absolute path")
    for key in command.env:
        if not key or b"=" in key:
            raise BadRequest(f"env: {key!r:.80} can't be a variable's name")
    paths = candidates(command.argv[0], command.env)
    variables = [key + b"=" + value for key, value in command.env.items()]
    for what, strings in (("argv", command.argv), ("env", variables), ("PATH", paths)):
        if len(strings) > MOST_STRINGS:
            raise BadRequest(f"{what} has {len(strings)} entries; at most {MOST_STRINGS} are taken")
        for string in strings:
            if len(string) > MOST_STRING:
                raise BadRequest(f"{what}: one string has {len(string)} bytes; at most {MOST_STRING} are taken")
    strings = [command.cwd, *paths, *command.argv, *variables]
    if any(b"\0" in string for string in strings):
        raise BadRequest("argv, env or cwd has a NUL in it")
    data = b"\0".join(strings) + b"\0"
    if len(data) > MOST_BYTES:
        raise BadRequest(f"argv and env have {len(data)} bytes together; at most {MOST_BYTES} are taken")
    return _HEAD.pack(len(paths), len(command.argv), len(variables), len(data)) + data


def candidates(program: bytes, env: Mapping[bytes, bytes]) -> Sequence[bytes]:
    """The paths to try for *program*, as execvp(3) does. An empty entry of PATH is the working directory."""
    if b"/" in program:
        return [program]
    return [(folder or b".") + b"/" + program for folder in env.get(b"PATH", _PATH).split(b":")]


def unstarted(number: int, layer: str) -> Exit:
    """The `Exit` of a process that could not be started for errno *number*."""
    return Exit(status=(MISSING if number in _MISSING and layer != "cwd" else CANNOT) << 8, refused=number, layer=layer)


class Streams:
    """
    Opens the ends of a process's standard streams. *owner* (uid, gid) gets the pipes, so that the process may open
    /dev/stdout again. *given* closes the process's ends, *kept* the daemon's, unless a LiveProcess takes them over.
    """

    def __init__(self, owner: tuple[int, int], given: contextlib.ExitStack, kept: contextlib.ExitStack) -> None:
        self._owner, self.given, self.kept = owner, given, kept
        self.theirs: list[int] = []

    @classmethod
    @contextlib.contextmanager
    def opened(cls, owner: tuple[int, int], what: str) -> Iterator[Streams]:
        """For the block, which makes a process; LeewardError about *what* for an OSError there."""
        with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
            try:
                yield cls(owner, given, kept)
            except OSError as error:
                raise LeewardError(f"{what}: {error}") from error
            kept.pop_all()

    def open(self, stdin: int | Stdio, stdout: int | Stdio, stderr: int | Stdio) -> tuple[int, int, int]:
        """Return the daemon's ends, -1 where there is none."""
        return self._stream(stdin, write=False), self._stream(stdout, write=True), self._stream(stderr, write=True)

    def terminal(self, ptmx: int, rows: int, columns: int) -> tuple[int, int, int]:
        """Open a pseudo-terminal as all three streams. Returns ends to write to and to read from, and -1; OSError."""
        if ptmx < 0:
            raise OSError(errno.ENODEV, "this daemon's sandboxes have no terminals")
        master, slave = pseudo_terminal(ptmx, rows, columns)
        self.given.callback(os.close, slave)
        self.kept.callback(os.close, master)
        self.theirs += [slave] * 3
        # Two descriptors of one open file, because the loop watches each of them for other events.
        write_end = os.dup(master)
        self.kept.callback(os.close, write_end)
        return write_end, master, -1

    def _stream(self, what: int | Stdio, *, write: bool) -> int:
        if what is Stdio.PIPE:
            return self.pipe(write=write)
        if isinstance(what, int):
            theirs = what
        elif what is Stdio.OUT:
            theirs = self.theirs[-1]
        else:
            theirs = os.open("/dev/null", (os.O_WRONLY if write else os.O_RDONLY) | os.O_CLOEXEC)
            self.given.callback(os.close, theirs)
        self.theirs.append(theirs)
        return -1

    def pipe(self, *, write: bool) -> int:
        """Open a pipe to which the process writes (*write*) or from which it reads. Returns the daemon's end."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        ours, theirs = (read_end, write_end) if write else (write_end, read_end)
        self.given.callback(os.close, theirs)
        self.kept.callback(os.close, ours)
        os.set_blocking(ours, False)
        if self._owner[0] != os.geteuid():
            os.fchown(theirs, *self._owner)
        self.theirs.append(theirs)
        return ours

    def birth_channel(self) -> tuple[Channel, int]:
        """Make a birth channel. Returns the daemon's end, and the descriptor of the process's end."""
        here, there = Channel.pair()
        self.given.callback(there.close)
        self.kept.callback(here.close)
        here.socket.setblocking(False)
        return here, there.fileno()

"""leeward itself: a daemon for the bench, one connection, from Python or C, 8 callers, and the parts of a call's time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import struct
import sys
import time
from _socket import socket as Socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any

from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward.client.connection import receive
from leeward.client.conversation import Conversation, checked
from leeward.client.options import execute_fields, turn_fields
from leeward.client.results import result_of
from leeward.client.session import Session
from leeward.errors import LeewardError
from leeward.spec.outcome import Result
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole
from leeward_cli import library
from leeward_cli.background import START_S, temporary
from leeward_cli.bench.floors import CODE, CalledSubject, check, printing

OURS = "leeward"

#: Code that prints the time at which its first line runs. CLOCK_MONOTONIC is the same for all processes of the host.
_STAMP = "import time; print(time.monotonic_ns())"


def daemon(socket: str | None, *options: str) -> contextlib.AbstractContextManager[str]:
    """A context with the path of a daemon's socket: *socket*, or that of a new daemon with these *options*."""
    return temporary("bench", *options) if socket is None else contextlib.nullcontext(socket)


def armed(path: str, workers: int) -> float:
    """Wait until *workers* runners are armed and no runner is being armed any more. Returns the time by perf_counter."""
    until = time.perf_counter() + START_S
    with Client(path) as client:
        while True:
            status = client.status()
            seen = time.perf_counter()
            if status["runners_armed"] >= workers and not status["runners_arming"]:
                return seen
            if seen > until:
                raise LeewardError(f"bench: {status['runners_armed']} of {workers} workers were armed in {START_S:g} s")
            time.sleep(0.02)  # each look at a large pool takes its daemon a millisecond


def program() -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "leeward")
    found = beside if os.access(beside, os.X_OK) else shutil.which("leeward")
    if found is None:
        raise LeewardError("bench: there is no leeward beside the interpreter, nor on the PATH")
    return found


def fresh(client: Client, name: str = OURS) -> CalledSubject:
    """`print("hello world")` over one connection, a fresh runner for each call."""
    return printing(name, lambda: good(client.execute(CODE)).stdout)


def in_session(session: Session) -> CalledSubject:
    """As `fresh`, in a session: one process for all calls, which keeps its state."""
    return printing("leeward, in a session", lambda: good(session.execute(CODE)).stdout)


def good(result: Result) -> Result:
    """*result*, if the job succeeded; LeewardError if not, since its time means nothing."""
    if result.exit_code:
        raise LeewardError(f"bench: a job ended as {result.outcome.value}: {result.stderr[:200]!r}")
    return result


@dataclass(frozen=True, slots=True)
class Legs:
    """The parts of one call, in seconds; `job` is the daemon's own measure. The report says from where to where."""

    there: float
    back: float
    job: float


def legs(client: Client) -> Legs:
    """Time one call of a job that prints the time of its first line."""
    start = time.monotonic_ns()
    result = good(client.execute(_STAMP))
    end = time.monotonic_ns()
    began = int(result.stdout)
    return Legs((began - start) / 1e9, (end - began) / 1e9, result.duration)


@dataclass(frozen=True, slots=True)
class Talk:
    socket: Socket
    conversation: Conversation
    fields: Mapping[str, Any]

    def ask(self) -> None:
        self.socket.send(self.conversation.request("execute", self.fields)[1])

    def answers(self) -> list[tuple[Reply, list[int]]]:
        data, descriptors = receive(self.socket)
        if not data:
            raise LeewardError("bench: the daemon closed a connection")
        return self.conversation.received(data, descriptors)


def rate(path: str, callers: int, jobs: int) -> None:
    with contextlib.ExitStack() as stack:
        burst(talks(stack, path, min(callers, jobs)), jobs)


def talks(stack: contextlib.ExitStack, path: str, callers: int) -> list[Talk]:
    """Callers of fresh jobs, until *stack* closes."""
    return [_talk(stack, path, execute_fields(CODE)) for _ in range(callers)]


@contextlib.contextmanager
def sessions(path: str, callers: int) -> Iterator[list[Talk]]:
    with contextlib.ExitStack() as stack:
        talks = []
        for _ in range(callers):
            talk = _talk(stack, path, {})
            talk.socket.send(talk.conversation.request("session_open", {})[1])
            answers = talk.answers()
            while not answers:
                answers = talk.answers()
            number = checked(whole, answers[0][0], "session", 1)
            talks.append(Talk(talk.socket, talk.conversation, turn_fields(number, CODE, {})))
        yield talks


def burst(talks: Sequence[Talk], jobs: int) -> None:
    """Run *jobs* jobs, one of each caller in flight, in one thread: eight on two processors would be measured themselves."""
    poll = select.poll()
    by_fd = {talk.socket.fileno(): talk for talk in talks}
    for fd, talk in by_fd.items():
        poll.register(fd, select.POLLIN)
        talk.ask()
    sent, done = len(talks), 0
    while done < jobs:
        for fd, _ in poll.poll():
            talk = by_fd[fd]
            for reply, owned in talk.answers():
                check("leeward", good(result_of(reply, owned)).stdout)
                done += 1
                if sent < jobs:
                    talk.ask()
                    sent += 1


def _talk(stack: contextlib.ExitStack, path: str, fields: Mapping[str, Any]) -> Talk:
    sock = connect(path)
    assert sock is not None
    stack.callback(sock.close)
    return Talk(sock, Conversation(), fields)


def daemon_pid(path: str) -> int:
    """The pid of the process that listens on *path*; 0 if it is in a pid namespace that this process doesn't see."""
    probe = connect(path)
    assert probe is not None
    try:
        return int(struct.unpack("3i", probe.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))[0])
    finally:
        probe.close()

# --- from C -------------------------------------------------------------------


class _Result(ctypes.Structure):
    """The first fields of leeward_result in leeward.h. New fields are added only at its end."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("id", ctypes.c_int64), ("outcome", ctypes.c_int32), ("exit_code", ctypes.c_int32),
        ("limit", ctypes.c_int32), ("truncated", ctypes.c_int32), ("stdout_data", ctypes.c_void_p),
        ("stdout_length", ctypes.c_size_t),
    ]


@contextlib.contextmanager
def from_c(path: str) -> Iterator[CalledSubject | None]:
    """A context with the same call by libleeward, if it is there; ctypes adds a microsecond or two."""
    if not Path(library.SDK, "lib", library.SONAME).exists():
        yield None
        return
    lib, code = ctypes.CDLL(library.library()), CODE.encode()
    lib.leeward_connect.restype = lib.leeward_execute.restype = ctypes.c_void_p
    lib.leeward_connect.argtypes = [ctypes.c_char_p]
    lib.leeward_execute.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.leeward_free_result.argtypes = lib.leeward_disconnect.argtypes = [ctypes.c_void_p]
    lib.leeward_free_result.restype = lib.leeward_disconnect.restype = None
    lib.leeward_last_error.restype = ctypes.c_char_p

    def found(pointer: int | None) -> int:
        if not pointer:
            raise LeewardError(f"bench: {lib.leeward_last_error().decode(errors='replace')}")
        return pointer

    def printed() -> bytes:
        made = found(lib.leeward_execute(handle, code, len(code), None))
        result = ctypes.cast(made, ctypes.POINTER(_Result)).contents
        stdout = ctypes.string_at(result.stdout_data, result.stdout_length)
        lib.leeward_free_result(made)
        return stdout

    handle = found(lib.leeward_connect(path.encode()))
    try:
        yield printing("leeward, called from C", printed)
    finally:
        lib.leeward_disconnect(handle)

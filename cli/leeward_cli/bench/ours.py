"""
leeward itself: a daemon for the bench, one connection, 8 callers, and the parts of a call's time.

Runs in:   the CLI.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import struct
import sys
import time
from _socket import socket as Socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any

from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward.client.conversation import Conversation, checked
from leeward.client.link import receive
from leeward.client.options import execute_fields, turn_fields
from leeward.client.results import result_of
from leeward.client.session import Session
from leeward.errors import LeewardError
from leeward.outcome import Result
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole
from leeward_cli.background import START_S, temporary
from leeward_cli.bench.floors import CODE, check

#: Code that prints the time at which its first line runs. CLOCK_MONOTONIC is the same for all processes of the host.
_STAMP = "import time; print(time.monotonic_ns())"


@contextlib.contextmanager
def daemon(socket: str | None, *options: str) -> Iterator[str]:
    """
    A context with the path of a daemon's socket: *socket*, or that of a daemon with these *options*, which is started
    for the time of the context.

    Raises:
        LeewardError: the daemon wasn't ready in time.
    """
    if socket is not None:
        yield socket
        return
    with started(*options) as (path, _):
        yield path


@contextlib.contextmanager
def started(*options: str) -> Iterator[tuple[str, float]]:
    """
    A context with a ready daemon with these *options*: the path of its socket, and the time of its start by
    perf_counter.

    Raises:
        LeewardError: the daemon wasn't ready in time.
    """
    start = time.perf_counter()
    with temporary("bench", *options) as path:
        yield path, start


def armed(path: str, workers: int) -> float:
    """
    Wait until *workers* runners are armed and no runner is being armed any more. Returns the time by perf_counter.

    Raises:
        LeewardError: the runners weren't armed in time.
    """
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
    """
    The path of this installation's program `leeward`.

    Raises:
        LeewardError: there is no such program.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "leeward")
    found = beside if os.access(beside, os.X_OK) else shutil.which("leeward")
    if found is None:
        raise LeewardError("bench: there is no leeward beside the interpreter, nor on the PATH")
    return found


class LeewardSubject:
    """`print("hello world")` over one connection, a fresh runner for each call."""

    name = "leeward"

    def __init__(self, client: Client, name: str = name) -> None:
        self._client, self.name = client, name

    def call(self) -> None:
        check(self.name, good(self._client.execute(CODE)).stdout)


class InSession:
    """As `LeewardSubject`, in a session: one process for all calls, which keeps its state."""

    name = "leeward, in a session"

    def __init__(self, session: Session) -> None:
        self._session = session

    def call(self) -> None:
        check(self.name, good(self._session.execute(CODE)).stdout)


def good(result: Result) -> Result:
    """
    *result*, if the job succeeded.

    Raises:
        LeewardError: the job didn't finish, so its time means nothing.
    """
    if result.exit_code:
        raise LeewardError(f"bench: a job ended as {result.outcome.value}: {result.stderr[:200]!r}")
    return result


@dataclass(frozen=True, slots=True)
class Legs:
    """
    The parts of one call, in seconds.

    Attributes:
        there: from the call to the job's first line.
        back: from the job's first line until the client has the answer.
        job: the daemon's own measure of the job, from before it writes the frame until it has read the reply.
    """

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
    """The connection of one of many callers, and the fields of its requests."""

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
    """Run *jobs* jobs over *callers* connections, with one job in flight on each connection."""
    with contextlib.ExitStack() as stack:
        burst([_talk(stack, path, execute_fields(CODE)) for _ in range(min(callers, jobs))], jobs)


@contextlib.contextmanager
def sessions(path: str, callers: int) -> Iterator[list[Talk]]:
    """A context with *callers* connections, each with a session of its own."""
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
    """
    Run *jobs* jobs, with one job of each caller in flight.

    This uses one thread and no blocking client: with eight threads on two processors, the threads would be measured.
    """
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

"""Daemons for tests of clients: our server with a pool in whose place a test answers, and daemons that break the protocol."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from kit.no_pool import NoPool
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.config import Config
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.loop.reactor import READ
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.daemon.serving.listener import Listener
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome, Result
from leeward.wire.frames import FrameReader, decode

#: Seconds after which a test that waits for another thread has failed.
PATIENCE = 10.0


def finished(stdout: bytes = b"", **fields: Any) -> Report:
    return Report(result=Result(stdout, b"", 0, Outcome.FINISHED, **fields))


def echo(job: Job) -> Report | None:
    """Return a report whose output is the request."""
    return finished(job.code or b"")


class HeldTicket(Ticket):
    def __init__(self, daemon: FakeDaemon, job: Job) -> None:
        self.daemon, self.job = daemon, job

    def cancel(self) -> None:
        self.daemon.cancelled.put(self.job)

    def interrupt(self) -> bool:
        self.daemon.interrupted.put(self.job)
        return True

    def kill(self) -> bool:
        return False  # it waits for a worker yet


class FakeDaemon(NoPool):
    """
    The real server on a real socket, in a thread; *answer* stands for the pool.

    Args:
        answer: the report of a job; None leaves it running until it is cancelled.
    """

    def __init__(self, path: Path, answer: Callable[[Job], Report | None] = echo, **config: Any) -> None:
        self.path = str(path)
        self.answer = answer
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.cancelled: queue.Queue[Job] = queue.Queue()
        self.interrupted: queue.Queue[Job] = queue.Queue()
        self._config = Config(**config)
        self._thread = threading.Thread(target=self._serve)
        self._listening = threading.Event()

    def submit(self, job: Job, done: Callable[[Report], None], queue_deadline: float, user: int,
               client: ReplyAddress | None = None) -> HeldTicket:
        self.jobs.put(job)
        report = self.answer(job)
        if report is not None:
            done(report)
        return HeldTicket(self, job)

    status: Mapping[str, Any] = {"workers": {"total": 4}, "uptime": 1.5}  # nobody changes it

    def _serve(self) -> None:
        reactor = ReferenceReactor()
        listener = Listener(self.path, own_folder=False)
        server = Server(reactor, cast("Any", self), self._config, status=lambda: self.status,
                        shut_down=lambda now: reactor.stop(), users=ServedUsers(os.geteuid()))
        server.listen(listener.socket)
        reactor.watch(self._end_read.fileno(), READ, lambda _: reactor.stop())
        self._listening.set()
        reactor.run()
        server.close()
        listener.close()
        reactor.close()

    def __enter__(self) -> FakeDaemon:
        self._end_read, self._end_write = socket.socketpair()
        self._thread.start()
        assert self._listening.wait(PATIENCE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end_write.close()
        self._thread.join(PATIENCE)
        self._end_read.close()


def request_of(sock: socket.socket) -> dict[str, Any]:
    """The next request on *sock*, for a script of a Rogue."""
    reader = FrameReader()
    while True:
        data = sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        for payload in reader.feed(data):
            return decode(payload)


class Rogue:
    """Takes one connection after the other and does to each what *script* does."""

    def __init__(self, path: Path, script: Callable[[socket.socket], None]) -> None:
        self.path = str(path)
        self._script = script
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(PATIENCE)
                try:
                    self._script(sock)
                except OSError:
                    pass  # the client has hung up on it

    def __enter__(self) -> Rogue:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)

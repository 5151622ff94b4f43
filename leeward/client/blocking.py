"""
The blocking client.

Runs in:   anybody's program.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any, Unpack

from leeward.client.link import Link
from leeward.client.options import Options, SessionOptions, fields_of, session_fields
from leeward.client.results import result_of
from leeward.client.session import Session
from leeward.outcome import Result
from leeward.spec.paths import client_socket


class Client:
    """
    Runs code in the daemon's sandboxes, one job at a time.

        with leeward.Client() as client:
            result = client.execute("print(6 * 7)")

    Connects with the first call. Threads may share a client, and then take turns; a
    client of their own lets them run side by side. After a fork parent and child each
    get a connection of their own.

    Args:
        socket: the daemon's socket; by default LEEWARD_SOCKET, then the user's own.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        self.socket = client_socket(socket)
        self._link = Link(self.socket)
        self._lock = threading.Lock()

    def execute(self, code: str | bytes | None = None, *, deadline: float | None = None,
                **options: Unpack[Options]) -> Result:
        """
        Run *code*, or *module* as `python -m` would, and wait for its result.

        Args:
            args: sys.argv[1:].
            env: variables on top of the sandbox's own.
            files: put into /workspace before the start, by relative name.
            stdin: what the job reads on descriptor 0.
            collect: patterns of files under /workspace to bring back, in `Result.files`.
            timeout: seconds that the job may run; waiting for a worker doesn't count.
            memory: bytes, or a size such as "512M", for all its processes and files.
            processes: tasks at once, threads included.
            output: bytes of stdout and stderr together.
            name: the file name that tracebacks show.
            deadline: seconds that this call may take in all. Without it the call lasts as
                long as the daemon shows signs of life; the daemon bounds queue and job.

        Returns:
            How the job ended. A failure of the job is a Result, never an exception.

        Raises:
            DaemonAway: nobody answers on the socket, or the daemon went away.
            NoAnswer: *deadline* has passed, or the daemon gives no sign of life.
            Refused: the daemon won't run it; Busy, QueueTimeout, RequestRejected and
                others say why.
            BadReply: what answers isn't a daemon of ours.
        """
        fields = fields_of(code, options)
        until = None if deadline is None else time.monotonic() + deadline
        with self._lock:
            reply, descriptors = self._link.call("execute", fields, until)
        return result_of(reply, descriptors)

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """
        A process that keeps its state between jobs, over a connection of its own.

            with client.session() as session:
                session.execute("x = 6")
                session.execute("print(x * 7)")

        Args:
            memory, processes: for all of it, as for `execute`.
            timeout, output: of each job that asks for nothing else.
            idle: seconds without a job after which the daemon may end it.

        Raises:
            Busy: the daemon has as many sessions as it may.
            DaemonAway, NoAnswer, Refused, BadReply: as `execute`.
        """
        return Session(self.socket, session_fields(**options))

    def ping(self, timeout: float = 5.0) -> float:
        """
        Seconds that the daemon took to answer.

        Raises:
            DaemonAway, NoAnswer, Refused, BadReply: as `execute`.
        """
        start = time.monotonic()
        self._simple("ping", timeout)
        return time.monotonic() - start

    def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """
        Workers, jobs and layers, as `leeward status --json` prints them.

        Raises:
            DaemonAway, NoAnswer, Refused, BadReply: as `execute`.
        """
        return self._simple("status", timeout)

    def _simple(self, op: str, timeout: float) -> dict[str, Any]:
        with self._lock:
            reply, _ = self._link.call(op, {}, time.monotonic() + timeout)
        assert reply.ok is not None
        return reply.ok

    def close(self) -> None:
        """
        Close the connection; a later call makes a new one.
        """
        with self._lock:
            self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

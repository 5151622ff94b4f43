"""The calls of a blocking client over its connection, one after the other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from leeward.client.connection import BlockingConnection
from leeward.client.options import PlaceOptions, SessionOptions, requirements_of, session_fields
from leeward.client.session import Session
from leeward.spec.paths import client_socket
from leeward.wire.replies import Reply

# Imported in functions: what not every start needs; 49 ms of processor time for all of it.

if TYPE_CHECKING:
    from leeward.client.aio import AsyncClient
    from leeward.client.connection import BesideJob

T = TypeVar("T")

#: Seconds that the daemon may take to tell its state.
_STATUS_S = 5.0


class Calls:
    """The base class of `Client`, which describes the arguments: the connection and sessions for blocking programs."""

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, token: str | None = None, retry: bool = True,
                 retry_busy: bool = True) -> None:
        self.socket = client_socket(socket, token)
        self._retry, self._retry_busy = retry, retry_busy
        self._connection = BlockingConnection(self.socket)
        self._lock = threading.Lock()

    def _for_asyncio(self) -> AsyncClient:
        """A client for asyncio that is as this one."""
        from leeward.client.aio import AsyncClient

        return AsyncClient(self.socket, retry=self._retry, retry_busy=self._retry_busy)

    def interrupt(self) -> None:
        """
        Raise KeyboardInterrupt in the job that `execute` waits for, or cancel it if it waits for a worker: `execute`
        raises Cancelled then. Call this from another thread; it doesn't wait for the job to end.
        """
        self._connection.hurry("interrupt")

    def session(self, *, snapshots: bool = False, deadline: float | None = None,
                **options: Unpack[SessionOptions]) -> Session:
        """
        Open a session: one process that keeps its state between jobs. It has a connection of its own, and occupies one
        of the daemon's workers until it is closed. Raises as `execute`; Busy if the daemon has as many sessions as it
        can have, and none of them ended in time.

            with client.session() as session:
                session.execute("x = 6")
                session.execute("print(x * 7)")

        Args:
            snapshots: the session has `snapshot` and `rollback`. It is the kernel of a sandbox then, with a sandbox's bounds,
                and its jobs have no label (docs/snapshots.md).
            deadline: seconds that this call may take in all, also while the daemon is busy.

        Keyword Args:
            memory (int | str): bytes, or a size such as "512M", for the whole session.
            processes (int): processes and threads at once, for the whole session.
            descriptors (int): open descriptors in each process.
            timeout (float): seconds for each job that doesn't set its own.
            output (int | str): bytes of stdout and stderr together, for each job that doesn't set its own.
            overflow (str): what happens to a job that writes more and doesn't say so itself: with "cut", the default,
                it goes on, and the beginning and the end of its output are kept; "end" ends it, and the state is lost.
            idle (float): seconds without a job after which the daemon ends the session.
            profile (str): as for `execute`.
            environment (str): as for `execute`.
            packages (Iterable[str]): as for `execute`.
            egress (str): as for `execute`.
            policy (Mapping[str, Any]): as for `execute`.
            allow_network (bool): as for `execute`.
        """
        until = None if deadline is None else time.monotonic() + deadline
        if snapshots:
            from leeward.client.kernel_session import KernelSession
            from leeward.client.sandbox import Sandbox

            box = Sandbox(socket=self.socket, held=True, retry_busy=self._retry and self._retry_busy, **options)
            box.opens_until = until
            return KernelSession.opened(box)
        return self._with_packages(options, session_fields(options), lambda fields: Session(
            self.socket, fields, deadline=until, retry=self._retry, retry_busy=self._retry_busy))

    def _with_packages(self, options: PlaceOptions, fields: Mapping[str, Any],
                       attempt: Callable[[Mapping[str, Any]], T]) -> T:
        """The result of *attempt* with *fields*, to which the environment of the packages in *options* is added."""
        requirements = requirements_of(options)
        if not requirements:
            return attempt(fields)
        from leeward.client import packages

        packages.ready(self.socket)
        wanted = packages.wanted_packages(requirements, self.socket, self._simple("status", {}, _STATUS_S))
        return packages.with_environment(fields, wanted, attempt)

    def _simple(self, op: str, fields: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a request without descriptors, which has *timeout* seconds from its turn on."""
        with self._lock:
            reply, _ = self._connection.call(op, fields, time.monotonic() + timeout, retry=self._retry,
                                       retry_busy=self._retry_busy)
        return reply.ok or {}

    def _call(self, op: str, fields: Mapping[str, Any], until: float | None, idempotent: bool = False,
              functions: BesideJob | None = None) -> tuple[Reply, list[int]]:
        with self._lock:
            return self._connection.call(op, fields, until, retry=self._retry, idempotent=idempotent,
                                   retry_busy=self._retry_busy, functions=functions)

    def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        with self._lock:
            self._connection.close()

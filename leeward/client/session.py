"""
The blocking client of a session: one sandboxed process that keeps its state between jobs.

Theory of operation. A session has a connection of its own, and ends with that connection: when it breaks, the state is
lost, and the session doesn't reconnect. One thread at a time makes a call and reads from the connection. Another thread
may call `interrupt` meanwhile, which only writes: the thread that reads skips the reply.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from leeward.base.closing import Closing, on_failure
from leeward.client.connecting import away
from leeward.client.connection import BlockingConnection
from leeward.client.conversation import checked
from leeward.client.options import NO_SNAPSHOTS, TurnOptions, arrivals_of, arrived, served_by, turn_fields
from leeward.client.results import result_of
from leeward.errors import DaemonAway, DaemonError, SnapshotFailed
from leeward.spec.outcome import Result
from leeward.wire.replies import Reply
from leeward.wire.sandbox_replies import whole

if TYPE_CHECKING:
    from leeward.client.connection import BesideJob
    from leeward.client.snapshot import Snapshot

#: Seconds that the daemon may take to end a session.
_CLOSE_S = 5.0


class _SessionConnection(BlockingConnection):
    """A connection that doesn't reconnect, and that a second thread may write to."""

    _has_arena = False

    def again(self, op: str, fields: Mapping[str, Any], deadline: float | None,
              functions: BesideJob | None = None) -> tuple[Reply, list[int]]:
        """As `BlockingConnection.call`, but send the request only once. All requests after session_open use this."""
        if self._socket is None or self._pid != os.getpid():
            raise away(self.path, "the session's connection is closed")
        try:
            return self._ask(op, fields, deadline, functions)
        except DaemonAway as error:
            raise (error if error.may_have_run else away(self.path, "it ended the session's connection")) from None


class Session(Closing):
    """
    A process in a sandbox that keeps its state between jobs: variables, imports, files, threads.

    Client.session opens one. It occupies one of the daemon's workers: use it in a `with` statement, or `close` it.
    Threads may share a session; their jobs run one after the other. `interrupt` may be called at any time.
    """

    def __init__(self, socket: str, fields: Mapping[str, Any], *, deadline: float | None = None, retry: bool = True,
                 retry_busy: bool = True) -> None:
        self._connection = _SessionConnection(socket)
        self._lock = threading.Lock()
        with on_failure(self._connection.close):
            reply, _ = self._connection.call("session_open", fields, deadline, retry=retry, retry_busy=retry_busy)
            self._number = checked(whole, reply, "session", 1)

    def execute(self, code: str | bytes, *, deadline: float | None = None, **options: Unpack[TurnOptions]) -> Result:
        """
        Run code in the session's process, and wait for its result. A failure of the job is a Result, never an
        exception.

        Args:
            code: Python source, at most 16 MiB. It sees the state that earlier jobs of the session left.
            deadline: seconds that this call may take in all. After that the session is lost.

        Keyword Args:
            args (Iterable[str]): `sys.argv[1:]`, also for later jobs.
            env (Mapping[str, str]): environment variables to set, also for later jobs.
            files (Mapping[str, bytes | str]): as for Client.execute.
            collect (Iterable[str]): as for Client.execute.
            display (bool): as for Client.execute.
            timeout (float): seconds that the job may run. One that runs longer is ended, and the session's state is
                lost.
            output (int | str): bytes of stdout and stderr together.
            overflow (str): what happens to a job that writes more: with "cut" it goes on, and the beginning and the end
                of its output are kept; "end" ends it, and the session's state is lost. By default as for the session.
            name (str): the file name that tracebacks show; `<string>` by default.
            label (str): your own name for the job, as for Client.execute.
            functions (Mapping[str, Callable]): as for Client.execute; their names are removed when the job has ended.
            call_timeout (float): as for Client.execute.
            stop_clock (bool): as for Client.execute.
            on_stdout (Callable[[bytes], object]): as for Client.execute.
            on_stderr (Callable[[bytes], object]): as for Client.execute.
            on_result (Callable[[Mapping[str, str | bytes]], object]): as for Client.execute.

        Raises:
            SessionOver: the process has ended, and the state is lost; `reset` starts a fresh process.
            Refused: as for Client.execute. No request is sent a second time, since the state belongs to the connection.
            DaemonError: any other one, as for Client.execute; the session is lost.
        """
        fields = turn_fields(self._number, code, options)
        until = None if deadline is None else time.monotonic() + deadline
        arrivals = arrivals_of(options)
        served = served_by(options, arrivals)
        with self._lock:
            reply, descriptors = self._connection.again("execute", fields, until, served)
        return arrived(result_of(reply, descriptors), arrivals)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running job, if there is one. Call this from another thread; it doesn't wait."""
        if self._lock.locked():
            self._connection.try_to_post("interrupt", {"session": self._number})

    def reset(self, deadline: float | None = None) -> None:
        """
        Replace the session's process by a fresh one; the state is lost. If no worker became free within *deadline*
        seconds Refused is raised, and `reset` can be called again; after every other DaemonError the session is lost.
        """
        until = None if deadline is None else time.monotonic() + deadline
        with self._lock:
            self._connection.again("session_reset", {"session": self._number}, until)

    def snapshot(self) -> Snapshot:
        """The session's state, as by `Kernel.snapshot`; SnapshotFailed also if it was opened without `snapshots`."""
        raise SnapshotFailed(NO_SNAPSHOTS)

    def rollback(self, snapshot: Snapshot | str, *, same_random: bool = False) -> None:
        """Set the session back, as by `Kernel.rollback`; SnapshotFailed also if it was opened without `snapshots`."""
        raise SnapshotFailed(NO_SNAPSHOTS)

    def close(self) -> None:
        """End the session. A call that waits for one of its jobs raises Cancelled."""
        fields = {"session": self._number}
        if not self._lock.acquire(blocking=False):
            self._connection.try_to_post("session_close", fields)
            self._lock.acquire()
        try:
            self._connection.again("session_close", fields, time.monotonic() + _CLOSE_S)
        except DaemonError:
            pass  # closing the connection ends the session as well
        finally:
            self._connection.close()
            self._lock.release()

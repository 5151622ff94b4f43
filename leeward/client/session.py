"""
A session, for the blocking client: one process of the daemon's that keeps its state between jobs.

Runs in:   anybody's program.

Theory of operation. A session has a connection of its own, and is bound to it: where that breaks, the state is gone,
and nothing connects again. One thread at a time is in a call and reads. `interrupt` comes from another thread while
that one waits: it only writes, and whoever reads passes over the answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Unpack

from leeward.client.conversation import refusal
from leeward.client.link import Link, away
from leeward.client.options import TurnOptions, turn_fields
from leeward.client.results import result_of
from leeward.errors import BadReply, DaemonError
from leeward.outcome import Result
from leeward.wire.replies import Reply

#: Seconds that the daemon may take to end a session.
_CLOSE_S = 5.0


def session_number(reply: Reply) -> int:
    """
    The number of the session that was opened.

    Raises:
        BadReply: the answer has none.
    """
    number = None if reply.ok is None else reply.ok.get("session")
    if type(number) is not int or number < 1:
        raise BadReply("the daemon broke the protocol: a session without a number")
    return number


class _SessionLink(Link):
    """
    A connection that isn't made again, and that a second thread may write to.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._sending = threading.RLock()

    def again(self, op: str, fields: Mapping[str, Any], deadline: float | None) -> tuple[Reply, list[int]]:
        """
        As `call`, for all calls but the first.
        """
        if self._socket is None or self._owner != os.getpid():
            raise away(self.path, "the session's connection is closed")
        with self._sending:
            number, data = self._conversation.request(op, fields)
            try:
                sent = self._send(data)
            except BaseException:
                self.close()
                raise
        if not sent:
            raise away(self.path, "it ended the session's connection")
        try:
            reply, descriptors = self._answer(number, deadline)
        except BaseException:
            self.close()
            raise
        if reply.ok is None:
            raise refusal(reply)
        return reply, descriptors

    def post(self, op: str, fields: Mapping[str, Any]) -> None:
        """
        Send a request whose answer nobody waits for.
        """
        with self._sending:
            if self._socket is None or self._owner != os.getpid():
                return
            try:
                self._socket.sendall(self._conversation.request(op, fields)[1])
            except OSError:
                return  # who reads finds out

    def _ask_for_life(self) -> None:
        with self._sending:
            super()._ask_for_life()

    def close(self) -> None:
        with self._sending:
            super().close()


class Session:
    """
    Made by Client.session. Leave it by `with`, or `close` it: it holds one of the daemon's workers.

    Threads may share one, and then take turns; `interrupt` doesn't wait for its turn.
    """

    def __init__(self, socket: str, fields: Mapping[str, Any]) -> None:
        self._link = _SessionLink(socket)
        self._lock = threading.Lock()
        try:
            self._number = session_number(self._link.call("session_open", fields)[0])
        except BaseException:
            self._link.close()
            raise

    def execute(self, code: str | bytes, *, deadline: float | None = None, **options: Unpack[TurnOptions]) -> Result:
        """
        Run *code* where the jobs before it ran, and wait for its result.

        Args:
            args: sys.argv[1:], for the jobs after it as well.
            env: variables to set, for the jobs after it as well.
            files: put into /workspace before the start, by relative name.
            collect: patterns of files under /workspace to bring back, in `Result.files`.
            timeout: seconds that the job may run. One that is ended for it takes the session's state along.
            output: bytes of stdout and stderr together; the same.
            name: the file name that tracebacks show.
            deadline: seconds that this call may take in all; after it the session is gone.

        Returns:
            How the job ended. A failure of the job is a Result, never an exception.

        Raises:
            SessionOver: the process has ended, and the state with it; `reset` makes a fresh one.
            DaemonAway, NoAnswer: the session is gone.
            Refused, BadReply: as Client.execute.
        """
        fields = turn_fields(self._number, code, **options)
        until = None if deadline is None else time.monotonic() + deadline
        with self._lock:
            reply, descriptors = self._link.again("execute", fields, until)
        return result_of(reply, descriptors)

    def interrupt(self) -> None:
        """
        Raise KeyboardInterrupt in the job that runs, if one does. For another thread than the one that waits for it.
        """
        if self._lock.locked():
            self._link.post("interrupt", {"session": self._number})

    def reset(self, deadline: float | None = None) -> None:
        """
        Go on with a fresh process: nothing of what jobs did is left.

        Raises:
            Refused: no worker could be had; it can be tried again.
            DaemonAway, NoAnswer, BadReply: the session is gone.
        """
        until = None if deadline is None else time.monotonic() + deadline
        with self._lock:
            self._link.again("session_reset", {"session": self._number}, until)

    def close(self) -> None:
        """
        End the session. A job that another thread waits for ends as Cancelled.
        """
        fields = {"session": self._number}
        if not self._lock.acquire(blocking=False):
            self._link.post("session_close", fields)
            self._lock.acquire()
        try:
            self._link.again("session_close", fields, time.monotonic() + _CLOSE_S)
        except DaemonError:
            pass  # it ends with its connection, too
        finally:
            self._link.close()
            self._lock.release()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

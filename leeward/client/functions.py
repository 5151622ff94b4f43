"""
The caller's functions that a job may call: code that both clients share, and the threads of the blocking client.

Trust:     none in a call. The job chooses its arguments, which decode to plain values only; it can name only functions
           that the caller has given.

Theory of operation. Beside the execute request, a function_take request waits on the same connection for the job's
calls. Each call is answered in a thread of its own (by `aio_functions` in a task), while the thread that waits for the
job's result reads; both write, under the connection's lock. After the result no call is answered any more: a function that
still runs goes on, and its return value is dropped.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leeward.client.options import Given
from leeward.errors import BadReply, DaemonError, PeerError, RequestRejected
from leeward.wire import function_frames as wire

if TYPE_CHECKING:
    from leeward.client.connection import BlockingConnection
    from leeward.wire.replies import Reply

#: A call as the daemon sends it: its number, the function's name, the encoded arguments.
FunctionCall = tuple[int, str, bytes]


def calls_of(reply: Reply) -> tuple[list[FunctionCall], bool]:
    """The calls in an answer to function_take, and whether no more come; BadReply if it isn't such an answer."""
    ok = reply.ok or {}
    rows, over = ok.get("calls"), ok.get("over")
    if not isinstance(rows, list) or not isinstance(over, bool):
        raise BadReply("the daemon broke the protocol: no calls in an answer to function_take")
    calls: list[FunctionCall] = []
    for row in rows:
        if not (isinstance(row, list) and [int, str, bytes] == [type(part) for part in row]):
            raise BadReply("the daemon broke the protocol: an invalid call of a function")
        calls.append((row[0], row[1], row[2]))
    return calls, over


def answered(call: int, outcome: str, value: bytes = b"") -> dict[str, Any]:
    return {"call": call, "outcome": outcome, "value": value}


def returned(call: int, value: object) -> dict[str, Any]:
    try:
        return answered(call, "returned", wire.pack(value))
    except (TypeError, ValueError) as error:
        return raised(call, type(error)(f"the function's answer: {error}"))


def raised(call: int, error: BaseException) -> dict[str, Any]:
    try:
        quoted = isinstance(error, KeyError) and len(error.args) == 1  # str(error) would be the repr of the argument
        text = str(error.args[0] if quoted else error)
    except Exception:  # raised by the exception's own __str__
        text = ""
    return answered(call, "raised", wire.pack_error(type(error).__name__, text))


class ServedFunctions:
    """Serves functions for one call of a blocking client at a time; RequestRejected if one is a coroutine function."""

    def __init__(self, given: Given) -> None:
        for name, function in given.items():
            if inspect.iscoroutinefunction(function):
                raise RequestRejected(f"functions: {name!r:.80} is a coroutine function, which AsyncClient can call")
        self._given = given

    def wait(self, connection: BlockingConnection, number: int, answer: Callable[[Callable[[Reply], None]], Any]) -> Any:
        """Serve the job of request *number* until *answer* returns, which passes replies to other requests on."""
        serving = _Serving(connection, number, self._given)
        try:
            serving.take()
            return answer(serving.on_other_reply)
        finally:
            serving.end()


class _Serving:
    """Serves the function calls of one job, the job of request *target*."""

    def __init__(self, connection: BlockingConnection, target: int, given: Given) -> None:
        self._connection, self._target, self._given = connection, target, given
        self._taking = 0
        self._over = False

    def take(self) -> None:
        with self._connection.sending:
            try:
                self._taking = self._connection.post("function_take", {"target": self._target})
            except OSError:
                pass  # the next read raises the error, or finds the answer

    def on_other_reply(self, reply: Reply) -> None:
        """Handle a reply to another request than the job's. If it answers function_take, start a thread for each call."""
        if reply.id != self._taking or reply.ok is None:
            return
        calls, over = calls_of(reply)
        if not over:
            self.take()
        for call in calls:
            threading.Thread(target=self._serve, args=call, name="leeward function", daemon=True).start()

    def _serve(self, call: int, name: str, body: bytes) -> None:
        answer = self._run(call, name, body)
        with self._connection.sending:
            if self._over:
                return
            try:
                self._connection.post("function_answer", {"target": self._target, **answer})
            except (OSError, DaemonError):
                pass  # the thread that reads gets the error

    def _run(self, call: int, name: str, body: bytes) -> dict[str, Any]:
        try:
            args, named = wire.unpack_arguments(body)
        except PeerError:
            return answered(call, "broken")
        try:
            return returned(call, self._given[name](*args, **named))
        except BaseException as error:  # any exception goes to the job
            return raised(call, error)

    def end(self) -> None:
        with self._connection.sending:
            self._over = True

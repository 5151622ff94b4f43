"""
Passes the output of a job on while it runs, and the rest at its end; leeward/clients/c/exchange.c does the same in C.

Trust:     none in the output; a malformed answer ends the connection.

Theory of operation. Most jobs end before a user would notice a delay of their output. So the first request for output
is sent after LOOK_S, while the job's request waits. Each answer has the new output, and the next request follows it,
until the result arrives, which has all output. What the code shows arrives by calls of a function that no code sees;
what hasn't, because it is too large for instance, is in the result.
"""

from __future__ import annotations

from _thread import allocate_lock

from leeward.errors import BadReply, DaemonError
from leeward.wire.bundles import MAX_RESULTS, checked

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from leeward.base.protocols import Protocol
    from leeward.client.connection import BesideJob, BlockingConnection
    from leeward.spec.outcome import Result
    from leeward.wire.replies import Reply

    class OutputTaker(Protocol):
        """Takes the output of one job; *sizes* are the bytes of each stream that it has."""

        sizes: list[int]

        def add(self, out: bytes, err: bytes) -> None: ...

#: Seconds until output is requested, and until it is requested again while the job waits for a worker.
LOOK_S = 0.05


class Arrivals:
    """
    Calls the functions of a caller with what arrives of one job; None is no function. After an exception of one none is
    called any more, and `finish` raises it: the job goes on.
    """

    def __init__(self, on_stdout: Callable[[bytes], object] | None, on_stderr: Callable[[bytes], object] | None,
                 on_result: Callable[[Mapping[str, str | bytes]], object] | None) -> None:
        self._streams, self._on_result = (on_stdout, on_stderr), on_result
        self._failed: Exception | None = None
        self._lock = allocate_lock()  # calls of functions have a thread of their own
        self._results: dict[int, Mapping[str, str | bytes]] = {}  # those that have arrived before their turn
        self._next = 0
        self.sizes = [0, 0]

    @property
    def has_streams(self) -> bool:
        """Whether output is to be passed on while the job runs."""
        return self._streams != (None, None)

    def add(self, out: bytes, err: bytes) -> None:
        for at, data in enumerate((out, err)):
            self.sizes[at] += len(data)
            self._pass(self._streams[at], data)

    def _pass(self, function: Callable[[Any], object] | None, what: Any) -> None:
        if function is not None and what and self._failed is None:
            try:
                function(what)
            except Exception as error:
                self._failed = error

    def shown(self, number: int, forms: object) -> None:
        """Take what the code has shown as its result *number*: a call of the job's, whose arguments are hostile."""
        if type(number) is int and 0 <= number < MAX_RESULTS:
            self._take({number: checked([forms])[0]})

    async def shown_in_loop(self, number: int, forms: object) -> None:
        self.shown(number, forms)

    def _take(self, results: Mapping[int, Mapping[str, str | bytes]]) -> None:
        with self._lock:
            self._results |= results
            while self._next in self._results:
                self._next += 1
                self._pass(self._on_result, self._results.pop(self._next - 1))

    def finish(self, result: Result) -> Result:
        """Pass on what hasn't arrived before, and return *result*."""
        out, err = self.sizes
        self.add(bytes(result.stdout_view[out:]), bytes(result.stderr_view[err:]))
        self._take({number: forms for number, forms in enumerate(result.results) if number >= self._next})
        if self._failed is not None:
            raise self._failed
        return result


def taken_output(reply: Reply) -> tuple[bytes, bytes, bool, bool]:
    """New output of both streams, whether the job runs, and whether it is over, in an answer to output_take; BadReply."""
    ok = reply.ok or {}
    out, err, running, over = (ok.get(name) for name in ("stdout", "stderr", "running", "over"))
    if not (isinstance(out, bytes) and isinstance(err, bytes) and isinstance(running, bool) and isinstance(over, bool)):
        raise BadReply("the daemon broke the protocol: no output in an answer to output_take")
    return out, err, running, over


class LiveJob:
    """Passes the output of the job for which `BlockingConnection.call` waits to *shown*; its argument `functions`."""

    def __init__(self, shown: OutputTaker) -> None:
        self._shown = shown

    def wait(self, connection: BlockingConnection, number: int, answer: Callable[[Callable[[Reply], None]], Any]) -> Any:
        """Pass on output of the job of request *number* until *answer*, which gets a function for other replies, returns."""
        taking = _TakenOutput(connection, number, self._shown)
        try:
            taking.later()
            return answer(taking.on_other_reply)
        finally:
            taking.end()


class Together:
    """Serves one job in several ways; the argument `functions` of `BlockingConnection.call`."""

    def __init__(self, ways: Sequence[BesideJob]) -> None:
        self._ways = ways

    def wait(self, connection: BlockingConnection, number: int, answer: Callable[[Callable[[Reply], None]], Any]) -> Any:
        first, *others = self._ways
        if not others:
            return first.wait(connection, number, answer)

        def both(on_first: Callable[[Reply], None], on_others: Callable[[Reply], None], reply: Reply) -> None:
            on_first(reply)
            on_others(reply)

        return first.wait(connection, number, lambda on_first: Together(others).wait(
            connection, number, lambda on_others: answer(lambda reply: both(on_first, on_others, reply))))


class _TakenOutput:
    def __init__(self, connection: BlockingConnection, target: int, shown: OutputTaker) -> None:
        self._connection, self._target, self._shown = connection, target, shown
        self._timer: threading.Timer | None = None
        self._number, self._over = 0, False

    def later(self) -> None:
        import threading  # `leeward run` doesn't need it

        self._timer = threading.Timer(LOOK_S, self._take)
        self._timer.daemon = True
        self._timer.start()

    def _take(self) -> None:
        with self._connection.sending:
            if self._over:
                return
            out, err = self._shown.sizes
            try:
                self._number = self._connection.post("output_take", {"target": self._target, "stdout": out, "stderr": err})
            except (OSError, DaemonError):
                pass  # the next read raises the error, or finds the answer

    def on_other_reply(self, reply: Reply) -> None:
        with self._connection.sending:  # the timer's thread may not have stored its request's number yet
            number = self._number
        if reply.id != number:
            return
        if reply.ok is None:  # the connection has as many requests in flight as it may, say
            self.later()
            return
        out, err, running, over = taken_output(reply)
        self._shown.add(out, err)
        if running:
            self._take()
        elif not over:
            self.later()

    def end(self) -> None:
        with self._connection.sending:
            self._over = True
        if self._timer is not None:
            self._timer.cancel()

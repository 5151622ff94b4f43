"""
Shows a job's output while the job runs, and the rest at the end; leeward/clients/c/exchange.c does the same in C.

Trust:     none in the output; a malformed answer ends the connection.

Theory of operation. Most jobs end before a user would notice a delay of their output. So the first request for output
is sent after LOOK_S, while the job's request waits. Each answer has the new output, and the next request follows it,
until the result arrives, which has all output.
"""

from __future__ import annotations

from leeward.errors import BadReply, DaemonError
from leeward_cli.messages import EscapedStream

TYPE_CHECKING = False  # see leeward/wire/frames.py
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from leeward.client.link import Link
    from leeward.wire.replies import Reply

#: Seconds until output is requested, and until it is requested again while the job waits for a worker.
LOOK_S = 0.05


class ShownOutput:
    """Shows the output of one job, and knows how much was shown; *raw*: control characters go to a terminal as they are."""

    def __init__(self, raw: bool) -> None:
        self._streams = EscapedStream(1, raw), EscapedStream(2, raw)
        self.sizes = [0, 0]

    def add(self, out: bytes, err: bytes) -> None:
        for number, data in enumerate((out, err)):
            if data:
                self.sizes[number] += len(data)
                self._streams[number].write(data)

    def finish(self, out: bytes | memoryview, err: bytes | memoryview) -> None:
        for number, data in enumerate((out, err)):
            rest = memoryview(data)[self.sizes[number]:]
            if rest:
                self._streams[number].write(bytes(rest) if self.sizes[number] else rest)
            self._streams[number].close()


class LiveJob:
    """Shows the output of the job for which `Link.call` waits; the argument `functions` of `Link.call`."""

    def __init__(self, shown: ShownOutput) -> None:
        self._shown = shown

    def wait(self, link: Link, number: int, answer: Callable[[Callable[[Reply], None]], Any]) -> Any:
        """Show output of the job of request *number* until *answer*, which gets a function for other replies, returns."""
        taking = _TakenOutput(link, number, self._shown)
        try:
            taking.later()
            return answer(taking.on_other_reply)
        finally:
            taking.end()


class _TakenOutput:
    def __init__(self, link: Link, target: int, shown: ShownOutput) -> None:
        self._link, self._target, self._shown = link, target, shown
        self._timer: threading.Timer | None = None
        self._number, self._over = 0, False

    def later(self) -> None:
        import threading  # `leeward run` doesn't need it

        self._timer = threading.Timer(LOOK_S, self._take)
        self._timer.daemon = True
        self._timer.start()

    def _take(self) -> None:
        with self._link.sending:
            if self._over:
                return
            out, err = self._shown.sizes
            try:
                self._number = self._link.post("output_take", {"target": self._target, "stdout": out, "stderr": err})
            except (OSError, DaemonError):
                pass  # the next read raises the error, or finds the answer

    def on_other_reply(self, reply: Reply) -> None:
        with self._link.sending:  # the timer's thread may not have stored its request's number yet
            number = self._number
        if reply.id != number or reply.ok is None:
            return
        out, err, running, over = (reply.ok.get(name) for name in ("stdout", "stderr", "running", "over"))
        if not (isinstance(out, bytes) and isinstance(err, bytes) and isinstance(running, bool)
                and isinstance(over, bool)):
            raise BadReply("the daemon broke the protocol: no output in an answer to output_take")
        self._shown.add(out, err)
        if running:
            self._take()
        elif not over:
            self.later()

    def end(self) -> None:
        with self._link.sending:
            self._over = True
        if self._timer is not None:
            self._timer.cancel()

"""
The states and outputs of approved commands.

Trust:     none in output. The last KEPT_OUTPUT bytes of each of the last MOST_RUNS commands are kept.
Threads:   any may call; subscribers are called without a lock, by the thread that reads the output.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leeward.approvals.queue.requests import ApprovalRequest

#: Bytes of output that are kept of each command, and commands that are kept.
KEPT_OUTPUT, MOST_RUNS = 256 << 10, 200

#: A subscriber of output: called with the request's id, "stdout" or "stderr", and bytes.
OnOutput = Callable[[int, str, bytes], None]

#: The exit code of a command that was timed out, as that of timeout(1).
TIMED_OUT = 124


@dataclass(slots=True)
class CommandRun:
    """One command."""

    id: int
    status: str = "running"  # "running", "completed" or "failed"
    exit_code: int | None = None  # None while the command runs, and if it has none
    output: bytearray = field(default_factory=bytearray)  # the last KEPT_OUTPUT bytes of both streams, as they came
    truncated: bool = False  # whether earlier output was dropped
    note: str = ""  # why it failed
    started: float = field(default_factory=time.time)
    ended: float | None = None

    def row(self, *, output: bool = True) -> dict[str, Any]:
        """For JSON."""
        row = {"id": self.id, "status": self.status, "exit_code": self.exit_code, "truncated": self.truncated,
               "note": self.note, "started": self.started, "ended": self.ended}
        return row | ({"output": self.output.decode("utf-8", "replace")} if output else {})


def run_before(request: ApprovalRequest) -> dict[str, Any]:
    """As `CommandRun.row`, for a command that hasn't begun, or that ran before this service started."""
    done = {"applied": "completed", "failed": "failed", "applying": "running"}.get(request.stage, "")
    status = done or (request.status if request.status in ("pending", "approved") else "denied")
    return {"id": request.id, "status": status, "exit_code": None, "output": "", "truncated": bool(done),
            "note": request.note, "started": None, "ended": None}


class RunBook:
    """The commands that this service has run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: OrderedDict[int, CommandRun] = OrderedDict()
        self._subscribers: list[OnOutput] = []

    def begin(self, number: int) -> None:
        with self._changed:
            self._runs[number] = CommandRun(number)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def add(self, number: int, stream: str, data: bytes) -> None:
        """Add output of a command, and call the subscribers with it."""
        with self._changed:
            run, subscribers = self._runs.get(number), list(self._subscribers)
            if run is not None:
                run.output += data
                over = len(run.output) - KEPT_OUTPUT
                if over > 0:
                    del run.output[:over]
                    run.truncated = True
        for subscriber in subscribers:
            try:
                subscriber(number, stream, data)
            except Exception:  # it costs that subscriber this piece
                pass

    def end(self, number: int, exit_code: int | None, note: str = "") -> None:
        """Record the end of a command: the exit code is None if it never ran, *note* why it failed."""
        with self._changed:
            run = self._runs.get(number)
            if run is not None:
                run.status, run.exit_code = ("failed" if note else "completed"), exit_code
                run.note, run.ended = note, time.time()
            self._changed.notify_all()

    def get(self, number: int, wait: float = 0.0) -> dict[str, Any] | None:
        """
        As `CommandRun.row`, after a running command's end or *wait* seconds; None if it hasn't begun, or isn't kept any
        more.
        """
        end = time.monotonic() + wait
        with self._changed:
            while True:
                run = self._runs.get(number)
                left = end - time.monotonic()
                if run is None or run.status != "running" or left <= 0:
                    return None if run is None else run.row()
                self._changed.wait(left)

    def rows(self) -> list[dict[str, Any]]:
        """All commands that are kept, the newest first, without output."""
        with self._changed:
            return [run.row(output=False) for run in reversed(self._runs.values())]

    def subscribe(self, subscriber: OnOutput) -> Callable[[], None]:
        """Call *subscriber* with all output from now on. Returns a function that ends this."""
        def end() -> None:
            with self._changed:
                self._subscribers.remove(subscriber)

        with self._changed:
            self._subscribers.append(subscriber)
        return end

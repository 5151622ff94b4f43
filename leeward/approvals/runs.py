"""
Approved commands: the state of each, and its output.

Runs in:   the operator's program that decides.
Trust:     none in output. The last KEPT_OUTPUT bytes of a command are kept, of MOST_RUNS commands.
Threads:   any may call; subscribers are called without a lock, by the thread that reads the output.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leeward.approvals.requests import ApprovalRequest

#: Bytes of output that are kept of each command, and commands.
KEPT_OUTPUT, MOST_RUNS = 256 << 10, 200

#: Of a command's output as it comes: the request's id, "stdout" or "stderr", bytes.
OnOutput = Callable[[int, str, bytes], None]

TIMED_OUT = 124


@dataclass(slots=True)
class CommandRun:
    """
    One command.

    Attributes:
        id: of its request.
        status: "running", "completed" or "failed".
        exit_code: None while it runs, and where it has none.
        output: both streams, in the order in which they were read; the last of it.
        truncated: whether some of it was dropped.
        note: why it failed.
        started: seconds since the epoch.
        ended: the same; None while it runs.
    """

    id: int
    status: str = "running"
    exit_code: int | None = None
    output: bytearray = field(default_factory=bytearray)
    truncated: bool = False
    note: str = ""
    started: float = field(default_factory=time.time)
    ended: float | None = None

    def row(self, *, output: bool = True) -> dict[str, Any]:
        """
        For JSON.
        """
        row = {"id": self.id, "status": self.status, "exit_code": self.exit_code, "truncated": self.truncated,
               "note": self.note, "started": self.started, "ended": self.ended}
        return row | ({"output": self.output.decode("utf-8", "replace")} if output else {})


def run_before(request: ApprovalRequest) -> dict[str, Any]:
    """
    As `CommandRun.row`, of a command that this service hasn't run: it hasn't begun, or another one has.
    """
    done = {"applied": "completed", "failed": "failed", "applying": "running"}.get(request.stage, "")
    status = done or (request.status if request.status in ("pending", "approved") else "denied")
    return {"id": request.id, "status": status, "exit_code": None, "output": "", "truncated": bool(done),
            "note": request.note, "started": None, "ended": None}


class RunBook:
    """
    The commands of this service's life.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._runs: OrderedDict[int, CommandRun] = OrderedDict()
        self._told: list[OnOutput] = []

    def begin(self, number: int) -> None:
        with self._changed:
            self._runs[number] = CommandRun(number)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    def add(self, number: int, stream: str, data: bytes) -> None:
        """
        Output of a command, which subscribers are told.
        """
        with self._changed:
            run, told = self._runs.get(number), list(self._told)
            if run is not None:
                run.output += data
                over = len(run.output) - KEPT_OUTPUT
                if over > 0:
                    del run.output[:over]
                    run.truncated = True
        for each in told:
            try:
                each(number, stream, data)
            except Exception:  # it costs that subscriber this piece
                pass

    def end(self, number: int, exit_code: int | None, note: str = "") -> None:
        """
        Args:
            number: the request's id.
            exit_code: None where it never ran.
            note: why it failed; "" for a command that ended by itself.
        """
        with self._changed:
            run = self._runs.get(number)
            if run is not None:
                run.status, run.exit_code = ("failed" if note else "completed"), exit_code
                run.note, run.ended = note, time.time()
            self._changed.notify_all()

    def get(self, number: int, wait: float = 0.0) -> dict[str, Any] | None:
        """
        Args:
            number: the request's id.
            wait: seconds to wait for its end, if it runs.

        Returns:
            As `CommandRun.row`; None if it never began.
        """
        end = time.monotonic() + wait
        with self._changed:
            while True:
                run = self._runs.get(number)
                left = end - time.monotonic()
                if run is None or "running" != run.status or left <= 0:
                    return None if run is None else run.row()
                self._changed.wait(left)

    def rows(self) -> list[dict[str, Any]]:
        """
        The newest first.
        """
        with self._changed:
            return [run.row(output=False) for run in reversed(self._runs.values())]

    def subscribe(self, told: OnOutput) -> Callable[[], None]:
        def end() -> None:
            with self._changed:
                self._told.remove(told)

        with self._changed:
            self._told.append(told)
        return end

"""
A live sandbox for tests: a runner of a Box that is kept open, and processes in it.

    with Box() as box, opened(box) as live:
        got = live.run("sh", "-c", "ls | sort")
        assert 0 == got.code

`run` waits for the end. Every run is noted in box.RUNS, as a job is.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kit.box import RUNS, Box
from leeward.daemon.run.launch import Command, Exit
from leeward.daemon.run.live_process import LiveProcess
from leeward.daemon.run.live_runner import LiveRunner
from leeward.spec.limits import Limits

PATH = {b"PATH": b"/usr/local/bin:/usr/bin:/bin", b"HOME": b"/workspace", b"LANG": b"C.UTF-8"}


@dataclass(frozen=True)
class Ran:
    """The result of one process."""

    process: LiveProcess
    exit: Exit
    out: str
    err: str

    @property
    def code(self) -> int | None:
        """The process's exit code, negative for a signal; None if it isn't known."""
        return None if self.exit.status is None else os.waitstatus_to_exitcode(self.exit.status)


class Started:
    """A process that may still run."""

    def __init__(self, live: Live, argv: tuple[str, ...], **more: Any) -> None:
        self.output = {1: bytearray(), 2: bytearray()}
        self.ends: list[Exit] = []
        self._live = live
        command = {name: more.pop(name) for name in ("env", "cwd", "terminal", "size") if name in more}
        self.process = live.runner.start(
            Command(tuple(map(os.fsencode, argv)), **{"env": PATH, **command}),
            on_output=self._wrote, on_exit=self.ends.append, **more)

    def _wrote(self, stream: int, data: bytes) -> None:
        self.output[stream] += data

    @property
    def out(self) -> str:
        return self.output[1].decode(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        self._live.until(condition)

    def says(self, text: str) -> None:
        """Wait until it has said so on stdout."""
        self.until(lambda: text in self.out or bool(self.ends))
        assert text in self.out, (self.out, self.ends)

    def end(self) -> Ran:
        """Wait for the end of the process."""
        self.until(lambda: bool(self.ends))
        end, = self.ends
        return Ran(self.process, end, self.out, self.output[2].decode(errors="replace"))


class Live:
    """
    Attributes:
        lost: the reason of the sandbox's end, once it has ended.
    """

    def __init__(self, box: Box, limits: Limits | None = None) -> None:
        box.settle()
        self.box = box
        self.worker = box.engine.main.pool.workforce.workers[0]
        self.lost: list[str] = []
        self.runner: LiveRunner = self.worker.leasing.open(limits or Limits(), self.lost.append)

    def until(self, condition: Callable[[], bool]) -> None:
        self.box.reactor.run(condition)

    def start(self, *argv: str, **more: Any) -> Started:
        RUNS.append(self.box.made_of)
        return Started(self, argv, **more)

    def run(self, *argv: str, **more: Any) -> Ran:
        return self.start(*argv, **more).end()

    def python(self, code: str, **more: Any) -> Ran:
        """Run a program in Python, by the interpreter that jobs have."""
        return self.run(os.path.realpath(sys.executable), "-c", code, **more)

    def shell(self, line: str, **more: Any) -> Ran:
        return self.run("sh", "-c", line, **more)

    def living(self) -> list[str]:
        """
        The names of the sandbox's processes, with that of the shell that looks. One that has ended and that its init
        hasn't reaped yet isn't among them.
        """
        rows = self.shell("for each in /proc/[0-9]*/stat; do read -r row <$each && echo \"$row\"; done").out
        found = [row.partition("(")[2].rpartition(") ") for row in rows.splitlines()]
        return [name for name, _, rest in found if rest[:1] not in ("Z", "X")]

    def end(self) -> None:
        if not self.lost:
            self.runner.end("the test is over")
            self.until(lambda: bool(self.lost))
        self.until(lambda: self.worker.running != self.runner.number)


@contextlib.contextmanager
def opened(box: Box, limits: Limits | None = None) -> Iterator[Live]:
    """A runner of *box* that is kept open while the block runs."""
    live = Live(box, limits)
    try:
        yield live
    finally:
        live.end()

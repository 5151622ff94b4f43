"""
A person's terminal for tests: a pty with a command on it, whose screen and modes can be looked at.

    with OperatorTerminal(command("shell"), env) as screen:
        screen.until(r"\\$ ")
        screen.types("exit 3\\r")
        assert 3 == screen.end()

Runs in:   the tests.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from kit.live_daemon import PATIENCE
from leeward.isolation.terminals import resize


class OperatorTerminal:
    """
    A terminal that answers a program's questions in the order in which they are shown.

    Attributes:
        answers: the terminal's answer to each question.
        shown: the output since the last text that a test has waited for.
        all: all output so far.
        usual: the terminal's modes before the command started.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], size: tuple[int, int] = (24, 80)) -> None:
        self.shown = self.all = ""
        self.answers = {"\x1b[5n": "\x1b[0n"}
        self._answered = 0
        self.master, self._slave = os.openpty()
        self.resize(*size)
        self.usual = self.modes()
        self.process = subprocess.Popen(
            argv, env={"TERM": "xterm", **env}, stdin=self._slave, stdout=self._slave, stderr=self._slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def modes(self) -> list[Any]:
        """The modes, as termios.tcgetattr returns them."""
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        """As a window does: the command in the foreground gets SIGWINCH."""
        resize(self.master, rows, columns)

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    def _take(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        text = os.read(self.master, 1 << 16).decode(errors="replace")
        self.shown += text
        self.all += text
        while found := re.compile("|".join(map(re.escape, self.answers))).search(self.all, self._answered):
            self.types(self.answers[found[0]])
            self._answered = found.end()
        return True

    def until(self, pattern: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Wait until it shows something new that matches."""
        until = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            assert self._take(max(0.0, until - time.monotonic())), (pattern, self.shown)
        self.shown = self.shown[found.end():]
        return found

    def shows(self, pattern: str, seconds: float) -> bool:
        """Whether the terminal shows that within so many seconds. A later `until` finds it as well."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.shown, re.DOTALL):
            if not self._take(max(0.0, until - time.monotonic())):
                return False
        return True

    def end(self) -> int:
        """Wait for the end of the command. Returns its status, negative for a signal."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._take(0.02)
            assert time.monotonic() < until, self.all
        while self._take(0):
            pass
        return self.process.returncode

    def __enter__(self) -> OperatorTerminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # what it has opened goes with it
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self.master)
        os.close(self._slave)

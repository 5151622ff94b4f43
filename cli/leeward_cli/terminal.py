"""
A terminal session: our terminal for a program on a terminal of a sandbox.

Runs in:   the CLI.

Theory of operation. Our terminal is raw, so every key goes to the program, Ctrl-C among them, and everything that the
program writes comes to our terminal as it is: that is what a terminal session is, and docs/sandboxes.md says what
follows from it. The main thread reads the program's output and writes it; a second thread reads keys and types them; a
third one tells the program our size after each SIGWINCH. Our modes are put back in `_Modes.__exit__`, on every way out:
SIGTERM, SIGHUP and SIGQUIT are exceptions meanwhile, after which we end by that signal. What a terminal answers to
questions that the program asked at its end is thrown away, so that it isn't typed into whatever comes after us.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from types import FrameType, TracebackType
from typing import Any

from leeward.client.process import Process
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError

#: Keys that are read at once.
_READ = 1 << 16
#: Seconds without an answer of the terminal, after which none is expected any more.
_QUIET_S, _QUIET_MOST = 0.05, 20
#: Ends that a person or the system asks of us.
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What a program that was killed can't put back itself: colours, the cursor, the mouse's and the paste's reports.
_PLAIN = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"

#: The shell that a person gets: with history and completion where there is one.
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def is_ours() -> bool:
    """
    Are we on a terminal, in and out?
    """
    return os.isatty(0) and os.isatty(1)


class AskedToEnd(BaseException):
    """
    A signal asked for our end; its number is the argument.
    """


class _Modes:
    """
    Our terminal, raw for the time of the block. SIGTSTP puts it back, and SIGCONT makes it raw again.
    """

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> _Modes:
        for number in _ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._handlers[number] = signal.signal(number, self._end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        try:
            self.raw()
        except BaseException:
            self._restore()
            raise
        return self

    def raw(self) -> None:
        tty.setraw(0, termios.TCSADRAIN)

    @staticmethod
    def _end(number: int, _frame: FrameType | None) -> None:
        raise AskedToEnd(number)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.raw()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number in _ENDS:  # once more, from an impatient person: not before the terminal is what it was
            if number in self._handlers:
                signal.signal(number, signal.SIG_IGN)
        try:
            with contextlib.suppress(OSError):
                _forget_answers()
        finally:
            self._restore()

    def _restore(self) -> None:
        try:
            with contextlib.suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(0, termios.TCSAFLUSH, self._before)
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)


def _forget_answers() -> None:
    if os.environ.get("TERM", "dumb") not in ("", "dumb"):
        _write(_PLAIN)
    for _ in range(_QUIET_MOST):
        if not select.select([0], [], [], _QUIET_S)[0] or not os.read(0, _READ):
            return


def size() -> tuple[int, int]:
    """
    Rows and columns of our terminal; 24 and 80 where it doesn't know.
    """
    try:
        columns, rows = os.get_terminal_size(1)
    except OSError:
        columns, rows = 0, 0
    return rows or 24, columns or 80


def start(box: Sandbox, argv: list[str], cwd: str | None) -> Process:
    """
    A program on a terminal of the size of ours, for which it is the same kind.
    """
    env = {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name, "").isprintable()
           and os.environ.get(name)}
    return box.terminal(argv or list(SHELL), size(), cwd=cwd, env=env, title=argv[0] if argv else "shell")


def attend(process: Process) -> int:
    """
    Be the terminal of *process* until it ends.

    Returns:
        Its exit status.

    Raises:
        AskedToEnd: by a signal. The process is killed.
        DaemonError: the daemon has gone, or the sandbox.
    """
    changed = threading.Event()
    with _Modes():
        before = signal.signal(signal.SIGWINCH, lambda _number, _frame: changed.set())
        changed.set()  # it may have changed since the program was started
        for work, what in ((_type, None), (_follow, changed)):
            threading.Thread(target=work, args=(process, what), daemon=True).start()
        try:
            for chunk in process:
                _write(chunk.data)
            result = process.wait()
        except BaseException:
            with contextlib.suppress(DaemonError):
                process.kill()
            raise
        finally:
            signal.signal(signal.SIGWINCH, before)
    assert result is not None
    return result.exit_code


def _type(process: Process, _: None) -> None:
    with contextlib.suppress(DaemonError, OSError):  # it has ended
        while keys := os.read(0, _READ):
            process.write(keys)
        process.signal(signal.SIGHUP)


def _follow(process: Process, changed: threading.Event) -> None:
    """
    Tell the program each new size. One that isn't started yet can't be told: it has had the size at its start.
    """
    told = None
    with contextlib.suppress(DaemonError):
        while changed.wait():
            changed.clear()
            now = size()
            if now != told:
                told = now
                process.resize(*now)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]

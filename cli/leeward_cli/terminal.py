"""
A terminal session: connects the user's terminal with a program on a terminal of a sandbox.

Runs in:   the CLI.

Theory of operation. The user's terminal is raw, so every key goes to the program, Ctrl-C included, and the program's
output goes to the terminal unchanged; docs/sandboxes.md describes the consequences. The main thread reads the program's
output and writes it; a second thread reads keys and sends them; a third one sends the terminal's size after each
SIGWINCH. `_Modes.__exit__` restores the terminal's modes at every end: meanwhile SIGTERM, SIGHUP and SIGQUIT raise
exceptions, and this process then ends by that signal. The terminal's answers to queries that the program made at its
end are discarded, so that the next program doesn't read them as input.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from types import FrameType, TracebackType
from typing import Any

from leeward.client.process import Process
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError
from leeward_cli.interrupts import AskedToEnd
from leeward_cli.terminal_size import size

#: The greatest number of bytes of keys that are read at once.
_READ = 1 << 16
#: A query to the terminal, "device status report", and its answer. A terminal answers queries in order.
_ASK, _ANSWER = b"\x1b[5n", b"\x1b[0n"
#: Seconds without a byte after which no more is expected from the terminal, before its answer to the query, and after
#: it; and the greatest number of seconds in all.
_SILENT_S, _QUIET_S, _FORGET_S = 1.0, 0.05, 3.0
#: Signals by which a person or the system asks this process to end.
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Escape sequences that reset modes which a killed program may have left: colours, a hidden cursor, reports of mouse
#: and paste.
_PLAIN = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"

#: The default shell: bash if it exists, for history and completion.
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def is_ours() -> bool:
    """
    Whether standard input and output are terminals.
    """
    return os.isatty(0) and os.isatty(1)


class _Modes:
    """
    A context in which the user's terminal is raw. SIGTSTP restores its modes, and SIGCONT makes it raw again.
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
        for number in _ENDS:  # a second signal must not interrupt the restoration
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
    """
    Discard the answers that the terminal still sends. The program may have made the same query as this function, so a
    short wait follows the answer.
    """
    wait = _QUIET_S
    if os.environ.get("TERM", "dumb") not in ("", "dumb"):
        _write(_PLAIN + _ASK)
        wait = _SILENT_S
    last, until = b"", time.monotonic() + _FORGET_S
    while time.monotonic() < until and select.select([0], [], [], wait)[0]:
        data = os.read(0, _READ)
        if not data:
            return
        last += data
        if _ANSWER in last:
            wait = _QUIET_S
        last = last[-len(_ANSWER):]


def start(box: Sandbox, argv: list[str], cwd: str | None) -> Process:
    """
    Start a program on a terminal with the size and the TERM of the user's terminal.
    """
    env = {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name, "").isprintable()
           and os.environ.get(name)}
    return box.terminal(argv or list(SHELL), size(), cwd=cwd, env=env, title=argv[0] if argv else "shell")


def attend(process: Process) -> int:
    """
    Connect the user's terminal with *process* until it ends.

    Returns:
        The process's exit status.

    Raises:
        AskedToEnd: a signal has asked this process to end. *process* is killed.
        DaemonError: the daemon has gone, or the sandbox.
    """
    changed = threading.Event()
    with _Modes(), _Keys(process):
        before = signal.signal(signal.SIGWINCH, lambda _number, _frame: changed.set())
        changed.set()  # the size may have changed since the program's start
        threading.Thread(target=_follow, args=(process, changed), daemon=True).start()
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


class _Keys:
    """
    A context in which a thread sends typed keys to *process*. Only this thread reads the terminal meanwhile, and it
    doesn't read afterwards.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._over, self._end = os.pipe()
        self._thread = threading.Thread(target=self._type, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._thread.join(_FORGET_S)  # it may wait for the daemon, and then it doesn't read

    def _type(self) -> None:
        with contextlib.suppress(DaemonError, OSError):  # the process has ended
            while self._over not in select.select([0, self._over], [], [])[0]:
                keys = os.read(0, _READ)
                if not keys:
                    self._process.signal(signal.SIGHUP)
                    break
                self._process.write(keys)
        os.close(self._over)


def _follow(process: Process, changed: threading.Event) -> None:
    """
    Send each new size to the program.
    """
    sent = None
    with contextlib.suppress(DaemonError):
        while changed.wait():
            changed.clear()
            now = size()
            if now != sent:
                sent = now
                process.resize(*now)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]

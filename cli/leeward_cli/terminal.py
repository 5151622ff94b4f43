"""
A terminal session: connects the user's terminal with a program on a terminal of a sandbox.

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
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable
from types import FrameType

from leeward.client.process import Process
from leeward.client.sandbox import Sandbox
from leeward.errors import DaemonError
from leeward_cli.agent_ends import ending_by_signals
from leeward_cli.messages import write
from leeward_cli.terminal_size import size

_READ = 1 << 16
#: A query to the terminal, "device status report", and its answer. A terminal answers queries in order.
_ASK, _ANSWER = b"\x1b[5n", b"\x1b[0n"
#: Seconds without a byte after which no more is expected from the terminal, before its answer to the query, and after
#: it; the greatest number of seconds after it, and in all if the answers to many queries of the program come before it.
_SILENT_S, _QUIET_S, _FORGET_S, _FLOOD_S = 1.0, 0.05, 3.0, 10.0
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Escape sequences that reset what a killed program may have left. In front is the end of a string (a title, for
#: instance), which some terminals wait for in whatever follows. Then: colours, character sets, keypad, insertion,
#: reverse video, a hidden cursor, keys of the cursor, wrapping, margins (without the cursor's way to the top), reports
#: of mouse, focus and paste, and output that isn't shown before its end.
_PLAIN = (b"\x1b\\\x1b[0m\x0f\x1b(B\x1b>\x1b[4l\x1b[?5l\x1b[?25h\x1b[?1l\x1b[?7h\x1b7\x1b[r\x1b8"
          b"\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
          b"\x1b[?2004l\x1b[?2026l\x1b[?2031l\x1b[?2048l")
#: What not every terminal knows is reset only after a program that has used it: the keyboard's protocols, of which each
#: screen has its own; and what a soft reset has (margins at the sides), a link, the cursor's form.
_KEYBOARD, _SOFT = b"\x1b[<99u\x1b[=0u\x1b[>4m", b"\x1b[!p\x1b]8;;\x1b\\\x1b[0 q"
_USES_KEYBOARD = re.compile(rb"\x1b\[[>=][\d;]*[mu]")
_USES_SOFT = re.compile(rb"\x1b\[\d* q|\x1b\]8;|\x1b\[\?(?:\d+;)*(?:6|69)(?:;\d+)*h")
#: Into the alternate screen, or back.
_SCREEN = re.compile(rb"\x1b\[\?(?:\d+;)*(?:47|1047|1049)(?:;\d+)*([hl])")
#: Bytes of a sequence that may be in two pieces of output.
_TAIL = 32
#: Keep the terminal's title, and restore it.
_KEEP_TITLE, _OLD_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"
#: A whole sequence: of controls (CSI), a string up to its end, with intermediate bytes, or of two bytes.
_WHOLE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[^ -?]|[\]PX^_][^\x07\x1b]*\x07|[ -/]+[^ -/]|[^\[\]PX^_ -/])", re.DOTALL)
#: The bytes of a character in UTF-8 that has begun.
_BEGUN = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
#: Bytes of a sequence that are kept: of a longer one no end is looked for.
_LONGEST = 1 << 16

#: The default shell: bash if it exists, for history and completion.
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def is_ours() -> bool:
    return os.isatty(0) and os.isatty(1)


class _Modes:
    """A context in which the user's terminal is raw. SIGTSTP restores its modes, and SIGCONT makes it raw again."""

    def __init__(self) -> None:
        self._before = termios.tcgetattr(0)
        self._left = _Left()
        self._writing = threading.Lock()
        self._unfinished = self._title = b""
        self._has_title = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Modes:
        with contextlib.ExitStack() as stack:
            self._ignore = stack.enter_context(ending_by_signals(*_ENDS))
            stack.callback(signal.signal, signal.SIGTSTP, signal.signal(signal.SIGTSTP, self._stop))
            stack.callback(self._restore)
            self.raw()
            self._stack = stack.pop_all()
        return self

    def raw(self) -> None:
        tty.setraw(0, termios.TCSADRAIN)

    def show(self, data: bytes) -> None:
        with self._writing:
            _write(data)
            self._left.take(data)
            self._unfinished = unfinished(self._unfinished + data)
            self._show_title()

    def title(self, text: str) -> None:
        """Show *text*, which has visible characters alone, as the terminal's title, until the program sets another."""
        if os.environ.get("TERM", "dumb") in ("", "dumb", "linux"):
            return
        with self._writing:
            self._title = b"\x1b]2;" + text.encode() + b"\x1b\\"
            self._show_title()

    def _show_title(self) -> None:
        """Write the title that waits, unless the program is in the middle of a sequence or a character."""
        if self._title and not self._unfinished:
            if not self._has_title:
                self._has_title = True
                _write(_KEEP_TITLE)
            _write(self._title)
            self._title = b""

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.raw()

    def __exit__(self, *_: object) -> None:
        self._ignore()  # a second signal must not interrupt the restoration
        with self._stack, contextlib.suppress(OSError):
            if self._has_title:
                _write(b"\x1b\\" + _OLD_TITLE)
            _forget_answers(self._left)

    def _restore(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(0, termios.TCSAFLUSH, self._before)


class _Left:
    """What a program has set and isn't reset for every program: its screen, and what _KEYBOARD and _SOFT reset."""

    def __init__(self) -> None:
        self.alternate = self.keyboard = self.soft = False
        self._tail = b""

    def take(self, output: bytes) -> None:
        text = self._tail + output
        for found in _SCREEN.finditer(text):
            self.alternate = found[1] == b"h"
        self.keyboard = self.keyboard or _USES_KEYBOARD.search(text) is not None
        self.soft = self.soft or _USES_SOFT.search(text) is not None
        self._tail = text[-_TAIL:]


def unfinished(output: bytes) -> bytes:
    """The end of *output* in which a sequence or a character has begun and isn't whole; b"" for none."""
    at = output.rfind(b"\x1b")
    if at >= 0 and not _WHOLE.match(output, at) and len(output) - at <= _LONGEST:
        return output[at:]
    begun = _BEGUN.search(output[-3:])
    return begun[0] if begun else b""


def _forget_answers(left: _Left) -> None:
    """Reset the terminal, and discard its answers: the program may have made this query as well, so a short wait follows."""
    wait, most = _QUIET_S, _FORGET_S
    if os.environ.get("TERM", "dumb") not in ("", "dumb"):
        keyboard = _KEYBOARD * left.keyboard
        _write(b"\x1b\\" + (keyboard + b"\x1b[?1049l") * left.alternate + keyboard + _SOFT * left.soft + _PLAIN + _ASK)
        wait, most = _SILENT_S, _FLOOD_S
    last, until = b"", time.monotonic() + most
    while time.monotonic() < until and select.select([0], [], [], wait)[0]:
        data = os.read(0, _READ)
        if not data:
            return
        last += data
        if _ANSWER in last and wait != _QUIET_S:
            wait, until = _QUIET_S, time.monotonic() + _FORGET_S
        last = last[-len(_ANSWER):]


def start(box: Sandbox, argv: list[str], cwd: str | None) -> Process:
    env = {name: os.environ[name] for name in ("TERM", "COLORTERM") if os.environ.get(name, "").isprintable()
           and os.environ.get(name)}
    return box.terminal(argv or list(SHELL), size(), cwd=cwd, env=env, title=argv[0] if argv else "shell")


def attend(process: Process, titled: Callable[[Callable[[str], None]], object] = lambda _: None) -> int:
    """
    Connect the user's terminal with *process*, to its exit status; EndRequested, and it is killed, for a signal. *titled*
    gets a function that shows a text as the terminal's title, from any thread.
    """
    changed = threading.Event()
    with _Modes() as modes, _Keys(process):
        titled(modes.title)
        before = signal.signal(signal.SIGWINCH, lambda _number, _frame: changed.set())
        changed.set()  # the size may have changed since the program's start
        threading.Thread(target=_follow, args=(process, changed), daemon=True).start()
        try:
            for chunk in process:
                modes.show(chunk.data)
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
    """A context in which a thread sends typed keys to *process*; nothing else reads the terminal meanwhile."""

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
    write(1, data)

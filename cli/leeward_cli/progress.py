"""
Shows a line on standard error, if that is a terminal, about work that takes longer than a second: how far it is, how fast,
and how long the rest takes, where that is known.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from leeward.wire.replies import Reply
from leeward_cli.messages import escape
from leeward_cli.terminal_rows import mebibytes

if TYPE_CHECKING:
    from leeward.client.sandbox import Sandbox

#: Seconds until the line is shown, and between its updates.
AFTER_S, _EACH_S = 1.0, 0.25

CLEAR = b"\r\x1b[K"


#: Columns of a bar.
_WIDTH = 24


def bar(share: float) -> str:
    return f"[{'#' * int(_WIDTH * min(1.0, share)):{_WIDTH}}]"


def left(share: float, seconds: float) -> str:
    """How long the rest takes, when *share* of all took *seconds*; "" while that would be a guess."""
    if share < 0.02 or seconds < AFTER_S:
        return ""
    rest = round(seconds * (1 - min(1.0, share)) / share)
    return f", {rest // 60}:{rest % 60:02} left"


def amount(done: int, total: int, seconds: float) -> str:
    """How far *done* bytes of *total* are, the rate, and the time that is left; without these two where *total* is 0."""
    rate = f"{mebibytes(done / max(seconds, 0.001))}/s"
    if total <= 0:
        return f"{mebibytes(done)}, {rate}"
    share = done / total
    return f"{bar(share)} {done / (1 << 20):.1f} of {mebibytes(total)}, {rate}{left(share, seconds)}"


class Progress:
    """A context in which the line shows that *what* is being done, with the *text* that another thread asks for."""

    def __init__(self, what: str, text: Callable[[], str] = str) -> None:
        self._what, self._text = what, text
        self._over, self._lock = threading.Event(), threading.Lock()
        self._is_drawn, self._is_free = False, True
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if shows():
            self._thread = threading.Thread(target=self._show, name="leeward progress", daemon=True)
            self._thread.start()
        return self

    def above(self, put: Callable[[bytes], object], data: bytes) -> None:
        """Have *put* write *data* of others on standard error, in the line's place; the line comes back after a whole one."""
        with self._lock:
            self._clear()
            put(data)
            self._is_free = data.endswith(b"\n")

    def _show(self) -> None:
        began, pause = time.monotonic(), AFTER_S
        while not self._over.wait(pause):
            pause = _EACH_S
            far = self._text()
            text = f"leeward: {self._what}: {far + ', ' if far else ''}{time.monotonic() - began:.0f} s"
            with self._lock:
                if self._over.is_set():
                    break
                if self._is_free and not write(row(text)):
                    return
                self._is_drawn = self._is_free
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._is_drawn:
            write(CLEAR)
        self._is_drawn = False

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(1.0)
            if self._thread.is_alive() and self._lock.acquire(blocking=False):  # it waits for the text
                self._clear()
                self._lock.release()  # else the terminal is stopped


def shows() -> bool:
    """Whether standard error is a terminal that can clear a line."""
    return os.isatty(2) and os.environ.get("TERM", "dumb") not in ("", "dumb")


def row(text: str) -> bytes:
    """*text* in the place of the line before, no longer than the terminal is wide: else a part of it would stay."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 0
    shown = escape(text.encode("utf-8", "backslashreplace")).decode()
    return CLEAR + (shown[:columns - 1] if columns > 1 else shown).encode()


def write(data: bytes) -> bool:
    """Write to standard error; whether that takes it."""
    try:
        os.write(2, data)
    except OSError:
        return False
    return True


class Counted:
    """
    Counts the files and bytes of file calls on *sandbox*; `leeward.client.files.Files` accepts it as a sandbox. *total*
    says once, when it is first shown, how many bytes there will be, or 0.
    """

    def __init__(self, sandbox: Sandbox, total: Callable[[], int] = int) -> None:
        self._sandbox, self._total = sandbox, functools.cache(total)
        self._bytes = self._files = 0
        self._began = time.monotonic()

    def ask(self, op: str, fields: Mapping[str, Any]) -> Reply:
        reply = self._sandbox.ask(op, fields)
        data = fields.get("data") if op == "file_write" else (reply.ok or {}).get("data") if op == "file_read" else None
        if isinstance(data, bytes):
            self._bytes += len(data)
            self._files += not (fields.get("more") or (reply.ok or {}).get("handle"))
        return reply

    def text(self) -> str:
        return f"{self._files} files, {amount(self._bytes, self._total(), time.monotonic() - self._began)}"

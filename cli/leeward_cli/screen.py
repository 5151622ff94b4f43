"""A screen that is drawn again and again: the alternate one of the terminal, whose keys come at once."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Iterator

from leeward_cli.messages import write

#: Escape sequences: switch to the alternate screen, and back; cursor to the top; clear to the end of the line, and of
#: the screen.
_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = b"\x1b[H", b"\x1b[K", b"\x1b[J"


@contextlib.contextmanager
def alternate_screen() -> Iterator[None]:
    before = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        if before is not None:
            tty.setcbreak(0)
        write(1, _ENTER)
        yield
    finally:
        write(1, _LEAVE)
        if before is not None:
            termios.tcsetattr(0, termios.TCSAFLUSH, before)


def draw(lines: list[str]) -> None:
    shown = (_END_OF_LINE + b"\r\n").join(line.encode() for line in lines)
    write(1, _HOME + shown + _END_OF_LINE + _END_OF_SCREEN)

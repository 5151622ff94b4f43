"""
Connects a program of a sandbox with this command by pipes: its output is copied to this command's output, and this
command's standard input to the program.

Theory of operation. The main thread reads the program's output and writes it; a second thread reads this command's
standard input and writes it to the program's. The first Ctrl-C sends SIGINT to the program, the second one ends the
program, and the third one ends this command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import Any

from leeward.client.process import Process
from leeward.errors import DaemonError
from leeward.outcome import Result
from leeward_cli.messages import EscapedStream

#: The greatest number of bytes of standard input that are passed on at once.
_READ = 1 << 16
#: The exit status of a program that Ctrl-C has ended, as in a shell.
_INTERRUPTED = 130
#: The number of Ctrl-C that are for the program. The next one ends this command, since the daemon may not answer.
_ASKED = 2


def pass_on(process: Process, raw: bool) -> int:
    """Connect the process's pipes with this command's. Returns the exit status."""
    threading.Thread(target=feed, args=(process,), daemon=True).start()
    _, status = passed(process, raw)
    return status


def passed(process: Process, raw: bool) -> tuple[Result, int]:
    """Copy the process's output to this command's. Returns its result, without output, and the exit status."""
    pressed: list[int] = []
    streams = {"stdout": EscapedStream(1, raw), "stderr": EscapedStream(2, raw)}

    def interrupted(_number: int, _frame: Any) -> None:
        pressed.append(1)
        if len(pressed) > _ASKED:
            raise KeyboardInterrupt
        # Not in the handler, since the interrupted call may be in the middle of a frame.
        threading.Thread(target=_interrupt, args=(process, len(pressed)), daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        for chunk in process:  # `Process.result` would keep all output
            streams[chunk.stream].write(chunk.data)
        for stream in streams.values():
            stream.close()
        result = process.wait()
        assert result is not None
    except KeyboardInterrupt:  # the Ctrl-C before has ended the program
        raise
    except BaseException:
        with contextlib.suppress(DaemonError):
            process.kill()
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    return result, _INTERRUPTED if len(pressed) > 1 else result.exit_code


def _interrupt(process: Process, times: int) -> None:
    with contextlib.suppress(DaemonError):
        if times == 1:
            process.signal(signal.SIGINT)
        else:
            process.kill()


def feed(process: Process) -> None:
    """Copy standard input to the process's, and close that at the end. Standard input that can't be read is empty."""
    with contextlib.suppress(DaemonError, OSError):  # the process has ended, or reads no more
        try:
            while data := _read():
                process.write(data)
        finally:
            process.close_stdin()


def _read() -> bytes:
    while True:
        try:
            return os.read(0, _READ)
        except BlockingIOError:  # whoever has started this command has opened it without blocking
            select.select([0], [], [])

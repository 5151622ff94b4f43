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
from collections.abc import Callable, Iterator
from typing import Any

from leeward.client.process import Process
from leeward.errors import DaemonError
from leeward.spec.outcome import Result
from leeward_cli.interrupts import INTERRUPTED
from leeward_cli.messages import EscapedStream

_READ = 1 << 16


@contextlib.contextmanager
def on_ctrl_c(*actions: Callable[[], object]) -> Iterator[list[int]]:
    """
    A context in which each Ctrl-C calls the next of *actions*; its value has an item for each. The one behind them ends
    this command, since the daemon may not answer.
    """
    pressed: list[int] = []

    def act(action: Callable[[], object]) -> None:
        with contextlib.suppress(DaemonError):
            action()

    def interrupted(number: int, _frame: Any) -> None:
        pressed.append(number)
        if len(pressed) > len(actions):
            raise KeyboardInterrupt
        # Not in the handler, since the interrupted call may be in the middle of a frame.
        threading.Thread(target=act, args=(actions[len(pressed) - 1],), daemon=True).start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def pass_on(process: Process, raw: bool) -> int:
    threading.Thread(target=feed, args=(process,), daemon=True).start()
    _, status = passed(process, raw)
    return status


def passed(process: Process, raw: bool) -> tuple[Result, int]:
    """Copy the process's output to this command's. Returns its result, without output, and the exit status."""
    streams = {"stdout": EscapedStream(1, raw), "stderr": EscapedStream(2, raw)}
    with on_ctrl_c(lambda: process.signal(signal.SIGINT), process.kill) as pressed:
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
    return result, INTERRUPTED if len(pressed) > 1 else result.exit_code


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

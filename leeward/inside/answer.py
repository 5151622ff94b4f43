"""
The reply of a job, as bytes for the reply pipe; and the files of one whose time is up.

When the time of a job with `collect` is up, the daemon sends it LATE and waits for a moment. The handler runs between
two bytecodes in the main thread, or ends a blocking call there. It collects the files, replies, and waits to be killed.
A job that stays in C code, or has another handler, is killed without a reply, and its files are lost.
"""

from __future__ import annotations

import os
import signal
import types
from collections.abc import Iterable
from functools import partial

from leeward.inside import function_stubs, program, workspace_files
from leeward.inside.showing import Showing
from leeward.wire import job_frames as wire

#: A signal that Linux itself never sends, and hardly any program does.
LATE = wire.LATE

#: The exit code in the reply of a job whose time is up; the daemon puts its own verdict in the result.
_EXIT_LATE = 124


def reply(end: program.End, wanted: workspace_files.Wanted, showing: Showing | None = None) -> list[bytes]:
    """The reply of a job: a frame with its results, and the collected files in the frame or after it."""
    brought, left_out, full = workspace_files.collect(*wanted)
    results, value, more = ([], None, []) if showing is None else showing.end()
    if end is program.IN_ORDER and not (brought or left_out or full or more or results or value is not None):
        return [wire.NOTHING_FRAME]
    return wire.reply_pieces(end.exit_code, end.error, end.limit or ("files" if full else None), brought,
                             _bounded(left_out + more) if more else left_out, results, value)


def _bounded(left_out: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if len(left_out) <= wire.MAX_LEFT_OUT:
        return left_out
    return [*[one for one in left_out if one[0]][:wire.MAX_LEFT_OUT], ("", "more")]


def write(fd: int, pieces: Iterable[bytes | memoryview]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(fd, view):]


def collect_when_late(reply_fd: int, wanted: workspace_files.Wanted,
                      channel: function_stubs.FunctionChannel | None) -> None:
    """From now on, collect the files and reply on LATE. Until then *channel* makes calls by the same pipe."""
    signal.signal(LATE, partial(_late, os.getpid(), reply_fd, wanted, channel))


def punctual() -> None:
    """Ignore LATE, because the job's reply is made."""
    signal.signal(LATE, signal.SIG_IGN)


def deafen() -> None:
    """Ignore interrupts, also one that has arrived: the job is over."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            continue
        return


def _late(job: int, reply_fd: int, wanted: workspace_files.Wanted, channel: function_stubs.FunctionChannel | None,
          number: int, frame: types.FrameType | None) -> None:
    if os.getpid() != job:  # a child of the job, which has inherited the handler; the daemon didn't send this signal
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    punctual()
    program.flush()
    try:
        if channel is None or channel.close(function_stubs.LATE_S):  # otherwise a call is partly written
            write(reply_fd, reply(program.End(_EXIT_LATE), wanted))
    except BaseException:  # no memory left, say; the daemon doesn't wait for long
        pass
    while True:
        signal.pause()

"""
Many jobs of one client, one after the other, in one interpreter.

Runs in:   the job's process, after the last lock.
Trust:     none in what earlier jobs left: they may have put their own signal handlers, hooks and threads here. What
           they break is their own session; the daemon believes nothing but the limits that it holds.

An interrupt is a SIGINT, and must hit the job that it is meant for. The daemon sends one only when the job's frame
has left the pipe, and not after it has read the reply. So one that comes while no job runs here is either for the job
that is about to start, whose frame was read to its end, or late for the one before; between a frame's two
reads all late ones are here, and forgotten. The handler stands before the first job's frame is read: the frame
that says it is a session holds no job.
"""

from __future__ import annotations

import linecache
import os
import select
import signal
import sys
import traceback
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from leeward.inside import files, program
from leeward.wire import job as wire

#: Reads exactly so many bytes, or None where the writer is gone.
Read = Callable[[int, int], bytes | None]

_LOST = 70  # EX_SOFTWARE of sysexits.h

#: Jobs that raised and whose source tracebacks can still show.
_REMEMBERED = 16


def serve(main: types.ModuleType, read: Read, job_fd: int, reply_fd: int) -> NoReturn:
    """
    Run the jobs that come, until the daemon wants no more. Never returns.
    """
    interrupts = program.Interrupts()
    raised: deque[str] = deque()
    signal.signal(signal.SIGURG, _nudged)
    signal.signal(signal.SIGINT, interrupts)
    me = os.getpid()
    number = 0
    while (body := _next(read, job_fd, interrupts)) is not None:
        number += 1
        name = f"<job {number}>"
        end, patterns = _run(body[len(wire.SESSION):], name, main, interrupts)
        if os.getpid() != me:
            os._exit(end.exit_code)  # a child that the job forked and that fell through to the end of the code
        try:
            _write(reply_fd, _reply(end, patterns))
        except BaseException:  # the job closed our descriptor, say: then the exit status has to tell it
            os._exit(end.exit_code or _LOST)
        if end.error is not None:
            raised.append(name)
            if len(raised) > _REMEMBERED:
                linecache.cache.pop(raised.popleft(), None)
    os._exit(0)


def _nudged(number: int, frame: types.FrameType | None) -> None:
    """
    The daemon makes sure that an interrupt is seen by a call that was about to sleep when it came.
    """


def _run(body: bytes, name: str, main: types.ModuleType,
         interrupts: program.Interrupts) -> tuple[program.End, Sequence[str]]:
    """
    How the job ended, and which of its files are wanted.
    """
    code = wire.code_of(body)
    patterns: Sequence[str] = ()
    try:
        if code is None:
            fields = wire.read_job(body)
            files.lay(fields["files"], files.WORKSPACE)
            code, name, patterns = _settle(fields, name)
    except OSError as error:  # more than the file system holds, say; it has to be told like the job's own
        end = program.unprepared(error)
    except BaseException as error:  # out of a signal handler that an earlier job left
        end = program.raised(error, None, name)
    else:
        end = program.run_next(code, name, main, interrupts)
    try:
        program.flush()
    except BaseException:  # the same, or a stream of the job's own
        traceback.print_exc()
    return end, patterns


def _settle(fields: Mapping[str, Any], name: str) -> tuple[bytes, str, Sequence[str]]:
    """
    What a job has beside its code, and what its code is called.
    """
    os.environ.update(fields["env"])
    if fields["args"]:
        sys.argv[1:] = fields["args"]
    return fields["code"], name if program.NAME == fields["name"] else fields["name"], fields["collect"]


def _reply(end: program.End, patterns: Sequence[str]) -> bytes:
    brought, full = files.collect(patterns)
    if program.IN_ORDER is end and not (brought or full):
        return wire.NOTHING_FRAME
    return wire.reply_frame(end.exit_code, end.error, "files" if full else end.limit, brought)


def _next(read: Read, job_fd: int, interrupts: program.Interrupts) -> bytes | None:
    """
    The payload of the next job's frame, or None where the daemon wants no more.
    """
    while True:
        try:
            head = read(job_fd, wire.HEADER.size)
            break
        except BaseException:  # out of a signal handler that a job left
            if select.select([job_fd], (), (), 0)[0]:
                os._exit(_LOST)  # perhaps a part of a frame went with it
            traceback.print_exc()
    if head is None:
        return None
    interrupts.wanted = False
    return read(job_fd, wire.HEADER.unpack(head)[0])


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]

"""
Many jobs of one client, one after the other, in one interpreter.

Trust:     none in what earlier jobs left: they may have installed signal handlers, hooks and threads. They can only
           break their own session; the daemon relies on nothing here but on the limits that it enforces itself.

An interrupt is a SIGINT, and must hit the job that it is meant for. The daemon sends one only after the job's frame has
left the pipe, and before it has read the reply. So a signal that comes while no job runs here is either for the next
job, whose frame was read to its end, or late for the job before. Between the two reads of a frame all late signals have
arrived, and are discarded. The handler is installed before the first job's frame is read: the session's first frame
holds no job.
"""

from __future__ import annotations

import builtins
import os
import select
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from leeward.inside import answer, awaiting, branching, collecting, files, functions, program, showing, tracebacks
from leeward.wire import job as wire

#: Reads exactly so many bytes; None if the writer has closed the pipe.
Read = Callable[[int, int], bytes | None]

_LOST = 70  # EX_SOFTWARE of sysexits.h


def serve(main: types.ModuleType, read: Read, job_fd: int, reply_fd: int,
          doorway: branching.Doorway) -> NoReturn:
    """Run job after job, until the daemon closes the pipe. Never returns."""
    interrupts = program.Interrupts()
    sources = tracebacks.Sources()
    _leave_stdin_open()
    signal.signal(signal.SIGURG, awaiting.nudged)
    signal.signal(signal.SIGINT, interrupts)
    me = os.getpid()
    number = 0
    while (body := _next(read, job_fd, interrupts)) is not None:
        if not body.startswith(wire.SESSION):
            continue  # the rest of an answer for which the previous job didn't wait
        if body.startswith(wire.VARIABLES):
            program.take_environment(wire.read_variables(body))
            continue
        if body == wire.BRANCH:
            if (end := _branch(doorway, job_fd, reply_fd)) is None:
                me = os.getpid()
                _next(read, job_fd, interrupts)  # the first frame of a session, which holds no job
                continue
            _reply(reply_fd, end)
            continue
        number += 1
        name = f"<job {number}>"
        pipes = (job_fd, reply_fd)
        end, wanted, shown = _run(body[len(wire.SESSION):], name, main, interrupts, sources, pipes)
        if os.getpid() != me:
            os._exit(end.exit_code)  # a child that the job has forked, and that has reached the end of the code
        _reply(reply_fd, end, wanted, shown)
    os._exit(0)


def _reply(reply_fd: int, end: program.End, wanted: collecting.Wanted = collecting.NOTHING,
           shown: showing.Showing | None = None) -> None:
    try:
        answer.write(reply_fd, answer.reply(end, wanted, shown))
    except BaseException:  # for instance, the job has closed our descriptor; the exit status reports the end
        os._exit(end.exit_code or _LOST)


def _branch(doorway: branching.Doorway, job_fd: int, reply_fd: int) -> program.End | None:
    """Fork a branch. Returns None in the branch; here, the result."""
    me = os.getpid()
    try:
        program.flush()
        if not doorway.fork(job_fd, reply_fd):
            return program.IN_ORDER
        threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]
        awaiting.separate()
    except BaseException as error:  # also from a hook that an earlier job left
        if os.getpid() != me:
            os._exit(_LOST)
        return program.raised(error)
    return None


class Leave:
    """`exit` and `quit` in a session: those of `site` close standard input, which later jobs need."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"Use {self._name}() to end this job; the session goes on"

    def __call__(self, code: object = None) -> NoReturn:
        raise SystemExit(code)


def _leave_stdin_open() -> None:
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            setattr(builtins, name, Leave(name))


def _run(body: bytes, name: str, main: types.ModuleType,
         interrupts: program.Interrupts, sources: tracebacks.Sources,
         pipes: tuple[int, int]) -> tuple[program.End, collecting.Wanted, showing.Showing | None]:
    """Run a job. Returns how it ended, the files to collect, and what it showed."""
    code = wire.code_of(body)
    shown: showing.Showing | None = None
    wanted = collecting.NOTHING
    channel: functions.FunctionChannel | None = None
    try:
        if code is None:
            fields = wire.read_job(body)
            files.lay(fields["files"], files.WORKSPACE)
            code, name, wanted = _prepare(fields, name)
            shown = showing.Showing(goes_on=True) if fields["display"] else None
            channel = functions.wanted(fields, *pipes)
            if channel is not None:
                main.__dict__.update(channel.functions)
        elif wire.shows(body):
            shown = showing.Showing(goes_on=True)
        sources.add(code, name)
    except OSError as error:  # for instance, the file system is full; reported like an error of the job's own
        end = program.unprepared(error)
    except BaseException as error:  # from a signal handler that an earlier job has left
        end = program.raised(error)
    else:
        end = program.run_next(code, name, main, interrupts, None if shown is None else shown.run)
    try:
        program.flush()
    except BaseException:  # from such a handler, or from a stream of the job's own
        traceback.print_exc()
    if channel is not None:
        _take_away(channel, main)
    return end, wanted, shown


def _take_away(channel: functions.FunctionChannel, main: types.ModuleType) -> None:
    """Remove the names of this job's functions, unless the job has assigned other values to them."""
    for name, function in channel.functions.items():
        if main.__dict__.get(name) is function:
            del main.__dict__[name]
    try:
        channel.close()
    except BaseException:  # out of a signal handler that a job left
        if not channel.close():
            os._exit(_LOST)


def _prepare(fields: Mapping[str, Any], name: str) -> tuple[bytes, str, collecting.Wanted]:
    """Apply the other fields of a job. Returns its code, its name in tracebacks, and the files to collect."""
    program.take_environment(fields["env"])
    if fields["args"]:
        sys.argv[1:] = fields["args"]
    return fields["code"], name if fields["name"] == program.NAME else fields["name"], collecting.wanted(fields)


def _next(read: Read, job_fd: int, interrupts: program.Interrupts) -> bytes | None:
    """The payload of the next job's frame; None if the daemon has closed the pipe."""
    while True:
        try:
            _let_tasks_go_on(job_fd)
            head = read(job_fd, wire.HEADER.size)
            break
        except BaseException:  # out of a signal handler that a job left
            if select.select([job_fd], (), (), 0)[0]:
                os._exit(_LOST)  # bytes of a frame may be lost
            traceback.print_exc()
    if head is None:
        return None
    interrupts.wanted = False
    return read(job_fd, wire.HEADER.unpack(head)[0])


def _let_tasks_go_on(job_fd: int) -> None:
    try:
        awaiting.turn_until_readable(job_fd)
    except BaseException as error:  # of a task that leaves the interpreter, or of a loop that a job has broken
        program.raised(error)

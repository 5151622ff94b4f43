"""
One job: read it, set it up, run it, reply, park.

Runs in:   the job's process, after the last lock.
"""

from __future__ import annotations

import os
import signal
import threading
import types
from collections.abc import Sequence
from typing import NoReturn, Protocol

from leeward.inside import files, fresh, hooks, program, rehearsal, session
from leeward.wire import job as wire

_CHUNK = 1 << 20

_NO_FILES: Sequence[str] = ()

#: Every job's in its namespace, as its birth has proved.
_PID = 2

#: The main module of the job to come.
_main: types.ModuleType | None = None


def prepare() -> None:
    """
    Do what is the same for every job where the runners come from, once.
    """
    global _main
    _main = program.set_up()
    # What it keeps from its start is the zygote's number on the host.
    threading.main_thread()._native_id = _PID  # type: ignore[attr-defined]


def freshen() -> None:
    """
    Do what has to be done in each process of its own.
    """
    fresh.reseed()
    hooks.run()


class Pipes(Protocol):
    """
    The ends of a job's pipes, and the short way through them.
    """

    def take(self) -> bytes | None:
        """
        Wait for a frame, and close its pipe where nothing comes behind it; None: its writer is gone.
        """

    def leave(self) -> None:
        """
        Say that there is nothing to tell, and never return; but where there is something, or in a rehearsal.
        """


class Lay(Protocol):
    """
    What makes them.
    """

    def __call__(self, job: int, reply: int, *, lone: bytes, workspace: str, nothing: bytes, last: bool) -> Pipes: ...


def _pipes(lay: Lay, job_fd: int, reply_fd: int, *, last: bool) -> Pipes:
    return lay(job_fd, reply_fd, lone=wire.CODE, workspace=files.WORKSPACE, nothing=wire.NOTHING_FRAME, last=last)


def serve(lay: Lay, job_fd: int, reply_fd: int) -> NoReturn:
    """
    Wait for the one job of this process, run it, reply, and wait to be ended. In a session others come after it.

    Parking after the reply leaves the processor to the daemon's answer; an exit here
    would put the teardown of five namespaces in its way.
    """
    me = os.getpid()
    pipes = _pipes(lay, job_fd, reply_fd, last=True)
    body = pipes.take()
    if body is None:
        os._exit(0)
    main = _main or program.set_up()
    code = wire.code_of(body)
    if code is not None:
        end, patterns = program.run_code(code, main), _NO_FILES
        if program.IN_ORDER is end:
            pipes.leave()
    elif body == wire.SESSION:
        session.serve(main, _read, job_fd, reply_fd)
    else:
        os.close(job_fd)
        end, patterns = _run(body, main)
    if os.getpid() != me:
        os._exit(end.exit_code)  # a child that the job forked and that fell through to the end of the code
    try:
        _write(reply_fd, _reply(end, patterns))
    except OSError:
        os._exit(end.exit_code)  # the job closed our descriptor: then the exit status has to tell it
    while True:
        signal.pause()


def _run(body: bytes, main: types.ModuleType) -> tuple[program.End, Sequence[str]]:
    """
    Run the job in *body*, which is more than code; how it ended, and which of its files are wanted.
    """
    fields = wire.read_job(body)
    try:
        files.lay(fields["files"])
        files.give_stdin(fields["stdin"])
    except OSError as error:  # more than the file system holds, say; it has to be told like the job's own
        return program.wind_up(program.unprepared(error)), _NO_FILES
    return program.run(fields, main), fields["collect"]


def _reply(end: program.End, patterns: Sequence[str]) -> bytes:
    brought, full = files.collect(patterns)
    if program.IN_ORDER is end and not (brought or full):
        return wire.NOTHING_FRAME
    return wire.reply_frame(end.exit_code, end.error, "files" if full else end.limit, brought)


def rehearse(lay: Lay) -> None:
    """
    All of `serve` that can be done twice, before it.
    """
    with rehearsal.stage() as (read, write):
        main = program.set_up()
        pipes = _pipes(lay, read, write, last=False)
        _write(write, rehearsal.FRAME)
        body = pipes.take()
        code = None if body is None else wire.code_of(body)
        assert code is not None
        if program.IN_ORDER is program.rehearse(code, main):
            pipes.leave()


def _read(fd: int, size: int) -> bytes | None:
    """
    Exactly *size* bytes, or None where the writer is gone.
    """
    first = os.read(fd, min(size, _CHUNK))
    if len(first) == size:
        return first
    buffer = bytearray(size)
    view, got = memoryview(buffer), len(first)
    view[:got] = first
    while got < size:  # where it belongs: a new piece each time would be new pages each time
        count = os.readv(fd, [view[got:]])
        if not count:
            return None
        got += count
    return bytes(buffer)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


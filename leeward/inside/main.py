"""
One job: read it, set it up, run it, reply, park.

Runs in:   the job's process, after the last lock.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from leeward.inside import files, fresh, program, rehearsal
from leeward.wire import job as wire

_CHUNK = 1 << 20


def serve(job_fd: int, reply_fd: int) -> NoReturn:
    """
    Wait for the one job of this process, run it, reply, and wait to be ended.

    Parking after the reply leaves the processor to the daemon's answer; an exit here
    would put the teardown of five namespaces in its way.
    """
    fresh.reseed()
    body = _read_frame(job_fd)
    os.close(job_fd)
    if body is None:
        os._exit(0)
    fields = wire.read_job(body)
    del body
    me = os.getpid()
    try:
        files.lay(fields["files"])
        files.give_stdin(fields["stdin"])
    except OSError as error:  # more than the file system holds, say; it has to be told like the job's own
        end = program.unprepared(error)
    else:
        end = program.run(fields)
    if os.getpid() != me:
        os._exit(end.exit_code)  # a child that the job forked and that fell through to the end of the code
    brought, full = files.collect(fields["collect"])
    try:
        _write(reply_fd, wire.reply_frame(end.exit_code, end.error, "files" if full else end.limit, brought))
    except OSError:
        os._exit(end.exit_code)  # the job closed our descriptor: then the exit status has to tell it
    while True:
        signal.pause()


def rehearse() -> None:
    """
    All of `serve` that can be done twice, before it.
    """
    with rehearsal.stage() as (read, write):
        _write(write, rehearsal.FRAME)
        body = _read_frame(read)
        assert body is not None
        fields = wire.read_job(body)
        files.lay(fields["files"])
        files.give_stdin(fields["stdin"])
        end = program.rehearse(fields)
        brought, _ = files.collect(fields["collect"])
        _write(write, wire.reply_frame(end.exit_code, end.error, end.limit, brought))


def _read_frame(fd: int) -> bytes | None:
    head = _read(fd, wire.HEADER.size)
    return None if head is None else _read(fd, wire.HEADER.unpack(head)[0])


def _read(fd: int, size: int) -> bytes | None:
    """
    Exactly *size* bytes, or None where the writer is gone.
    """
    first = os.read(fd, min(size, _CHUNK))
    if len(first) == size:
        return first
    buffer = bytearray(first)
    while first and len(buffer) < size:
        first = os.read(fd, min(size - len(buffer), _CHUNK))
        buffer += first
    return bytes(buffer) if len(buffer) == size else None


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


"""
Reads one job, sets it up, runs it, replies; and rehearses that, so that this process has its own copies of the pages which
jobs write.

A clone shares its parent's memory until it writes, and CPython writes an object's reference count when it uses the
object. So the job of a process without a rehearsal takes some 200 page faults, 0.3 ms, while the client waits. The
rehearsal runs all steps of a real job: frame, source, output, reply. It raises no exception: a traceback writes 185
pages more, 0.7 MiB and 0.9 ms of processor time, which only a job that raises needs.

A job can't find out that there was a rehearsal: descriptors 1 and 2 lead into a scratch pipe meanwhile, and all changes
of the interpreter are undone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from leeward.base.points import point
from leeward.inside import (
    answer,
    file_calls,
    function_stubs,
    image_python,
    program,
    reseeding,
    session,
    showing,
    tracebacks,
    workspace_files,
)
from leeward.inside.snapshots import NONE, Native, none
from leeward.wire import job_frames as wire

if TYPE_CHECKING:
    from leeward._native.job_pipes import Pipes

#: Makes the pipes.
Lay = Callable[..., "Pipes"]

_CHUNK = 1 << 20

#: The pid in its namespace of every runner's first process, which the runner's steps have checked.
_PID = 2

_STDERR = 2

#: A job that defines, calls, formats and prints: the first use of each costs some pages.
CODE = b'''\
def rehearse(numbers):
    return {str(number): [number, number / 2] for number in numbers}


print(f"{rehearse(range(3))} {'a' + 'b'!r} {2 ** 70:x}", len("abc".split("b")))
'''

#: The frame that the daemon would send for this job.
FRAME = wire.HEADER.pack(1 + len(CODE)) + wire.CODE + CODE

#: The main module of the next job.
_main: types.ModuleType | None = None

#: The pipes of a job that begins in C.
_laid: Pipes | None = None


def prepare() -> None:
    """In the zygote, once: prepare for every job."""
    global _main
    _main = program.set_up()
    tracebacks.hide_frames(program.ours)
    tracebacks.print_here()
    # The thread object caches the zygote's thread id on the host.
    threading.main_thread()._native_id = _PID  # type: ignore[attr-defined]


def begin_early(lay: Lay, job_fd: int, reply_fd: int) -> Callable[[], object] | None:
    """
    In the zygote, once: prepare for jobs that begin in C. Returns the function that C calls instead of `reseeding.freshen`;
    None if there is none, so that no job begins in C.
    """
    global _laid
    renew = reseeding.in_one_call()
    if renew is not None:
        _laid = _pipes(lay, job_fd, reply_fd, last=True)
    return renew


def install_handlers() -> None:
    """
    In the zygote, for the interpreter; `crossing.handlers` has the kernel's part. A fault's traceback goes to stderr;
    SIGURG ends a call.
    """
    faulthandler.enable(file=_STDERR)
    signal.signal(signal.SIGURG, program.nudged)


def renumber() -> None:
    """In a further process of a pid namespace: correct what `prepare` has set for the first one."""
    threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]


def _pipes(lay: Lay, job_fd: int, reply_fd: int, *, last: bool) -> Pipes:
    return lay(job_fd, reply_fd, lone=wire.CODE, workspace=workspace_files.WORKSPACE, nothing=wire.NOTHING_FRAME, last=last)


def serve(lay: Lay, job_fd: int, reply_fd: int, door: int = -1, native: Native = NONE) -> NoReturn:
    """
    Wait for the job of this process, run it, reply, and wait to be killed. In a session more jobs follow. *door*, if
    not -1, is for a session's branches and snapshots, which *native* makes; other jobs close it. Waiting leaves the
    processor to the daemon's answer; an exit would make it wait for the teardown of five namespaces.
    """
    while True:
        me = os.getpid()
        pipes = _pipes(lay, job_fd, reply_fd, last=True)
        door = native.begin(_serve(pipes, pipes.take, me, job_fd, reply_fd, door, native))


def serve_started(job_fd: int, reply_fd: int, me: int = _PID) -> NoReturn:
    """As `serve`, for a job whose frame was taken in C, after `begin_early`. *me*: its number, if it isn't the first."""
    assert _laid is not None
    if me != _PID:
        renumber()
    _serve(_laid, _laid.taken, me, job_fd, reply_fd, -1, NONE)
    os._exit(0)


def serve_in_image(body: bytes, job_fd: int, reply_fd: int, door: int, alone: bytes) -> NoReturn:
    """
    In an image's interpreter: as `serve`, for a job whose frame was taken before, or that is still to come; `pipes` in C
    aren't there, and *alone* writes states.
    """
    for fd in (job_fd, reply_fd):  # the execve is over
        with contextlib.suppress(OSError):
            os.set_inheritable(fd, False)
    prepare()
    install_handlers()
    renumber()
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper: the interpreter made it
    states = image_python.States(alone)
    take = (lambda: _first(job_fd)) if body == wire.AHEAD else lambda: body
    _serve(_NoPipes(), take, os.getpid(), job_fd, reply_fd, door, Native(states.dump, none, states.known, none))
    os._exit(0)


def _first(job_fd: int) -> bytes | None:
    head = _read(job_fd, wire.HEADER.size)
    return None if head is None else _read(job_fd, wire.HEADER.unpack(head)[0])


class _NoPipes:
    """In place of the pipes in C, which would send a reply at once."""

    def finish(self) -> None: ...


def serve_interrupted(reply_fd: int, error: KeyboardInterrupt) -> NoReturn:
    """Reply for a job that was interrupted after C had taken its frame, before `serve_started`."""
    answer.deafen()
    _reply(os.getpid(), reply_fd, program.raised(error.with_traceback(None)), workspace_files.NOTHING, None)


def _serve(pipes: Pipes | _NoPipes, take: Callable[[], bytes | None], me: int, job_fd: int, reply_fd: int,
           door: int, native: Native) -> int:
    """Serve the first frame. Returns only in a copy that waits for a first frame of its own, what its loader was told."""
    shown: showing.Showing | None = None
    try:
        body = take()
        if body is None:
            os._exit(0)
        if image_python.is_wanted() and body not in (wire.FILE_CALLS, wire.SESSION_LOADS):
            image_python.start(body, (job_fd, reply_fd, door))
        _settle_descriptors()
        main = _main or program.set_up()
        reseeding.tell_contexts()
        code = wire.code_of(body)
        if body.startswith(wire.LENT):
            variables, code = wire.read_lent(body)
            program.take_environment(variables)
            os.close(job_fd)
        doorway = session.BranchSocket(door)
        if body not in (wire.SESSION, wire.SESSION_LOADS):
            doorway.shut()
        if code is not None:
            end, wanted = program.wind_up(program.run_code(code, main)), workspace_files.NOTHING
            if end is program.IN_ORDER:
                pipes.finish()
        elif body in (wire.SESSION, wire.SESSION_LOADS):
            return session.serve(main, _read, job_fd, reply_fd, doorway, native)
        elif body == wire.FILE_CALLS:
            file_calls.serve(_read, job_fd, reply_fd)
        else:
            end, wanted, shown = _run(body, main, job_fd, reply_fd)
        answer.deafen()
    except KeyboardInterrupt as error:  # in leeward's code, before the job's first line or after its last
        answer.deafen()
        end, wanted = program.raised(error.with_traceback(None)), workspace_files.NOTHING
    return _reply(me, reply_fd, end, wanted, shown)


@point("descriptors.settle")
def _settle_descriptors() -> None:
    """Lower the hard limit to the soft one, before any code of the job's: it was left for a request that asks for more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))


def _reply(me: int, reply_fd: int, end: program.End, wanted: workspace_files.Wanted,
           shown: showing.Showing | None) -> NoReturn:
    if os.getpid() != me:
        os._exit(end.exit_code)  # a child that the job has forked, and that has reached the end of the code
    try:
        if wanted.patterns:
            answer.punctual()
        answer.write(reply_fd, answer.reply(end, wanted, shown))
    except OSError:
        os._exit(end.exit_code)  # the job has closed our descriptor, so only the exit status reports the end
    while True:
        signal.pause()


def _run(body: bytes, main: types.ModuleType, job_fd: int,
         reply_fd: int) -> tuple[program.End, workspace_files.Wanted, showing.Showing | None]:
    """Run the job in *body*, which has more than code. Returns how it ended, the files to collect, and what it showed."""
    fields = wire.read_job(body)
    wanted = workspace_files.wanted(fields)
    channel = function_stubs.wanted(fields, job_fd, reply_fd)
    if channel is None:
        _close_job_pipe(job_fd)
    try:
        workspace_files.lay(fields["files"])
        workspace_files.give_stdin(fields["stdin"])
    except OSError as error:  # for instance, the file system is full; reported like an error of the job's own
        return program.wind_up(program.unprepared(error)), workspace_files.NOTHING, None
    if wanted.patterns:
        answer.collect_when_late(reply_fd, wanted, channel)
    shown = showing.Showing() if fields["display"] else None
    if channel is not None:
        tell = channel.take_shown()
        if shown is not None:
            shown.tell = tell
        main.__dict__.update(channel.functions)
    try:
        end = program.run_main(fields, main, None if shown is None else shown.run)
    finally:
        if channel is not None:
            try:
                answer.deafen()  # an interrupt during `close` would leave a partly written call
            finally:
                channel.close()
    return end, wanted, shown


_close_job_pipe = point("job-pipe.close")(os.close)


@contextlib.contextmanager
def stage() -> Iterator[tuple[int, int]]:
    """Redirects output for a rehearsal, and restores it at the end. Gives a descriptor to read from and one to write to."""
    read, write = os.pipe()
    streams = [os.dup(1), os.dup(2)]
    main, argv, path = sys.modules["__main__"], list(sys.argv), list(sys.path)
    lines = dict(linecache.cache)
    try:
        os.dup2(write, 1)
        os.dup2(write, 2)
        yield read, write
    finally:
        for number, fd in enumerate(streams, 1):
            os.dup2(fd, number)
            os.close(fd)
        os.close(read)
        os.close(write)
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, argv, path
        linecache.cache.clear()
        linecache.cache.update(lines)


def rehearse(lay: Lay) -> None:
    """Run all of `serve` that can be run twice."""
    with stage() as (read, write):
        main = program.set_up()
        pipes = _pipes(lay, read, write, last=False)
        answer.write(write, [FRAME])
        body = pipes.take()
        code = None if body is None else wire.code_of(body)
        assert code is not None
        if program.rehearse(code, main) is program.IN_ORDER:
            pipes.finish()


def _read(fd: int, size: int) -> bytes | None:
    first = os.read(fd, min(size, _CHUNK))
    if len(first) == size:
        return first
    buffer = bytearray(size)
    view, got = memoryview(buffer), len(first)
    view[:got] = first
    while got < size:  # into one buffer: a new piece each time would touch new pages
        count = os.readv(fd, [view[got:]])
        if not count:
            return None
        got += count
    return bytes(buffer)



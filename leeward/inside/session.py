"""
Many jobs of one client, one after the other, in one interpreter; and branches of that, forks with pipes of their own.

Trust:     none in what earlier jobs left: they may have installed signal handlers, hooks and threads. They can only
           break their own session; the daemon relies on nothing here but on the limits that it enforces itself.

An interrupt is a SIGINT, and must hit the job that it is meant for. The daemon sends one only after the job's frame has
left the pipe, and before it has read the reply. So a signal that comes while no job runs here is either for the next
job, whose frame was read to its end, or late for the job before. Between the two reads of a frame all late signals have
arrived, and are discarded. The handler is installed before the first job's frame is read: the session's first frame
holds no job.

A branch has every lock of its kernel: filter, Landlock, namespaces, capabilities and limits are inherited, and none can
be taken off. The daemon sends five descriptors over the *door*, a socket of the kernel's process, and then the frame
that asks for a branch: a door for the branch, job, reply, stdout, stderr. The branch is a grandchild whose parent has
exited, so that the sandbox's init reaps it, and no job can. It sends two messages over its door, by which the daemon
learns its process number from the system (SCM_CREDENTIALS).

A branch that is made *ahead* of its request writes the pages that a job writes, while nobody waits. A kernel in which code
can run between two requests refuses it: the branch would have an older state than its request finds. So does one that has
a file, a socket or a pipe open: what it closes next would stay open, and locked, until the branch is gone.
"""

from __future__ import annotations

import _socket
import array
import builtins
import contextlib
import linecache
import os
import select
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from leeward.inside import (
    answer,
    awaiting,
    function_stubs,
    program,
    showing,
    snapshots,
    tracebacks,
    workspace_files,
)
from leeward.wire import job_frames as wire

#: Reads exactly so many bytes; None if the writer has closed the pipe.
Read = Callable[[int, int], "bytes | None"]  # Python 3.9 can't evaluate it

_LOST = 70  # EX_SOFTWARE of sysexits.h

#: Descriptors that come with the request for a branch; and for a snapshot, and a copy of one, without the one of the
#: zygote's memory, which may come as well.
_ENDS, _OF_TAKE, _OF_LOAD = 5, 2, 1

_OUT, _ERR = 1, 2

#: What a branch that is made ahead runs, without a name that a job may have given another meaning.
_REHEARSED, _REHEARSAL = "<rehearsal>", b"(lambda numbers: {n: f'{n}' for n in numbers} and None)([1, 2])"


def serve(main: types.ModuleType, read: Read, job_fd: int, reply_fd: int,
          doorway: BranchSocket, native: snapshots.Native) -> int:
    """
    Run job after job, until the daemon closes the pipe. Returns only in a copy that begins as a fresh process does, with
    what its loader was told.
    """
    interrupts = program.Interrupts()
    sources = tracebacks.Sources()
    leaves = _leave_stdin_open()
    if doorway.above:
        snapshots.offer_hook()
    ours: dict[int, Any] = {signal.SIGURG: awaiting.nudged, signal.SIGINT: interrupts}
    handlers = {number: signal.signal(number, handler) for number, handler in ours.items()}
    me = os.getpid()
    number, shows, pipes = 0, False, (job_fd, reply_fd)
    while (body := _next(read, job_fd, interrupts)) is not None:
        if not body.startswith(wire.SESSION):
            continue  # the rest of an answer for which the previous job didn't wait
        if body.startswith(wire.VARIABLES):
            program.take_environment(wire.read_variables(body))
            continue
        if body.startswith(wire.ADOPTED):
            snapshots.adopt(wire.read_adopted(body))
            continue
        if body in (wire.BRANCH, wire.BRANCH_AHEAD):
            snapshots.reap()
            refuses = body == wire.BRANCH_AHEAD and not _is_still(ours, doorway.above)
            end = doorway.refuse() if refuses else _branch(doorway, pipes, native)
            if end is None:
                me = os.getpid()
                if body == wire.BRANCH_AHEAD:
                    _rehearse(pipes, shows=shows)
                _next(read, job_fd, interrupts)  # the first frame of a session, which holds no job
                continue
            _reply(reply_fd, end)
            continue
        if body in (wire.TAKE, wire.LOAD, wire.LOAD_SAME):
            end = (_take(doorway, native) if body == wire.TAKE else
                   _load(doorway, native, wire.SAME_RANDOM if body == wire.LOAD_SAME else 0))
            me = os.getpid()  # a copy has a number of its own
            _reply(reply_fd, end)
            continue
        if body == wire.TAKE_WARM:
            warm = _take_warm(doorway, native)
            if isinstance(warm, program.End):
                _reply(reply_fd, warm)
                continue
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
            builtins.__dict__.update(leaves)
            snapshots.resume(warm)
            return warm.word
        snapshots.reap()
        number += 1
        name = f"<job {number}>"
        end, wanted, shown = _run(body[len(wire.SESSION):], name, main, interrupts, sources, pipes)
        if os.getpid() != me:
            os._exit(end.exit_code)  # a child that the job has forked, and that has reached the end of the code
        _reply(reply_fd, end, wanted, shown)
        shows = shown is not None
    os._exit(0)


def _reply(reply_fd: int, end: program.End, wanted: workspace_files.Wanted = workspace_files.NOTHING,
           shown: showing.Showing | None = None) -> None:
    try:
        answer.write(reply_fd, answer.reply(end, wanted, shown))
    except BaseException:  # for instance, the job has closed our descriptor; the exit status reports the end
        os._exit(end.exit_code or _LOST)


def _branch(doorway: BranchSocket, pipes: tuple[int, int], native: snapshots.Native) -> program.End | None:
    """Fork a branch. Returns None in the branch; here, the result."""
    me = os.getpid()
    try:
        if made := doorway.fork(pipes, native.branch or _fork):
            snapshots.leave(made)
            return program.IN_ORDER
        threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]
        awaiting.separate()
    except BaseException as error:  # also from a hook that an earlier job left
        if os.getpid() != me:
            os._exit(_LOST)
        return program.raised(error)
    return None


def _is_still(ours: Mapping[int, Any], above: int) -> bool:
    """
    Whether no code can run until the next request: no thread, no task, no handler but *ours*, and no hook in what does; and
    no descriptor from the number *above* on is open.
    """
    handlers = {number: signal.getsignal(number) for number in range(1, signal.NSIG)}
    try:
        alone = len(os.listdir("/proc/self/task")) == 1
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return False
    for number in numbers:
        with contextlib.suppress(OSError):  # the one of the list is closed
            if number >= above and os.fstat(number):
                return False
    return alone and not (awaiting.has_loop() or sys.gettrace() or sys.getprofile()) and ours == {
        number: handler for number, handler in handlers.items() if callable(handler)}


def _rehearse(pipes: tuple[int, int], *, shows: bool) -> None:
    """Run a job, and leave nothing of it but what the job before it has left as well, which *shows* things if that did."""
    answer.reply(*_run((wire.SHOWN if shows else wire.CODE) + _REHEARSAL, _REHEARSED, types.ModuleType("__main__"),
                       program.Interrupts(), tracebacks.Sources(), pipes))
    linecache.cache.pop(_REHEARSED, None)


def _take(doorway: BranchSocket, native: snapshots.Native) -> program.End:
    """Have a child write a snapshot. Returns the result here; and in each copy, that of its loading."""
    try:
        taken = snapshots.take(doorway.received(_OF_TAKE, 1), doorway.above, native)
        if taken is not None:
            snapshots.resume(taken)
    except BaseException as error:  # also from a hook that an earlier job left
        return program.raised(error)
    return program.IN_ORDER


def _take_warm(doorway: BranchSocket, native: snapshots.Native) -> program.End | snapshots.Taken:
    """As `_take`. Returns the result here; and in each copy what `resume` needs."""
    try:
        return snapshots.take(doorway.received(_OF_TAKE, 1), doorway.above, native) or program.IN_ORDER
    except BaseException as error:
        return program.raised(error)


def _load(doorway: BranchSocket, native: snapshots.Native, word: int) -> program.End:
    """Become the copy of a snapshot. Returns only why that can't be."""
    try:
        snapshots.load(doorway.received(_OF_LOAD, 1), native, word)
    except BaseException as error:
        return program.raised(error)


class Leave:
    """`exit` and `quit` in a session: those of `site` close standard input, which later jobs need."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"Use {self._name}() to end this job; the session goes on"

    def __call__(self, code: object = None) -> NoReturn:
        raise SystemExit(code)


def _leave_stdin_open() -> dict[str, object]:
    """Set `exit` and `quit`, and return what they were."""
    before = {name: getattr(builtins, name) for name in ("exit", "quit") if hasattr(builtins, name)}
    for name in before:
        setattr(builtins, name, Leave(name))
    return before


def _run(body: bytes, name: str, main: types.ModuleType,
         interrupts: program.Interrupts, sources: tracebacks.Sources,
         pipes: tuple[int, int]) -> tuple[program.End, workspace_files.Wanted, showing.Showing | None]:
    """Run a job. Returns how it ended, the files to collect, and what it showed."""
    code = wire.code_of(body)
    shown: showing.Showing | None = None
    wanted = workspace_files.NOTHING
    channel: function_stubs.FunctionChannel | None = None
    try:
        if code is None:
            fields = wire.read_job(body)
            workspace_files.lay(fields["files"], workspace_files.WORKSPACE)
            code, name, wanted = _prepare(fields, name)
            shown = showing.Showing(goes_on=True) if fields["display"] else None
            channel = function_stubs.wanted(fields, *pipes)
            if channel is not None:
                tell = channel.take_shown()
                if shown is not None:
                    shown.tell = tell
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
    program.flush()
    if channel is not None:
        _take_away(channel, main)
    return end, wanted, shown


def _take_away(channel: function_stubs.FunctionChannel, main: types.ModuleType) -> None:
    """Remove the names of this job's functions, unless the job has assigned other values to them."""
    for name, function in channel.functions.items():
        if main.__dict__.get(name) is function:
            del main.__dict__[name]
    try:
        channel.close()
    except BaseException:  # out of a signal handler that a job left
        if not channel.close():
            os._exit(_LOST)


def _prepare(fields: Mapping[str, Any], name: str) -> tuple[bytes, str, workspace_files.Wanted]:
    """Apply the other fields of a job. Returns its code, its name in tracebacks, and the files to collect."""
    program.take_environment(fields["env"])
    if fields["args"]:
        sys.argv[1:] = fields["args"]
    return fields["code"], name if fields["name"] == program.NAME else fields["name"], workspace_files.wanted(fields)


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


class BranchSocket:
    """The socket *door*, or -1, on which the daemon sends the descriptors of a branch."""

    def __init__(self, door: int) -> None:
        self._door = door
        if door >= 0:
            os.set_inheritable(door, False)

    def shut(self) -> None:
        door, self._door = self._door, -1
        if door >= 0:
            os.close(door)

    @property
    def above(self) -> int:
        """The number from which on descriptors aren't those of every such process."""
        return self._door + 1

    def received(self, count: int, more: int = 0) -> list[int]:
        """The descriptors that the daemon has sent: *count*, and up to so many *more*; OSError otherwise."""
        return received(self._door, count, more)

    def refuse(self) -> program.End:
        """Take what has come for a branch that isn't made, before the next one's comes."""
        try:
            for fd in self.received(_ENDS):
                os.close(fd)
        except OSError as error:
            return program.raised(error)
        return program.End(1)

    def fork(self, pipes: tuple[int, int], fork: Callable[[Sequence[int], Sequence[int], bytes], int]) -> int:
        """
        Make a branch, and return its number, or raise OSError. Returns 0 in the branch, whose own *pipes* then have the
        same numbers.
        """
        ends = self.received(_ENDS)  # first, since the next one's come the same way
        try:
            program.flush_for_copy()
            if made := fork(ends, (self._door, *pipes, _OUT, _ERR), wire.BRANCH_WORD):
                return made
        finally:
            for fd in ends:
                with contextlib.suppress(OSError):  # the descriptor is closed already
                    os.close(fd)
        if os.read(self._door, 1) != wire.BRANCH_WORD:
            os._exit(0)  # the branch isn't wanted any more
        os.write(self._door, wire.BRANCH_WORD)
        return 0


def _fork(ends: Sequence[int], places: Sequence[int], word: bytes) -> int:
    """As `_native.spawn.branch`, for an image's interpreter, by two forks."""
    gate, open_gate = os.pipe()
    number, told = os.pipe()
    try:
        between = os.fork()
        if between:
            os.close(told)
            told = -1
            with contextlib.suppress(ChildProcessError):  # code here ignores SIGCHLD, or reaps all children
                os.waitpid(between, 0)
            if not (made := os.read(number, 32)):
                raise OSError("a second fork failed")
            return int(made)
        _go_on_without_parent(told)
        os.close(open_gate)
        os.read(gate, 1)
    finally:
        for fd in (gate, open_gate, number, told):
            with contextlib.suppress(OSError):
                os.close(fd)
    os.setsid()
    for source, target in zip(ends, places, strict=True):
        os.dup2(source, target, inheritable=target in (_OUT, _ERR))
    os.write(places[0], word)
    return 0


def _go_on_without_parent(told: int) -> None:
    """In the child: fork again, write the number to *told*, and exit. Returns in the grandchild."""
    try:
        if number := os.fork():
            os.write(told, b"%d" % number)
            os._exit(0)
    except OSError:
        os._exit(1)


def received(door: int, count: int, more: int = 0) -> list[int]:
    """The descriptors that the daemon has sent on *door*: *count*, and up to so many *more*; OSError otherwise."""
    channel = _socket.socket(fileno=os.dup(door))
    try:
        _, ancillary, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(_ENDS * 4), _socket.MSG_CMSG_CLOEXEC
                                             | _socket.MSG_DONTWAIT)
    finally:
        channel.close()
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
    if not count <= len(fds) <= count + more:
        for fd in fds:
            os.close(fd)
        raise OSError(f"{len(fds)} of {count} descriptors have come")
    return list(fds)

"""
Snapshots of a session's process: a child writes its memory into a file of the daemon's, and copies begin from that.

Trust:     none in the bytes: a copy is made in the job, which has every lock and can only harm itself.

Theory of operation. The process forks, so that it pauses no longer than that, and answers. The child's memory is the
state, which it writes (`Native.dump`, in C), and exits. A copy is a fresh process of the same kind that has loaded the
state (`Native.load`): it returns from the same call of `dump`, and goes on with `resume`, which gives it what isn't
memory: files, its folder, its process number, and seeds of its own. The job pipe, the reply pipe, the streams and the
door have the same numbers in every such process, and stay the new one's.

What can't be taken is refused by name before anything has changed: other threads, children, shared memory. Descriptors
that can't be opened again are lost: in copies their numbers are taken by a descriptor that permits nothing, so that an
old object never reads or closes the file of another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import msgpack

from leeward.inside import awaiting, imports, program, reseeding
from leeward.wire import job_frames as wire

#: The folder whose file system only this sandbox has.
_SCRATCH = "/workspace"

#: What a file is opened with again: not what would make or empty it.
_MODES = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY

_LOST = 70  # EX_SOFTWARE of sysexits.h

#: The name in `sys` by which `leeward.on_restore` finds `on_restore`, wherever that is imported from.
_REGISTER = "__leeward_on_restore__"

_NUMBER = struct.Struct("q")

#: Functions of jobs, to be called in each copy.
_on_restore: list[Callable[[], object]] = []


#: The processes that write states, and branches: whose, and their numbers.
_left: list[tuple[int, int]] = []
#: Sessions of branches, of which this process may have children that its code didn't make.
_sessions: set[int] = set()


class Native(NamedTuple):
    """
    The calls in C: _native/state.py, and `branch` of _native/spawn.py. `begin` tells the daemon that a copy waits for its
    first frame, given the number that was loaded with it, and returns its door or -1.
    """

    dump: Callable[[int, int, int, int, int, int], int]
    load: Callable[[int, int, int], NoReturn]
    known: Callable[[], bool]  # whether this machine's processor is
    begin: Callable[[int], int]
    branch: Callable[[Sequence[int], Sequence[int], bytes], int] | None = None


def none(*_: int) -> NoReturn:
    raise OSError("this process can't have snapshots")


#: Of a process without a door, by which nobody asks it for snapshots.
NONE = Native(none, none, lambda: False, none)


class OpenFile(NamedTuple):
    """A descriptor that copies open again; without a path one that they can't."""

    number: int
    path: str
    flags: int
    position: int
    inheritable: bool


class Taken(NamedTuple):
    """What a copy needs beside its memory."""

    files: list[OpenFile]
    folder: str
    random: Any = None  # the state of `random`, which a fork seeds anew
    word: int = 0  # what its loader was told: bits of the wire's


class CantTake(OSError):
    """The state can't be taken, by what the process has."""


def on_restore(function: Callable[[], object]) -> Callable[[], object]:
    """For jobs, as `leeward.on_restore`: have *function* called in each copy."""
    _on_restore.append(function)
    return function


def offer_hook() -> None:
    """In a kernel: let its code import `leeward.on_restore`, also where there is no leeward to import."""
    setattr(sys, _REGISTER, on_restore)
    imports.offer("leeward", lambda module: setattr(module, "on_restore", on_restore))


# --- what the process has -----------------------------------------------------------


def _check() -> None:
    """Check that the process can be taken; CantTake if not."""
    if others := [f"{each.name!r:.80}" for each in threading.enumerate() if each is not threading.main_thread()]:
        raise CantTake(f"threads run: {', '.join(others[:8])}")
    if (count := len(sys._current_frames())) > 1:
        raise CantTake(f"{count - 1} threads run that `threading` doesn't know")
    if children := _named(ended=False):
        raise CantTake(f"it has children: {', '.join(children[:8])}")


def _named(*, ended: bool) -> list[str]:
    """The children that run, or those that have *ended* and nobody has waited for; of branches none."""
    return [f"{number} {command!r:.40}" for number, command, session, is_over in _children()
            if is_over is ended and session not in _sessions and (os.getpid(), number) not in _left]


def _children() -> Iterator[tuple[int, str, int, bool]]:
    """The numbers, commands and sessions of all children, and whether each has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                command, _, rest = file.read().rpartition(")")
        except OSError:
            continue
        state, parent, _, session, *_ = rest.split()
        if me == parent:
            yield int(name), command.partition("(")[2], int(session), state in "ZX"


def _threads() -> list[str]:
    """The names of the threads beside this one, also of those that Python doesn't know."""
    me, names = str(os.getpid()), []
    for each in os.listdir("/proc/self/task"):
        if each != me:
            try:
                with open(f"/proc/self/task/{each}/comm", encoding="utf-8", errors="replace") as file:
                    names.append(f"{file.read().strip()!r:.20}")
            except OSError:
                continue  # it has just ended
    return names


def _descriptors(kept: int) -> Iterator[tuple[OpenFile, str]]:
    """The descriptors from *kept* on, and what each leads to."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        number, path = int(name), ""
        if number < kept:
            continue
        try:
            about, inheritable = os.fstat(number), os.get_inheritable(number)
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the folder that is being listed
        if _can_be_opened(path, about):
            with open(f"/proc/self/fdinfo/{name}", encoding="ascii") as file:
                told = dict(line.split(":", 1) for line in file if ":" in line)
            yield OpenFile(number, path, int(told["flags"], 8) & _MODES, int(told["pos"]), inheritable), path
        else:
            yield OpenFile(number, "", 0, 0, inheritable), path


def _can_be_opened(path: str, about: os.stat_result) -> bool:
    """Whether *path* leads to the file that is open: no pipe, nothing that was removed, nothing of a process in /proc."""
    if stat.S_IFMT(about.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR) or path.startswith("/proc/"):
        return False
    try:
        return os.path.samestat(os.stat(path), about)
    except OSError:
        return False


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise CantTake("its working folder was removed") from error


def _packages() -> dict[str, str]:
    """The packages beside the standard library that are imported, each with its version, "" if it doesn't tell."""
    found = {}
    known = getattr(sys, "stdlib_module_names", ())  # Python 3.10
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in known or name in ("leeward", "msgpack") or (
                not known and "-packages/" not in str(getattr(module, "__file__", ""))):
            continue
        version = getattr(module, "__dict__", {}).get("__version__", "")  # a module's __getattr__ may warn, or do anything
        found[name[:wire.MAX_SHOWN]] = version[:80] if isinstance(version, str) else ""
    return dict(sorted(found.items())[:wire.MAX_PACKAGES])


def _facts(lost: list[str]) -> bytes:
    """What the daemon is told of this process, which goes on."""
    told: bytes = msgpack.packb({"python": sys.version.split()[0], "packages": _packages(),
                                 "lost": lost[:wire.MAX_LOST]}, unicode_errors="replace")
    return wire.HEADER.pack(len(told)) + told


# --- taking ---------------------------------------------------------------------------


def take(ends: list[int], kept: int, native: Native) -> Taken | None:
    """
    Have a child write this process's state. *ends* are a socket by which the memory file comes, a pipe on which the
    child tells about the state, and perhaps the zygote's memory, which isn't part of it; descriptors below *kept* are
    those of every such process. Returns None here; in a copy what `resume` needs. CantTake, or another error, with
    nothing changed.
    """
    gate_read, gate_write = os.pipe()
    number_read, number_write = os.pipe()
    theirs = (gate_read, number_write, *ends)
    ours = [gate_write, number_read]
    try:
        if not native.known():
            raise CantTake("leeward can't take states on this machine's processor")
        program.flush_for_copy()
        reap()
        _check()
        found = [(file, leads) for file, leads in _descriptors(kept) if file.number not in (*ours, *theirs)]
        numbers = getattr(sys.modules.get("random"), "getstate", None)  # a job may have a module of that name
        taken = Taken([file for file, _ in found], _folder(), None if numbers is None else numbers())
        lost = [f"descriptor {file.number}: {leads:.200}" for file, leads in found if not file.path]
        lost += [f"child {each}, which has ended" for each in _named(ended=True)]
        scratch = os.stat(_SCRATCH).st_dev
        middle = os.fork()
    except BaseException:
        _close((*ours, *theirs))
        raise
    if not middle:
        word = _become_state(ours, theirs, scratch, native)
        return taken._replace(word=word)  # in a copy, which has none of these descriptors
    try:
        _close((gate_read, number_write))
        number = os.read(number_read, _NUMBER.size)
        with contextlib.suppress(ChildProcessError):  # code here ignores SIGCHLD, or reaps all children
            os.waitpid(middle, 0)
        if not number:
            raise CantTake("a second fork failed")
        leave(*_NUMBER.unpack(number))
        if others := _threads():  # those that a library's hooks end before a fork are gone
            raise CantTake(f"threads of libraries run: {', '.join(others[:8])}")
        os.write(ends[1], _facts(lost))
    except BaseException:
        with contextlib.suppress(OSError):  # there is no process that reads it
            os.write(gate_write, b"x")
        raise
    finally:
        _close((*ours, *ends))
    return None


def leave(number: int) -> None:
    """Note that a child of ours has left the process *number*, which has no parent but the sandbox's init, or us."""
    _left.append((os.getpid(), number))


def adopt(sessions: Iterable[int]) -> None:
    """Note *sessions* of branches, and reap what has ended of all that are known: branches, and what they have left."""
    _sessions.update(sessions)
    there = set()
    for number, _, session, is_over in _children():
        if session not in _sessions:
            continue
        if is_over:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, os.WNOHANG)
        else:
            there.add(session)
    _sessions.intersection_update(there)


def reap() -> None:
    """
    Reap what `leave` has noted and has ended: without groups a kernel adopts what its children leave, and code of a job
    would find a child that it doesn't know.
    """
    for each in tuple(_left):
        parent, number = each
        try:
            if parent == os.getpid() and not os.waitpid(number, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            pass  # the sandbox's init has adopted it
        _left.remove(each)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _become_state(others: list[int], ours: tuple[int, ...], scratch: int, native: Native) -> int:
    """
    In the child: have another process write the state, so that no job is its parent, and end. Returns in copies, as
    `Taken.word`.
    """
    gate, number, orders, answers, *memory = ours
    try:
        _close(others)
        return native.dump(orders, answers, scratch, memory[0] if memory else -1, gate, number)
    except BaseException:
        os._exit(_LOST)


# --- loading --------------------------------------------------------------------------


def load(files: list[int], native: Native, word: int) -> NoReturn:
    """
    Become a copy of the state in the first of *files*; a second one is the memory of that one's zygote. *word*: bits of the
    wire's. Returns only by an OSError, which says why not.
    """
    file, *memory = files
    native.load(file, memory[0] if memory else -1, word)


def resume(taken: Taken) -> None:
    """In a copy: open its files, and renew what copies must not share. OSError with the name of a file that isn't there."""
    _left.clear()
    _sessions.clear()
    threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]
    os.chdir(taken.folder)
    _open_files(taken.files)
    if not taken.word & wire.SAME_RANDOM:
        for name, renew in reseeding.sources():
            if name in sys.modules:
                with contextlib.suppress(AttributeError):  # a module of the job's own, with such a name
                    renew(sys.modules[name])
    elif taken.random is not None:
        sys.modules["random"].setstate(taken.random)
    reseeding.tell_contexts()
    awaiting.separate(lost=True)
    for function in _on_restore:
        function()


def _open_files(files: list[OpenFile]) -> None:
    """Open *files* at their numbers; in the place of a lost one, what permits nothing."""
    if not files:
        return
    above = max(each.number for each in files) + 1
    sources = [_above(above, os.open("/", os.O_PATH | os.O_CLOEXEC))]
    try:
        for each in files:
            if each.path:
                sources.append(_above(above, os.open(each.path, each.flags | os.O_CLOEXEC)))
                if stat.S_ISREG(os.fstat(sources[-1]).st_mode):
                    os.lseek(sources[-1], each.position, os.SEEK_SET)
        opened = iter(sources[1:])
        for each in files:
            os.dup2(next(opened) if each.path else sources[0], each.number, inheritable=each.inheritable)
    finally:
        _close(sources)


def _above(least: int, fd: int) -> int:
    """Move a descriptor to a number from *least* on."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        os.close(fd)

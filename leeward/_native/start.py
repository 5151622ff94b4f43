"""Starts a program in namespaces of its own: the child takes steps from a table, the last of which is execve(2)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from leeward._native._shim import ffi, lib
from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Step, Table, refusal, returns
from leeward.errors import KernelRefusal

_POINTER = 8


def execve_step(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> Step:
    """Execute the program at *path*. When this succeeds, the child no longer uses the caller's memory."""
    return returns(Call.EXECVE, path, _strings(argv), _strings([f"{name}={value}" for name, value in
                                                                environment.items()]))


def _strings(texts: Sequence[str]) -> Block:
    """A block with the addresses of *texts*, and a NULL after them."""
    return Block(bytes(_POINTER * (len(texts) + 1)),
                 blocks={_POINTER * at: Block(os.fsencode(text) + b"\0") for at, text in enumerate(texts)})


def start(steps: Callable[[Sequence[Cell]], Sequence[Step]], fds: Sequence[int], namespaces: Clone | int = 0, *,
          begin: Callable[[int], None] = lambda pid: None) -> tuple[int, int]:
    """
    Start a child that takes steps, the last of which executes another program. Returns its pid and pidfd, which the
    caller owns; it has executed the program by then, or was killed before. KernelRefusal if a step, or clone3(2),
    failed; OSError if no descriptors are left, or *begin* raised it.

    Args:
        steps: returns the steps. Its argument has a Cell for each of *fds*, and one for a further descriptor,
            which the steps have to leave open and close-on-exec.
        fds: descriptors that the steps need. The caller still owns them.
        begin: called with the child's pid before the child takes its first step.
    """
    gate, alive = Cell("gate"), Cell("alive")
    cells = [*(Cell(f"descriptor {number}") for number, _ in enumerate(fds)), alive]
    opened = Block(bytes(1))
    table = Table([returns(Call.READ, gate, opened, 1, value=1), *steps(cells)])
    pid, pidfd = -1, -1
    room = ffi.new("struct lw_start *")
    ends: list[int] = []
    try:
        ends += os.pipe2(os.O_CLOEXEC)
        ends += os.pipe2(os.O_CLOEXEC)
        for cell, fd in zip([gate, *cells], [ends[0], *fds, ends[3]], strict=True):
            table.address(cell)[0] = fd
        found = ffi.new("int *", -1)
        rows, count = table.rows
        pid = int(lib.lw_start(room, int(namespaces), rows, count, found))
        if pid < 0:
            raise KernelRefusal("clone3", f"flags={Clone(namespaces)!r}", -pid)
        pidfd = int(found[0])
        _close(ends, 3)  # now only the child has this end: it is closed when the child ends or executes the program
        begin(pid)
        os.write(ends[1], b"1")
    except BaseException:
        for number in range(len(ends)):
            _close(ends, number)
        if pid > 0:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _reap(pid, pidfd)
        raise
    else:
        os.read(ends[2], 1)
        for number in range(len(ends)):
            _close(ends, number)
    if room.done or room.result:  # a step failed, perhaps the last one
        _reap(pid, pidfd)
        raise refusal(table.steps[room.done], room.result)
    return pid, pidfd


def _reap(pid: int, pidfd: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    os.close(pidfd)


def _close(ends: list[int], number: int) -> None:
    fd, ends[number] = ends[number], -1
    if fd >= 0:
        os.close(fd)

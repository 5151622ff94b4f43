"""
The descendants of one process of a live sandbox, where no group holds them: found by /proc, stopped, and killed.

Runs in:   the daemon.
Needs:     CONFIG_PROC_CHILDREN.
Source:    proc_pid_task_tid_children(5), prctl(2) PR_SET_CHILD_SUBREAPER, setsid(2)

The process leads a session of its own and is a subreaper. As long as it lives, all its descendants are below it in the
tree, because orphans become its children. When it has ended they become children of the sandbox's init, and those that
stayed in its session are found by that. A descendant that has left the session (setsid) can't be found any more, and
ends with the sandbox.

A walk that kills what it finds can miss processes that are forked meanwhile. So it stops them first: SIGSTOP to each,
again and again until a walk finds no running one. Then none can fork, and all get SIGKILL.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection

from leeward.isolation.cgroup.group import pidfd_of
from leeward.isolation.cgroup.watch import Key, children_of, fields_of, key_of, open_process, times_of

#: Seconds, and walks, after which a tree that still grows is given up.
_PATIENCE_S, _LEAST_WALKS = 1.0, 50

#: Of /proc/PID/stat, from the third field on: state, parent, session, threads, start time.
_STATE, _PARENT, _SESSION, _THREADS, _START = 0, 1, 3, 17, 19


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def parent_and_session(pid: int) -> tuple[int, int]:
    """
    Raises:
        OSError, ValueError: there is no such process.
    """
    folder = open_process(pid)
    try:
        fields = fields_of(folder)
    finally:
        os.close(folder)
    return int(fields[_PARENT]), int(fields[_SESSION])


def family(init: int, root: int, spare: Collection[int] = ()) -> dict[Key, bytes]:
    """
    The processes that descend from *root*, and itself, each with its state; dead ones are left out.

    Args:
        init: the sandbox's init.
        root: the process, by the number that it has or had in this pid namespace, which is its session's.
        spare: processes to pass by, with what is below them.
    """
    found: dict[Key, bytes] = {}
    waiting = [(root, True)]
    try:
        folder = open_process(init)
        try:
            waiting += [(pid, False) for pid in children_of(folder, init)]
        finally:
            os.close(folder)
    except (FileNotFoundError, ProcessLookupError):
        return {}
    ours: set[int] = set()
    while waiting:
        pid, is_root = waiting.pop()
        if pid in spare:
            continue
        try:
            folder = open_process(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        try:
            fields = fields_of(folder)
            if not (int(fields[_SESSION]) == root or (int(fields[_PARENT]) in ours and not is_root)):
                continue
            ours.add(pid)
            if fields[_STATE] not in (b"Z", b"X"):
                found[pid, int(fields[_START])] = fields[_STATE]
            waiting += [(child, False) for child in children_of(folder, pid, int(fields[_THREADS]))]
        except (FileNotFoundError, ProcessLookupError):
            continue
        finally:
            os.close(folder)
    return found


def time_of(init: int, root: int, spare: Collection[int] = ()) -> float:
    """
    Processor seconds of the processes that descend from *root*, of itself, and of the children that they waited for.
    """
    spent = 0.0
    for pid, _ in family(init, root, spare):
        try:
            folder = open_process(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        try:
            spent += times_of(fields_of(folder))
        except (FileNotFoundError, ProcessLookupError):
            continue
        finally:
            os.close(folder)
    return spent


def is_left(init: int, root: int, spare: Collection[int] = ()) -> bool:
    """
    Whether any process lives that is known to descend from *root*.
    """
    return bool(family(init, root, spare))


class Hunt:
    """
    The end of all that descends from a process, in steps.

    Attributes:
        hopeless: it grows faster than it is stopped.
    """

    def __init__(self, init: int, root: int, spare: Callable[[], Collection[int]] = tuple) -> None:
        self._init, self._root, self._spare = init, root, spare
        self._since = time.monotonic()
        self._walks = 0
        self._stopping: set[Key] = set()  # to stop
        self.hopeless = False

    def step(self) -> bool:
        """
        Take one step of the walk. Returns whether it is over.
        """
        self._walks += 1
        running = self._stop()
        if running and (self._walks < _LEAST_WALKS or time.monotonic() - self._since < _PATIENCE_S):
            return False
        for key in self._family():
            _send(key, signal.SIGKILL)
        self.hopeless = running
        return not running

    def _family(self) -> dict[Key, bytes]:
        return family(self._init, self._root, self._spare())

    def _stop(self) -> bool:
        """
        Send SIGSTOP to all processes that aren't stopped. Returns whether there were any.
        """
        running = [key for key, state in self._family().items() if not self._is_still(key, state)]
        for key in running:
            _send(key, signal.SIGSTOP)
        self._stopping.update(running)
        return bool(running)

    def _is_still(self, key: Key, state: bytes) -> bool:
        """
        Stopped, or in a wait from which it comes to stop: one that has called vfork waits for a child that is stopped.
        """
        return state in (b"T", b"t") or (b"D" == state and key in self._stopping)


def _send(key: Key, number: int) -> None:
    """
    A signal to the process of *key*, unless it is gone.
    """
    pidfd = pidfd_of(key[0])
    if pidfd < 0:
        return
    try:
        if key == key_of(key[0]):
            signal.pidfd_send_signal(pidfd, number)
    except (FileNotFoundError, ProcessLookupError):
        return
    finally:
        os.close(pidfd)

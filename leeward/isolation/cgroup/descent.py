"""
Finds the descendants of one process of a live sandbox by /proc, stops and kills them, where no cgroup contains them.

Needs:     CONFIG_PROC_CHILDREN.
Source:    proc_pid_task_tid_children(5), prctl(2) PR_SET_CHILD_SUBREAPER, setsid(2)

A process is its number and when it began: numbers are given again, and one can be that of a stranger's session, anywhere on
the host. A session keeps its number as long as it has a process.

The process leads a session of its own and is a subreaper, so as long as it lives, all its descendants are below it in
the tree. When it has ended, they become children of the sandbox's init, and are found by the session if they stayed in
it. A descendant that has left the session (setsid) can't be found any more, and ends with the sandbox.

A walk that kills the processes that it finds can miss processes that are forked meanwhile. So `Hunt` sends SIGSTOP to
each, until a walk finds no running process. Then no process can fork, and all get SIGKILL.
"""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Callable, Collection
from functools import partial

from leeward.isolation.cgroup.group import kill
from leeward.isolation.cgroup.watch import (
    GONE,
    Key,
    children_of,
    fields_of,
    is_there,
    key_of,
    numbers_of,
    pending_of,
    process,
    states_of,
    times_of,
)

#: `Hunt` gives up on a tree that still grows, or whose processes are continued, after so many seconds, and in so many walks;
#: and on one that only hasn't stopped after more seconds, or when the walks have taken this thread's first figure of its
#: processor time: on a busy machine a process waits until it can stop.
_PATIENCE_S, _LEAST_WALKS, _SLOW_S = 1.0, 50, 20.0
#: Seconds between two walks: after one that has found new processes, and at most after others.
_STEP_S, _MOST_STEP_S = 0.001, 0.032

#: Indices of fields in /proc/PID/stat, counted from the third field: state, parent, session, flags, threads, start time.
_STATE, _PARENT, _SESSION, _FLAGS, _THREADS, _START = 0, 1, 3, 6, 17, 19
_PF_EXITING = 4  # linux/sched.h
_DEAD, _STOPPED = (b"Z", b"X"), (b"T", b"t")


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def living(pid: int, pidfd: int) -> Key | None:
    """The process *pid* of which there was *pidfd*, or -1; None if it has ended, and the number may be another's."""
    with contextlib.suppress(*GONE):
        key = key_of(pid)
        return None if pidfd >= 0 and has_ended(pidfd) else key
    return None


def parent_and_session(pid: int) -> tuple[int, int]:
    """The pid of the process's parent, and its session; OSError or ValueError if there is no such process."""
    with process(pid) as folder:
        fields = fields_of(folder)
    return int(fields[_PARENT]), int(fields[_SESSION])


def number_inside(pid: int) -> int:
    """The number that the process has in its own pid namespace; OSError if there is no such process."""
    with process(pid) as folder:
        return numbers_of(folder)[-1]


def family(init: int, root: Key, spare: Collection[int] = ()) -> dict[Key, bytes]:
    """
    *root*, as numbered in this pid namespace, and the living processes below it, each with its state; not those of
    *spare*, which may have adopted some of its session. *root* may have ended; its number is that of its session, too.
    *init* is the sandbox's.
    """
    found: dict[Key, bytes] = {}
    session, began = root
    waiting = [(session, True), *((pid, False) for pid in spare)]
    try:
        with process(init) as folder:
            waiting += [(pid, False) for pid in children_of(folder, init)]
    except GONE:
        return {}
    ours: set[int] = set()
    while waiting:
        pid, is_root = waiting.pop()
        with contextlib.suppress(*GONE), process(pid) as folder:
            fields = fields_of(folder)
            if pid not in spare:
                if int(fields[_START]) != began if is_root else not (
                        int(fields[_SESSION]) == session or int(fields[_PARENT]) in ours):
                    continue
                ours.add(pid)
                state = _state_of(folder, fields)
                if state not in _DEAD:
                    found[pid, int(fields[_START])] = state
            waiting += [(child, False) for child in children_of(folder, pid, int(fields[_THREADS]))]
    return found


def _state_of(folder: int, fields: list[bytes]) -> bytes:
    """The state of a process: where its first thread has ended before others, of one of those, stopped only if all are."""
    state = fields[_STATE]
    if state not in _DEAD or int(fields[_THREADS]) <= 1:
        return state
    return min(states_of(folder) - {*_DEAD}, key=_STOPPED.__contains__, default=state)


def time_of(init: int, root: Key, spare: Collection[int] = ()) -> float:
    """Processor seconds of *root*, of the processes that descend from it, and of the children for which they have waited."""
    spent = 0.0
    for pid, _ in family(init, root, spare):
        with contextlib.suppress(*GONE), process(pid) as folder:
            spent += times_of(fields_of(folder))
    return spent


def is_left(init: int, root: Key, spare: Collection[int] = ()) -> bool:
    """Whether *root* lives, or a process that is known to descend from it."""
    return bool(family(init, root, spare))


def has_strays(init: int) -> bool:
    """
    Whether the sandbox's *init* has another child than its first: one that has left its session, say. Each process whose
    parent has ended is below that init in the same moment, so none is missed, however fast they fork. True if unknown.
    """
    try:
        with process(init) as folder:
            return len(children_of(folder, init)) > 1
    except GONE:
        return False
    except OSError:
        return True


class Hunt:
    """
    Ends a process and all its descendants, in steps, with `pause` seconds between them; `hopeless` if they fork faster than
    they are stopped, or don't stay stopped: another process of the sandbox can continue them again and again.
    """

    def __init__(self, init: int, root: Key, spare: Callable[[], Collection[int]] = tuple) -> None:
        self._init, self._root, self._spare = init, root, spare
        self._since = time.monotonic()
        self._grown = 0  # walks that have found new processes, or continued ones
        self._spent = 0.0  # processor seconds of the walks
        self._stopping: set[Key] = set()  # processes that were sent SIGSTOP
        self.hopeless, self.pause = False, _STEP_S

    def step(self) -> bool:
        """Take one step of the walk. Returns whether it is over."""
        began = time.thread_time()
        found = family(self._init, self._root, self._spare())
        running = [key for key, state in found.items() if not self._is_still(key, state)]
        grows = not self._stopping.issuperset(running)
        self._grown += grows or any(map(self._was_continued, running))
        for key in running:
            kill(key[0], partial(is_there, key), signal.SIGSTOP)
        self._stopping.update(running)
        self.pause = _STEP_S if grows else min(2 * self.pause, _MOST_STEP_S)
        late = time.monotonic() - self._since
        self._spent += time.thread_time() - began
        self.hopeless = bool(running) and (late >= _SLOW_S or self._spent >= _PATIENCE_S or (
            self._grown >= _LEAST_WALKS and late >= _PATIENCE_S))
        if running and not self.hopeless:
            return False
        for key in found:
            kill(key[0], partial(is_there, key))
        return not running

    def _is_still(self, key: Key, state: bytes) -> bool:
        """Whether the process is stopped, or waits and will then stop: after vfork a process waits for a stopped child."""
        return state in _STOPPED or (state == b"D" and key in self._stopping)

    def _was_continued(self, key: Key) -> bool:
        """Whether the process runs although it was sent SIGSTOP, which waits no longer, and isn't about to end."""
        if key not in self._stopping:
            return False
        with contextlib.suppress(*GONE), process(key[0]) as folder:
            waits = pending_of(folder) & (1 << signal.SIGSTOP - 1 | 1 << signal.SIGKILL - 1)
            fields = fields_of(folder)
            return not waits and not (int(fields[_FLAGS]) & _PF_EXITING and int(fields[_THREADS]) <= 1)
        return False

"""
Reaps processes whose parent has died, and which became the daemon's children: it is a subreaper, and gets those of a
dead zygote, keeper, opener or command.

Source: prctl(2) PR_SET_CHILD_SUBREAPER, waitid(2)
"""

from __future__ import annotations

import os
from functools import partial

from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.errors import SHORT

#: LW_HELPER of _native/src/beside.h.
_HELPER = b"lw-helper"
#: Children that we have started in sessions of their own, and that the code waits for which has started them.
STARTED: set[int] = set()
#: Seconds from a keeper's death to the look for its inits, which die with it; and to the next look, if there was no
#: descriptor for a whole one.
LATER_S, AGAIN_S = 0.1, 1.0


def reap(pidfd: int) -> None:
    """Reap the dead process of *pidfd* if it became our child; otherwise its own parent does."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return


def reap_orphans(alone: bool = False) -> bool:
    """
    Reap dead processes that became our children: inits and further processes of runners, keepers and their helpers,
    children of an opener, and whatever else the processes that we start have left. Code that waits for a process of
    ours has started it, in our session or in one of its own; an orphan is in the session of its dead parent, or in
    another pid namespace, or it leads a session and isn't of STARTED. So no wait of other code loses its process.
    *alone*: all that this process starts in sessions of their own is in STARTED. Returns False if there was no
    descriptor, or no memory, to look for all of them: call again later.
    """
    me, session = os.getpid(), os.getsid(0)
    complete, seen = True, set[int]()
    try:
        tasks = os.listdir(f"/proc/{me}/task")
    except OSError as error:
        if error.errno not in SHORT:
            raise
        return False
    for task in tasks:
        try:
            with open(f"/proc/{me}/task/{task}/children") as file:
                children = file.read().split()
        except OSError as error:  # a thread that ended, or a kernel without the file
            complete = complete and error.errno not in SHORT
            continue
        seen.update(map(int, children))
        for child in map(int, children):
            try:
                with open(f"/proc/{child}/status", "rb") as file:  # its name may have any byte but a newline
                    fields = dict(line.split(b":\t", 1) for line in file.read().split(b"\n") if b":\t" in line)
                kept = {session, child} if not alone or child in STARTED else {session}
                if fields[b"State"].startswith(b"Z") and (len(fields[b"NSpid"].split()) > 1 or fields[b"Name"] == _HELPER
                                                        or os.getsid(child) not in kept):
                    os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG)
            except OSError as error:
                complete = complete and error.errno not in SHORT
            except KeyError:
                continue
    if complete:
        STARTED.intersection_update(seen)  # a number of one that was waited for may be another process's by now
    return complete


class Orphans:
    """Looks for what the dead keepers of a pool have left: once for all that end together, as in a burst of sandboxes."""

    def __init__(self) -> None:
        self._timer, self._again = NO_TIMER, False

    def look_later(self, reactor: Reactor) -> None:
        """Reap in LATER_S, or in twice that, what a keeper leaves that has ended now."""
        self._again = self._timer.is_set  # the look that is due comes too early for this one
        if not self._again:
            self._timer = reactor.after(LATER_S, partial(self._look, reactor))

    def _look(self, reactor: Reactor) -> None:
        if self._again:
            self.look_later(reactor)
        if not reap_orphans() and not self._timer.is_set:
            self._timer = reactor.after(AGAIN_S, partial(self._look, reactor))

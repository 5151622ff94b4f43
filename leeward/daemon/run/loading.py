"""The first turn of a kernel that begins as the copy of a snapshot: its process loads the state, and answers as the copy."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from leeward.daemon.run.lease import LoadSameTurn, LoadTurn
from leeward.daemon.run.report import Report
from leeward.errors import LeewardError, told
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome
from leeward.wire.job_frames import BRANCH_WORD

if TYPE_CHECKING:
    from leeward.daemon.run.dumping import KernelState
    from leeward.daemon.run.execution import Execution
    from leeward.daemon.run.lease import Lease


class Loading:
    """
    The caller of the turn. *opened* is called with the lease once the process is the copy of *state*, else *lost* with the
    reason. *same*: its random numbers go on. LeewardError without descriptors.
    """

    client = None

    def __init__(self, state: KernelState, limits: Limits, opened: Callable[[Lease], None],
                 lost: Callable[[str], None], *, same: bool) -> None:
        self.job = Job(code=b"", limits=limits)
        try:
            self._state = os.dup(state.fd)  # it may be removed before the process is there
        except OSError as error:
            raise LeewardError(f"the daemon has no descriptor for the snapshot: {told(error)}") from error
        self._memory, self._same = state.memory, same
        self._opened, self._lost = opened, lost
        self._lease: Lease | None = None
        self._why = ""

    def begin(self, lease: Lease) -> None:
        """Send the process the state, and let it load that."""
        self._lease = lease
        try:
            door = lease.held.door
            if door is None:
                raise LeewardError("its process takes no descriptors")
            fds = [self._state, *([] if self._memory is None else [self._memory.fd])]
            door.socket.sendmsg([BRANCH_WORD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
                                socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            lease.ask(self, LoadSameTurn if self._same else LoadTurn)
        except (OSError, LeewardError) as error:
            lease.end(self._fail(str(error)))
        finally:
            self.let_go()

    def finished(self, report: Report) -> None:
        """Called by the lease: the process has answered, or has ended."""
        why, lease = why_not(report), self._lease
        report.close()
        assert lease is not None
        if why:
            lease.end(self._fail(why))
        else:
            lease.held.memory = self._memory
            self._opened(lease)

    def lost(self) -> None:
        """Called by the lease: its process was gone before it was asked."""
        self._fail("its process was gone at once")

    def _fail(self, why: str) -> str:
        self._why = f"the snapshot can't be loaded: {why}"
        return self._why

    def lose(self, why: str) -> None:
        """For the kernel's process, which has ended, before it had a lease or later."""
        self.let_go()
        self._lost(self._why or why)

    def let_go(self) -> None:
        """Close what is still open."""
        state, self._state = self._state, -1
        if state >= 0:
            os.close(state)

    @property
    def execution(self) -> Execution | None:
        return None


def why_not(report: Report) -> str:
    """Why a process couldn't do what it was asked for, by its report; "" if it reports that it has."""
    if report.refusal is not None:
        return str(report.refusal)
    result = report.result
    if result is None or result.outcome is not Outcome.FINISHED or result.exit_code:
        error = None if result is None else result.error
        return f"{error.type}: {error.message}" if error is not None else "it ended" if result is None else {
            Outcome.SIGNALLED: "a signal ended its process",
            Outcome.FINISHED: f"it ended with status {result.exit_code}"}.get(result.outcome, str(result.outcome))
    return ""

"""
seccomp: the filter for a job's system calls and their arguments.

Runs in:   the daemon, which chooses a program (`filters`), and the crossing, which makes and takes the steps. The
           programs are generated from `table` when leeward is developed (`compiler`).
Stands if: other locks are wrong, and an attack needs a call that this filter refuses.
Leaves:    the effects of allowed calls, which the mount view, Landlock and rlimits limit.
Source:    seccomp(2), seccomp_unotify(2)

A job's system call is allowed; or the filter itself answers it with an errno; or it kills the process (another
architecture's calling convention); or, for every call that the table doesn't list, the supervisor refuses it with
EACCES, counts and logs it.
"""

from __future__ import annotations

import errno
import struct

from leeward._native import seccomp as native
from leeward._native.steps import Block, Call, Cell, Step, fails
from leeward.base.points import point

#: <linux/seccomp.h>
_GET_ACTION_AVAIL, _ALLOW = 2, 0x7FFF0000


@point("seccomp.steps")
def steps(program: bytes, listener: Cell) -> list[Step]:
    """
    Install *program*, the `insns` of a `filters.Program`. Irreversible; needs no_new_privs. The cell *listener* gets a
    close-on-exec descriptor for the supervisor; until it is there, a call that the supervisor has to answer blocks.
    """
    return [native.listen_step(listener, program, killable=native.has_wait_killable())]


def proof() -> list[Step]:
    """Try a call that the supervisor refuses."""
    return [fails(Call.CHROOT, "/", errnos=(errno.EACCES,))]


def quiet_proof() -> list[Step]:
    """Try a call that the filter itself refuses. For a process whose steps must not wait for the supervisor."""
    allow = Block(struct.pack("I", _ALLOW))
    return [fails(Call.SECCOMP, _GET_ACTION_AVAIL, 0, allow, errnos=(errno.EACCES,))]

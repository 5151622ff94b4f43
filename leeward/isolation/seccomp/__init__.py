"""
seccomp: which system calls a job may make, and with which arguments.

Runs in:   the steps are made in the zygote and taken in the runner; the daemon chooses one of the programs (`filters`),
           which are made where leeward is developed (table, plan, compile, shorten, bpf).
Stands if: every other lock is wrong in the kernel calls that this one keeps away.
Leaves:    what the allowed calls do; the mount view, Landlock and rlimits decide that.
Source:    seccomp(2), seccomp_unotify(2)

A job's system call is one of four things: allowed, answered by the filter itself
with an errno, deadly (another architecture's calling convention), or, for all that
the table doesn't list, refused by the supervisor with EACCES, counted and logged.
"""

from __future__ import annotations

import errno

from leeward._native import seccomp as native
from leeward._native.steps import Call, Cell, Step, fails


def steps(program: bytes, listener: Cell) -> list[Step]:
    """
    Lock the thread that takes these into *program*, a `Program.insns` of `filters`.

    Irreversible; needs no_new_privs. *listener* gets a close-on-exec descriptor, which goes to
    the supervisor and is closed: until then a refused call waits.
    """
    return [native.listen_step(listener, program, killable=native.has_wait_killable())]


def proof() -> list[Step]:
    """
    A call that the supervisor refuses.
    """
    return [fails(Call.CHROOT, "/", errnos=(errno.EACCES,))]

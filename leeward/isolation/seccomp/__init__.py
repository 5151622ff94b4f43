"""
seccomp: which system calls a job may make, and with which arguments.

Runs in:   enter() in the crossing; table, plan, compile, bpf in the daemon only.
Stands if: every other lock is wrong in the kernel calls that this one keeps away.
Leaves:    what the allowed calls do; the mount view, Landlock and rlimits decide that.
Source:    seccomp(2), seccomp_unotify(2)

A job's system call is one of four things: allowed, answered by the filter itself
with an errno, deadly (another architecture's calling convention), or, for all that
the table doesn't list, refused by the supervisor with EACCES, counted and logged.
"""

from __future__ import annotations

from leeward._native import seccomp as native


def enter(program: bytes) -> int:
    """
    Lock this thread into *program*, a `Program.insns`; return the listener's descriptor.

    Irreversible; needs no_new_privs. The caller owns the descriptor, hands it to the
    supervisor and closes it: until then a refused call waits.

    Raises:
        KernelRefusal: with the call, its arguments and the errno.
    """
    return native.listen(program)

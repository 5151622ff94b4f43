"""Ends other threads of this process, the zygote. tgkill(2), exit(2)"""

from __future__ import annotations

from leeward._native._shim import lib
from leeward.errors import KernelRefusal

#: The number of futex(2), the system call in which a thread waits for work.
FUTEX = int(lib.SYS_futex)


def end(tid: int) -> None:
    """Make thread *tid*, which isn't the caller, exit at once and without cleanup, some time after this returns."""
    error = lib.lw_end_thread(tid)
    if error < 0:
        raise KernelRefusal("tgkill", f"{tid}, SIGRTMAX", -error)


def end_no_more() -> None:
    """Restore the default action of the signal that `end` uses. Call it when the ended threads are gone."""
    error = lib.lw_end_no_more()
    if error < 0:
        raise KernelRefusal("sigaction", "SIGRTMAX, SIG_DFL", -error)

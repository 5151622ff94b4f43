"""
Ending another thread of one's own process.

Runs in:   the zygote.
Source:    tgkill(2), exit(2), proc(5)
"""

from __future__ import annotations

from leeward._native._shim import lib
from leeward.errors import KernelRefusal

#: The number of futex(2): what a thread that waits for work is in.
FUTEX = int(lib.SYS_futex)


def end(tid: int) -> None:
    """
    Have thread *tid*, which isn't the caller, end where it is, with nothing cleaned up. It is gone some time after.

    Raises:
        KernelRefusal: there is no such thread.
    """
    error = lib.lw_end_thread(tid)
    if error < 0:
        raise KernelRefusal("tgkill", f"{tid}, SIGRTMAX", -error)


def end_no_more() -> None:
    """
    When they are gone: the signal that ended them does again what it does by default.
    """
    error = lib.lw_end_no_more()
    if error < 0:
        raise KernelRefusal("sigaction", "SIGRTMAX, SIG_DFL", -error)

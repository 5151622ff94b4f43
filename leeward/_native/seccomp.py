"""
seccomp(2): install a filter with a listener, and ask what the kernel knows.

Runs in:   listen() in the crossing; the questions anywhere.
Source:    seccomp(2), seccomp_unotify(2), <linux/seccomp.h>
"""

from __future__ import annotations

import errno

from leeward._native._shim import ffi, lib
from leeward.errors import KernelRefusal

#: One BPF instruction, in bytes.
INSTRUCTION = 8


def listen(program: bytes) -> int:
    """
    Install *program* on this thread; return its notification descriptor.

    Once the supervisor has taken a call only a deadly signal ends the wait for its
    answer, where the kernel can do that (Linux 5.19). Until then any signal does, and a
    handler without SA_RESTART makes the call fail with EINTR.

    Irreversible; needs no_new_privs. Linux 5.0. seccomp(2), seccomp_unotify(2).

    Args:
        program: BPF instructions of 8 bytes each, at most 4096 of them.

    Returns:
        A close-on-exec descriptor. The caller owns it.

    Raises:
        KernelRefusal: with the call, its arguments and the errno.
    """
    count = len(program) // INSTRUCTION
    fd = int(lib.lw_seccomp_listen(ffi.from_buffer(program), count, lib.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV))
    if fd == -errno.EINVAL:  # an older kernel; if it is the program, the next call says so again
        fd = int(lib.lw_seccomp_listen(ffi.from_buffer(program), count, 0))
    if fd < 0:
        raise KernelRefusal("seccomp", f"SECCOMP_SET_MODE_FILTER, NEW_LISTENER, {count} instructions", -fd,
                            "another listener is installed already" if -fd == errno.EBUSY else "")
    return fd


def has_user_notif() -> bool:
    """
    Can a filter ask a supervisor? Linux 5.0.
    """
    return _answer(lib.lw_seccomp_action_known(lib.SECCOMP_RET_USER_NOTIF), "SECCOMP_GET_ACTION_AVAIL")


def has_wait_killable() -> bool:
    """
    Does `listen` get SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV? Linux 5.19.
    """
    flags = lib.SECCOMP_FILTER_FLAG_NEW_LISTENER | lib.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    return _answer(lib.lw_seccomp_flags_known(flags), "SECCOMP_SET_MODE_FILTER, WAIT_KILLABLE_RECV")


def notif_sizes() -> tuple[int, int, int]:
    """
    Bytes of the kernel's struct seccomp_notif, seccomp_notif_resp and seccomp_data.

    SECCOMP_GET_NOTIF_SIZES, Linux 5.0.

    Raises:
        KernelRefusal: with the call, its arguments and the errno.
    """
    sizes = ffi.new("uint16_t[3]")
    failed = lib.lw_seccomp_notif_sizes(sizes, sizes + 1, sizes + 2)
    if failed:
        raise KernelRefusal("seccomp", "SECCOMP_GET_NOTIF_SIZES", -failed)
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def _answer(found: int, question: str) -> bool:
    if found < 0:
        raise KernelRefusal("seccomp", question, -found)
    return bool(found)

"""
Questions about what the kernel offers, by calls that change nothing.

Runs in:   `leeward doctor`, and the daemon at its start.
"""

from __future__ import annotations

import errno

from leeward._native.steps import Call, result_of


def io_uring_refusal() -> int:
    """
    The errno with which io_uring_setup(2) is refused here: EPERM by kernel.io_uring_disabled or a filter, ENOSYS by a
    kernel without io_uring (before Linux 5.1) or a filter. 0 where it is allowed: without parameters it says EFAULT.
    """
    refusal = -result_of(Call.IO_URING_SETUP, 1, 0, optional=True)
    return 0 if refusal == errno.EFAULT else refusal

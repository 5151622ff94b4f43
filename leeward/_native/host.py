"""Questions about what the kernel offers, by calls that change nothing."""

from __future__ import annotations

import errno

from leeward._native.steps import Call, result_of


def io_uring_refusal() -> int:
    """The errno with which io_uring_setup(2), Linux 5.1, is refused here; 0 where without parameters it says EFAULT."""
    refusal = -result_of(Call.IO_URING_SETUP, 1, 0, optional=True)
    return 0 if refusal == errno.EFAULT else refusal

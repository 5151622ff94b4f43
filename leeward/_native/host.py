"""
Questions about what the kernel offers, by calls that change nothing.

Runs in:   `leeward doctor`, and the daemon at its start.
"""

from __future__ import annotations

import errno

from leeward._native._shim import lib


def io_uring_refusal() -> int:
    """The errno with which io_uring_setup(2) is refused here; 0 where it is allowed. Linux 5.1."""
    refusal = -int(lib.lw_io_uring_setup_refusal())
    return 0 if refusal == errno.EFAULT else refusal

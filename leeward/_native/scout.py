"""
A clone that goes the way of a job, and tells which pages it touched.

Runs in:   the zygote; the child side of `scout`.
Needs:     one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.keeper import Kept
from leeward.errors import KernelRefusal

#: What a clone reads.
_given: list[Any] = []


def scout(kept: Kept, ranges: Sequence[tuple[int, int]], ends: Sequence[int], out: int) -> bool:
    """
    Clone this process. The clone begins in C, and has its frame, where jobs of *kept* do for which somebody waits.

    Args:
        ranges: address and bytes of whole pages that are looked at.
        ends: copied to the descriptors 0, 1, 2, job, reply, birth; each is above these.
        out: a memory file, above these numbers too, which gets an entry of /proc/PID/pagemap for each page when the job
            has ended.

    Returns:
        True in the clone, which runs its job then and ends by itself; False in the caller when it has ended.

    Raises:
        KernelRefusal: there was no clone, or its job didn't come to its end.
    """
    looked = ffi.new("struct lw_range[]", list(ranges))
    how = ffi.new("struct lw_scout *", {"beginning": kept.beginning or ffi.NULL, "ranges": looked, "count": len(ranges),
                                        "ends": list(ends), "out": out})
    _given[:] = looked, how  # the clone leaves this function, and needs them when its job has ended
    done = lib.lw_scout(how)
    if 0 != done:
        _given.clear()
    if done < 0:
        raise KernelRefusal("clone3", "a scout", -done)
    return bool(0 == done)

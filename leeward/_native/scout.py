"""Runs a job in a clone of the zygote, which has one thread, to find out which pages jobs touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leeward._native._shim import ffi, lib
from leeward._native.keeper_loop import Kept
from leeward.errors import KernelRefusal

#: Memory that C reads after `scout` has returned in the clone.
_given: list[Any] = []


def scout(kept: Kept, ranges: Sequence[tuple[int, int]], ends: Sequence[int], out: int) -> bool:
    """
    Clone this process. The clone begins in the way of jobs of *kept* for which a request waits, and has its frame if
    these begin in C. True in the clone, which then has to run its job and to end by itself; False in the caller once it
    has ended; KernelRefusal if it couldn't be made, or its job didn't come to its end.

    Args:
        ranges: address and bytes of the memory whose pages are reported, in whole pages.
        ends: six descriptors that are copied to 0 to 5 (stdin, stdout, stderr, job, reply, birth); each is above 5.
        out: a memory file, also above 5, into which the /proc/PID/pagemap entry of each page is written when the
            job has ended.
    """
    looked = ffi.new("struct lw_range[]", list(ranges))
    how = ffi.new("struct lw_scout *", {"beginning": kept.beginning or ffi.NULL, "ranges": looked, "count": len(ranges),
                                        "ends": list(ends), "out": out})
    _given[:] = looked, how  # the clone leaves this function, and needs them when its job has ended
    done = lib.lw_scout(how)
    if done != 0:
        _given.clear()
    if done < 0:
        raise KernelRefusal("clone3", "a scout", -done)
    return bool(done == 0)

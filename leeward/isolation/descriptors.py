"""The descriptors that a job starts with; all others are closed. dup3(2), close_range(2) of Linux 5.9"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

from leeward._native.steps import AT_FDCWD, Call, Cell, Step, gives, returns

#: A number above all descriptors in use, so that no dup3 overwrites a descriptor that is still needed.
_PARKING = 64


def steps(wanted: Sequence[Cell | None], inherited: int, left: Sequence[int] = ()) -> list[Step]:
    """
    Make descriptors 0, 1, 2, ... copies of *wanted*, where None stands for /dev/null, and close all others but *left*,
    which are adjacent, in order, and above all that are parked: a later step closes them. The first *inherited* copies
    stay open on exec; the others are close-on-exec.
    """
    made: list[Step] = []
    parked = [Cell(f"end {number}") for number in range(len(wanted))]
    for cell, end in zip(parked, wanted, strict=True):
        if end is None:
            end = Cell("null")
            made.append(gives(end, Call.OPENAT, AT_FDCWD, "/dev/null", os.O_RDONLY | os.O_CLOEXEC, 0))
        made.append(gives(cell, Call.FCNTL, end, fcntl.F_DUPFD_CLOEXEC, _PARKING))
    for number, cell in enumerate(parked):
        made.append(returns(Call.DUP3, cell, number, 0 if number < inherited else os.O_CLOEXEC, value=number))
    if not left:
        return [*made, returns(Call.CLOSE_RANGE, len(wanted), 0xFFFF_FFFF, 0)]
    return [*made, returns(Call.CLOSE_RANGE, len(wanted), left[0] - 1, 0),
            returns(Call.CLOSE_RANGE, left[-1] + 1, 0xFFFF_FFFF, 0)]

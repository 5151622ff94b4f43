"""
The machine: its description, which belongs to each figure, and the load of other processes meanwhile.

Runs in:   the CLI.

A guest can't see how fast a virtual processor is at a moment. It can see the time that the host gave to other guests
(steal), and the time that other processes of this machine take: how busy the processors are in a short window of each
round, in which the bench does nothing.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Shares of all processor time above which the measured times mean little: that of the host's other guests, and that of
#: other processes while the bench does nothing.
STOLEN, OTHERS = 0.02, 0.1

#: Seconds of a window, and of a rest before it, in which work that the bench has started ends.
_WINDOW_S, _REST_S = 0.05, 0.03


def described(floors_in_c: bool) -> dict[str, Any]:
    """The description of the machine, which belongs to each figure."""
    return {"kernel": platform.release(), "arch": platform.machine(), "processors": len(os.sched_getaffinity(0)),
            "python": platform.python_version(), "root": os.geteuid() == 0,
            "floors": "C" if floors_in_c else "Python, for want of a compiler"}


@dataclass(frozen=True, slots=True)
class Ticks:
    """The kernel's counters for all processors together, or differences of them."""

    total: int = 0
    idle: int = 0
    stolen: int = 0

    def __sub__(self, other: Ticks) -> Ticks:
        return Ticks(self.total - other.total, self.idle - other.idle, self.stolen - other.stolen)

    def __add__(self, other: Ticks) -> Ticks:
        return Ticks(self.total + other.total, self.idle + other.idle, self.stolen + other.stolen)


@dataclass(frozen=True, slots=True)
class Stir:
    """
    The load of others, as shares of all processor time.

    Attributes:
        steal: the share that the host gave to other guests.
        others: the share that other processes took while the bench did nothing.
    """

    steal: float
    others: float

    @property
    def noisy(self) -> bool:
        return self.steal > STOLEN or self.others > OTHERS


def read(stat: str) -> Ticks:
    """The counters in the text of /proc/stat; proc(5)."""
    user, nice, system, idle, iowait, irq, softirq, *rest = (int(word) for word in stat.split("\n", 1)[0].split()[1:])
    stolen = rest[0] if rest else 0
    return Ticks(user + nice + system + idle + iowait + irq + softirq + stolen, idle + iowait, stolen)


def now() -> Ticks:
    return read(Path("/proc/stat").read_text())


class Watch:
    """Measures the load of others since this object was made."""

    def __init__(self) -> None:
        self._start = now()
        self._windows = Ticks()

    def window(self) -> None:
        """Do nothing for a moment, and count the processor time that other processes take."""
        time.sleep(_REST_S)
        before = now()
        time.sleep(_WINDOW_S)
        self._windows += now() - before

    def stir(self) -> Stir:
        return judged(now() - self._start, self._windows)


def judged(whole: Ticks, windows: Ticks) -> Stir:
    """The load of others, from the counters of the whole run and those of its windows."""
    busy = windows.total - windows.idle
    return Stir(round(whole.stolen / max(1, whole.total), 4), round(busy / max(1, windows.total), 4))

"""
The machine: what a figure has to be dated with, and what others did to it meanwhile.

Runs in:   the CLI.

Nobody sees from inside how fast a virtual processor is at a moment. What shows is the time that the
host gave to others (steal), and what this host's own others take: how busy its processors are while the bench does
nothing, in a short window of each round.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Shares of all processor time, above which times mean little: taken by the host's other guests, and by other
#: processes while the bench did nothing.
STOLEN, OTHERS = 0.02, 0.1

#: Seconds of a window, and of rest before it, in which what the bench has set going comes to its end.
_WINDOW_S, _REST_S = 0.05, 0.03


def described(floors_in_c: bool) -> dict[str, Any]:
    """
    What a figure has to be dated with.
    """
    return {"kernel": platform.release(), "arch": platform.machine(), "processors": len(os.sched_getaffinity(0)),
            "python": platform.python_version(), "root": 0 == os.geteuid(),
            "floors": "C" if floors_in_c else "Python, for want of a compiler"}


@dataclass(frozen=True, slots=True)
class Ticks:
    """
    The kernel's counters, of all processors together; or what they grew by.
    """

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
    What others did, in shares of all processor time.

    Attributes:
        steal: given to others by the host.
        others: taken by other processes, while the bench did nothing.
    """

    steal: float
    others: float

    @property
    def noisy(self) -> bool:
        return self.steal > STOLEN or self.others > OTHERS


def read(stat: str) -> Ticks:
    """
    From the text of /proc/stat; proc(5).
    """
    user, nice, system, idle, iowait, irq, softirq, *rest = (int(word) for word in stat.split("\n", 1)[0].split()[1:])
    stolen = rest[0] if rest else 0
    return Ticks(user + nice + system + idle + iowait + irq + softirq + stolen, idle + iowait, stolen)


def now() -> Ticks:
    return read(Path("/proc/stat").read_text())


class Watch:
    """
    Looks at the machine from its making on.
    """

    def __init__(self) -> None:
        self._start = now()
        self._windows = Ticks()

    def window(self) -> None:
        """
        Do nothing for a moment, and see who does.
        """
        time.sleep(_REST_S)
        before = now()
        time.sleep(_WINDOW_S)
        self._windows += now() - before

    def stir(self) -> Stir:
        return judged(now() - self._start, self._windows)


def judged(whole: Ticks, windows: Ticks) -> Stir:
    """
    Of the time of the run, and of its windows.
    """
    busy = windows.total - windows.idle
    return Stir(round(whole.stolen / max(1, whole.total), 4), round(busy / max(1, windows.total), 4))

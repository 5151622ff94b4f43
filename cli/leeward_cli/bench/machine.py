"""
The machine: what a figure has to be dated with, and what others did to it meanwhile.

Runs in:   the CLI.

Nobody sees from inside how fast a virtual processor is at a moment. What shows is the time that the
host gave to others (steal), and the share of time in which somebody who could run had to wait (pressure); the
bench itself never wants more processors than it has, but for its bursts of callers.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Of all processor time: more than that taken by the host's other guests, and times mean little.
STOLEN = 0.02


def described(floors_in_c: bool) -> dict[str, Any]:
    """
    What a figure has to be dated with.
    """
    return {"kernel": platform.release(), "arch": platform.machine(), "processors": len(os.sched_getaffinity(0)),
            "python": platform.python_version(), "root": 0 == os.geteuid(),
            "floors": "C" if floors_in_c else "Python, for want of a compiler"}


@dataclass(frozen=True, slots=True)
class Clock:
    """
    Counters of the kernel at one moment: ticks of all processors, and seconds that somebody waited for one.

    Attributes:
        waited: None where the kernel keeps no pressure.
    """

    total: int
    stolen: int
    waited: float | None
    at: float

    def since(self, before: Clock) -> Stir:
        ticks = max(1, self.total - before.total)
        waited = None
        if self.waited is not None and before.waited is not None and self.at > before.at:
            waited = round((self.waited - before.waited) / (self.at - before.at), 3)
        return Stir(round((self.stolen - before.stolen) / ticks, 4), waited)


@dataclass(frozen=True, slots=True)
class Stir:
    """
    Shares of the time between two readings.

    Attributes:
        steal: of all processor time, given to others by the host.
        pressure: of the time, in which somebody waited for a processor.
    """

    steal: float
    pressure: float | None


def read(stat: str, pressure: str | None, at: float) -> Clock:
    """
    From the text of /proc/stat and /proc/pressure/cpu; proc(5).
    """
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    waited = None if pressure is None else int(pressure.split("total=", 1)[1].split()[0]) / 1e6
    return Clock(sum(fields), fields[7] if len(fields) > 7 else 0, waited, at)


def now(at: float) -> Clock:
    """
    The counters at *at* seconds of the monotonic clock.
    """
    try:
        pressure: str | None = Path("/proc/pressure/cpu").read_text()
    except OSError:  # a kernel without it, or booted with psi=0
        pressure = None
    return read(Path("/proc/stat").read_text(), pressure, at)

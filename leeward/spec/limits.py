"""
The limits of a job: defaults, units, and how far a request may move them.

Runs in:   anywhere; pure. This is the one place where defaults are written down;
           `leeward daemon run --print-config` prints them from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leeward.dataclass import dataclass, names, replace
from leeward.errors import BadRequest

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What one job may use.

    Attributes:
        memory: bytes, of all its processes and files together; no swap.
        cpu: percent of one processor, as cpu.max has it.
        processes: tasks at once, threads included.
        time: seconds from the moment its code is sent.
        files: bytes in /workspace, /tmp and /dev/shm together.
        output: bytes of stdout and stderr together.
        descriptors: open descriptors in each process.
    """

    memory: int = 256 * MIB
    cpu: int = 100
    processes: int = 32
    time: float = 30.0
    files: int = 64 * MIB
    output: int = 10 * MIB
    descriptors: int = 256


#: How far a request may raise a limit. What is not named in ADJUSTABLE is the daemon's alone.
CEILINGS = Limits(memory=4 * GIB, processes=256, time=600.0, output=256 * MIB)
ADJUSTABLE = ("memory", "processes", "time", "output")

#: Below these a job could not even start; asking for less is a mistake.
FLOORS = {"memory": 16 * MIB, "processes": 1, "time": 0.001, "output": 0}


def adjusted(default: Limits, ceilings: Limits, asked: Mapping[str, Any]) -> Limits:
    """
    *default* with what a request *asked* for, inside *ceilings*.

    Raises:
        BadRequest: an unknown limit, a wrong type, below the floor or above the ceiling.
    """
    if not asked:
        return default
    values: dict[str, Any] = {}
    for name, value in asked.items():
        if name not in ADJUSTABLE:
            raise BadRequest(f"limit {name!r:.40} can't be asked for; these can: {', '.join(ADJUSTABLE)}")
        number = float if "time" == name else int
        if isinstance(value, bool) or not isinstance(value, (int, number)) or not math.isfinite(value):
            raise BadRequest(f"limit {name} must be a finite {number.__name__}, not {value!r:.40}")
        if value < FLOORS[name]:
            raise BadRequest(f"limit {name}={value} is below the least that works, {FLOORS[name]}")
        ceiling = getattr(ceilings, name)
        if value > ceiling:
            raise BadRequest(f"limit {name}={value} is above this daemon's ceiling {ceiling}")
        values[name] = number(value)
    return replace(default, **values)


NAMES = names(Limits)

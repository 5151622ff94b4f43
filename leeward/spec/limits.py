"""
The limits of a job: defaults, units, and how far a request may change them. Defaults are written down here and nowhere
else; `leeward daemon run --print-config` prints them from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leeward.base.dataclass import dataclass, replace
from leeward.errors import BadRequest, brief
from leeward.spec.sizes import size_text

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

#: The lowest limit on the daemon's descriptors with which the locks of a job can be set: `isolation.descriptors` puts a
#: job's own above 64 for a while. A pool needs more, which `daemon.descriptors.shares` judges later.
LEAST_DESCRIPTORS = 80


@dataclass(frozen=True, slots=True)
class Limits:
    memory: int = 256 * MIB  # bytes of all its processes and files together; no swap
    cpu: int = 100  # percent of one processor; set by cpu.max of cgroups
    processes: int = 32  # processes and threads that may exist at once
    time: float = 30.0  # seconds from the moment that its code is sent to a worker
    files: int = 64 * MIB  # bytes in /workspace, /tmp and /dev/shm together
    output: int = 10 * MIB  # bytes of stdout and stderr together
    descriptors: int = 1024  # open descriptors in each process
    cuts_output: bool = False  # output beyond its limit is cut, and the program goes on; else it is ended
    cpu_time: float | None = None  # seconds of processor time of all its processes together; None for no limit
    wall: float | None = None  # seconds by the wall's clock; `time` is then without those for which the job was starved


#: The values up to which a request may raise a limit. A limit that isn't in ADJUSTABLE can't be set by a request.
CEILINGS = Limits(memory=4 * GIB, processes=256, time=600.0, output=256 * MIB, descriptors=4096, files=4 * GIB)
ADJUSTABLE = ("memory", "processes", "time", "output", "descriptors")
#: Those that a fresh job may ask for. The last two have the ceiling of `time`.
OF_JOBS = (*ADJUSTABLE, "cpu_time", "wall")
_SECONDS = ("time", "cpu_time", "wall")
#: Those that the opening of a live sandbox may ask for: the file system of a job has its size before there is a request.
OF_SANDBOXES = (*ADJUSTABLE, "files")

#: Below these values a job could not start; a request for less is refused.
FLOORS = {"memory": 16 * MIB, "processes": 1, "time": 0.001, "cpu_time": 0.001, "wall": 0.001, "output": 0,
          "descriptors": 16, "files": 64 * KIB}

#: The choice among the limits, and its values: whether a program that exceeds `output` goes on.
OVERFLOW = "overflow"
_OVERFLOWS = {"cut": True, "end": False}


def limit_text(name: str, value: float) -> str:
    """The *value* of the limit *name* for a person: a size, a number or seconds."""
    return size_text(int(value)) if name in ("memory", "files", "output") else str(value)


def adjusted(default: Limits, ceilings: Limits, asked: Mapping[str, Any], adjustable: Sequence[str] = ADJUSTABLE) -> Limits:
    """*default* with the limits that a request *asked* for; BadRequest for one not in *adjustable*, or out of bounds."""
    if not asked:
        return default
    values: dict[str, Any] = {}
    for name, value in asked.items():
        if name == OVERFLOW:
            if not isinstance(value, str) or value not in _OVERFLOWS:
                raise BadRequest(f"limit {name} must be {' or '.join(_OVERFLOWS)}, not {brief(value)}")
            values["cuts_output"] = _OVERFLOWS[value]
            continue
        if name not in adjustable:
            hint = ("; the opening of a live sandbox can ask for it" if name in OF_SANDBOXES else
                    "; a fresh job can ask for it" if name in OF_JOBS else "")
            raise BadRequest(f"limit {brief(name)} can't be asked for; these can: {', '.join((*adjustable, OVERFLOW))}{hint}")
        number = float if name in _SECONDS else int
        if isinstance(value, bool) or not isinstance(value, (int, number)) or not math.isfinite(value):
            raise BadRequest(f"limit {name} must be a finite {number.__name__}, not {brief(value)}")
        if value < FLOORS[name]:
            raise BadRequest(f"limit {name}={limit_text(name, value)} is below the least that works,"
                             f" {limit_text(name, FLOORS[name])}")
        ceiling = ceilings.time if name in _SECONDS else getattr(ceilings, name)
        if value > ceiling:
            raise BadRequest(f"limit {name}={limit_text(name, value)} is above this daemon's ceiling"
                             f" {limit_text(name, ceiling)}, which `{'time' if name in _SECONDS else name}` below [ceilings]"
                             " of its configuration changes")
        values[name] = number(value)
    limits = replace(default, **values)
    if limits.wall is not None and limits.wall < limits.time:
        raise BadRequest(f"limit wall={limits.wall:g} is below the limit time={limits.time:g}: it bounds how far that is"
                         " stretched")
    return limits



def of_sandbox(default: Limits, ceilings: Limits, asked: Mapping[str, Any]) -> Limits:
    """As `adjusted`, for a live sandbox. Its files, unless it asks for some, grow with the memory, up to half of it."""
    limits = adjusted(default, ceilings, asked, OF_SANDBOXES)
    if "files" in asked or limits.memory <= default.memory:
        return limits
    grown = min(default.files * limits.memory // default.memory, limits.memory // 2, ceilings.files)
    return replace(limits, files=max(default.files, grown))

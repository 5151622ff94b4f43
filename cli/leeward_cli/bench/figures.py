"""
Percentiles, ratios and noise; and the machine: its description, which belongs to each figure, and the load of others.

A percentile is the nearest rank: the smallest sample that at least p % of all samples don't exceed. It is a measured
time, never a value between two samples.

A guest can't see how fast a virtual processor is at a moment. It can see the time that the host gave to other guests
(steal), and the time that other processes of this machine take: how busy the processors are in a short window of each
round, in which the bench does nothing.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The ninth decile of the floor's medians divided by the first. If only the bench runs on a machine, it is below this.
#: Above it, the times depend as much on other processes as on leeward.
NOISY = 1.35
#: Shares of all processor time above which the measured times mean little: that of the host's other guests, and that of
#: other processes while the bench does nothing.
STOLEN, OTHERS = 0.02, 0.1
#: Seconds of a window, and of a rest before it, in which work that the bench has started ends.
_WINDOW_S, _REST_S = 0.05, 0.03


def percentile(samples: Sequence[float], p: int) -> float:
    """The nearest-rank percentile *p*, 1 to 100, of at least one sample."""
    rank = max(1, math.ceil(p * len(samples) / 100))
    return sorted(samples)[rank - 1]


@dataclass(frozen=True, slots=True)
class Figure:
    subject: str
    gap_ms: float
    n: int
    least: float
    p50: float
    p90: float
    p99: float


def figure(subject: str, gap_s: float, seconds: Sequence[float]) -> Figure:
    times = (round(value * 1e6, 1) for value in (min(seconds), *(percentile(seconds, p) for p in (50, 90, 99))))
    return Figure(subject, round(gap_s * 1e3, 3), len(seconds), *times)


def ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> float:
    """The median of the rounds' ratios of medians: a machine that slows down for a second slows both."""
    pairs = [percentile(a, 50) / percentile(b, 50) for a, b in zip(over, under, strict=True)]
    return round(percentile(pairs, 50), 3)


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second of bursts; `n` jobs in all of them. The percentiles go from good to bad, as those of times do."""

    subject: str
    callers: int
    n: int
    bursts: int
    p50: int
    p90: int
    p99: int
    least: int
    most: int


def rate(subject: str, callers: int, jobs: int, rates: Sequence[float]) -> Rate:
    slow = [1 / each for each in rates]
    p50, p90, p99 = (round(1 / percentile(slow, p)) for p in (50, 90, 99))
    return Rate(subject, callers, jobs * len(rates), len(rates), p50, p90, p99, round(min(rates)), round(max(rates)))


# --- the machine --------------------------------------------------------------


def described(floors_in_c: bool) -> dict[str, Any]:
    return {"kernel": platform.release(), "arch": platform.machine(), "processors": len(os.sched_getaffinity(0)),
            "python": platform.python_version(), "root": os.geteuid() == 0,
            "floors": "C" if floors_in_c else "Python, for want of a compiler"}


@dataclass(frozen=True, slots=True)
class Ticks:
    total: int = 0
    idle: int = 0
    stolen: int = 0

    def __sub__(self, other: Ticks) -> Ticks:
        return Ticks(self.total - other.total, self.idle - other.idle, self.stolen - other.stolen)

    def __add__(self, other: Ticks) -> Ticks:
        return Ticks(self.total + other.total, self.idle + other.idle, self.stolen + other.stolen)


@dataclass(frozen=True, slots=True)
class Stir:
    """Shares of all processor time: of the host's other guests, and of other processes while the bench did nothing."""

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


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of the floor's medians of single rounds, in microseconds, and the load of others as `Stir` has it."""

    low: float
    high: float
    spread: float
    steal: float
    others: float
    noisy: bool


def noise(floor: Sequence[Sequence[float]], stir: Stir) -> Noise:
    """Judge by the *floor*'s samples of each round, which leeward doesn't influence, and by the load of others."""
    medians = [percentile(samples, 50) for samples in floor]
    low, high = percentile(medians, 10), percentile(medians, 90)
    spread = round(high / low, 3)
    return Noise(round(low * 1e6, 1), round(high * 1e6, 1), spread, stir.steal, stir.others,
                 spread > NOISY or stir.noisy)

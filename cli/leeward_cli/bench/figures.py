"""
Percentiles, ratios and noise.

Runs in:   the CLI; pure.

A percentile is the nearest rank: the smallest sample that at least p % of all samples
don't exceed. It is a measured time, never a value between two samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leeward_cli.bench.machine import Stir

#: The ninth decile of the floor's medians divided by the first. If only the bench runs on a machine, it is below this.
#: Above it, the times depend as much on other processes as on leeward.
NOISY = 1.35


def percentile(samples: Sequence[float], p: int) -> float:
    """The nearest-rank percentile *p*, 1 to 100, of at least one sample."""
    rank = max(1, math.ceil(p * len(samples) / 100))
    return sorted(samples)[rank - 1]


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the report, with times in microseconds."""

    subject: str
    gap_ms: float
    n: int
    least: float
    p50: float
    p90: float
    p99: float


def figure(subject: str, gap_s: float, seconds: Sequence[float]) -> Figure:
    """The row of *seconds*, the times of single calls."""
    def us(value: float) -> float:
        return round(value * 1e6, 1)

    return Figure(subject, round(gap_s * 1e3, 3), len(seconds), us(min(seconds)),
                  *(us(percentile(seconds, p)) for p in (50, 90, 99)))


def ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> float:
    """
    The median, over the rounds, of one round's median *over* divided by its median *under*.

    Both are compared within a round, because a machine that slows down for a second slows both.
    """
    pairs = [percentile(a, 50) / percentile(b, 50) for a, b in zip(over, under, strict=True)]
    return round(percentile(pairs, 50), 3)


@dataclass(frozen=True, slots=True)
class Noise:
    """
    The spread of the floor's medians of single rounds, in microseconds, and the share of the machine that other
    processes took.
    """

    low: float
    high: float
    spread: float
    steal: float
    others: float
    noisy: bool


def noise(floor: Sequence[Sequence[float]], stir: Stir) -> Noise:
    """
    Judge the noise by the *floor*'s samples of each round, which leeward doesn't influence, and by the load of other
    processes.
    """
    medians = [percentile(samples, 50) for samples in floor]
    low, high = percentile(medians, 10), percentile(medians, 90)
    spread = round(high / low, 3)
    return Noise(round(low * 1e6, 1), round(high * 1e6, 1), spread, stir.steal, stir.others,
                 spread > NOISY or stir.noisy)


@dataclass(frozen=True, slots=True)
class Rate:
    """
    Jobs per second of bursts. The percentiles go from the good end to the bad one, as those of times do.

    Attributes:
        n: the number of jobs in all *bursts* bursts.
    """

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
    """The row of *rates*, jobs per second of single bursts of *jobs* jobs."""
    slow = [1 / each for each in rates]
    p50, p90, p99 = (round(1 / percentile(slow, p)) for p in (50, 90, 99))
    return Rate(subject, callers, jobs * len(rates), len(rates), p50, p90, p99, round(min(rates)), round(max(rates)))

"""Rows of the table (the measured value, its target, whether it was met), and the turns in which they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leeward_cli.bench.figures import figure, percentile, ratio
from leeward_cli.bench.floors import Subject
from leeward_cli.bench.rounds import GAP_S, no_collections, row

#: Seconds of each call, by subject and round.
Found = Mapping[str, Sequence[Sequence[float]]]

#: Calls of each subject before the calls that count.
_WARM = 3


@dataclass(frozen=True, slots=True)
class Row:
    """
    One figure.

    Attributes:
        value: the measured value; None if it couldn't be measured, and then `note` has the reason.
        unit: "x" for a ratio, else the unit of the value.
        target: None if the figure has no target.
        at_most: the target is a ceiling, not a floor.
        measured: the figures from which the value is computed, each with p50, p90, p99 and n.
        note: how the value was measured, if the description doesn't say it.
        floor: the value, measured in the same run, of the least that does the same.
    """

    figure: str
    value: float | None
    unit: str
    target: float | None
    at_most: bool = True
    measured: Sequence[Mapping[str, Any]] = ()
    note: str = ""
    floor: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None if there is no value or no target."""
        if self.value is None or self.target is None:
            return None
        return self._meets(self.value)

    @property
    def bound(self) -> bool:
        """Whether the target wasn't met, and the floor doesn't meet it either."""
        return self.met is False and self.floor is not None and not self._meets(self.floor)

    def _meets(self, value: float) -> bool:
        assert self.target is not None
        return value <= self.target if self.at_most else value >= self.target

    def as_object(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met, "bound": self.bound}


@dataclass(slots=True)
class FigureSettings:
    """The arguments of every group: the floors in C (None without a compiler), and how often a pair takes short turns."""

    program: str | None
    rounds: int

    def some(self, of: int) -> int:
        """The number of rounds for turns that take long: *of* of 40 rounds, in proportion, and at least one."""
        return max(1, self.rounds * of // 40)


def in_turn(subjects: Sequence[Subject], rounds: int, calls: int, gap_s: float = GAP_S) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        for _ in range(_WARM):
            subject.call()
    with no_collections():
        for number in range(rounds):
            # The order alternates, because a subject finds colder caches after another one.
            for subject in subjects if number % 2 else reversed(subjects):
                found[subject.name].append(row(subject.call, calls, gap_s))
    return found


def quotient(over: Sequence[float], under: Sequence[float]) -> float:
    """The median over the rounds of the ratio of two values, for rates and other figures with one number per round."""
    return round(percentile([a / b for a, b in zip(over, under, strict=True)], 50), 3)


def compared(words: str, found: Found, over: str, under: str, target: float | None, *, at_most: bool = True,
             gap_s: float = GAP_S, note: str = "", floor: str = "") -> Row:
    """*floor* is the name of the least that does the same as *over*."""
    return Row(words, ratio(found[over], found[under]), "x", target, at_most,
               [times(name, found[name], gap_s) for name in (over, under)], note,
               ratio(found[floor], found[under]) if floor else None)


def absolute(words: str, rounds: Sequence[Sequence[float]], unit: str, target: float | None, note: str,
             floor: Sequence[Sequence[float]] = ()) -> Row:
    middle, least = (round(percentile([each for row in some for each in row], 50) * {"ms": 1e3, "us": 1e6}[unit], 2)
                     if some else None for some in (rounds, floor))
    return Row(words, middle, unit, target, measured=[times(words, rounds)], note=note, floor=least)


def missing(words: str, target: float | None, why: str, at_most: bool = True) -> Row:
    return Row(words, None, "x", target, at_most, note=f"not measured: {why}")


def times(subject: str, rounds: Sequence[Sequence[float]], gap_s: float = 0.0) -> dict[str, Any]:
    return {"unit": "us", **asdict(figure(subject, gap_s, [each for row in rounds for each in row]))}


def spread(subject: str, unit: str, values: Sequence[float], digits: int, *, at_most: bool = True) -> dict[str, Any]:
    """The figures of *values* in another unit; percentiles go from good to bad."""
    return {"subject": subject, "unit": unit, "n": len(values),
            **{f"p{p}": round(percentile(values, p if at_most else 100 - p), digits) for p in (50, 90, 99)}}

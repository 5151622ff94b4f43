"""
A row of the table: the measured value, its target, and whether it was met.

Runs in:   a developer's shell; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward_cli.bench.figures import figure


@dataclass(frozen=True, slots=True)
class Row:
    """
    One figure.

    Attributes:
        figure: the description of the figure.
        value: the measured value; None if it couldn't be measured, and then `note` has the reason.
        unit: "x" for a ratio, else the unit of the value.
        target: None if the figure has no target.
        at_most: the target is a ceiling, not a floor.
        measured: the figures from which the value is computed, each with p50, p90, p99 and n.
        note: how the value was measured, if the description doesn't say it.
    """

    figure: str
    value: float | None
    unit: str
    target: float | None
    at_most: bool = True
    measured: Sequence[Mapping[str, Any]] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None if there is no value or no target."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def as_object(self) -> dict[str, Any]:
        """Return the row as an object for `--json`."""
        return {"figure": self.figure, "value": self.value, "unit": self.unit, "target": self.target,
                "at_most": self.at_most, "met": self.met, "measured": [dict(each) for each in self.measured],
                "note": self.note}


@dataclass(slots=True)
class FigureSettings:
    """
    The arguments of every group.

    Attributes:
        program: the floors in C; None without a compiler.
        rounds: how often each pair takes turns, where a turn is short; a long one has fewer.
    """

    program: str | None
    rounds: int

    def some(self, of: int) -> int:
        """Return the number of rounds for turns that take long: *of* of 40 rounds, in proportion, and at least one."""
        return max(1, self.rounds * of // 40)


def missing(words: str, target: float | None, why: str, at_most: bool = True) -> Row:
    """Return a row that can't be measured on this machine."""
    return Row(words, None, "x", target, at_most, note=f"not measured: {why}")


def times(subject: str, gap_s: float, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the figures of all calls of all rounds, in microseconds."""
    made = figure(subject, gap_s, [each for row in rounds for each in row])
    return {"subject": made.subject, "gap_ms": made.gap_ms, "unit": "us", "n": made.n, "p50": made.p50, "p90": made.p90,
            "p99": made.p99}

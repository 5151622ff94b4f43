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
        figure: its words.
        value: None if it couldn't be measured; `note` says why.
        unit: "x" of a ratio, else of the value.
        target: None where the figure is only to be known.
        at_most: the target is a ceiling, not a floor.
        measured: what the value was made of, each with p50, p90, p99 and n.
        note: how it was measured, as far as the words don't say.
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
        """
        None where that can't be said.
        """
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def as_object(self) -> dict[str, Any]:
        """
        For `--json`.
        """
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
        """
        Rounds for turns that take long: *of* where there are 40, and one at least.
        """
        return max(1, self.rounds * of // 40)


def missing(words: str, target: float | None, why: str, at_most: bool = True) -> Row:
    """
    A row that can't be measured on this machine.
    """
    return Row(words, None, "x", target, at_most, note=f"not measured: {why}")


def times(subject: str, gap_s: float, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """
    The figure of all calls of all rounds, in microseconds.
    """
    made = figure(subject, gap_s, [each for row in rounds for each in row])
    return {"subject": made.subject, "gap_ms": made.gap_ms, "unit": "us", "n": made.n, "p50": made.p50, "p90": made.p90,
            "p99": made.p99}

"""
Taking turns: every pair that is compared is measured round by round.

Runs in:   a developer's shell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leeward_cli.bench.figures import percentile, ratio
from leeward_cli.bench.floors import Subject
from leeward_cli.bench.rounds import no_collections, row

#: Calls of each subject before the calls that count.
_WARM = 3


def in_turn(subjects: Sequence[Subject], rounds: int, calls: int, gap_s: float) -> dict[str, list[list[float]]]:
    """Return the seconds of each call, by subject and round."""
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


def beside(found: Mapping[str, Sequence[Sequence[float]]], over: str, under: str) -> float:
    return ratio(found[over], found[under])


def quotient(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median over the rounds of the ratio of two values, for rates and other figures with one number per round."""
    return round(percentile([a / b for a, b in zip(over, under, strict=True)], 50), 3)

"""A line over time as numbers for SVG, and the two charts of the daemon's page. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leeward.apps.approvals.daemon_view import DaemonSample

#: The box that points are in, and the shortest time that it shows, in seconds.
WIDTH, HEIGHT, LEAST_S = 600, 120, 60.0

#: Values at times; None where there is none, which leaves a gap in the line.
Line = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    #: For each of `named` its name, the newest value as text, and `points` of SVG's polylines.
    lines: Sequence[tuple[str, str, Sequence[str]]]
    top: str  # the value of the upper edge
    seconds: float  # from the left edge to the right one


def chart(title: str, named: Sequence[tuple[str, Line]], said: Callable[[float], str]) -> Chart:
    """The *named* lines in one box, with values as *said*."""
    times = [time for _, line in named for time, _ in line]
    end = max(times, default=0.0)
    begin = min([*times, end - LEAST_S])
    top = _above(max((value for _, line in named for _, value in line if value is not None), default=0.0))
    return Chart(title, [(name, _newest(line, said), _pieces(line, begin, end, top)) for name, line in named], said(top),
                 end - begin)


def _newest(line: Line, said: Callable[[float], str]) -> str:
    value = next((value for _, value in reversed(line) if value is not None), None)
    return "none" if value is None else said(value)


def _pieces(line: Line, begin: float, end: float, top: float) -> list[str]:
    pieces: list[list[str]] = [[]]
    for time, value in line:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{WIDTH * (time - begin) / (end - begin):.1f},{HEIGHT * (1 - value / top):.1f}")
    return [" ".join(piece if len(piece) > 1 else piece * 2) for piece in pieces if piece]


def _above(value: float) -> float:
    """1, 2 or 5 times a power of ten, at or above *value*."""
    if not 0 < value < 1e15:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)


def charts(samples: Sequence[DaemonSample]) -> list[Chart]:
    """Jobs a second between two looks, and seconds of the jobs that have ended since the look before."""
    rates = [(new.time, (new.done - old.done) / (new.time - old.time) if new.time > old.time and new.done >= old.done
              else None) for old, new in pairwise(samples)]
    return [chart("Jobs a second", [("all users", rates)], lambda value: f"{value:.3g}"),
            chart("Seconds of a job", [("median", [(each.time, each.median) for each in samples]),
                                       ("longest", [(each.time, each.longest) for each in samples])], seconds_text)]


def seconds_text(seconds: float) -> str:
    """"0.3 ms", "45 ms", "1.2 s", "90 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.{1 if seconds < 10 else 0}f} s"

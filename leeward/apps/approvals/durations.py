"""Durations as text: `4h`, `1h30m`, `500ms`."""

from __future__ import annotations

import re

from leeward.errors import BadRequest

#: Seconds of each unit, the largest first, which is the order in which they are written.
UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

#: Seconds of the longest duration: a year.
LONGEST = 366 * 86400.0

_WHOLE = re.compile("".join(f"(?:([0-9]{{1,9}}){unit})?" for unit in UNITS))


def parse_duration(text: str) -> float:
    """The seconds that *text* says, by numbers with the units d, h, m, s and ms, each once and the largest first."""
    found = _WHOLE.fullmatch(text)
    if found is None or not text:
        raise BadRequest(f"no duration: {text!r:.40}; one is written as 4h, 30m, 1h30m, 2d or 500ms")
    seconds = sum(int(number) * UNITS[unit] for unit, number in zip(UNITS, found.groups(), strict=True) if number)
    if not 0 < seconds <= LONGEST:
        raise BadRequest("a duration is more than nothing, and a year at most")
    return seconds


def age_text(seconds: float) -> str:
    """Seconds in one unit: "12 s", "3 min", "2 h", "5 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def duration_text(seconds: float) -> str:
    """*seconds* as `parse_duration` reads them, to the millisecond; "0s" for nothing."""
    left, found = max(0, round(seconds * 1000)), ""
    for unit, size in UNITS.items():
        count, left = divmod(left, round(size * 1000))
        if count:
            found += f"{count}{unit}"
    return found or "0s"

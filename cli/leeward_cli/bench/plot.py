"""
Draws the findings: one bar for each subject, on a logarithmic scale.

Runs in:   the CLI; pure. The picture is SVG, which any browser shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

#: Sizes in pixels.
_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 960, 270, 190, 104, 30, 16

_OURS, _OTHERS, _INK, _PALE = "#0b6e4f", "#8fa3b0", "#1b1f23", "#d9dee2"


def svg(found: Mapping[str, Any], gap_ms: float = 5.0) -> str:
    """A picture of the calls in *found* that have *gap_ms* milliseconds between them."""
    rows = sorted((row for row in found["latency"] if row["gap_ms"] == gap_ms), key=lambda row: row["p50"])
    low = 10 ** math.floor(math.log10(min(row["p50"] for row in rows)))
    high = 10 ** math.ceil(math.log10(max(row["p99"] for row in rows)))
    bottom = _TOP + _STEP * len(rows)

    def x(us: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log10(us / low) / math.log10(high / low)

    host = found["machine"]
    lines = [
        _text(20, 30, 'How long until print("hello world") has been answered', size=18, weight="bold"),
        _text(20, 52, f"One call after the other, {gap_ms:g} ms between them. The bar ends at the median, the line at"
              " p90, the tick is p99. Each division is ten times the one before."),
        _text(20, 72, f"leeward {found['leeward']}, {found['date'][:10]}, Linux {host['kernel']}, {host['processors']}"
              f" processors, Python {host['python']}, {found['rounds']} rounds, interleaved."
              + (" The machine was noisy." if found["noise"]["noisy"] else "")),
        *_scale(low, high, x, bottom),
    ]
    for at, row in enumerate(rows):
        lines += _row(row, _TOP + _STEP * at + (_STEP - _BAR) / 2, x)
    height = bottom + 44
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">\n'
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(lines) + "\n</svg>\n")


def duration(us: float) -> str:
    """A time as text, with a suitable unit."""
    return f"{us:.3g} µs" if us < 999.5 else f"{us / 1e3:.3g} ms" if us < 999.5e3 else f"{us / 1e6:.3g} s"


def _scale(low: float, high: float, x: Callable[[float], float], bottom: float) -> list[str]:
    lines = []
    at = low
    while at <= high * 1.001:
        lines.append(f'<line x1="{x(at):.1f}" y1="{_TOP - 6}" x2="{x(at):.1f}" y2="{bottom}" stroke="{_PALE}"/>')
        lines.append(_text(x(at), bottom + 18, duration(at), anchor="middle"))
        at *= 10
    return lines


def _row(row: Mapping[str, Any], y: float, x: Callable[[float], float]) -> list[str]:
    middle = y + _BAR / 2
    ours = row["subject"].startswith(("leeward", "--"))
    end, far, most = x(row["p50"]), x(row["p90"]), x(row["p99"])
    return [
        _text(_LEFT - 10, middle + 4, row["subject"], anchor="end", weight="bold" if ours else "normal"),
        (f'<rect x="{_LEFT}" y="{y:.1f}" width="{max(1.0, end - _LEFT):.1f}" height="{_BAR}"'
         f' fill="{_OURS if ours else _OTHERS}"/>'),
        f'<line x1="{end:.1f}" y1="{middle:.1f}" x2="{far:.1f}" y2="{middle:.1f}" stroke="{_INK}"/>',
        f'<line x1="{most:.1f}" y1="{y + 3:.1f}" x2="{most:.1f}" y2="{y + _BAR - 3:.1f}" stroke="{_INK}"/>',
        _text(_WIDTH - _RIGHT + 14, middle + 4, f"{duration(row['p50'])}  (p99 {duration(row['p99'])}, n {row['n']})"),
    ]


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
            f' fill="{_INK}">{escape(words)}</text>')

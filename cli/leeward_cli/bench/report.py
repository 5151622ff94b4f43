"""`leeward bench`: its findings as one object for `--json`, as text, and as a picture, in SVG, which any browser shows."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from xml.sax.saxutils import escape

import click

from leeward import __version__
from leeward.errors import LeewardError
from leeward_cli.bench import floors, scaling
from leeward_cli.bench.figures import described, figure, noise, percentile, rate, ratio
from leeward_cli.bench.ours import OURS, daemon
from leeward_cli.bench.rounds import CALLERS, GAP_S, Samples, measure
from leeward_cli.click_options import JSON, socket_option

#: The parts of a call's time, by the fields of Legs.
_LEGS = {
    "there": "from the client to the job's first line",
    "back": "from the job's first line to the client",
    "job": "of both, by the daemon: from the job's frame to its reply",
}

#: Sizes in pixels.
_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 960, 270, 190, 104, 30, 16

_OURS, _OTHERS, _INK, _PALE = "#0b6e4f", "#8fa3b0", "#1b1f23", "#d9dee2"


def findings(samples: Samples) -> dict[str, Any]:
    """The object that `--json` prints, with times in microseconds and rates in jobs per second."""
    ours = {gap: samples.calls[OURS, gap] for gap in (GAP_S, 0.0)}
    floor = samples.calls[floors.FOUR_HOPS, GAP_S]
    # If there is only one round, its single calls are compared.
    stirred = noise(floor if len(floor) > 1 else [[time] for time in floor[0]], samples.stir)
    ratios = [
        {"over": OURS, "under": name, "gap_ms": gap * 1e3, "ratio": ratio(ours[gap], times)}
        for (name, gap), times in samples.calls.items() if name != OURS
    ]
    return {
        "leeward": __version__,
        "date": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "machine": described(samples.in_c),
        "rounds": samples.rounds,
        "noise": {**asdict(stirred), "load": round(samples.load, 2)},
        "latency": [asdict(figure(name, gap, [time for row in rows for time in row]))
                    for (name, gap), rows in samples.calls.items()],
        "ratios": ratios,
        "missing": samples.missing,
        "legs": {name: asdict(figure(text, GAP_S, [getattr(each, name) for each in samples.legs]))
                 for name, text in _LEGS.items()},
        "rates": [asdict(rate(name, CALLERS, samples.burst, rates)) for name, rates in samples.rates.items()],
        "processor_us_per_job": _spent(samples),
    }


def _spent(samples: Samples) -> dict[str, dict[str, float]]:
    made = {}
    for name in ("daemon", "zygote", "workers") if samples.spent else ():
        each = [seconds / samples.burst * 1e6 for spent in samples.spent
                if (seconds := getattr(spent, name)) is not None]
        if not each:  # no cgroup counts the workers' time
            continue
        made[name] = {"mean": round(sum(each) / len(each)), "n": samples.burst * len(each),
                      **{f"p{p}": round(percentile(each, p)) for p in (50, 90, 99)}}
    return made


def origin(found: Mapping[str, Any]) -> str:
    host = found["machine"]
    return (f"leeward {found['leeward']}, {found['date']}, Linux {host['kernel']} {host['arch']},"
            f" {host['processors']} processors, Python {host['python']}")


def text(found: Mapping[str, Any]) -> str:
    lines = [
        f"{origin(found)}, {found['rounds']} rounds",
        "",
        f'{"print(hello world), us":42}{"p50":>9}{"p90":>9}{"p99":>9}{"n":>7}   leeward is',
    ]
    ratios = {(each["under"], each["gap_ms"]): each["ratio"] for each in found["ratios"]}
    for gap, title in ((GAP_S * 1e3, f"{GAP_S * 1e3:g} ms between calls"), (0.0, "without a gap")):
        lines.append(title)
        for row in found["latency"]:
            if row["gap_ms"] == gap:
                beside = ratios.get((row["subject"], gap))
                lines.append(_row(row) + ("" if beside is None else f"   {beside:.2f} x"))
    lines.append("where a call's time goes, 5 ms between calls")
    lines += [_row(row) for row in found["legs"].values()]
    lines.append(f"{CALLERS} callers, jobs per second")
    lines += [f"  {row['subject']:40}{row['p50']:>9}{row['p90']:>9}{row['p99']:>9}{row['n']:>7}"
              for row in found["rates"]]
    if found["processor_us_per_job"]:
        lines.append("processor time of a job then, arming and end included: "
                     + ", ".join(f"{name} {each['mean']:g} us" for name, each in found["processor_us_per_job"].items()))
    lines += [f"not measured: {name} ({why})" for name, why in found["missing"].items()]
    lines += ["", _verdict(found["noise"])]
    return "\n".join(lines) + "\n"


def _row(row: Mapping[str, Any]) -> str:
    return f"  {row['subject']:40}{row['p50']:>9.0f}{row['p90']:>9.0f}{row['p99']:>9.0f}{row['n']:>7}"


def _verdict(stirred: Mapping[str, Any]) -> str:
    between = (f"the floor's median was {stirred['low']:.0f} to {stirred['high']:.0f} us from round to round,"
               f" the host took {100 * stirred['steal']:.1f} % of the processors for others, other processes"
               f" {100 * stirred['others']:.0f} %, and the load was {stirred['load']:g} before the start")
    if stirred["noisy"]:
        return f"The machine was noisy: {between}. Ratios hold better than times."
    return f"The machine was quiet: {between}."


# --- the picture --------------------------------------------------------------


def svg(found: Mapping[str, Any], gap_ms: float = 5.0) -> str:
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
        lines += _bar(row, _TOP + _STEP * at + (_STEP - _BAR) / 2, x)
    height = bottom + 44
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">\n'
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(lines) + "\n</svg>\n")


def duration(us: float) -> str:
    return f"{us:.3g} µs" if us < 999.5 else f"{us / 1e3:.3g} ms" if us < 999.5e3 else f"{us / 1e6:.3g} s"


def _scale(low: float, high: float, x: Callable[[float], float], bottom: float) -> list[str]:
    lines = []
    at = low
    while at <= high * 1.001:
        lines.append(f'<line x1="{x(at):.1f}" y1="{_TOP - 6}" x2="{x(at):.1f}" y2="{bottom}" stroke="{_PALE}"/>')
        lines.append(_text(x(at), bottom + 18, duration(at), anchor="middle"))
        at *= 10
    return lines


def _bar(row: Mapping[str, Any], y: float, x: Callable[[float], float]) -> list[str]:
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


# --- the command --------------------------------------------------------------

#: Without --rounds: on a quiet machine there are 800 calls of leeward, 8 of them at or above the p99. No round
#: starts after SECONDS, so that the bench takes less than two minutes.
ROUNDS, SECONDS, SCALE_ROUNDS = 40, 75.0, 12

#: Options that switch optimisations of the daemon off, to measure the gain of each.
LEVELS = (("--io=socket",), ("--no-fast-path",), ("--no-rehearse",), ("--spares=0",),
          ("--io=socket", "--no-fast-path", "--no-rehearse", "--spares=0"))


def run(socket: str | None, rounds: int | None, as_json: bool, levels: bool = False, plot: str | None = None) -> None:
    """Measure, and print the findings; the options of `bench` say how. OSError: the picture can't be written."""
    shown = not as_json and sys.stderr.isatty()

    def progress(done: int) -> None:
        if shown:
            print(f"\rround {done}", end="", file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        picture = None if plot is None else stack.enter_context(open(plot, "w", encoding="utf-8"))
        path = stack.enter_context(daemon(socket))
        others = {" ".join(options): stack.enter_context(daemon(None, *options)) for options in LEVELS if levels}
        found = findings(measure(path, rounds or ROUNDS, math.inf if rounds else SECONDS, progress, others))
        if picture is not None:
            picture.write(svg(found))
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(json.dumps(found) if as_json else text(found), end="\n" if as_json else "", flush=True)


@click.command()
@click.option("--rounds", type=click.IntRange(1, 10_000), metavar="N",
              help="Rounds to measure; more are more exact.  [default: 40, or as many as fit into 75 s]")
@JSON
@socket_option("Measure this daemon; by default one is started.")
@click.option("--levels", is_flag=True, help="Also measure daemons with each optimisation switched off.")
@click.option("--scale", is_flag=True, help="Measure rates on 1, 2, 4 ... processors instead, by one daemon and by several.")
@click.option("--plot", metavar="FILE", help="Also draw the results, as SVG.")
def bench(rounds: int | None, as_json: bool, socket: str | None, levels: bool, scale: bool, plot: str | None) -> None:
    """Measure a fresh job, beside lower bounds and alternatives, in turn."""
    try:
        if scale:
            grown = scaling.findings(*scaling.measure(rounds or SCALE_ROUNDS))
            print(json.dumps(grown) if as_json else scaling.text(grown), end="\n" if as_json else "", flush=True)
            return
        run(socket, rounds, as_json, levels, plot)
    except OSError as error:
        raise LeewardError(f"bench: {error}") from None

"""
The findings: one object for `--json`, and the same as text.

Runs in:   the CLI; pure except for the description of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from leeward import __version__
from leeward_cli.bench import floors
from leeward_cli.bench.figures import figure, noise, percentile, rate, ratio
from leeward_cli.bench.machine import described
from leeward_cli.bench.ours import LeewardSubject
from leeward_cli.bench.rounds import CALLERS, GAP_S, Samples

#: The parts of a call's time, by the fields of Legs.
_LEGS = {
    "there": "from the client to the job's first line",
    "back": "from the job's first line to the client",
    "job": "of both, by the daemon: from the job's frame to its reply",
}


def findings(samples: Samples) -> dict[str, Any]:
    """The object that `--json` prints, with times in microseconds and rates in jobs per second."""
    ours = {gap: samples.calls[LeewardSubject.name, gap] for gap in (GAP_S, 0.0)}
    floor = samples.calls[floors.Hops.name, GAP_S]
    # If there is only one round, its single calls are compared.
    stirred = noise(floor if len(floor) > 1 else [[time] for time in floor[0]], samples.stir)
    ratios = [
        {"over": LeewardSubject.name, "under": name, "gap_ms": gap * 1e3, "ratio": ratio(ours[gap], times)}
        for (name, gap), times in samples.calls.items() if name != LeewardSubject.name
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
    """
    Microseconds of processor time per job in the bursts. The kernel counts in ticks of 10 ms, so figures from few jobs
    are inexact.
    """
    made = {}
    for name in ("daemon", "zygote", "workers") if samples.spent else ():
        each = [seconds / samples.burst * 1e6 for spent in samples.spent
                if (seconds := getattr(spent, name)) is not None]
        if not each:  # no cgroup counts the workers' time
            continue
        made[name] = {"mean": round(sum(each) / len(each)), "n": samples.burst * len(each),
                      **{f"p{p}": round(percentile(each, p)) for p in (50, 90, 99)}}
    return made


def text(found: Mapping[str, Any]) -> str:
    """The findings as text."""
    host, stirred = found["machine"], found["noise"]
    lines = [
        (f"leeward {found['leeward']}, {found['date']}, Linux {host['kernel']} {host['arch']},"
         f" {host['processors']} processors, Python {host['python']}, {found['rounds']} rounds"),
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
    lines += ["", _verdict(stirred)]
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

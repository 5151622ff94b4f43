"""
`./dev figures`: measures the project's goals, most of them as ratios to a floor.

A group is a function that takes the settings and returns rows: it starts the daemons that it needs, and takes turns with
its floor. To add one, write it and name it in GROUPS.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.figures import agent, egress, images, jobs, many, overload, processes, sandboxes, serve, snapshots
from bench.figures.row import FigureSettings, Row
from leeward import __version__
from leeward_cli.bench import floors
from leeward_cli.bench.figures import Watch, described
from leeward_cli.bench.report import duration, origin

GROUPS: dict[str, Callable[[FigureSettings], Sequence[Row]]] = {
    "fresh": jobs.measure_fresh,
    "rates": jobs.measure_rates,
    "throughput": jobs.measure_throughput,
    "sessions": jobs.measure_sessions,
    "live": sandboxes.measure_live,
    "workdir": sandboxes.measure_workdir,
    "snapshots": snapshots.measure,
    "processor": processes.measure_processor,
    "memory": processes.measure_memory,
    "command": processes.measure_command,
    "agent": agent.measure_agent,
    "start": processes.measure_start,
    "output": jobs.measure_output,
    "denied": jobs.measure_denied,
    "egress": egress.measure,
    "crowd": jobs.measure_crowd,
    "serve": serve.measure,
    "overload": overload.measure_overload,
    "many": many.measure,
    "dense": many.measure_dense,
    "images": images.measure,
}

ROUNDS = 40

#: Samples of other load on the machine, before each group and at the end.
_WINDOWS = 5


def run(groups: Sequence[str], rounds: int | None, as_json: bool) -> None:
    watch = Watch()
    rows: dict[str, Sequence[Row]] = {}
    with floors.compiled() as program:
        for name in (*groups, ""):
            if not as_json and sys.stderr.isatty():
                print(f"\r\033[K{name}", end="", file=sys.stderr, flush=True)
            for _ in range(_WINDOWS):
                watch.window()
            if name:
                rows[name] = GROUPS[name](FigureSettings(program, rounds or ROUNDS))
        stir = watch.stir()
        found = {
            "leeward": __version__,
            "date": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            "machine": described(program is not None),
            "noise": {"steal": stir.steal, "others": stir.others, "noisy": stir.noisy},
            "figures": [{"group": name, **row.as_object()} for name, some in rows.items() for row in some],
        }
    print(json.dumps(found) if as_json else text(found), flush=True)


def text(found: Mapping[str, Any]) -> str:
    stirred = found["noise"]
    who = "root" if found["machine"]["root"] else "an ordinary user"
    lines = [f"{origin(found)}, {who}",
             (f"The machine was {'noisy' if stirred['noisy'] else 'quiet'}: the host took {100 * stirred['steal']:.1f}"
             f" % of the processors for others, other processes {100 * stirred['others']:.0f} %."), ""]
    for each in found["figures"]:
        lines.append(f"{each['figure']}: {verdict(each)}")
        lines += [f"    {made['subject']:44}{shown(made)}" for made in each["measured"]]
        lines += [f"    {each['note']}"] if each["note"] else []
    return "\n".join(lines)


def verdict(row: Mapping[str, Any]) -> str:
    value = "-" if row["value"] is None else f"{row['value']:g} {row['unit']}"
    if row["target"] is None:
        return value
    wanted = f"{'at most' if row['at_most'] else 'at least'} {row['target']:g}"
    floor = f" a floor of {row['floor']:g}, {row['value'] / row['floor']:.2f} x of it" if row["floor"] else ""
    missed = f"bound by{floor}" if row["bound"] else f"NOT MET, with{floor}" if floor else "NOT MET"
    return f"{value}, wanted {wanted}: {'met' if row['met'] else 'not measured' if row['value'] is None else missed}"


def shown(made: Mapping[str, Any]) -> str:
    values = [duration(made[key]) if made["unit"] == "us" else f"{made[key]:g} {made['unit']}"
              for key in ("p50", "p90", "p99")]
    return "p50 {}  p90 {}  p99 {}  n {}".format(*values, made["n"])

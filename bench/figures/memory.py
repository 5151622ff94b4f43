"""
The memory of one armed worker: keeper, init and runner; to be measured as the user who runs the daemon.

PSS counts a page that n processes share as an nth of it for each; so it depends on the number of workers, and the row
is for the usual four. Private is the memory that would be free if this one worker ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.figures.row import FigureSettings, Row, missing, spread
from leeward_cli.bench.ours import armed, daemon, daemon_pid
from leeward_cli.bench.spent import children, zygotes

_PSS, _PRIVATE = "PSS of one armed worker (keeper, init, runner)", "private memory of the same"

_MIB = 1 << 20


def measure(settings: FigureSettings) -> Sequence[Row]:
    found: list[tuple[float, float]] = []
    options = ("--pool-size=4", "--spares=0")
    for _ in range(settings.some(4)):
        with daemon(None, *options) as path:
            armed(path, 4)
            (zygote,) = zygotes(daemon_pid(path))
            for keeper in children(zygote):
                # Its init shares the keeper's memory, every page of it: that counts once.
                (init,) = children(keeper)
                (runner,) = children(init)
                try:
                    sums = [rollup(pid) for pid in (keeper, runner)]
                except PermissionError:
                    why = "smaps_rollup of a worker is root's to read"
                    return [missing(_PSS, 4, why), missing(_PRIVATE, 2.5, why)]
                found.append((sum(pss for pss, _ in sums), sum(private for _, private in sums)))

    def row(words: str, values: list[float], target: float, note: str = "") -> Row:
        measured = spread("worker", "MiB", [each / _MIB for each in values], 2)
        return Row(words, measured["p50"], "MiB", target, True, [measured], note)

    return [row(_PSS, [pss for pss, _ in found], 4, "of four workers, without a spare"),
            row(_PRIVATE, [private for _, private in found], 2.5)]


def rollup(pid: int) -> tuple[int, int]:
    """Bytes: proportional, private. proc(5), smaps_rollup."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) << 10
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]

"""
Large results: inline or by memory file, and 64 MiB beside a plain write.

    .venv/bin/python bench/results.py [--rounds N] [--json]

Two daemons, one with --results=inline and one with --results=memfd, have the same job in turn: it writes so many bytes,
and the client reads the last of them. Then a third, with the default, brings 64 MiB, beside one process that
writes as many into a memory file of its own. The times are from the call to the client's last byte, or to the mapping.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from leeward import Client, Result
from leeward_cli.bench.ours import daemon

SIZES = [4 << 10, 16 << 10, 32 << 10, 48 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 12 << 20]
LARGE = 64 << 20
PIECE = 1 << 20
#: Seconds in which a worker arms another runner.
GAP_S = 0.02


def write(size: int) -> str:
    """The code of a job that writes *size* bytes as fast as possible."""
    piece = min(size, PIECE)
    return f"import os\npiece = bytes({piece})\nfor _ in range({size // piece}):\n    os.write(1, piece)\n"


def call(client: Client, size: int, look: Callable[[Result], int]) -> float:
    """Milliseconds until *look* has seen all *size* bytes."""
    code = write(size)
    start = time.perf_counter()
    result = client.execute(code, output=2 * LARGE)
    seen = look(result)
    took = time.perf_counter() - start
    if result.exit_code or seen != size:
        raise SystemExit(f"a job that was to write {size} bytes ended as {result.outcome} with {seen}")
    time.sleep(GAP_S)
    return 1e3 * took


def read(result: Result) -> int:
    return len(result.stdout)  # a copy of what is mapped; what came inline is there already


def mapped(result: Result) -> int:
    view = result.stdout_view
    return len(view) if view[-1] == 0 else -1


def alone() -> float:
    """Milliseconds in which this process writes LARGE bytes into a memory file."""
    piece = bytes(PIECE)
    start = time.perf_counter()
    fd = os.memfd_create("alone")
    try:
        for _ in range(LARGE // PIECE):
            os.write(fd, piece)
        return 1e3 * (time.perf_counter() - start)
    finally:
        os.close(fd)


def crossover(rounds: int) -> list[dict[str, float]]:
    rows = []
    with (daemon(None, "--results=inline") as one, daemon(None, "--results=memfd") as other,
          Client(one) as inline, Client(other) as memfd):
        for size in SIZES:
            times: dict[str, list[float]] = {"inline": [], "memfd": [], "memfd, mapped": []}
            for _ in range(rounds):
                times["inline"].append(call(inline, size, read))
                times["memfd"].append(call(memfd, size, read))
                times["memfd, mapped"].append(call(memfd, size, mapped))
            ratio = statistics.median(b / a for a, b in zip(times["inline"], times["memfd"], strict=True))
            rows.append({"bytes": size, **{name: statistics.median(each) for name, each in times.items()},
                         "ratio": ratio})
    return rows


def large(rounds: int) -> dict[str, float]:
    floors, ours = [], []
    with daemon(None) as path, Client(path) as client:
        for _ in range(rounds):
            floors.append(alone())
            ours.append(call(client, LARGE, mapped))
            time.sleep(5 * GAP_S)
    return {"write": statistics.median(floors), "leeward": statistics.median(ours),
            "ratio": statistics.median(b / a for a, b in zip(floors, ours, strict=True)),
            "best write": min(floors), "best leeward": min(ours)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--large", action="store_true", help="only the 64 MiB")
    options = parser.parse_args()
    rows = [] if options.large else crossover(options.rounds)
    figure = large(options.rounds)
    if options.json:
        print(json.dumps({"crossover": rows, "64 MiB": figure}))
        return 0
    for row in rows:
        print(f"{int(row['bytes']) >> 10:6} KiB  inline {row['inline']:7.2f} ms  memfd {row['memfd']:7.2f}"
              f"  memfd over inline {row['ratio']:.2f}  mapped only {row['memfd, mapped']:7.2f}")
    print(f"64 MiB: write {figure['write']:.1f} ms, leeward {figure['leeward']:.1f}, ratio {figure['ratio']:.2f};"
          f" best {figure['best write']:.1f} and {figure['best leeward']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""
Large requests: by the socket or by the arena.

    .venv/bin/python bench/requests.py [--rounds N] [--json]

Two connections to one daemon have the same request in turn, one with an arena and one without. First a request
that the daemon refuses once it has read and checked all of it, so that the way to the daemon is all there is; then one
that a job really gets, as its standard input.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from leeward import Client, Refused
from leeward.client import link
from leeward_cli.bench.ours import daemon

SIZES = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 15 << 20, 64 << 20]
#: Seconds in which a worker arms another runner.
GAP_S = 0.02


def call(client: Client, data: bytes, least: int, *, run: bool) -> float:
    """
    Milliseconds of a request that goes by the arena if it has *least* bytes; it is run, or refused for a limit.
    """
    link.LARGE = least
    start = time.perf_counter()
    try:
        result = client.execute("pass", stdin=data, output=None if run else -1)
    except Refused:
        if run:
            raise
    else:
        if result.exit_code or not run:
            raise SystemExit(f"a job ended as {result.outcome}, {result.exit_code}")
    took = time.perf_counter() - start
    time.sleep(GAP_S)
    return 1e3 * took


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with daemon(None) as path, Client(path) as plain, Client(path) as arena:
        call(arena, bytes(64), 1, run=True)  # it asks for its arena
        for size in SIZES:
            data = bytes(size)
            times: dict[str, list[float]] = {"socket": [], "arena": [], "job by socket": [], "job by arena": []}
            rounds = options.rounds if size <= 4 << 20 else max(3, options.rounds // 3)
            for _ in range(rounds):
                times["socket"].append(call(plain, data, sys.maxsize, run=False))
                times["arena"].append(call(arena, data, 1, run=False))
                times["job by socket"].append(call(plain, data, sys.maxsize, run=True))
                times["job by arena"].append(call(arena, data, 1, run=True))
            row = {"bytes": size, **{name: statistics.median(each) for name, each in times.items()}}
            for name in ("", "job by "):
                pairs = zip(times[f"{name}socket" if name else "socket"], times[f"{name}arena" if name else "arena"],
                            strict=True)
                row[f"{name}ratio"] = statistics.median(b / a for a, b in pairs)
            rows.append(row)
            if not options.json:
                print(f"{size >> 10:6} KiB  socket {row['socket']:7.2f} ms  arena {row['arena']:7.2f}"
                      f"  ratio {row['ratio']:.2f}   with a job {row['job by socket']:7.2f} {row['job by arena']:7.2f}"
                      f"  ratio {row['job by ratio']:.2f}", flush=True)
    if options.json:
        print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

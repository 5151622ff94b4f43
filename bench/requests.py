"""
Large requests: over the socket, or through the arena.

    .venv/bin/python bench/requests.py [--rounds N] [--json]

Two daemons have the same request in turn, one by an arena and one by the socket: what one way leaves warm in a
daemon's memory must not be the other's gain. First a request that the daemon refuses once it has read and checked all
of it, so that the way to the daemon is all there is; then one that a job really gets, as its standard input.
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

SIZES = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 15 << 20]
#: Seconds between calls; after a job, in which its process ends and another one is armed.
GAP_S, GAP_AFTER_JOB_S = 0.02, 0.06


def call(client: Client, data: bytes, least: int, *, run: bool) -> float:
    """Milliseconds of a request, which goes through the arena from *least* bytes on. It is run, or refused for a limit."""
    vars(link)["LARGE"] = least
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
    time.sleep(GAP_AFTER_JOB_S if run else GAP_S)
    return 1e3 * took


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with daemon(None) as one, daemon(None) as other, Client(one) as plain, Client(other) as arena:
        call(arena, bytes(64), 1, run=True)  # it asks for its arena
        for size in SIZES:
            data = bytes(size)
            times: dict[str, list[float]] = {"socket": [], "arena": [], "job by socket": [], "job by arena": []}
            rounds = options.rounds if size <= 4 << 20 else max(3, options.rounds // 3)
            ways = [("socket", plain, sys.maxsize), ("arena", arena, 1)]
            for _ in range(rounds):
                ways.reverse()  # what comes after a job isn't always the same
                for name, client, least in ways:
                    times[name].append(call(client, data, least, run=False))
                for name, client, least in ways:
                    times[f"job by {name}"].append(call(client, data, least, run=True))
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

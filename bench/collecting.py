"""
The cost of collected files for a daemon: its peak memory, and its processor time.

    .venv/bin/python bench/collecting.py
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import leeward
from leeward_cli.bench.ours import daemon, daemon_pid

MAKE = """
block = bytes(range(250)) * 4000
with open('big', 'wb') as file:
    for number in range(60): file.write(block)
"""
SMALL, TICK_MS = 300, 10


def peak(pid: int) -> int:
    """Return the peak resident set of *pid* (VmHWM), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def spent(pid: int) -> int:
    """Return the processor time of *pid*, in ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def collect(path: str, code: str) -> None:
    with leeward.Client(path) as client:
        assert client.execute(code, collect=["*"], timeout=120.0).ok


def main() -> int:
    with daemon(None, "--pool-size", "4") as path:
        pid = daemon_pid(path)
        collect(path, "open('a', 'w').write('x')")
        before = spent(pid)
        with leeward.Client(path) as client:
            for _ in range(SMALL):
                client.execute("open('a', 'w').write('x')", collect=["a"])
        print(f"{SMALL} of one byte: {spent(pid) - before} ms of the daemon's; VmHWM {peak(pid)} MiB")
        for together in (1, 2, 4):
            before = spent(pid)
            threads = [threading.Thread(target=collect, args=(path, MAKE)) for _ in range(together)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(f"{together} of 60 MB at once: {spent(pid) - before} ms; VmHWM {peak(pid)} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""
A program as a stranger might send it: some honest work, then a look at the walls.

    leeward exec --file examples/tour.py
"""

import concurrent.futures
import os
import socket
import sqlite3
import statistics
import subprocess
import tempfile
from pathlib import Path


def work() -> None:
    """A little of everything: threads, a database in a file, a shell."""
    def collatz(number: int) -> int:
        steps = 0
        while number != 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        return steps

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        steps = list(threads.map(collatz, range(1, 2001)))
    with sqlite3.connect("/workspace/collatz.db") as database:
        database.execute("CREATE TABLE walk (start INTEGER, steps INTEGER)")
        database.executemany("INSERT INTO walk VALUES (?, ?)", enumerate(steps, 1))
        longest = database.execute("SELECT start, max(steps) FROM walk").fetchone()
    print(f"Collatz, 1 to 2000: {statistics.mean(steps):.1f} steps in the mean, {longest[1]} from {longest[0]}")
    print("a shell:", subprocess.check_output("uname -s; ls /workspace", shell=True, text=True).split())


def write_beside(folder: str) -> None:
    """Write to a file without a name, so that it does no harm where it works."""
    os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))


def fill_scratch() -> None:
    """Write 100 MB, more than a job's files may take."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(100_000_000))


def walls() -> None:
    """Try what a job may not do, and say what it was refused."""
    worked = []
    for what, attempt in {
        "read /etc/shadow": lambda: Path("/etc/shadow").read_text(),
        "look into the first process": lambda: os.listdir("/proc/1/fd"),
        "write to /usr": lambda: write_beside("/usr"),
        "write 100 MB": fill_scratch,
        "connect to a host": lambda: socket.create_connection(("127.0.0.1", 22), 1),
        "become root": lambda: os.setuid(0),
        "make a namespace": lambda: subprocess.run(["unshare", "--user", "true"], check=True, stderr=subprocess.PIPE),
    }.items():
        try:
            attempt()
            worked.append(what)
        except subprocess.CalledProcessError as refusal:
            print(f"{what}: {refusal.stderr.decode().strip()}")
        except OSError as refusal:
            print(f"{what}: {refusal}")
    if worked:
        print("not refused:", ", ".join(worked))
    print(f"I am uid {os.getuid()} on {os.uname().nodename} and see these processes:",
          *sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()))


work()
print()
walls()

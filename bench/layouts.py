"""
The cost of `--fresh-layout`: a daemon with the option and one without, in turn.

    .venv/bin/python bench/layouts.py [--jobs N] [--clients N]

One client, with so long a pause between two calls that a worker is armed again: the latency. Then several without a
pause: jobs a second, and the processor time of the daemon with all of its processes, divided by the number of jobs.
A call that the daemon refuses as busy is sent again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import threading
import time
from collections.abc import Sequence

from leeward import Client
from leeward.errors import Busy
from leeward_cli.bench.ours import daemon

CODE = "print('hello world')"
GAP_S = 1.0
CALLS = 20


def call(client: Client) -> float:
    """Return the seconds that one call takes."""
    while True:
        begun = time.perf_counter()
        try:
            assert client.execute(CODE).stdout_text == "hello world\n"
        except Busy:
            time.sleep(0.01)
            continue
        return time.perf_counter() - begun


def spent(pid: int) -> float:
    """Return the processor seconds of *pid*, of all processes below it, and of all children that these have reaped."""
    ticks, parents = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            parents[int(name)], ticks[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))

    def below(number: int) -> bool:
        while number not in (0, pid):
            number = parents.get(number, 0)
        return number == pid

    return sum(count for number, count in ticks.items() if below(number)) / os.sysconf("SC_CLK_TCK")


def measure(options: Sequence[str], jobs: int, clients: int) -> str:
    with daemon(None, *options) as socket, Client(socket) as client:
        pid = client.status()["pid"]
        times = []
        for _ in range(CALLS):
            time.sleep(GAP_S)
            times.append(call(client))

        def work() -> None:
            with Client(socket) as own:
                for _ in range(jobs // clients):
                    call(own)

        time.sleep(GAP_S)
        before, begun = spent(pid), time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
        time.sleep(GAP_S)
        done = jobs // clients * clients
        return (f"median {statistics.median(times) * 1000:7.2f} ms   {done / seconds:8.1f} jobs/s"
                f"   {(spent(pid) - before) / done * 1000:7.2f} ms of processor for each job")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--clients", type=int, default=4)
    asked = parser.parse_args()
    for options, jobs in (((), 20 * asked.jobs), (("--fresh-layout",), asked.jobs)):
        print(f"{' '.join(options) or 'default':16} {measure(options, jobs, asked.clients)}", flush=True)


if __name__ == "__main__":
    main()

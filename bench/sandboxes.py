"""
Many live sandboxes at once, and many one after the other: their memory, their latency, and leaks.

    .venv/bin/python bench/sandboxes.py [--count N] [--daemons N] [--turns N] [--descriptors N] [--spares N] [--json]

Starts daemons of its own, with as many descriptors as --descriptors says where it may raise its limit. Opens --count
sandboxes and keeps them; each runs a command and must give its own number back, twice: as soon as it is open, and when
all are. Ends them all. --daemons have them in turn, where one may not have descriptors for so many. Then --turns
sandboxes are opened, used and closed, one after the other. Memory is the proportional share (Pss) of the daemons and of
all their descendants; what the kernel itself has more of (slabs, page tables, stacks, per-processor data), whoever it is
for; and what the host has less available (MemAvailable). The last two mean something where nothing else runs. "ms a
second" is the processor time of the daemons alone while all sandboxes rest.

Exit status 1, with a line that says what happened, if a sandbox couldn't be opened or gave another answer, or if after
all of it there is something that wasn't after the first tenth of the turns: processes, descriptors, groups, mounts, or
memory of the daemon's own, beyond what ROOM says; or if a worker keeps more groups for its next jobs than it may.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from leeward.client.connection import BlockingConnection
from leeward.client.results import result_of
from leeward.errors import LeewardError
from leeward.isolation.cgroup.v1_worker import MOST_KEPT
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import Spawn
from leeward_cli.bench.ours import daemon, daemon_pid
from leeward_cli.bench.rounds import timed

WORKERS = 2
_ALONE = "LEEWARD_BENCH_ALONE"
#: How much more there may be at the end. Groups that workers keep for later, and their descriptors, aren't counted: how
#: many are kept depends on the load. They have a bound of their own, the product's.
ROOM = {"KiB of the daemon": 8 << 10, "groups": 0, "descriptors": 14 * WORKERS, "processes": 0, "mounts": 0,
        "places kept by a worker": MOST_KEPT}
GROUPS = "/sys/fs/cgroup"
REST_S = 30.0
_LIBC, _KCMP = ctypes.CDLL(None), {"x86_64": 312, "aarch64": 272}
#: Seconds after which a sandbox rests: run/live_runner.py.
SETTLED_S = 2.0
#: Seconds for which their daemons are watched then.
IDLE_S = 4.0


def below(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [pid], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _field(path: str, name: str) -> int:
    try:
        with open(path) as rows:
            return next((int(row.split()[1]) for row in rows if row.startswith(f"{name}:")), 0)
    except OSError:
        return 0


def memory(pid: int) -> int:
    """The MiB of the daemon and its descendants, but for helpers and inits: they are on their keepers' memory."""
    return sum(_field(f"/proc/{one}/smaps_rollup", "Pss") for one in below(pid) if not _shares(one)) >> 10


def spent(pid: int, *, alone: bool = False) -> float:
    """The seconds of processor time of the daemon and its descendants that live, or *alone*, with all threads."""
    total = 0
    for one in (pid,) if alone else below(pid):
        with contextlib.suppress(OSError):
            total += sum(int(Path(f"/proc/{one}/task/{task}/schedstat").read_text().split()[0])
                         for task in os.listdir(f"/proc/{one}/task"))
    return total / 1e9


def _shares(pid: int) -> bool:
    """Whether the process is on its parent's memory; kcmp(2), KCMP_VM."""
    with contextlib.suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return int(_LIBC.syscall(_KCMP[os.uname().machine], parent, pid, 1, 0, 0)) == 0
    return False


def available() -> int:
    return _field("/proc/meminfo", "MemAvailable") >> 10


def kernel() -> int:
    """The kernel's own memory, for all processes, in MiB."""
    return sum(_field("/proc/meminfo", name) for name in ("Slab", "PageTables", "KernelStack", "Percpu")) >> 10


def there(pid: int) -> dict[str, int]:
    used, kept = groups(pid)
    workers = [place.partition(".")[0] for place in kept]
    return {"processes": len(below(pid)), "descriptors": descriptors(pid, kept), "groups": used,
            "mounts": len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()),
            "KiB of the daemon": _field(f"/proc/{pid}/smaps_rollup", "Private_Dirty"),
            "places kept by a worker": max(map(workers.count, workers), default=0)}


def groups(pid: int) -> tuple[int, set[str]]:
    """
    The number of groups below the daemon's own in all hierarchies, without the places that workers keep for later, and
    the names of these. Such a place has one group of the same name in each hierarchy, and no process in any of them.
    """
    places: list[str] = []
    occupied: set[str] = set()
    others = 0
    for root, _, _ in os.walk(GROUPS):
        if f"/leeward-{pid}-" not in root:
            continue
        place = re.search(r"/(w\d+\.\d+)(?:/|$)", root)
        if place is None:
            others += 1
            continue
        places.append(place[1])
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(root, "cgroup.procs").read_text():
                occupied.add(place[1])
    return others + sum(place in occupied for place in places), set(places) - occupied


def descriptors(pid: int, without: set[str]) -> int:
    """The number of the daemon's descriptors, without those of the places *without*."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += without.isdisjoint(os.readlink(f"/proc/{pid}/fd/{fd}").split("/"))
    return count


class SandboxConnection:
    """A connection whose sandboxes have the fields *opening*."""

    def __init__(self, path: str, **opening: Any) -> None:
        self._connection, self._opening = BlockingConnection(path), opening

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        reply, descriptors = self._connection.call(op, fields)
        for fd in descriptors:
            os.close(fd)
        assert reply.ok is not None
        return dict(reply.ok)

    def open(self) -> str:
        return str(self.ask("sandbox_open", **self._opening)["sandbox"])

    def answers(self, box: str, number: int) -> bool:
        fields = {"sandbox": box, "argv": ["echo", str(number)]}
        return b"%d\n" % number == result_of(*self._connection.call("process_run", fields)).stdout

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def roomy(count: int, daemons: int, spares: int = 1) -> Iterator[list[tuple[SandboxConnection, int]]]:
    """A connection to each of *daemons* that have room for *count* sandboxes together, and its pid."""
    with contextlib.ExitStack() as stack:
        config = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        config.write(f"pool_size = {WORKERS}\nspares = {spares}\nmax_sessions = {max(2, -(-count // daemons))}\n"
                     "sandbox_idle = 86400\nsandbox_lifetime = 86400\n")
        config.flush()
        paths = [stack.enter_context(daemon(None, "--config", config.name)) for _ in range(daemons)]
        yield [(stack.enter_context(contextlib.closing(SandboxConnection(path))), daemon_pid(path)) for path in paths]


def at_once(daemons: Sequence[tuple[SandboxConnection, int]], count: int, wrong: list[str],
            beside: Callable[[], None] | None = None) -> dict[str, Any]:
    """*beside* is called in turn with the second commands; a program outside unless told."""
    beside = beside or Spawn("true", ["/bin/true"], printed=b"").call
    pids = [pid for _, pid in daemons]
    before, free, kernels = sum(map(memory, pids)), available(), kernel()
    boxes: list[tuple[SandboxConnection, str]] = []
    opened, used, bares = list[float](), list[float](), list[float]()
    for number in range(count):
        connection, _ = daemons[number % len(daemons)]
        start = time.perf_counter()
        try:
            boxes.append((connection, connection.open()))
        except LeewardError as error:
            wrong.append(f"sandbox {number} of {count} can't be opened: {error}")
            break
        opened.append(time.perf_counter() - start)
        if not connection.answers(boxes[-1][1], number):
            wrong.append(f"sandbox {number} gave another answer")
    before_all = _spent(pids)
    for number, (connection, box) in enumerate(boxes):
        start = time.perf_counter()
        if not connection.answers(box, number):
            wrong.append(f"sandbox {number} gave another answer when all were open")
        used.append(time.perf_counter() - start)
        bares.append(timed(beside))
    took = {name: all_spent - before_all[name] for name, all_spent in _spent(pids).items()}
    time.sleep(SETTLED_S)
    for connection, pid in daemons:
        rest(connection, pid)
    found: dict[str, Any] = {
        "count": len(boxes), "MiB": sum(map(memory, pids)), "MiB before": before, "MiB less available": free - available(),
        "MiB more of the kernel's": kernel() - kernels, "ms a second": _idle(pids),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "processes": sum(len(below(pid)) for pid in pids)}
    if boxes:
        found |= {"open ms": _times(opened), "open ms in all": round(1e3 * sum(opened), 1), "command ms": _times(used),
                  "within 10 ms": sum(one <= 0.01 for one in used),
                  "the same beside": sum(one <= 0.01 for one in bares), "ms beside": _times(bares),
                  "processor ms of a command": {name: round(1e3 * one / len(boxes), 2) for name, one in took.items()}}
    for connection, box in boxes:
        connection.ask("sandbox_kill", sandbox=box)
    return found


def _spent(pids: Sequence[int]) -> dict[str, float]:
    """The seconds of processor time until now: the kernel's threads have parent 2, and work for all of the machine."""
    return {"the daemons": sum(spent(pid, alone=True) for pid in pids), "with keepers": sum(map(spent, pids)),
            "the kernel's threads": spent(2)}


def _idle(pids: Sequence[int]) -> float:
    """The milliseconds of processor time that the daemons alone take in a second."""
    before = sum(spent(pid, alone=True) for pid in pids)
    time.sleep(IDLE_S)
    return round((sum(spent(pid, alone=True) for pid in pids) - before) * 1e3 / IDLE_S, 2)


def _times(seconds: list[float]) -> dict[str, float]:
    return {name: round(1e3 * percentile(seconds, p), 2) for name, p in (("p50", 50), ("p99", 99), ("worst", 100))}


def in_turn(connection: SandboxConnection, pid: int, turns: int, wrong: list[str]) -> dict[str, Any]:
    before: dict[str, int] = {}
    start = time.perf_counter()
    for number in range(turns):
        if number == turns // 10:
            before = rest(connection, pid)
        box = connection.open()
        if not connection.answers(box, number):
            wrong.append(f"turn {number} gave another answer")
        connection.ask("sandbox_kill", sandbox=box)
    seconds = time.perf_counter() - start
    left = rest(connection, pid)
    kept = "places kept by a worker"
    wrong += [f"{left[what]} {what} after {turns} turns, and {before[what]} after a tenth of them" for what in before
              if left[what] > (0 if what == kept else before[what]) + ROOM[what]]
    return {"turns": turns, "turns a second": round(turns / seconds, 1), "before": before, "left": left}


def rest(connection: SandboxConnection, pid: int) -> dict[str, int]:
    """What there is after a second in which the daemon had the workers of no sandbox, with the runners that they keep."""
    until, since = time.monotonic() + REST_S, time.monotonic()
    while time.monotonic() < min(until, since + 1.0):
        status = connection.ask("status")
        idle = status["workers"]["total"] if status["sandboxes"] else WORKERS
        if (status["workers"]["total"], status["runners_armed"], status["runners_arming"]) != (
                idle, status["runners_kept"], 0):
            since = time.monotonic()
        time.sleep(0.05)  # there is nothing to wait for: what is left has no event
    return there(pid)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--daemons", type=int, default=1)
    parser.add_argument("--turns", type=int, default=10000)
    parser.add_argument("--descriptors", type=int, default=65536)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with contextlib.suppress(ValueError):  # who may not raise it has what there is
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked.descriptors, asked.descriptors))
    wrong: list[str] = []
    found: dict[str, Any] = {"load before": os.getloadavg()[0]}
    # Each with daemons of its own: the workers of many sandboxes linger for a while.
    if asked.count:
        with roomy(asked.count, asked.daemons, asked.spares) as daemons:
            found["at once"] = at_once(daemons, asked.count, wrong)
    if asked.turns:
        with roomy(asked.count, asked.daemons, asked.spares) as (first, *_):
            found["in turn"] = in_turn(*first, asked.turns, wrong)
    found["load after"] = os.getloadavg()[0]
    print(json.dumps({**found, "wrong": wrong}, indent=None if asked.json else 2))
    for one in wrong:
        print(f"sandboxes: {one}", file=sys.stderr)
    return int(bool(wrong))


def _alone() -> None:
    """Enter a mount namespace of our own, if allowed: mounts that others make meanwhile are no leaks."""
    unshare = shutil.which("unshare")
    if unshare is not None and not os.geteuid() and _ALONE not in os.environ:
        command = [unshare, "--mount", "--propagation", "private", sys.executable, "-P", *sys.argv]
        os.execve(unshare, command, {**os.environ, _ALONE: "1"})


if __name__ == "__main__":
    _alone()
    sys.exit(main())

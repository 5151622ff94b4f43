"""
Counts the page faults and system calls of the processes of a fresh job.

    .venv/bin/python bench/counts.py [TREE]... [--jobs N] [--calls] [--json]

Needs root, and perf(1) with tracepoints. Each TREE (this one unless told) is a folder with a `.venv` of its own, as for
processor_pairs.py. Its daemon of four workers runs jobs of eight callers, so most runners are armed while jobs wait.
All between two moments at which all workers are armed is counted, and divided by the number of jobs; a runner's page
faults also by the system call before them, `NAME/N` for the N-th call of the runner's life.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.processor_pairs import Side
from leeward_cli.bench.rounds import CALLERS
from leeward_cli.bench.spent import children, zygotes

#: Times that perf may lose events.
_TRIES = 3

_CHILD = {"daemon": "zygote", "zygote": "keeper", "keeper": "init", "init": "runner", "runner": "runner's child"}

_FORK = re.compile(r"PERF_RECORD_FORK\((\d+):\d+\):\((\d+):\d+\)")
_EVENT = re.compile(r"\s(\d+)\s+(raw_syscalls:sys_enter|page-faults):(?:\s+NR (\d+))?")
_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)?\b")
_NUMBER = re.compile(r"#define __NR_(\w+) (\d+)$", re.MULTILINE)


@dataclass
class Counts:
    faults: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: perf had no room for some.
    lost: bool = False
    #: of runners, by the call before
    after: Counter[str] = field(default_factory=Counter)


def known(daemon: int) -> dict[int, str]:
    """The processes of *daemon* that there are: itself, zygotes and keepers, by pid."""
    makers = zygotes(daemon)
    return {daemon: "daemon", **dict.fromkeys(makers, "zygote"),
            **dict.fromkeys([each for zygote in makers for each in children(zygote)], "keeper")}


def is_fork(line: str, who: dict[int, str]) -> bool:
    """Whether perf's *line* tells of a fork; then the child is in *who*, if its parent is."""
    fork = _FORK.search(line)
    if fork is None:
        return False
    child, parent = int(fork[1]), int(fork[2])
    if child != parent and parent in who:
        who[child] = _CHILD.get(who[parent], who[parent])
    return True


def count(script: Iterable[str], at_first: Mapping[int, str], names: Mapping[int, str]) -> Counts:
    """The counts in *script*, of the processes *at_first* and those that these start; *names* of system calls, by number."""
    who, found = dict(at_first), Counts()
    last: dict[int, tuple[str, int]] = {}
    for line in script:
        if is_fork(line, who):
            continue
        found.lost |= _LOST.search(line) is not None
        event = _EVENT.search(line)
        if event is None or (name := who.get(int(event[1]))) is None:
            continue
        if event[3] is not None:
            call = names.get(int(event[3]), event[3])
            found.calls[name, call] += 1
            last[int(event[1])] = (call, last.get(int(event[1]), ("", 0))[1] + 1)
        else:
            found.faults[name] += 1
            if name == "runner":
                found.after["{}/{}".format(*last.get(int(event[1]), ("clone", 0)))] += 1
    return found


def _lines(file: Path) -> Iterator[str]:
    with subprocess.Popen(["perf", "script", "-i", file, "--show-task-events", "--show-lost-events",
                           "-F", "comm,pid,event,trace"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          errors="replace") as perf:
        assert perf.stdout is not None
        yield from perf.stdout


def _names() -> dict[int, str]:
    """The names of this architecture's system calls, as the C compiler knows them."""
    said = subprocess.run(["cc", "-E", "-dM", "-x", "c", "-"], input="#include <sys/syscall.h>\n", text=True,
                          capture_output=True, check=True).stdout
    return {int(number): name for name, number in _NUMBER.findall(said)}


def measured(side: Side, jobs: int) -> dict[str, Any]:
    """Per job of *side*: faults and calls by process, the calls by name, and a runner's faults by the call before."""
    for _ in range(_TRIES):
        found = _counted(side, jobs)
        if not found.lost:
            break
    else:
        raise OSError("perf loses events; try again on a quieter machine")
    per = {"faults": found.faults, "after": found.after, "calls": Counter[str](), "by_call": Counter[str]()}
    for (name, call), times in found.calls.items():
        per["calls"][name] += times
        per["by_call"][f"{name} {call}"] += times
    return {kind: {name: round(times / jobs, 1) for name, times in counted.most_common()}
            for kind, counted in per.items()}


def _counted(side: Side, jobs: int) -> Counts:
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        file = Path(folder, "perf.data")
        who = known(side.pid)
        with _recording(file):
            side.work(jobs)
        return count(_lines(file), who, _names())


@contextlib.contextmanager
def _recording(file: Path) -> Iterator[None]:
    """Record into *file*, from the first line of the block on."""
    orders, order = os.pipe()
    answer, answers = os.pipe()
    perf = subprocess.Popen(
        ["perf", "record", "-q", "-a", "-m", "4096", "-o", file, "-c", "1", "-D", "-1",
         f"--control=fd:{orders},{answers}", "-e", "raw_syscalls:sys_enter", "--exclude-perf", "-e", "page-faults"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(orders, answers))
    try:
        os.close(answers)
        os.write(order, b"enable\n")
        if not os.read(answer, 16).startswith(b"ack"):
            raise OSError("perf doesn't begin; it has said why")
        yield
    finally:
        if perf.poll() is None:
            perf.send_signal(signal.SIGINT)
        perf.wait()
        for descriptor in (orders, order, answer):
            os.close(descriptor)


def of_tree(tree: str, jobs: int) -> dict[str, Any]:
    side = Side(tree, CALLERS, ())
    try:
        return {"tree": tree, **measured(side, jobs)}
    finally:
        side.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("trees", nargs="*", default=[str(Path(__file__).resolve().parent.parent)])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--calls", action="store_true", help="each call by its name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sides = [of_tree(tree, options.jobs) for tree in options.trees]
    if options.json:
        print(json.dumps(sides))
        return 0
    for kind in ("faults", "calls", "after", *(("by_call",) if options.calls else ())):
        print(f"\n{kind}, per job")
        names = {name: max(side[kind].get(name, 0) for side in sides) for side in sides for name in side[kind]}
        for name, most in sorted(names.items(), key=lambda item: -item[1]):
            if most >= 0.5:
                print(f"  {name:36}", *(f"{side[kind].get(name, 0):8.1f}" for side in sides))
    return 0


if __name__ == "__main__":
    sys.exit(main())

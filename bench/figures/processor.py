"""
The processor time of a fresh job, by process and by step; by step it needs perf(1), and to be root.

The time by process comes from the kernel's own accounts. The time by step comes from samples: each sample belongs to
the entry into the kernel (a call, a page fault), or to the program itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from bench.counts import is_fork, known
from bench.figures.row import FigureSettings, Row, missing, spread
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.ours import armed, daemon, daemon_pid, rate
from leeward_cli.bench.rounds import CALLERS
from leeward_cli.bench.spent import spent

#: Jobs of a turn; samples a second and processor.
_JOBS, _HERTZ = 200, 1999

#: Of the daemon.
_WORKERS = 4

#: Steps with a smaller share than this are summed up.
_LEAST = 0.02

#: What perf script prints at the head of a sample.
_SAMPLE = re.compile(r"\s(\d+)\s+cpu-clock")

#: The way into the kernel, outermost first.
_ENTRY = re.compile(r"\b(?:__x64_sys_|__arm64_sys_|__do_sys_)(\w+)")


def measure(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None, f"--pool-size={_WORKERS}") as path:
        pid = daemon_pid(path)
        rate(path, CALLERS, _JOBS)
        each: dict[str, list[float]] = {"daemon": [], "zygote": [], "keepers and runners": []}
        turns = settings.some(10)
        for _ in range(turns):
            armed(path, _WORKERS)
            before = spent(pid)
            rate(path, CALLERS, _JOBS)
            armed(path, _WORKERS)  # what was used up is made again, and counts
            after = spent(pid)
            gone = None if before is None or after is None else after.since(before)
            if gone is None or gone.workers is None:
                return [missing("processor time of a fresh job, 8 callers", None, "no cgroup counts the workers' time")]
            for name, seconds in zip(each, (gone.daemon, gone.zygote, gone.workers), strict=True):
                each[name].append(seconds / _JOBS)
        steps, note = _by_step(path, pid, _JOBS * max(1, turns // 2))
    measured = [{**spread(name, "us", [each * 1e6 for each in some], 1), "n": _JOBS * len(some)}
                for name, some in each.items()]
    whole = [sum(parts) for parts in zip(*each.values(), strict=True)]
    return [Row("processor time of a fresh job, 8 callers", round(percentile(whole, 50) * 1e3, 2), "ms", None,
                measured=measured, note="the job itself included"),
            *(Row(f"of it: {name}", round(100 * share, 1), "%", None, note=note) for name, share in steps)]


def _by_step(path: str, pid: int, jobs: int) -> tuple[list[tuple[str, float]], str]:
    """The shares of the time of the daemon's processes, the largest first."""
    perf = shutil.which("perf")
    if perf is None or os.geteuid():
        return [], ""
    with tempfile.TemporaryDirectory(prefix="leeward-bench.") as folder:
        with _recording(perf, f"{folder}/perf.data"):
            who = known(pid)
            rate(path, CALLERS, jobs)
        said = subprocess.run([perf, "script", "-i", f"{folder}/perf.data", "--show-task-events",
                               "-F", "comm,pid,event,ip,sym"],
                              capture_output=True, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL).stdout
    counted = count(said, who)
    whole = sum(counted.values())
    if not whole:
        return [], ""
    shares = [(name, number / whole) for name, number in counted.most_common()]
    small = sum(share for _, share in shares if share < _LEAST)
    return ([(name, share) for name, share in shares if share >= _LEAST] + [("all others together", small)],
            f"of {whole} samples by perf")


@contextlib.contextmanager
def _recording(perf: str, file: str) -> Iterator[None]:
    process = subprocess.Popen([perf, "record", "-q", "-a", "-g", "-F", str(_HERTZ), "-e", "cpu-clock", "-o", file],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def count(script: str, at_first: Mapping[int, str]) -> Counter[str]:
    """Samples by process and step, from `perf script`; *at_first* as `known` has it. Other processes are left out."""
    who = dict(at_first)
    counted: Counter[str] = Counter()
    for line in script.split("\n"):
        is_fork(line, who)
    for sample in script.split("\n\n"):
        head = next((line for line in sample.split("\n") if _SAMPLE.search(line)), None)
        if head is None:
            continue
        name = who.get(int(_SAMPLE.search(head)[1]))  # type: ignore[index]  # it was just found
        if name is not None:
            counted["{}: {}".format(name.removesuffix("'s child"), step(sample))] += 1
    return counted


def step(stack: str) -> str:
    """The step to which a stack belongs, by its frames, the innermost first."""
    for frame in reversed(stack.split("\n")):
        entry = _ENTRY.search(frame)
        if entry:
            return f"{entry[1]}(2)"
        if "page_fault" in frame:
            return "page faults"
        if "ret_from_fork" in frame:
            return "first steps of a clone"
    return "its own code"

"""Whole processes: commands, the start of a daemon, what a worker takes in memory, and where processor time goes."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.counts import is_fork, known
from bench.figures.row import FigureSettings, Row, compared, in_turn, missing, quotient, spread, times
from leeward.client.blocking import Client
from leeward_cli.bench import alternatives, floors
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE, Spawn, interpreter
from leeward_cli.bench.ours import armed, daemon, daemon_pid, fresh, program, rate
from leeward_cli.bench.rounds import CALLERS, timed
from leeward_cli.bench.spent import children, clock, spent, zygotes

# --- `leeward exec` and `leeward run` as whole processes

_COLD = "leeward run (cold, everything) over bubblewrap + python3 -I -S -c"

#: The imports of the part of `leeward run` that serves as its daemon. The other part, a zygote, starts at the same
#: time.
_IMPORTS = "import leeward_cli.main, leeward_cli.cold, leeward_cli.once"


def measure_command(settings: FigureSettings) -> Sequence[Row]:
    return [*_exec(settings), *_run(settings)]


def _environment(**more: str) -> dict[str, str]:
    return {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ} | more


def _exec(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path:
        ours = Spawn("leeward exec", [program(), "exec", CODE], _environment(LEEWARD_SOCKET=path))
        echo = floors.echo()
        with alternatives.plain_python() as python:
            found = in_turn([ours, echo, python], settings.some(20), 5)
    return [
        compared("leeward exec as a process over /bin/echo", found, ours.name, echo.name, 2.5),
        compared("python3 -c over leeward exec", found, python.name, ours.name, 2, at_most=False,
                 note="several times faster was asked for: twice at least"),
    ]


def _run(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        try:
            bwrap = stack.enter_context(alternatives.bubblewrap())
        except alternatives.Missing as why:
            return [missing(_COLD, 1.3, str(why))]
        ours = Spawn("leeward run", [program(), "run", CODE], _environment())
        imports = Spawn("its imports, and the code", [sys.executable, "-P", "-c", f"{_IMPORTS}\n{CODE}"],
                        _environment())
        found = in_turn([ours, bwrap, imports], settings.some(10), 2)
    return [compared(_COLD, found, ours.name, bwrap.name, 1.3),
            compared("leeward run over an interpreter that imports what it needs, and runs the code", found, ours.name,
                     imports.name, None)]


# --- The start of a daemon: the time to its first answer, its processor time, and the time until a large pool is armed

#: Workers of the large pool.
_MANY = 100


def measure_start(settings: FigureSettings) -> Sequence[Row]:
    nothing = Spawn("python3 -c pass", [interpreter(), "-c", "pass"], printed=b"")
    # The daemon's own environment: what others have installed for an interpreter may run at each of its starts.
    same = Spawn("python3 -c pass, in the daemon's environment", [sys.executable, "-c", "pass"], printed=b"")
    answers, passes, pools, starts, idle = [], [], [], [], []
    timed(nothing.call)
    for _ in range(settings.some(10)):
        passes.append(percentile([timed(nothing.call) for _ in range(5)], 50))
        start = time.perf_counter()
        with daemon(None) as path, Client(path) as client:
            fresh(client).call()
            answers.append(time.perf_counter() - start)
        before = _of_children()
        for _ in range(5):
            same.call()
        idle.append((_of_children() - before) / 5)
        with daemon(None) as path:
            starts.append(clock(daemon_pid(path)))
    for _ in range(settings.some(3)):
        start = time.perf_counter()
        with daemon(None, f"--pool-size={_MANY}", "--spares=0") as path:
            pools.append(armed(path, _MANY) - start)
    return [
        Row("daemon start to first answer over python3 -c pass", quotient(answers, passes), "x", 8,
            measured=[times("start to answer", [answers]), times(nothing.name, [passes])]),
        Row("processor time of a daemon until it is ready over python3 -c pass there", quotient(starts, idle), "x", 8,
            measured=[times("a daemon without its zygote", [starts]), times(same.name, [idle])]),
        Row(f"start of a daemon to a pool of {_MANY} armed", round(percentile(pools, 50), 2), "s", 1,
            measured=[times("start to armed", [pools])]),
    ]


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- The memory of one armed worker: keeper, init and runner; to be measured as the user who runs the daemon.
#
# PSS counts a page that n processes share as an nth of it for each; so it depends on the number of workers, and the
# row is for the usual four. Private is the memory that would be free if this one worker ended.

_PSS, _PRIVATE = "PSS of one armed worker (keeper, init, runner)", "private memory of the same"

_MIB = 1 << 20


def measure_memory(settings: FigureSettings) -> Sequence[Row]:
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
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) << 10
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]


# --- The processor time of a fresh job, by process and by step; by step it needs perf(1), and to be root.
#
# The time by process comes from the kernel's own accounts. The time by step comes from samples: each sample belongs
# to the entry into the kernel (a call, a page fault), or to the program itself.

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


def measure_processor(settings: FigureSettings) -> Sequence[Row]:
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

"""Many jobs: each promise of the pool, one row or two, beside what holds it or the nearest floor. 200 that sleep, many by
one call, verdicts, bursts of sandboxes, branches, kernels, no controllers, fresh jobs, more processors, bytes of egress."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench import sandboxes as live
from bench import verdicts
from bench.figures import egress, jobs, sandboxes
from bench.figures.row import FigureSettings, Row, absolute, compared, in_turn, missing, quotient, spread
from leeward import AsyncClient, AsyncSandbox
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward.errors import LeewardError
from leeward_cli.bench import floors, scaling
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.floors import CODE, Spawn, check, printing
from leeward_cli.bench.ours import daemon, daemon_pid, fresh, good, rate
from leeward_cli.bench.rounds import CALLERS, GAP_S, row, timed

_SLEEPERS, _BURST, _BURSTS, _DENSE, _FILES, _BRANCHES = 200, 100, 1000, 50, 1000, 100
#: Live sandboxes of `dense`, and the daemons that have descriptors for so many.
_LIVE, _DAEMONS = 5000, 5
_STATE = "state = [bytes(4000) for _ in range(50_000)]"
#: For each line of standard input as many forks of an interpreter with that state, one after the other.
_FORKS = f"""
import os, sys, time
{_STATE}
for _ in sys.stdin:
    start = time.perf_counter()
    for _ in range({_BRANCHES}):
        read, write = os.pipe()
        if not os.fork():
            exec("len(state)")
            os.write(write, b"x")
            os._exit(0)
        os.read(read, 1)
        os.close(read)
        os.close(write)
        os.wait()
    print(time.perf_counter() - start, flush=True)
"""
#: Seconds until each of some forks has answered, in turn, 5 ms apart.
_FORKED = """
import os, time
def forked(count):
    seconds = []
    for _ in range(count):
        time.sleep(0.005)
        read, write = os.pipe()
        start = time.perf_counter()
        if not os.fork():
            exec("pass")
            os.write(write, b"x")
            os._exit(0)
        os.read(read, 1)
        seconds.append(time.perf_counter() - start)
        os.close(read)
        os.close(write)
        os.wait()
    return seconds
"""
#: Programs whose verdicts are compared in a round, two of each kind; bench/verdicts.py takes 2,000.
_VERDICTS = 2 * len(verdicts.KINDS)
#: Seconds in which tar unpacks and packs the files, once it has packed them.
_TAR = """
import os, shutil, time
def tar(*arguments):
    start = time.perf_counter()
    assert not os.waitpid(os.posix_spawn("/bin/tar", ["tar", *arguments], {}), 0)[1]
    return time.perf_counter() - start
def tars():
    tar("cf", "/tmp/many.tar", "-C", "/workspace/many", ".")
    shutil.rmtree("/tmp/many", ignore_errors=True)
    os.mkdir("/tmp/many")
    return [tar("xf", "/tmp/many.tar", "-C", "/tmp/many"), tar("cf", "/tmp/many.tar", "-C", "/tmp/many", ".")]
"""
#: Run where no controller can be seen, and where they can: each kind of call, by line of standard input.
_SIDE = """
import json, sys
from leeward.client.blocking import Client
from leeward.client.sandbox import Sandbox
from leeward_cli.bench.floors import CODE
from leeward_cli.bench.ours import armed, daemon
from leeward_cli.bench.rounds import row
with (daemon(None) as path, Client(path) as client, client.session() as session, Sandbox(socket=path) as box,
      box.kernel() as kernel):
    calls = {"fresh": lambda: client.execute(CODE), "turn": lambda: session.execute(CODE),
             "kernel": lambda: kernel.execute(CODE), "execute": lambda: box.execute(CODE)}
    armed(path, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, count, gap = line.split()
        print(json.dumps(row(calls[kind], int(count), float(gap))), flush=True)
"""
_HIDDEN = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'umount -l -R /sys/fs/cgroup; exec "$@"', "sh"]


def measure(settings: FigureSettings) -> Sequence[Row]:
    return [*_jobs(settings), *_verdicts(), *_sandboxes(settings), *_kernels(settings), *_files(settings),
            *_uncounted(settings), *jobs.measure_rates(settings), *_scale(settings), *egress.measure_rate(settings)]


def _jobs(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path, Client(path) as client:
        seconds = []
        for _ in range(settings.some(3)):
            start = time.perf_counter()
            for one in client.map(["import time; time.sleep(1)"] * _SLEEPERS, at_once=_SLEEPERS, timeout=60):
                if one.result is None:
                    raise one.error or LeewardError("bench: a job without a result")
                good(one.result)
            seconds.append(time.perf_counter() - start)
        rates: list[list[float]] = [[], []]
        for _ in range(settings.some(12)):
            for found, run in zip(rates, (partial(_map, client), partial(rate, path)), strict=True):
                found.append(_SLEEPERS / timed(partial(run, CALLERS, _SLEEPERS)))
    return [Row(f"{_SLEEPERS} jobs that sleep for a second, at once", round(percentile(seconds, 50), 2), "s", 3,
                measured=[spread("client.map", "s", seconds, 2)]),
            Row("fresh jobs a second by client.map, 8 at once on one connection, over 8 callers", quotient(*rates), "x", 0.9,
                at_most=False, measured=[spread(name, "jobs/s", found, 0, at_most=False) for name, found in zip(
                    ("client.map", "8 callers"), rates, strict=True)]),
            _following(settings)]


def _following(settings: FigureSettings) -> Row:
    """Jobs in namespaces that ones before them had, over jobs in new ones."""
    words = "fresh jobs a second by client.map with reuse, over without"
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(daemon(None, f"--reuse={how}")) for how in ("user", "off")]
        clients = [stack.enter_context(Client(path)) for path in paths]
        if (reuse := str(clients[0].status()["layers"]["namespaces"]["reuse"])) != "user":
            return missing(words, 1.05, reuse, at_most=False)
        rates: list[list[float]] = [[], []]
        for _ in range(settings.some(12)):
            for found, client in zip(rates, clients, strict=True):
                found.append(_SLEEPERS / timed(partial(_map, client, CALLERS, _SLEEPERS)))
    return Row(words, quotient(*rates), "x", 1.05, at_most=False,
               measured=[spread(name, "jobs/s", found, 0, at_most=False) for name, found in zip(
                   ('reuse = "user"', "without"), rates, strict=True)])


def _map(client: Client, at_once: int, count: int) -> None:
    for one in client.map([CODE] * count, at_once=at_once):
        if one.result is None:
            raise one.error or LeewardError("bench: a job without a result")
        good(one.result)


def _scale(settings: FigureSettings) -> Sequence[Row]:
    """By times of processors, which other load changes less than rates; a machine may have only few of them."""
    words = ("processors of short fresh jobs that one daemon's thread serves",
             "processor time of two daemons for a job, over one with as many workers")
    try:
        sides, _ = scaling.measure(settings.some(12), halved=True)
    except OSError as error:
        return [missing(each, None, str(error)) for each in words]
    *sides, half = sides
    one = next(side for side in reversed(sides) if side.daemons == 1)
    two = next((side for side in reversed(sides) if side.daemons == 2), None)
    whole = one.median("daemons") + one.median("workers") + one.median("client")
    found = [Row(words[0], round(whole / one.median("busiest"), 2), "x", None,
                 note=f"{whole:.2f} ms a job, {one.median('busiest'):.2f} of the thread; `leeward bench --scale` has more")]
    if two is None:
        return [*found, missing(words[1], 1.1, "it takes two processors")]
    of_two, of_one, of_half = ([turn.daemons for turn in side.turns] for side in (two, one, half))
    measured = [spread(name, "ms", each, 3) for name, each in (
        ("two daemons", of_two), ("one", of_one), ("one with half of them", of_half))]
    least = quotient(of_two, of_half)
    return [*found, Row(words[1], quotient(of_two, of_one), "x", 1.1, measured=measured, floor=least),
            Row("the same over one alone with as many workers and callers as each of the two: the floor", least, "x", None)]


def _verdicts() -> Sequence[Row]:
    rows = []
    with daemon(None) as path, Client(path) as client:
        for load in (0, verdicts.LOAD):
            with verdicts.loaded(load):
                tally = verdicts.run(client, _VERDICTS)
            told = (f"{tally.count} programs in {tally.seconds:.0f} s", *map(": ".join, tally.wrong))
            rows.append(Row(f"right verdicts beside {load} programs that never stop for each processor",
                            round(100 * tally.part, 2), "%", 100 * verdicts.BAR, at_most=False, note="; ".join(told)))
    return rows


@contextlib.contextmanager
def _roomy(count: int) -> Iterator[str]:
    """A daemon for so many sandboxes."""
    _all_descriptors()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"max_sessions = {2 * count}\n")
        config.flush()
        with daemon(None, "--config", config.name) as path:
            yield path


def _all_descriptors() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _burst(path: str, count: int) -> tuple[float, float]:
    """
    Seconds until all have answered, by the connections of one client; and of processor time for each: the client's, the
    daemon's, all its processes'.
    """
    async def use() -> None:
        async with AsyncSandbox(client=client) as box:
            programs.append(good(await box.run(["true"])).cpu_time)
            if len(programs) == count:
                ended.append(time.perf_counter() - start)
                spent.append(time.process_time() + live.spent(pid))
                all_used.set()
            await all_used.wait()

    ended, programs, pid, all_used = list[float](), list[float](), daemon_pid(path), asyncio.Event()
    spent = [live.spent(pid) + time.process_time()]  # in this order: neither look at /proc counts
    start = time.perf_counter()
    async with AsyncClient(socket=path) as client, asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(use())
    return ended[0], (spent[1] - spent[0] + sum(programs)) / count


def _bare(program: str, count: int) -> tuple[float, float, float]:
    """The same of sandboxes as barely as they can be made (floors.c), and the MiB of each."""
    start = time.perf_counter()
    with subprocess.Popen([program, "boxes", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        assert bare.stdout is not None
        spent = int(bare.stdout.readline()) / 1e6
        return time.perf_counter() - start, spent / count, live.memory(bare.pid) / count


def _floors(settings: FigureSettings) -> Sequence[Row]:
    """The first one's is the least time until 100 have run."""
    words = "the same of sandboxes as barely as they can be made, in C: namespaces, mounts, first process, program, locks"
    if settings.program is None:
        return [missing(words, None, "there is no compiler")]
    found = list(zip(*(_bare(settings.program, _BURST) for _ in range(settings.some(3))), strict=True))
    return [Row(f"{what} {words}", round(percentile([scale * each for each in values], 50), digits), unit, None)
            for what, unit, scale, digits, values in (("until all have run,", "ms", 1e3, 0, found[0]),
                                                      ("processor time,", "ms", 1e3, 2, found[1]),
                                                      ("memory,", "MiB", 1, 2, found[2]))]


def _sandboxes(settings: FigureSettings) -> Sequence[Row]:
    with _roomy(_BURST) as path:
        seconds, spent = ([1e3 * each for each in values] for values in zip(
            *(asyncio.run(_burst(path, _BURST)) for _ in range(settings.some(3))), strict=True))
    bare = _floors(settings)
    with _roomy(_DENSE) as path, contextlib.closing(live.SandboxConnection(path)) as connection:
        pid, wrong = daemon_pid(path), list[str]()
        found = live.at_once([(connection, pid)], _DENSE, wrong)
    with _roomy(_BURSTS) as path:
        many = asyncio.run(_burst(path, _BURSTS))
    each = (found["MiB"] - found["MiB before"]) / _DENSE
    return [Row(f"{_BURST} sandboxes opened at once, each having run a command", round(percentile(seconds, 50)), "ms", 400,
                measured=[spread("AsyncSandbox", "ms", seconds, 0)], floor=bare[0].value),
            Row(f"{_BURSTS:,} at once, the same", round(many[0], 2), "s", 4,
                note=f"{1e3 * many[1]:.2f} ms of processor time each",
                floor=None if settings.program is None else round(_bare(settings.program, _BURSTS)[0], 2)),
            Row("processor time of each, with the client's", round(percentile(spent, 50), 2), "ms", None,
                measured=[spread("AsyncSandbox", "ms", spent, 2)]),
            Row("memory of a live sandbox after its first command", round(each, 2), "MiB", 1.2,
                note=f"{_DENSE} of them; shares of pages, without the kernel's" + "".join(f"; {one}" for one in wrong)),
            *bare]


def measure_dense(settings: FigureSettings) -> Sequence[Row]:
    """Some minutes, and 8 GiB."""
    _all_descriptors()
    wrong = list[str]()
    with contextlib.ExitStack() as stack:
        bare = None if settings.program is None else stack.enter_context(floors.command(settings.program)).call
        found = live.at_once(stack.enter_context(live.roomy(_LIVE, _DAEMONS)), _LIVE, wrong, bare)
    taken = found["MiB"] - found["MiB before"] + found["MiB more of the kernel's"]
    took, taken_by, outside = (", ".join(f"{name} {value} ms" for name, value in found[what].items())
                               for what in ("command ms", "processor ms of a command", "ms beside"))
    least = round(100 * found["the same beside"] / found["count"], 2)
    return [Row("sandboxes live at once, each with a command answered rightly, twice", found["count"] - len(wrong), "", _LIVE,
                at_most=False, note="; ".join(wrong) or f"{_DAEMONS} daemons"),
            Row("of them answered the second one within 10 ms", round(100 * found["within 10 ms"] / found["count"], 2), "%",
                100, at_most=False, note=f"{took}; of a processor {taken_by}", floor=least),
            Row("of as many commands by bare C, with its locks and through as many processes, while all are live: the floor",
                least, "%", None, note=outside),
            Row("memory of each, with the kernel's", round(taken / found["count"], 2), "MiB", None)]


def _kernels(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None) as path, Client(path) as client, Sandbox(socket=path) as box:
        executed, job = printing("box.execute", lambda: good(box.execute(CODE)).stdout), fresh(client)
        found = in_turn([job, executed], settings.some(20), 5)
    return [*sandboxes.calls(settings), *_commands(settings),
            compared("box.execute over a fresh job", found, executed.name, job.name, 2), *_branches(settings),
            *_large_branches(settings)]


def _branches(settings: FigureSettings) -> Sequence[Row]:
    """Beside forks of the kernel in the sandbox, without a client; and of a bare interpreter outside."""
    ours, inside = "a branch, one call and its end", "os.fork inside"
    with daemon(None) as path, Sandbox(socket=path) as box, box.kernel() as kernel, floors.fork() as fork:
        def branch() -> None:
            with kernel.fork() as copy:
                good(copy.execute("pass"))

        found: dict[str, list[list[float]]] = {ours: [], inside: [], fork.name: []}
        good(kernel.execute(_FORKED))
        branch()
        for _ in range(settings.some(20)):
            found[ours].append(row(branch, 5, GAP_S))
            found[inside].append(json.loads(good(kernel.execute("print(forked(5))")).stdout))
            found[fork.name].append(row(fork.call, 5, GAP_S))
    first, others = ([each for row in found[ours] for each in row[part]] for part in (slice(1), slice(1, None)))
    note = (f"the first of a row of five {1e3 * percentile(first, 50):.2f} ms, the others, which are forked ahead,"
            f" {1e3 * percentile(others, 50):.2f}")
    return [absolute(ours, found[ours], "ms", 1.5, note, found[inside]),
            compared("the same over os.fork inside the sandbox with its answer: the floor", found, ours, inside, None),
            compared("that floor over a bare fork of an interpreter with its answer", found, inside, fork.name, None)]


def _commands(settings: FigureSettings) -> Sequence[Row]:
    """Beside one outside, and one by C in a sandbox as bare, with its locks."""
    ours, outside = "box.run", Spawn("posix_spawn outside", ["/bin/true"], printed=b"")
    found: dict[str, list[list[float]]] = {ours: [], outside.name: []}
    with daemon(None) as path, Sandbox(socket=path) as box, contextlib.ExitStack() as stack:
        bare = None if settings.program is None else stack.enter_context(floors.command(settings.program))
        for _ in range(settings.some(20)):
            found[ours].append(row(lambda: check("true", good(box.run(["true"])).stdout, b""), 10, GAP_S))
            found[outside.name].append(row(outside.call, 10, GAP_S))
            if bare is not None:
                found.setdefault(bare.name, []).append(row(bare.call, 10, GAP_S))
    words = "the same over a command by bare C, in a sandbox as bare, with its locks: the floor"
    return [compared('box.run(["true"]) over posix_spawn outside', found, ours, outside.name, round(1.2 / 0.7, 2),
                     note="the bar: 1.2 ms where posix_spawn takes 0.7", floor="" if bare is None else bare.name),
            missing(words, None, "there is no compiler") if bare is None else compared(words, found, ours, bare.name, None)]


def _large_branches(settings: FigureSettings) -> Sequence[Row]:
    """By one client, half of them at a time; beside as many forks of one interpreter, each with its answer, in turn."""
    seconds: dict[str, list[float]] = {"ours": [], "forks": []}
    with daemon(None) as path, Sandbox(socket=path, memory="2G", processes=128) as box, box.kernel() as kernel, \
            subprocess.Popen([sys.executable, "-I", "-S", "-c", _FORKS], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE) as forks:
        good(kernel.execute(_STATE))
        assert forks.stdin is not None
        assert forks.stdout is not None
        for _ in range(settings.some(5)):
            start = time.perf_counter()
            for _ in range(2):
                branches = [kernel.fork() for _ in range(_BRANCHES // 2)]
                for each in branches:
                    good(each.execute("len(state)", display=False))
                for each in branches:
                    each.close()
            seconds["ours"].append(time.perf_counter() - start)
            forks.stdin.write(b"\n")
            forks.stdin.flush()
            seconds["forks"].append(float(forks.stdout.readline()))
        forks.stdin.close()
    ours, floor = ([1e3 * each for each in values] for values in seconds.values())
    return [Row(f"{_BRANCHES} branches of a state of 200 MB, each with a call and its end", round(percentile(ours, 50)), "ms",
                300, measured=[spread("kernel.fork", "ms", ours, 0)], floor=round(percentile(floor, 50))),
            Row("the same over as many bare forks with their answers, in turn: the floor", quotient(ours, floor), "x", None,
                measured=[spread("os.fork", "ms", floor, 0)])]


def _files(settings: FigureSettings) -> Sequence[Row]:
    """Beside a tar outside, both on a tmpfs, each file new; and beside one in the sandbox, without a client."""
    many = {f"many/{number % 20}/{number}": bytes(1024) for number in range(_FILES)}
    found: dict[str, list[list[float]]] = {name: [] for name in ("write_many", "tar x", "read_many", "tar c")}
    inside: dict[str, list[list[float]]] = {"tar x inside": [], "tar c inside": []}
    with (daemon(None) as path, Sandbox(socket=path) as box, box.kernel() as kernel,
          tempfile.TemporaryDirectory(dir="/dev/shm") as folder):
        box.files.write_many(many)
        box.files.export_tar("many", f"{folder}/many.tar")
        kernel.execute(_TAR)
        unpack, pack = (["tar", how, f"{folder}/many.tar", "-C", f"{folder}/many", *more] for how, more in (
            ("xf", ()), ("cf", ("."))))
        for _ in range(settings.some(20)):
            box.files.remove("many", recursive=True)
            shutil.rmtree(f"{folder}/many", ignore_errors=True)
            os.mkdir(f"{folder}/many")
            calls: Sequence[Callable[[], object]] = (
                partial(box.files.write_many, many), partial(subprocess.run, unpack, check=True),
                partial(box.files.read_many, many), partial(subprocess.run, pack, check=True))
            for name, call in zip(found, calls, strict=True):
                start = time.perf_counter()
                call()
                found[name].append([time.perf_counter() - start])
            for name, seconds in zip(inside, json.loads(good(kernel.execute("print(tars())")).stdout), strict=True):
                inside[name].append([seconds])
    pairs = tuple(zip(("write_many", "read_many"), ("tar x", "tar c"), strict=True))
    return [*(compared(f"{_FILES:,} files of 1 KiB by files.{ours} over {theirs} outside", found, ours, theirs, 2)
              for ours, theirs in pairs),
            *(compared(f"the same by {theirs} in the sandbox, without a client, over {theirs} outside: the floor",
                       {**found, **inside}, f"{theirs} inside", theirs, None) for _, theirs in pairs)]


def _uncounted(settings: FigureSettings) -> Sequence[Row]:
    words = {("fresh", 20, 0.02): "a fresh job where no controller counts, over one where they do, 20 ms between calls",
             ("turn", 20, 0.005): "a job in a session, the same, 5 ms", ("turn", 200, 0.0): "the same without a pause",
             ("kernel", 20, 0.005): "a kernel's call, the same, 5 ms",
             # 5 ms are as much as the next interpreter takes, on one side or the other
             ("execute", 20, 0.02): "box.execute, the same, 20 ms"}
    if os.geteuid() or shutil.which("unshare") is None:
        return [missing(each, 1.15, "it takes root to hide the controllers") for each in words.values()]
    sides = [subprocess.Popen([*hidden, sys.executable, "-P", "-c", _SIDE], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) for hidden in (_HIDDEN, [])]

    def ask(side: subprocess.Popen[str], kind: str, count: int, gap: float) -> float:
        assert side.stdin is not None
        assert side.stdout is not None
        side.stdin.write(f"{kind} {count} {gap}\n")
        side.stdin.flush()
        return percentile(json.loads(side.stdout.readline()), 50)

    rows = []
    for side in sides:
        assert side.stdout is not None
        side.stdout.readline()
    for (kind, count, gap), text in words.items():
        pairs = [[ask(side, kind, count, gap) for side in sides] for _ in range(settings.some(20))]
        without, counted = zip(*pairs, strict=True)
        rows.append(Row(text, quotient(without, counted), "x", 1.15, measured=[
            spread(name, "ms", [1e3 * each for each in values], 3)
            for name, values in (("without controllers", without), ("with them", counted))]))
    for side in sides:
        side.communicate()
    return rows

"""Fresh jobs and sessions: their latency and rate, beside floors and other ways to run code; denied calls; large output."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import counts
from bench.figures.row import FigureSettings, Row, absolute, compared, in_turn, missing, quotient, spread, times
from leeward.base.closing import OwnedFd
from leeward.client.blocking import Client
from leeward.client.connecting import connect
from leeward.errors import LeewardError
from leeward_cli.bench import alternatives, floors, ours
from leeward_cli.bench.figures import percentile
from leeward_cli.bench.figures import rate as as_rate
from leeward_cli.bench.ours import OURS, armed, burst, daemon, daemon_pid, fresh, good, in_session, rate, sessions
from leeward_cli.bench.rounds import CALLERS, GAP_S, no_collections, timed
from leeward_cli.bench.rounds import row as calls_of
from leeward_cli.bench.spent import spent

# --- A fresh job over one connection, with idle time between calls

_MONTY = "p50 of a fresh job over that of a new session of monty"


def measure_fresh(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(ours.daemon(None))
        subjects: list[floors.Subject] = [ours.fresh(stack.enter_context(Client(path))),
                                          stack.enter_context(floors.hops("four", settings.program))]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.through(settings.program)))
        native = stack.enter_context(ours.from_c(path))
        try:
            monty: floors.Subject | None = stack.enter_context(alternatives.monty())
            why = ""
        except alternatives.Missing as reason:
            monty, why = None, str(reason)
        subjects += [each for each in (native, monty) if each is not None]
        found = in_turn(subjects, settings.rounds, 20)

    rows = [compared("p50 of a fresh job, 5 ms idle between calls, over four hops", found, OURS, floors.FOUR_HOPS, 1.5,
                     note="called from Python")]
    if native is not None:
        rows.append(compared("the same, called from C", found, native.name, floors.FOUR_HOPS, 1.5))
    if settings.program is not None:
        rows += [compared(f"p50 of a fresh job over {floors.THROUGH}", found, OURS, floors.THROUGH, None),
                 compared("that floor over four hops", found, floors.THROUGH, floors.FOUR_HOPS, None)]
    rows.append(missing(_MONTY, 0.5, why) if monty is None else compared(_MONTY, found, OURS, monty.name, 0.5))
    calls = [each for some in found[OURS] for each in some]
    own, floor = times(OURS, found[OURS], GAP_S), times(floors.FOUR_HOPS, found[floors.FOUR_HOPS], GAP_S)
    rows.append(Row("p99 of a fresh job over its p50", round(percentile(calls, 99) / percentile(calls, 50), 2), "x", 4,
                    measured=[own, floor], note=f"the floor's own is {floor['p99'] / floor['p50']:.1f} x"))
    return rows


# --- Jobs per second of eight callers, beside other ways to run each job in a process of its own

_RATES = "fresh jobs per second, 8 callers, over "

#: Clones of a process that runs the code in each; in a process of its own, for it is about to fork.
_CLONES = """
import json, sys, time
from sandlock import Sandbox
folders, code, count = json.loads(sys.argv[1])
run = compile(code, "<string>", "exec")
box = Sandbox(fs_readable=folders, fs_writable=["/tmp"], init_fn=lambda: exec(run, {}),
              work_fn=lambda number: exec(compile(code, "<string>", "exec"), {"__name__": "__main__"}))
start = time.perf_counter()
clones = box.fork(count)
printed = box.reduce(["/bin/cat"], clones).stdout
print(json.dumps([time.perf_counter() - start, printed.decode()]))
"""


#: Tasks of Ray's on as many workers as there are processors, each running the code; as many as a line says, for each line.
_TASKS = """
import contextlib, io, json, os, sys, time
import ray
ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
@ray.remote
def task(code):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return printed.getvalue()
for line in sys.stdin:
    start = time.perf_counter()
    printed = "".join(ray.get([task.remote(sys.argv[1]) for _ in range(int(line))]))
    print(json.dumps([time.perf_counter() - start, printed]), flush=True)
"""
#: Where a checkout has Ray: `./dev prepare`.
_WITH_RAY = Path(__file__).resolve().parents[2] / ".venv-framework-ray/bin/python"


@contextlib.contextmanager
def tasks_of_ray() -> Iterator[Callable[[int], float]]:
    """The seconds that so many take; alternatives.Missing if it isn't there."""
    with subprocess.Popen([_WITH_RAY if _WITH_RAY.exists() else sys.executable, "-P", "-c", _TASKS, floors.CODE],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as ray:
        stdin, stdout = ray.stdin, ray.stdout
        assert stdin is not None
        assert stdout is not None

        def tasks(count: int) -> float:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(f"{count}\n")
                stdin.flush()
            line = next((each for each in stdout if each.startswith("[")), None)
            if line is None:
                raise alternatives.Missing("no Ray that answers")
            seconds, printed = json.loads(line)
            if printed != floors.PRINTED.decode() * count:
                raise LeewardError(f"bench: {count} tasks of Ray's printed {printed[:80]!r}")
            return float(seconds)

        try:
            tasks(50)
            yield tasks
        finally:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()


def measure_rates(settings: FigureSettings) -> Sequence[Row]:
    why: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        fork = stack.enter_context(floors.fork())
        bursts: dict[str, tuple[int, Callable[[], float]]] = {
            OURS: (200, lambda: timed(lambda: rate(path, CALLERS, 200))),
            floors.FORK: (200, lambda: timed(lambda: fork.rate(CALLERS, 200))),
        }
        try:
            if settings.program is None:
                raise LeewardError("there is no compiler")
            bare = stack.enter_context(floors.bare_job(settings.program))
            bare.call()
            bursts[floors.BARE_JOB] = 200, lambda: timed(lambda: bare.rate(CALLERS, 200))
        except LeewardError as reason:  # no namespaces for this user, say
            why[floors.BARE_JOB] = str(reason)
        try:
            bwrap = stack.enter_context(alternatives.bubblewrap())
            bursts["bwrap"] = 24, lambda: timed(lambda: bwrap.rate(CALLERS, 24))
        except alternatives.Missing as reason:
            why["bwrap"] = str(reason)
        try:
            clones(8)
            bursts["sandlock"] = 100, lambda: clones(100)
        except alternatives.Missing as reason:
            why["sandlock"] = str(reason)
        rates: dict[str, list[float]] = {name: [] for name in bursts}
        for _ in range(settings.some(12)):
            for name, (jobs, seconds) in bursts.items():
                rates[name].append(jobs / seconds())

    def row(words: str, under: str, target: float | None, note: str = "", over: str = OURS) -> Row:
        words = _RATES + words if over == OURS else f"{over} over {words}"
        if under in why or over in why:
            return missing(words, target, why.get(under) or why[over], at_most=False)
        measured: list[dict[str, Any]] = [
            {"unit": "jobs/s", **asdict(as_rate(name, CALLERS, bursts[name][0], rates[name]))}
            for name in (over, under)]
        return Row(words, quotient(rates[over], rates[under]), "x", target, False, measured, note,
                   quotient(rates[floors.BARE_JOB], rates[under]) if floors.BARE_JOB in rates and over == OURS else None)

    return [
        Row("fresh jobs a second, 8 callers", round(percentile(rates[OURS], 50)), "jobs/s", 1000, False,
            note="the bar is for two processors; the floor is the bare job below",
            floor=round(percentile(rates[floors.BARE_JOB], 50)) if floors.BARE_JOB in rates else None),
        row("a fork on request without isolation", floors.FORK, 0.6),
        row("a bare job by C, with its locks, groups and processes", floors.BARE_JOB, None),
        row("a fork on request without isolation", floors.FORK, None, over=floors.BARE_JOB),
        row("bubblewrap + python3 -I -S -c", "bwrap", 6),
        row("sandlock's fork()", "sandlock", 1.5, "100 clones by one call, and their output read; no namespaces"),
        _beside_ray(settings),
    ]


def _beside_ray(settings: FigureSettings) -> Row:
    """In turns of its own: Ray's processes take some of the processors whenever they are there."""
    words = f"{_RATES}Ray's tasks"
    try:
        with daemon(None) as path, tasks_of_ray() as tasks:
            pairs = [(200 / timed(lambda: rate(path, CALLERS, 200)), 200 / tasks(200)) for _ in range(settings.some(6))]
    except alternatives.Missing as why:
        return missing(words, None, str(why))
    ours, theirs = zip(*pairs, strict=True)
    return Row(words, quotient(ours, theirs), "x", None, measured=[
        spread(name, "jobs/s", found, 0, at_most=False) for name, found in ((OURS, ours), ("Ray", theirs))],
        note="by workers that stay, without isolation; 200 at once")


def clones(count: int) -> float:
    """The seconds that *count* of sandlock's clones take; alternatives.Missing if it doesn't work here."""
    given = json.dumps([alternatives.readable(), floors.CODE, count])
    got = subprocess.run([sys.executable, "-c", _CLONES, given], capture_output=True, text=True, check=False,
                         stdin=subprocess.DEVNULL)
    if got.returncode:
        raise alternatives.Missing("sandlock: " + (got.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    seconds, printed = json.loads(got.stdout.splitlines()[-1])
    if printed != floors.PRINTED.decode() * count:
        raise LeewardError(f"bench: {count} clones of sandlock printed {printed[:80]!r}")
    return float(seconds)


# --- Throughput of fresh jobs: one caller without pauses, the bound by the daemon's one thread, and page faults, which
# need root, perf(1) with tracepoints and a C compiler.
#
# `rates` has jobs per second beside the floors, `fresh` calls with pauses, `memory` what a worker takes.
# bench/processor_pairs.py compares the processor time of a job with that of an older commit.

_FAULTS = "page faults of a fresh job, arming included, 8 callers"

#: Jobs of a turn, and the daemon's workers.
_TURN, _ARMED = 200, 4


def measure_throughput(settings: FigureSettings) -> Sequence[Row]:
    with daemon(None, f"--pool-size={_ARMED}") as path:
        with Client(path) as client:
            def opened() -> None:
                with client.session() as session:
                    good(session.execute(floors.CODE))

            rows = [_p50("p50 of a fresh job, one caller without a pause", fresh(client).call, settings),
                    _p50("opening a session and one job in it, one caller without a pause", opened, settings)]
        rows.append(_carried(path, settings))
    return [*rows, _faults()]


def _p50(words: str, call: Callable[[], None], settings: FigureSettings) -> Row:
    for _ in range(50):
        call()
    with no_collections():
        found = [calls_of(call, 50, 0.0) for _ in range(settings.rounds)]
    return absolute(words, found, "ms", 1.5, "")


def _carried(path: str, settings: FigureSettings) -> Row:
    """Compute the rate from the daemon's own processor time, because on two processors the workers are the bottleneck."""
    words, rates, pid = "fresh jobs per second that the daemon's thread can carry", list[float](), daemon_pid(path)
    for _ in range(settings.some(10)):
        armed(path, _ARMED)
        before = spent(pid)
        rate(path, CALLERS, 5 * _TURN)
        armed(path, _ARMED)
        after = spent(pid)
        if before is None or after is None or after.daemon == before.daemon:
            return missing(words, 2000, "/proc doesn't tell the daemon's time", at_most=False)
        rates.append(5 * _TURN / after.since(before).daemon)
    return Row(words, round(percentile(rates, 50)), "/s", 2000, at_most=False,
               measured=[spread("daemon", "jobs/s", rates, 0, at_most=False)],
               note="by the processor time of all its threads, with the bookkeeping of a job's end and arming")


def _faults() -> Row:
    if os.geteuid() or not shutil.which("perf") or not shutil.which("cc"):
        return missing(_FAULTS, 60, "needs root, perf and a C compiler")
    try:
        found = counts.of_tree(str(Path(__file__).resolve().parents[2]), _TURN)
    except OSError as error:
        return missing(_FAULTS, 60, f"perf: {error}")
    return Row(_FAULTS, found["faults"].get("runner"), "faults", 60, note="of its process, from clone to end")


# --- Jobs of a session, which keeps its state between them

_MANY = "jobs per second in sessions, 8 callers, over one session of monty"

#: Jobs of a turn.
_TALKED = 500

#: The target for a job in a session: so many times the floor, and seconds for the code itself.
_TIMES, _OWN_S = 1.3, 15e-6


def measure_sessions(settings: FigureSettings) -> Sequence[Row]:
    return [*_one(settings), _many(settings)]


def _one(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(daemon(None))
        client = stack.enter_context(Client(path))
        ours = in_session(stack.enter_context(client.session()))
        hops = stack.enter_context(floors.hops("four", settings.program))
        subjects: list[floors.Subject] = [ours, hops]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.through(settings.program)))
        found = in_turn(subjects, settings.rounds, 20)
    allowed = [_TIMES * percentile(some, 50) + _OWN_S for some in found[hops.name]]
    return [
        Row(f"p50 in a session, over {_TIMES:g} x four hops and {_OWN_S * 1e6:g} us",
            quotient([percentile(some, 50) for some in found[ours.name]], allowed), "x", 1,
            measured=[times(each.name, found[each.name], GAP_S) for each in (ours, hops)]),
        *(compared(f"p50 in a session over {floors.THROUGH}", found, ours.name, floors.THROUGH, None) for _ in subjects[2:]),
    ]


def _many(settings: FigureSettings) -> Row:
    """A session of monty has one caller; eight of ours are eight processes."""
    with contextlib.ExitStack() as stack:
        try:
            monty = stack.enter_context(alternatives.monty_session())
        except alternatives.Missing as why:
            return missing(_MANY, 4, str(why), at_most=False)
        path = stack.enter_context(daemon(None, f"--pool-size={2 * CALLERS}", "--spares=0"))
        talks = stack.enter_context(sessions(path, CALLERS))

        def calls() -> None:
            for _ in range(_TALKED):
                monty.call()

        bursts: dict[str, Callable[[], None]] = {"leeward, 8 sessions": lambda: burst(talks, _TALKED), monty.name: calls}
        rates: dict[str, list[float]] = {name: [] for name in bursts}
        for _ in range(settings.some(10)):
            for name, call in bursts.items():
                rates[name].append(_TALKED / timed(call))
    ours, theirs = rates
    return Row(_MANY, quotient(rates[ours], rates[theirs]), "x", 4, at_most=False,
               measured=[{"unit": "jobs/s", **asdict(as_rate(name, 1 if name == theirs else CALLERS, _TALKED, some))}
                         for name, some in rates.items()])


# --- The latency that a large pool and many idle connections add to a call

_CROWD, _CONNECTIONS = 256, 1000
#: Descriptors beside the connections.
_OTHERS = 200


def measure_crowd(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        few = stack.enter_context(daemon(None))
        many = stack.enter_context(daemon(None, f"--pool-size={_CROWD}"))
        armed(few, 4)
        armed(many, _CROWD)
        stack.enter_context(idle(many, _CONNECTIONS))
        alone = fresh(stack.enter_context(Client(few)), "4 workers, 1 connection")
        crowd = fresh(stack.enter_context(Client(many)), f"{_CROWD} workers, {_CONNECTIONS} idle connections")
        found = in_turn([alone, crowd], settings.rounds, 20)
    return [compared(f"latency with {_CROWD} workers and {_CONNECTIONS} idle connections over that with 4 and 1",
                     found, crowd.name, alone.name, 1.2)]


@contextlib.contextmanager
def idle(path: str, count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = connect(path)
            assert sock is not None
            stack.callback(sock.close)
        with Client(path) as client:
            client.ping()  # the others were accepted before it
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- A refused system call, beside the same with a minimal supervisor in user space. The process that makes the call is
# the same Python on both sides: a job of ours, and a child of floors.c's supervisor.

_DENIED = "a denied system call over that of a bare supervisor in C"

#: Calls of a turn: fewer than a job's burst, because beyond the burst it has to wait for tokens.
_CALLS = 500

_ASK = f"""
import os, time
clock, seconds = time.perf_counter, []
for _ in range({_CALLS}):
    start = clock()
    try:
        os.chroot("/")
    except PermissionError:
        seconds.append(clock() - start)
print(seconds)
"""


def measure_denied(settings: FigureSettings) -> Sequence[Row]:
    if settings.program is None:
        return [missing(_DENIED, 1.5, "there is no C compiler")]
    ours, bare = "denied by leeward's supervisor", "denied by a bare one"
    found: dict[str, list[list[float]]] = {ours: [], bare: []}
    with daemon(None) as path, Client(path) as client:
        for _ in range(settings.some(20)):
            found[ours].append(_read(good(client.execute(_ASK)).stdout))
            found[bare].append(_read(_bare(settings.program)))
    return [compared(_DENIED, found, ours, bare, 1.5, gap_s=0.0, note="os.chroot in a loop of Python on both sides")]


def _bare(program: str) -> bytes:
    got = subprocess.run([program, "denied", floors.interpreter(), "-I", "-S", "-c", _ASK], capture_output=True, check=False,
                         stdin=subprocess.DEVNULL)
    if got.returncode:
        raise LeewardError(f"bench: the bare supervisor failed: {got.stderr[:200]!r}")
    return got.stdout


def _read(printed: bytes) -> list[float]:
    seconds = [float(each) for each in json.loads(printed)]
    if len(seconds) != _CALLS:
        raise LeewardError(f"bench: {_CALLS - len(seconds)} of {_CALLS} calls weren't denied")
    return seconds


# --- Large output: the time until the client has mapped it, beside that of one process to write it into a memory file

#: Bytes of the whole output, and of one write.
_SIZE, _PIECE = 64 << 20, 1 << 20

#: Seconds between calls, in which the memory of the previous call is freed.
_GAP_S = 0.1

_WRITE = f"""
import os
piece = bytes({_PIECE})
for _ in range({_SIZE // _PIECE}):
    os.write(1, piece)
"""


def alone() -> None:
    """Write as much as the job into a memory file of one process's own."""
    piece = bytes(_PIECE)
    with OwnedFd(os.memfd_create("alone")) as fd:
        for _ in range(_SIZE // _PIECE):
            os.write(fd, piece)


def measure_output(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(stack.enter_context(daemon(None))))

        def mapped() -> None:
            """Have a job write the output, map it and read its last byte."""
            view = good(client.execute(_WRITE, output=2 * _SIZE)).stdout_view
            if len(view) != _SIZE or view[-1]:
                raise LeewardError(f"bench: {len(view)} bytes came of {_SIZE}")

        ours = floors.CalledSubject("leeward, 64 MiB mapped", mapped)
        subjects: list[floors.Subject] = [ours, floors.CalledSubject("write of 64 MiB into a memory file", alone)]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.pour(settings.program, _SIZE)))
        found = in_turn(subjects, settings.some(20), 1, _GAP_S)
    return [compared(f"64 MiB of output, until the client has it mapped, over {under.name}", found, ours.name, under.name,
                     target, gap_s=_GAP_S) for under, target in zip(subjects[1:], (1.3, None), strict=False)]

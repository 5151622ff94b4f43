"""
What jobs leave behind in the daemon and on the host: nothing, whatever became of them.
"""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

from box import RUNS, Box
from leeward.isolation.cgroup import hierarchy
from leeward.spec.job import Job
from sessions import Wire

#: Jobs between the first look and the last.
JOBS = 10_000 if os.environ.get("LEEWARD_LONG") else 300

WORKERS = 2

#: Sessions before the first look, and again before the last.
SESSIONS = 500 if os.environ.get("LEEWARD_LONG") else 13

#: One after the other: jobs that go well, and ones that don't.
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("print('x')", {}),
    ("print('x' * 300_000)", {}),
    ("raise ValueError", {}),
    ("import os; os._exit(3)", {}),
    ("import os; os.kill(os.getpid(), 9)", {}),
    ("open('a', 'w').write('b')", {"collect": ("*",), "files": {"c": b"d" * 100_000}}),
    ("print('x' * 3_000_000)", {"limits": {"output": 1 << 20}}),
    ("while True: pass", {"limits": {"time": 0.02}}),
    ("import os; os.write(4, b'\\xff' * 8)", {"limits": {"time": 0.05}}),
    ("import os\nos.fork() or os.fork()\nos.chroot('/')", {}),
    ("import os; os.kill(-1, 9)", {}),
    ("kept = bytearray(1 << 30)", {}),
)


def state(box: Box) -> dict[str, int]:
    """
    What could have leaked, counted.
    """
    zygote = box.engine._zygote
    assert zygote is not None
    pool = box.engine.pool
    box.reactor.run(lambda: WORKERS == len(pool.workers) and all(
        worker.free and 2 == len(worker._armed) and not worker._leaves for worker in pool.workers)
        and not any(timer.call for _, _, timer in box.reactor._timers))
    for worker in pool.workers:  # groups that wait for a later job: how many depends on how jobs met
        kept = getattr(worker.group, "_kept", ())
        while kept:
            assert kept[0].remove()
            kept.popleft()
    gc.collect()
    descriptors = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.islink(f"/proc/self/fd/{fd}")]
    children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children").read_text().split()
    groups = sum(1 for each in hierarchy.here() for path in Path(each.own).glob(f"leeward-{os.getpid()}-*/**/"))
    zombies = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        zombies += "Z" == rest[0] and int(rest[1]) in {os.getpid(), zygote.pid}
    return {
        "descriptors": len(descriptors), "memfds": sum("memfd:" in target for target in descriptors),
        "zygote's": len(os.listdir(f"/proc/{zygote.pid}/fd")) if os.access(f"/proc/{zygote.pid}/fd", os.R_OK) else 0,
        "keepers": len(children), "zombies": zombies,
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "groups": groups, "watched": len(box.reactor._callbacks), "timers": sum(
            timer.call is not None for _, _, timer in box.reactor._timers),
    }


def memory() -> int:
    """
    Of the daemon, in KiB, without pages that it shares with files.
    """
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0])


def run(box: Box, count: int) -> int:
    """
    How many workers were killed meanwhile.
    """
    killed = 0
    for number in range(count):
        code, options = KINDS[number % len(KINDS)]
        box.run(code, **options)
        box.log.rows.clear()  # what the test notes isn't the daemon's memory
        RUNS.clear()
        if number % 50 == 49:  # the daemon's own misfortunes
            worker = box.engine.pool.workers[0]
            ticket = box.engine.pool.submit(Job(code=b"while True: pass"), lambda report: None, 5.0)
            if number % 100 == 99:
                with contextlib.suppress(ProcessLookupError):  # it is just being recycled
                    os.kill(worker.pid, 9)
                    killed += 1
            ticket.cancel()
    return killed


def run_sessions(box: Box) -> None:
    """
    However they end: by the client, by a limit, by a reset, with a job that runs, and children that are left.
    """
    with Wire(box) as wire:
        for number in range(SESSIONS):
            code, options = KINDS[number % len(KINDS)]
            peer = wire.peer()
            session = peer.open(limits={"memory": 64 << 20, "time": 2.0})
            peer.run(session, "import os, time\nos.fork() or os.fork() or time.sleep(60)")
            peer.run(session, "while True: pass", limits={"time": 0.02})
            peer.ask("session_reset", session=session)
            peer.run(session, code, limits=options.get("limits", {}))
            if number % 3 == 0:
                peer.send("execute", session=session, code=b"while True: pass")
            if number % 2:
                peer.ask("session_close", session=session)
            peer.close()
            wire.until(lambda: not wire.server.connections)
    box.log.rows.clear()
    RUNS.clear()


def test_jobs_and_faults_leave_nothing():
    """
    Descriptors, memfds, processes, mounts, cgroups, timers: as after the first hundred.
    """
    with Box(pool_size=WORKERS, recycle_after=40) as box:
        run(box, 100)
        run_sessions(box)
        before, before_memory = state(box), memory()
        assert run(box, JOBS) > 0
        run_sessions(box)
        after, after_memory = state(box), memory()

    assert before == after
    assert after_memory - before_memory < 4096


def test_a_closed_engine_leaves_nothing():
    """
    Not even in the process that it was in.
    """
    with Box(pool_size=WORKERS) as box:
        run(box, len(KINDS))
    gc.collect()
    before = sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
                    if os.path.islink(f"/proc/self/fd/{fd}"))
    for _ in range(3):
        with Box(pool_size=WORKERS) as box:
            run(box, len(KINDS))
    gc.collect()

    assert before == sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
                            if os.path.islink(f"/proc/self/fd/{fd}"))

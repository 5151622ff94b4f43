"""What jobs leave behind in the daemon and on the host: nothing, whatever became of them."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import pytest

import leeward
from kit.box import RUNS, Box
from kit.growth import anonymous, least_growth
from kit.live_daemon import LiveDaemon
from kit.sessions import Wire
from kit.waiting import poll_until
from leeward.daemon.run.runner import Runner
from leeward.isolation.cgroup import hierarchy
from leeward.spec.job import Job

#: Jobs between the first look and the last.
JOBS = 10_002 if os.environ.get("LEEWARD_LONG") else 300

WORKERS = 2

#: Looks at the memory, with a part of all jobs before each.
TIMES = 3

#: Sessions before the first look, and again before the last.
SESSIONS = 501 if os.environ.get("LEEWARD_LONG") else 15

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
    """What could have leaked, counted."""
    zygote = box.engine.main.zygotes.current
    assert zygote is not None
    pool = box.engine.main.pool
    box.reactor.run(lambda: WORKERS == len(pool.workforce.workers) and all(
        worker.free and 2 == len(worker.arming.store) and not worker.removal for worker in pool.workforce.workers)
        and not any(timer.call for _, _, timer in box.reactor._timers))
    for worker in pool.workforce.workers:  # groups that wait for a later job: how many depends on how jobs met
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
        "groups": groups, "watched": len(box.reactor._callbacks), "timers": sum(
            timer.call is not None for _, _, timer in box.reactor._timers),
    }


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def no_mount_but(before: set[str]) -> None:
    """Others mount folders on the host as well, while their tests run."""
    poll_until(lambda: not mounts() - before, "the mounts of others", 120)


def memory() -> int:
    gc.collect()
    return anonymous(os.getpid())


def run(box: Box, count: int) -> int:
    """How many workers were killed meanwhile."""
    killed = 0
    for number in range(count):
        code, options = KINDS[number % len(KINDS)]
        box.run(code, **options)
        box.log.rows.clear()  # what the test notes isn't the daemon's memory
        RUNS.clear()
        if number % 50 == 49:  # the daemon's own misfortunes
            worker = box.engine.main.pool.workforce.workers[0]
            ticket = box.engine.main.pool.submit(Job(code=b"while True: pass"), lambda report: None, 5.0)
            if number % 100 == 99:
                with contextlib.suppress(ProcessLookupError):  # it is just being recycled
                    os.kill(worker.keeper.pid, 9)
                    killed += 1
            ticket.cancel()
    return killed


def run_sessions(box: Box, count: int) -> None:
    """However they end: by the client, by a limit, by a reset, with a job that runs, and children that are left."""
    with Wire(box) as wire:
        for number in range(count):
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


def runners() -> int:
    return sum(type(each) is Runner for each in gc.get_objects())


def test_an_ended_runner_is_freed_before_the_deadline_of_its_arming():
    """A timer holds the runner that it is about, and seconds are thousands of jobs."""
    gc.collect()
    others = runners()  # of tests before this one
    with Box(pool_size=1) as box:
        for _ in range(60):
            box.run("pass")
        until = box.reactor.now() + box.engine.main.pool.workforce.workers[0]._terms.patience.keeper / 2
        while runners() > others + 5 and box.reactor.now() < until:
            box.reactor.turn(0.1)
        left = runners() - others

    assert left <= 5


@pytest.mark.timeout(600)
def test_jobs_and_faults_do_not_leak():
    """Descriptors, memfds, processes, mounts, cgroups, timers: as after the first hundred."""
    with Box(pool_size=WORKERS, recycle_after=40) as box:
        run(box, 100)
        run_sessions(box, SESSIONS)
        before, killed, mounted = state(box), [], mounts()

        def use() -> None:
            killed.append(run(box, JOBS // TIMES))
            run_sessions(box, SESSIONS // TIMES)

        growth = least_growth(memory, use, TIMES)
        after = state(box)
        no_mount_but(mounted)

    assert sum(killed) > 0
    assert before == after
    assert growth < (4 << 20) // TIMES


#: A job with much of one thing, and how much that is.
LARGE = 4 << 20
MUCH: dict[str, dict[str, Any]] = {
    "code": {"code": "#" * LARGE},
    "stdin": {"code": "pass", "stdin": bytes(LARGE)},
    "files": {"code": "pass", "files": {"large": bytes(LARGE)}},
    "output": {"code": f"print('x' * {LARGE})"},
    "collect": {"code": f"open('large', 'wb').write(bytes({LARGE}))", "collect": ["large"]},
}


def test_the_daemon_keeps_no_contents_of_jobs(tmp_path: Path) -> None:
    """Of the last jobs it remembers numbers. 50 of each kind would be a gigabyte."""
    def run_much(client: leeward.Client, count: int) -> None:
        for _ in range(count):
            for fields in MUCH.values():
                assert "finished" == client.execute(**fields).outcome

    with LiveDaemon(tmp_path, "--pool-size", "2") as daemon, daemon.client() as client:
        pid = client.status()["pid"]
        run_much(client, 5)
        before = anonymous(pid)
        run_much(client, 50)

        assert anonymous(pid) - before < 20 << 20


def test_a_closed_engine_does_not_leak():
    """Not even in the process that it was in."""
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


#: Sandboxes before the first look, and before the last.
SANDBOXES = (20, 201)


def run_sandboxes(box: Box, count: int) -> None:
    """
    Opened and ended in every way: by the client, with its daemon's clock, with a first process that is killed; with
    programs, readers, kernels and children that are left in it.
    """
    with Wire(box) as wire:
        for number in range(count):
            peer = wire.peer()
            name = peer.box(lifetime=0.2) if number % 10 == 3 else peer.box()
            process = peer.ask("process_start", sandbox=name, shell="setsid sleep 60 & cat", open=True)["process"]
            peer.ask("process_write", sandbox=name, process=process, data=b"x")
            assert "outcome" in peer.command(name, "head", "-c", "200000", "/dev/zero")
            if number % 4 == 0:
                kernel = peer.ask("kernel_open", sandbox=name)["kernel"]
                peer.ask("sandbox_execute", sandbox=name, kernel=kernel, code=b"x = 1")
            if number % 4 == 1:
                peer.ask("sandbox_execute", sandbox=name, code=b"print(1)")
            peer.send("process_read", sandbox=name, process=process, after=1, wait=60.0)
            peer.send("process_run", sandbox=name, argv=["sleep", "60"])
            if number % 10 == 7:
                place = wire.server.desk._registry.all()[0].sandbox.sandbox._place
                worker = next(worker for worker in box.engine.main.pool.workforce.workers
                              if place and worker.running == place.number)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.keeper.pid, 9)
            elif number % 10 != 3:
                peer.ask("sandbox_kill", sandbox=name)
            wire.until(lambda: not len(wire.server.desk))
            peer.close()
            wire.until(lambda: not wire.server.connections)
    box.log.rows.clear()
    RUNS.clear()


@pytest.mark.timeout(600)
def test_sandboxes_do_not_leak() -> None:
    """Descriptors, memfds, processes, mounts, cgroups, timers: after two hundred as after twenty."""
    with Box(pool_size=WORKERS, recycle_after=40, max_sessions=WORKERS) as box:
        run_sandboxes(box, SANDBOXES[0])
        before, mounted = state(box), mounts()
        growth = least_growth(memory, lambda: run_sandboxes(box, SANDBOXES[1] // TIMES), TIMES)
        after = state(box)
        no_mount_but(mounted)

    assert before == after
    assert growth < (4 << 20) // TIMES

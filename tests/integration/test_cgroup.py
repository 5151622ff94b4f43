"""
Each cgroup driver holds real processes to their limits; it leaves nothing behind.

The processes here are those of a worker in small: an init, reaper of orphans, in a user
namespace of its own and with a uid that isn't root's, and a job that joins its leaf.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import dataclasses
import errno
import itertools
import mmap
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import features
from kit.drivers import DRIVERS
from kit.unclosed import close_garbage
from kit.waiting import poll_until
from leeward._native import spawn
from leeward._native.spawn import Clone
from leeward.errors import KernelRefusal, Unsupported
from leeward.isolation.cgroup import daemon_group, hierarchy
from leeward.isolation.cgroup.choose import choose
from leeward.isolation.cgroup.entry import Driver, Entry, Leaf, Usage, WorkerGroup
from leeward.isolation.cgroup.none import OTHERS, TICK_S
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit

CLONE_NEWUSER = 0x10000000
PR_SET_CHILD_SUBREAPER = 36
PR_SET_THP_DISABLE = 41
FIRST_UID = 2_000_000_000  # as the daemon gives workers when it is root

LIMITS = Limits(memory=64 * MIB, processes=20)
#: For many forks of a process as large as this one: where a watch counts, it counts on the safe side.
ROOMY = dataclasses.replace(LIMITS, memory=192 * MIB)
#: As a job has it that asks for nothing else.
DEFAULT = dataclasses.replace(LIMITS, memory=Limits().memory)
PATIENCE_S = 20.0 * features.SLOWER

#: Of its limit, what a job without controllers may have got before the watch ended it. In software a look at many
#: processes takes longer than to touch their memory does.
OVERSHOOT = 1 + 0.25 * features.SLOWER

#: Seconds that a look may be late, and how often a job is run on a machine where it is later.
LATE_S, TRIES = TICK_S, 10

slots = itertools.count(int(time.monotonic() * 1000) % 1_000_000)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Every driver that this machine can have."""
    made = choose(request.param)
    yield made
    made.close()
    assert not homes_of(os.getpid())


def homes_of(pid: int) -> list[str]:
    """The homes of daemon *pid*, wherever they are mounted. Other daemons come and go meanwhile."""
    return [f"{folder}/{name}" for each in hierarchy.here() for folder, names, _ in os.walk(each.mount)
            for name in names if name.startswith(f"leeward-{pid}-")]


@dataclasses.dataclass
class Ended:
    """
    How a job ended: what it returned, or the signal that ended it, and what its leaf says; and for how many seconds, at
    most, its watch wanted to look and had no processor.
    """

    value: object
    signal: int | None
    verdict: Limit | None
    usage: Usage
    seconds: float
    late: float


class Worker:
    """A worker's group, to run jobs in one after the other."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        slot = next(slots)
        self.uid = FIRST_UID + slot if 0 == os.geteuid() else os.geteuid()
        self.group: WorkerGroup = driver.worker(slot, self.uid, LIMITS)
        self._jobs = itertools.count()

    def leaf(self, limits: Limits = LIMITS) -> Leaf:
        return self.group.leaf(next(self._jobs), limits)

    def run(self, job: Callable[[], object], limits: Limits = LIMITS, leaf: Leaf | None = None,
            kill_at: int | None = None) -> Ended:
        """
        Run *job* in *leaf*, by default a fresh one, to its end, to the leaf's verdict, or until a
        descriptor is readable.
        """
        leaf = leaf or self.leaf(limits)
        reading, writing = os.pipe()
        ready, go = os.pipe(), os.pipe()

        def armed() -> object:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            return job()

        init = os.fork()
        if 0 == init:
            os.close(reading)
            be_init(self, leaf, armed, writing)
        os.close(writing)
        os.read(ready[0], 1)
        leaf.tick(init)
        os.write(go[1], b"x")
        started = time.monotonic()
        for fd in ready + go:
            os.close(fd)
        pidfd = os.pidfd_open(init)
        verdict = None
        waited = late = 0.0  # while this process itself stood still, nobody looked
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        looked, spent = time.monotonic(), time.thread_time()
        try:
            while not poll.poll((pause := leaf.tick_interval) * 1000):
                waited += pause
                assert waited < PATIENCE_S
                verdict = leaf.tick(init) or verdict  # and look on: what isn't found isn't killed
                before, looked = (looked, spent), time.monotonic()
                spent = time.thread_time()
                late = max(late, looked - before[0] - pause - (spent - before[1]))
                LOOKS[:] = (looks() + 1).to_bytes(8, sys.byteorder)
                if verdict or (kill_at is not None and select.select([kill_at], [], [], 0)[0]):
                    leaf.kill()
            with open(reading, "rb") as pipe:
                text = pipe.read()
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(init, 0)
            os.close(pidfd)
        usage = leaf.usage()
        await_true(leaf.remove)
        ended, value = pickle.loads(text)
        assert not isinstance(value, str) or "Traceback" not in value, value
        return Ended(value, ended, verdict, usage, time.monotonic() - started, late)

    def close(self) -> None:
        await_true(self.group.remove)


def await_true(condition: Callable[[], bool]) -> None:
    poll_until(condition, "a group is busy for a moment after its last process has gone")


def own_data() -> int:
    """Bytes that count for RLIMIT_DATA already: these jobs are forks of the test run, and have all it has."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))


def join(entry: Entry) -> None:
    """What the shim does in a job's first moment."""
    if entry.into >= 0:
        fd = os.open("cgroup.procs", os.O_WRONLY, dir_fd=entry.into)
        os.write(fd, b"0")
        os.close(fd)
    for fd in entry.attach:
        os.write(fd, b"0")


def be_init(worker: Worker, leaf: Leaf, job: Callable[[], object], writing: int) -> None:
    """Give up what a worker doesn't have, start the job, reap, and tell how the job ended."""
    try:
        signal.set_wakeup_fd(-1)
        libc = ctypes.CDLL(None)
        entry = worker.group.keeper
        if entry.into >= 0:
            join(Entry(entry.into))
        if 0 == os.geteuid():
            os.setgroups([])
            os.setresgid(worker.uid, worker.uid, worker.uid)
            os.setresuid(worker.uid, worker.uid, worker.uid)
        assert 0 == libc.unshare(CLONE_NEWUSER)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        reading, telling = os.pipe()
        main = os.fork()
        if 0 == main:
            os.close(reading)
            be_job(leaf, worker.driver, job, telling)
        os.close(telling)
        status = None
        while True:
            try:
                pid, got = os.wait()
            except ChildProcessError:
                break
            if pid == main:
                status = got
        with open(reading, "rb") as pipe:
            text = pipe.read()
        ended = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        os.write(writing, pickle.dumps((ended, pickle.loads(text) if text else None)))
    except BaseException:
        os.write(writing, pickle.dumps((None, traceback.format_exc())))
    finally:
        os._exit(0)


def be_job(leaf: Leaf, driver: Driver, job: Callable[[], object], telling: int) -> None:
    """Join the leaf, set what no controller sets, run."""
    try:
        join(leaf.entry)
        for number, value in leaf.rlimits().items():
            if resource.RLIMIT_DATA == number:
                value += own_data()
            resource.setrlimit(number, (value, value))
        fixed = leaf.cpu()
        if fixed is not None:
            os.sched_setaffinity(0, {fixed})
        if not driver.memory_counted:
            ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
        os.write(telling, pickle.dumps(job()))
    except MemoryError:
        os.write(telling, pickle.dumps("MemoryError"))
    except BaseException:
        os.write(telling, pickle.dumps(traceback.format_exc()))
    finally:
        os._exit(0)


@pytest.fixture
def worker(driver: Driver) -> Iterator[Worker]:
    made = Worker(driver)
    yield made
    made.close()


# --- the jobs -----------------------------------------------------------------


def touch(size: int, then: Callable[[], object] = str) -> str:
    """Fill memory as fast as libc can, and hold it meanwhile."""
    held = (ctypes.c_char * size)()
    ctypes.memset(held, 1, size)
    then()
    return "touched"


#: How often `Worker.run` has looked at its leaf; its jobs see it.
LOOKS = mmap.mmap(-1, 8)


def looks() -> int:
    return int.from_bytes(LOOKS[:], sys.byteorder)


def a_few_looks() -> None:
    """Until the watch has looked a few times, whatever else the machine does."""
    until = looks() + 4
    poll_until(lambda: looks() >= until, "the count of looks, which the watch writes into shared memory")


def fork_and_stay(times: int) -> tuple[int, int]:
    """Fork children that stay until the watch has seen all of them; as `fork_and`."""
    held, release = os.pipe()
    made = fork_and(lambda: (os.close(release), os.read(held, 1)), times)
    a_few_looks()
    os.close(release)
    return made


def fork_and(job: Callable[[], object], times: int) -> tuple[int, int]:
    """Fork children that run *job* and stay; how many were made, and the errno that ended it."""
    children, why = [], 0
    for _ in range(times):
        try:
            child = os.fork()
        except OSError as error:
            why = error.errno or 0
            break
        if 0 == child:
            with contextlib.suppress(BaseException):
                job()
            os._exit(0)
        children.append(child)
    return len(children), why


def spin(seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    until = clock() + seconds
    while clock() < until:
        pass


# --- memory -------------------------------------------------------------------


def is_out_of_memory(ended: Ended) -> bool:
    return (signal.SIGKILL == ended.signal and ended.usage.oom_kills > 0) or "MemoryError" == ended.value


def stay() -> None:
    """Keep the memory until the driver ends this process: how much it had can't be read once it is gone."""
    time.sleep(PATIENCE_S / 4)  # no wait for an event, but the most that the driver may take; it kills in this call


def populate() -> int:
    """The fastest way to have memory: one call that touches it all."""
    held = mmap.mmap(-1, 400 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    stay()
    return len(held)


def in_children() -> None:
    fork_and(lambda: touch(40 * MIB, signal.pause), 15)
    signal.pause()


def small_objects() -> int:
    """No single request is large, so none is refused."""
    return len([b"x" * (100 << 10) + bytes([i & 255]) for i in range(6000)])


@pytest.mark.parametrize("job", [lambda: touch(400 * MIB, stay), populate, in_children, small_objects],
                         ids=["touched", "populated", "in children", "in small objects"])
def test_memory_past_the_limit_ends_the_job(worker, job):
    """Before it has a quarter more, as fast as it may be; tried again where the watch came late for want of processor."""
    for _ in range(TRIES):
        got = worker.run(job, DEFAULT)
        assert is_out_of_memory(got), got
        if got.usage.memory_peak <= DEFAULT.memory * OVERSHOOT or got.late < LATE_S:
            break

    assert got.usage.memory_peak <= DEFAULT.memory * OVERSHOOT, got


def test_memory_far_past_the_limit_is_refused_or_ends_the_job(worker):
    """Ten times the limit, in one request."""
    got = worker.run(lambda: touch(600 * MIB))

    assert is_out_of_memory(got), got


def test_memory_is_counted_over_all_processes(worker):
    """Four times 30 of 64 MiB."""
    def job() -> None:
        fork_and(lambda: touch(30 * MIB, signal.pause), 4)
        signal.pause()

    got = worker.run(job)

    assert Limit.MEMORY is got.verdict or got.usage.oom_kills, got


def test_memory_that_a_fork_shares_is_counted_once(worker):
    """30 MiB and eight children that read them: a pool of workers stays below its 64 MiB."""
    def job() -> bool:
        held = b"x" * (30 * MIB)
        children, _ = fork_and(lambda: (held.count(b"x"), a_few_looks()), 8)
        return [os.wait()[1] for _ in range(children)] == [0] * 8

    got = worker.run(job)

    assert got.value is True, got
    assert got.verdict is None
    assert 30 * MIB <= got.usage.memory_peak <= LIMITS.memory


def test_memory_below_the_limit_is_there(worker):
    """40 of 64 MiB: nothing is refused, and the peak says it."""
    got = worker.run(lambda: touch(40 * MIB, a_few_looks))

    assert (None, None) == (got.signal, got.verdict)
    assert 40 * MIB <= got.usage.memory_peak <= 56 * MIB


def test_a_limit_can_be_changed_before_the_job_starts(worker):
    """A runner is armed with the defaults; the request has its own limits, in both directions."""
    for memory, fits in ((24 * MIB, False), (128 * MIB, True)):
        leaf = worker.leaf()
        leaf.apply(dataclasses.replace(LIMITS, memory=memory))

        got = worker.run(lambda: touch(80 * MIB, a_few_looks), leaf=leaf)

        assert ("touched" == got.value) is fits, got


# --- processes ----------------------------------------------------------------


def most(driver: Driver) -> int:
    """The tasks that a job may have: where the kernel counts by user, those that aren't there yet too."""
    return LIMITS.processes + (3 if "none" == driver.name else 0)


def fewest(driver: Driver) -> int:
    """
    The tasks that a job gets before one is refused: all of them, but where the kernel counts by user and, as it did
    before 5.14, across namespaces. There what else this user has running, and the job's init, is counted too.
    """
    if "none" != driver.name or 0 == os.geteuid() or features.is_met("kernel>=5.14"):
        return LIMITS.processes
    return LIMITS.processes - max(0, tasks_of(os.getuid()) + 1 - OTHERS)


def tasks_of(uid: int) -> int:
    """How many tasks this user has, by their real id."""
    found = 0
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and f"\nUid:\t{uid}\t" in Path("/proc", entry, "status").read_text():
                found += len(os.listdir(f"/proc/{entry}/task"))
    return found


def is_told(got: Ended, tasks: int) -> bool:
    """Does a job's leaf know that one was refused? A watch knows it by the limit, which `fewest` may be short of."""
    return got.usage.forks_refused > 0 or tasks < LIMITS.processes


def test_processes_end_at_the_limit(worker):
    """A fork bomb in small: EAGAIN, and the job goes on."""
    def job() -> tuple[int, int]:
        return fork_and_stay(60)

    least = fewest(worker.driver)

    got = worker.run(job, ROOMY)

    children, why = got.value
    assert why == errno.EAGAIN
    assert least <= children + 1 <= most(worker.driver)
    assert is_told(got, children + 1)


def test_threads_are_counted(worker):
    """As processes are."""
    def job() -> int:
        release = threading.Event()
        started = 0
        try:
            for _ in range(60):
                threading.Thread(target=release.wait, daemon=True).start()
                started += 1
        except RuntimeError:
            a_few_looks()
        return started

    least = fewest(worker.driver)

    got = worker.run(job)

    assert least <= got.value + 1 <= most(worker.driver)
    assert is_told(got, got.value + 1)


def test_fewer_processes_refuse_none(worker):
    """Ten at once, one after another a hundred."""
    def job() -> int:
        made = 0
        for _ in range(10):
            children, _ = fork_and(lambda: None, 10)
            made += sum(os.wait()[1] == 0 for _ in range(children))
        return made

    got = worker.run(job, ROOMY)

    assert got.value == 100
    assert got.usage.forks_refused == 0


# --- processor time -----------------------------------------------------------


def test_four_that_spin_get_one_processor(worker):
    """100 % is one processor's worth, whatever the machine has."""
    def job() -> float:
        started = time.monotonic()
        children, _ = fork_and(lambda: spin(1.2), 4)
        for _ in range(children):
            os.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (used.ru_utime + used.ru_stime) / (time.monotonic() - started)

    got = worker.run(job)

    assert got.value <= 1.15
    assert got.usage.cpu_time <= got.seconds * 1.15


#: Seconds over which a share is measured, at least. In software a timer may come late, and takes a while to make up for
#: it. Where others want the processors all of that time, the measuring goes on for so many times as long at most.
SPUN_S, MOST_TIMES = 6.0 if features.IN_GUEST else 2.0, 8


class Metered:
    """
    A leaf whose count of time is read every few milliseconds, until there is enough of it: with a period in which its
    job had its whole share.

    Attributes:
        periods: of the kernel's, in which its job wanted to run.
        used_up: those of them in which it had its whole share.
    """

    tick_interval = 0.005

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self._read: list[tuple[float, float]] = []
        self.periods = self.used_up = 0
        for weight, most in (("cpu.shares", "262144"), ("cpu.weight", "10000")):  # a busy host leaves it a share to use up
            for folder in self._folders(weight):
                Path(folder, weight).write_text(most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leaf, name)

    def tick(self, init: int) -> Limit | None:
        self._read.append((time.monotonic(), self._leaf.usage().cpu_time))
        spun = self._read[-1][0] - self._read[0][0]
        if spun < 1.2 * SPUN_S:
            return None
        self._count()
        return Limit.TIME if self.used_up or spun > MOST_TIMES * SPUN_S else None

    def _count(self) -> None:
        kept = [dict(line.split() for line in Path(folder, "cpu.stat").read_text().splitlines())
                for folder in self._folders("cpu.stat")]
        self.periods, self.used_up = (sum(int(each.get(name, 0)) for each in kept)
                                      for name in ("nr_periods", "nr_throttled"))

    @staticmethod
    def _folders(name: str) -> list[str]:
        return [folder for home in homes_of(os.getpid()) for folder, _, names in os.walk(home) if name in names]

    def remove(self) -> bool:
        self._count()
        return self._leaf.remove()

    def rate(self) -> float:
        """Processors in use over SPUN_S, or longer."""
        times = [when for when, _ in self._read]
        first = bisect.bisect(times, times[0] + SPUN_S / 10)  # they have started by then
        return (self._read[-1][1] - self._read[first][1]) / (times[-1] - times[first])


@pytest.mark.parametrize("percent", [50, pytest.param(100, marks=pytest.mark.needs("processors>=2"))])
@pytest.mark.parametrize("name", DRIVERS[:2])
def test_a_share_of_the_processor_is_kept_within_a_twentieth(name, percent):
    """Two that spin have no more; and no less in every period in which nobody else took the processors from them."""
    driver = choose(name)
    worker = Worker(driver)
    leaf = Metered(worker.leaf(dataclasses.replace(LIMITS, cpu=percent)))

    def job() -> None:
        fork_and(lambda: spin(60 * SPUN_S), 2)
        signal.pause()

    worker.run(job, leaf=leaf)
    worker.close()
    driver.close()

    share = leaf.rate() / (percent / 100)
    assert share <= 1.05
    assert leaf.used_up > 0
    assert share >= 0.95 * leaf.used_up / leaf.periods


def test_processor_time_is_reported(worker):
    """That of a child which was waited for, too."""
    def job() -> None:
        fork_and(lambda: spin(0.2, time.process_time), 1)
        os.wait()
        spin(0.2, time.process_time)
        a_few_looks()

    got = worker.run(job)

    assert 0.3 <= got.usage.cpu_time <= got.seconds * 1.1


# --- the end ------------------------------------------------------------------


def test_kill_ends_all(worker):
    """Orphans that ignore signals, in sessions of their own."""
    leaf = worker.leaf()
    running, alive = os.pipe()

    def job() -> None:
        def orphan() -> None:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fork_and(signal.pause, 1)
            os.write(alive, b"x")
            signal.pause()

        fork_and(lambda: fork_and(orphan, 3), 1)
        signal.pause()

    # The none driver kills those that it saw at its last look; each look finds more.
    got = worker.run(job, leaf=leaf, kill_at=running)
    os.close(running)
    os.close(alive)

    assert got.signal == signal.SIGKILL


def test_no_descriptor_stays_open_or_is_inherited(driver):
    """Descriptors are those of before, and none goes through an exec."""
    close_garbage()
    before = set(os.listdir("/proc/self/fd"))
    worker = Worker(driver)
    leaves = [worker.leaf() for _ in range(3)]
    during = {int(fd) for fd in set(os.listdir("/proc/self/fd")) - before}

    inheritable = [fd for fd in during if _is_inheritable(fd)]
    for leaf in leaves:
        assert leaf.remove()
    worker.close()

    assert inheritable == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # that of the folder that listed them
        return False


@pytest.mark.parametrize("name", DRIVERS[:2])
def test_a_leaf_with_a_process_in_it_waits(name):
    """Removing says so instead of raising; once the process has gone it works."""
    driver = choose(name)
    worker = Worker(driver)
    leaf = worker.leaf()
    child = os.fork()
    if 0 == child:
        join(leaf.entry)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)

    busy = leaf.remove()
    leaf.kill()
    os.waitpid(child, 0)
    await_true(leaf.remove)
    worker.close()
    driver.close()

    assert busy is False


# --- who may enter ------------------------------------------------------------


@pytest.mark.needs("root", "cgroup-v2", "user-namespaces")
@pytest.mark.parametrize("name", DRIVERS[:2])
def test_a_worker_enters_its_own_leaves_and_no_others(name):
    """clone3 into a leaf by the worker's uid, in a user namespace, without a capability outside."""
    driver = choose(name)
    mine, other = Worker(driver), Worker(driver)
    leaf, foreign = mine.leaf(), other.leaf()
    pid, pidfd = spawn.clone(0, mine.group.keeper.into)
    if 0 == pid:
        code = 3
        try:
            os.setresgid(mine.uid, mine.uid, mine.uid)
            os.setresuid(mine.uid, mine.uid, mine.uid)
            ctypes.CDLL(None).unshare(CLONE_NEWUSER)
            try:
                spawn.clone(0, foreign.entry.into)
                os._exit(4)
            except KernelRefusal as refusal:
                if refusal.errno != errno.EACCES:
                    os._exit(5)
            inner, _ = spawn.clone(Clone.NEWPID, leaf.entry.into)
            if 0 == inner:
                for fd in leaf.entry.attach:
                    os.write(fd, b"0")
                os._exit(0 if all("/leeward-" in line for line in Path("/proc/self/cgroup").read_text().splitlines()
                                  if line.split(":")[1] in ("", "memory", "pids", "cpu")) else 6)
            code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        finally:
            os._exit(code)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for each in (leaf, foreign):
        await_true(each.remove)
    mine.close()
    other.close()
    driver.close()

    assert code == 0


@pytest.mark.parametrize("name", DRIVERS[:2])
def test_a_job_out_of_memory_takes_no_other_process_with_it(name):
    """
    The init outlives its job whatever the job is: here one that holds nothing itself, while
    its files fill the leaf. In the leaf the init would be the largest, and its keeper's death.
    """
    driver = choose(name)
    worker = Worker(driver)
    path = f"/dev/shm/leeward-test-{os.getpid()}"

    def job() -> None:
        os.execv("/bin/dd", ["dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=300", "status=none"])

    try:
        got = worker.run(job)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        worker.close()
        driver.close()

    assert got.signal == signal.SIGKILL  # the init lived to tell
    assert got.usage.oom_kills > 0


# --- which driver, and as whom ------------------------------------------------


def as_user(uid: int, gid: int, scenario: Callable[[], object]) -> object:
    """What *scenario* returns in a child that has become somebody else."""
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            if 0 == os.geteuid():
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            os.write(writing, pickle.dumps(scenario()))
        except BaseException:
            os.write(writing, pickle.dumps(traceback.format_exc()))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        value = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    assert not isinstance(value, str) or "Traceback" not in value, value
    return value


def test_an_ordinary_user_without_delegation_is_held_all_the_same(ordinary_user):
    """The daemon is the user: memory, processes and a processor's time hold."""
    def scenario() -> tuple[str, list[str], Ended, Ended]:
        driver = choose("none")
        worker = Worker(driver)
        bomb = worker.run(lambda: fork_and_stay(60), ROOMY)
        return driver.name, [name for name, _ in driver.passed_over], worker.run(lambda: touch(600 * MIB)), bomb

    name, _, memory, bomb = as_user(ordinary_user.uid, ordinary_user.gid, scenario)

    assert name == "none"
    assert is_out_of_memory(memory)
    assert bomb.value[1] == errno.EAGAIN
    assert bomb.value[0] <= LIMITS.processes + 2


def test_the_best_driver_is_taken(ordinary_user):
    """And those before it are named with their reasons."""
    def scenario() -> tuple[str, bool, tuple[tuple[str, str], ...]]:
        driver = choose()
        driver.close()
        return driver.name, driver.degraded, driver.passed_over

    name, degraded, passed_over = scenario()
    expected = ("v2" if features.is_met("cgroup-v2-controllers") else
                "v1" if features.is_met("cgroup-v1-controllers") and features.is_met("root") else "none")
    assert name == expected
    assert degraded is ("none" == expected)

    if features.is_met("root"):
        name, degraded, passed_over = as_user(ordinary_user.uid, ordinary_user.gid, scenario)

        assert (name, degraded) == ("none", True)
        assert [tried for tried, _ in passed_over] == ["v2", "v1"]
        assert all("needs" in why for _, why in passed_over)


# --- what a dead daemon leaves ------------------------------------------------


@contextlib.contextmanager
def place_of_its_own() -> Iterator[Callable[[str], None]]:
    """
    A way into groups beside each other, as a service manager makes them for its services.

    On version 2 a daemon needs a group that holds nobody else, and this process is in one already.
    """
    if not features.is_met("cgroup-v2-controllers"):
        yield lambda name: None
        return
    outer = next(each.own for each in hierarchy.here() if each.version == 2)

    def enter(name: str) -> None:
        os.makedirs(f"{outer}/{name}", exist_ok=True)
        Path(outer, name, "cgroup.procs").write_text("0")

    enter("test-tests")
    Path(outer, "cgroup.subtree_control").write_text("+memory +pids +cpu")
    try:
        yield enter
    finally:
        enter("test-tests")
        for name in ("test-living", "test-dead"):
            Path(outer, name).rmdir()
        Path(outer, "cgroup.subtree_control").write_text("-memory -pids -cpu")
        Path(outer, "cgroup.procs").write_text("0")
        Path(outer, "test-tests").rmdir()


def abandon(name: str, enter: Callable[[str], None]) -> tuple[int, int]:
    """A daemon with a worker and a leaf that dies by SIGKILL; its pid, and that of what ran in the leaf."""
    reading, writing = os.pipe()
    pid = os.fork()
    if 0 == pid:
        enter("test-dead")
        driver = choose(name)
        leaf = driver.worker(0, os.geteuid(), LIMITS).leaf(0, LIMITS)
        child = os.fork()
        if 0 == child:
            signal.set_wakeup_fd(-1)
            join(leaf.entry)
            os.closerange(3, writing)  # as in a zygote: no descriptor of the daemon's is left
            os.closerange(writing + 1, 1024)
            os.write(writing, str(os.getpid()).encode())
            signal.pause()
        signal.pause()
    left = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid, left


@pytest.mark.parametrize("name", DRIVERS[:2])
def test_a_sweep_removes_groups_of_a_dead_daemon(name):
    """And the process that still runs in one of them; groups of a living daemon stay."""
    with place_of_its_own() as enter:
        enter("test-living")
        living = choose(name)
        try:
            keep = homes_of(os.getpid())
            dead, left = abandon(name, enter)
            pidfd = os.pidfd_open(left)
            assert homes_of(dead)  # control: they are there
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)

            swept = living.sweep()

            assert swept >= 1
            assert poll.poll(PATIENCE_S * 1000)
            os.close(pidfd)
            await_true(lambda: bool(living.sweep()) or not homes_of(dead))
            assert keep
            assert keep == homes_of(os.getpid())
        finally:
            living.close()


@pytest.mark.needs("cgroup-v1-controllers", "root")
def test_a_sweep_leaves_foreign_groups():
    """Another user's, one with another name, and one whose lock is held."""
    parent = next(each.own for each in hierarchy.here() if "pids" in each.controllers)
    free = 2**22 + 5  # past the largest pid there is
    theirs, misnamed, held = (f"{parent}/{name}" for name in (
        f"leeward-{free}-1", f"leeward-{free}-2x", f"leeward-{free}-3"))
    for path in (theirs, misnamed, held):
        os.mkdir(path)
    os.chown(theirs, 65534, 65534)
    lock = os.open(held, os.O_RDONLY)
    try:
        daemon_group.fcntl.flock(lock, daemon_group.fcntl.LOCK_EX)

        daemon_group.sweep(hierarchy.here())

        assert all(map(os.path.isdir, (theirs, misnamed, held)))

        os.close(lock)
        os.chown(theirs, 0, 0)

        daemon_group.sweep(hierarchy.here())

        # control: it was the owner and the lock that kept them
        assert [misnamed] == [path for path in (theirs, misnamed, held) if os.path.isdir(path)]
    finally:
        os.rmdir(misnamed)


@pytest.mark.needs("root", "user-namespaces", "unreduced")
@pytest.mark.parametrize("host_id", [0, 2_000_000_000])
def test_the_watch_doesnt_serve_whom_no_task_is_refused(host_id):
    """
    The host's root, who is an ordinary user in a user namespace: of his tasks the kernel counts as many as there
    are and refuses none, so a fork bomb would have no end.
    """
    go, went = os.pipe()
    reading, writing = os.pipe()
    pid, pidfd = spawn.clone(Clone.NEWUSER)
    if 0 == pid:
        try:
            os.read(go, 1)
            os.setresgid(1000, 1000, 1000)
            os.setresuid(1000, 1000, 1000)
            said = choose("none").name
        except Unsupported as missing:
            said = str(missing)
        except BaseException as bug:
            said = repr(bug)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {host_id} 1"), ("gid_map", f"1000 {host_id} 1")):
        Path(f"/proc/{pid}/{name}").write_text(text)
    os.write(went, b"+")
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    for fd in (pidfd, go, went):
        os.close(fd)

    assert said == "none" if host_id else "RLIMIT_NPROC refuses nothing" in said

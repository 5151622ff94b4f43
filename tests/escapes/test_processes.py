"""Tasks, processor time, descriptors, groups: bounded, and gone with the job. Catalogue cases 55, 56, 61, 63 and 65."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import features
from kit.attack import PRELUDE, serves, within, without
from kit.box import PATIENCE_S, RUNS, Box, Run, control, settle_all
from kit.live_daemon import descendants
from kit.locks import LOCKS
from kit.promises import promised
from kit.running import running
from kit.skip_policy import require
from kit.unclosed import close_garbage
from leeward.daemon.run.runner import Runner, job_of
from leeward.isolation.cgroup import hierarchy
from leeward.spec.limits import Limits
from leeward.spec.outcome import Limit, Outcome

Only = Callable[..., Box]

MOST = Limits().processes

#: Tasks that the job of a driver may have beyond its limit: the kernel counts for RLIMIT_NPROC what else is
#: in the user namespace, and may be there or not.
BEYOND = {"none": 3}


@pytest.fixture(autouse=True)
def _still_serves(held: Box) -> Iterator[None]:
    yield
    assert serves(held)


def processes() -> int:
    """How many there are below this one, with no job in any sandbox and no runner on its way."""
    settle_all()
    return len(descendants(os.getpid()))


#: A chain of vforks: each child makes the next, while all above it wait. They share the memory in which they
#: count what they made and what was refused them. Called with where to count, and how many of each are enough.
VFORKS = """
import mmap
CHAIN = bytes.fromhex(
    "4531c0"      "3937" "731e"      "395704" "7319"  # made or refused enough: done
    "b83a000000"  "0f05"                              # vfork
    "85c0" "7407" "790c"                              # 0: the child; more: the parent, whose child is gone
    "ff4704" "ebe5"                                   # refused; again
    "41b001" "ff07" "ebde"                            # made; again
    "4585c0" "7501" "c3"                              # done: the first returns, the others exit
    "31ff" "b83c000000" "0f05")
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(CHAIN)
start = ctypes.addressof(ctypes.c_char.from_buffer(page))
def chain(most, refusals):
    counts = (ctypes.c_uint32 * 2)()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)(start)(
        ctypes.addressof(counts), most, refusals)
    return list(counts)
"""

#: Each makes up to 200, which stay, and tells how many it made and why no more.
BOMBS = {
    "forks 200 times": """
def one():
    if 0 == os.fork():
        signal.pause()
""",
    "starts 200 threads": """
import threading
release = threading.Event()
def one():
    try:
        threading.Thread(target=release.wait, daemon=True).start()
    except RuntimeError as refused:
        raise OSError(errno.EAGAIN, str(refused))
""",
    "clones 200 times without SIGCHLD": """
def one():
    got = value("clone", 0, 0, 0, 0, 0)
    if got < 0:
        raise OSError(-got, "")
    if 0 == got:
        signal.pause()
""",
    "makes a chain of 200 vforks": VFORKS + """
first = chain(200, 1)
made = first[0]
def one():
    if first[1]:
        raise OSError(errno.EAGAIN, "")
    raise SystemExit
""",
}

COUNT = """
made, said = 0, ""
try:
    {bomb}
    while made < 200:
        one()
        made += 1
except SystemExit:
    pass
except OSError as error:
    said = errno.errorcode[error.errno]
tell([made, said])
"""


def bomb(name: str) -> str:
    return COUNT.replace("{bomb}", BOMBS[name].strip().replace("\n", "\n    "))


#: Without any lock a watch can't look at the job's file system, and charges each process for what it maps of the
#: zygote's memory: many processes would reach the usual limit of memory first.
ROOMY = {"memory": 1 << 30}


@pytest.mark.lock("limits")
@pytest.mark.parametrize("name", [
    *list(BOMBS)[:3], pytest.param(list(BOMBS)[3], marks=pytest.mark.needs("x86-64"))])
def test_c055_cannot_have_more_tasks_than_its_limit(held: Box, held_alone: Box, unlimited: Box, name: str) -> None:
    """EAGAIN at 32, threads included; the whole tree is dead at the end."""
    driver = held.engine.driver.name
    with control():
        assert [200, ""] == within(unlimited, bomb(name))

    for box in (held, held_alone):
        before = processes()
        made, said = within(box, bomb(name), ROOMY)

        assert promised(name, driver) == said
        assert MOST - 2 <= made + 1 <= MOST + BEYOND.get(driver, 0)
        # Without a pid namespace it is the tests' own keeper that ends what is left.
        assert box is held_alone or processes() <= before


SPIN = """
import resource, time
start = time.monotonic()
until = start + SECONDS
for _ in range(CHILDREN):
    if 0 == os.fork():
        while time.monotonic() < until:
            pass
        with open("/proc/self/stat") as stat:
            os._exit(int(stat.read().rpartition(")")[2].split()[36]))  # the processor that it runs on
processors = {os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(CHILDREN)}
used = resource.getrusage(resource.RUSAGE_CHILDREN)
tell([(used.ru_utime + used.ru_stime) / (time.monotonic() - start), len(processors)])
"""


@pytest.mark.needs("processors>=2")
@pytest.mark.lock("limits")
def test_c056_cannot_have_more_than_one_processor(held: Box, held_alone: Box, unlimited: Box) -> None:
    """Four children that spin have one together, over any time that is long beside the kernel's period of 0.1 s."""
    def more_than_one() -> bool:
        # Not what they got together: that says how busy the machine is.
        return within(unlimited, SPIN, SECONDS=0.1, CHILDREN=8)[1] > 1

    with control():
        assert any(more_than_one() for _ in range(20))

    for box in (held, held_alone):
        # Of the kernel's periods one more than fit may be seen: 9 in 0.8 s.
        had, _ = within(box, SPIN, SECONDS=0.8, CHILDREN=4)
        assert promised("spins in four processes", box.engine.driver.name) == (
            "one processor" if had <= 1.2 else f"{had:.2f} processors")


ORPHAN = """
child = os.fork()
if 0 == child:
    os.setsid()
    for number in set(range(1, 32)) - {9, 19}:
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b" ")  # the parent ends while this one spins
    while True:
        pass
tell(child)
"""


def _goes_soon(box: Box) -> bool:
    """Is one of its workers replaced after a job or two, since it has had as many as it may?"""
    return any(worker.jobs + 2 >= worker._terms.recycle_after for worker in box.engine.main.pool.workforce.workers)


@pytest.mark.lock("namespaces")
def test_c056_no_process_of_a_job_runs_after_its_result(held: Box, only: Only, unlimited: Box) -> None:
    """A child whose parent has ended ends with the job."""
    with control():
        RUNS.append(Run(outside=True))  # its output is a file: of a pipe the reader would wait for the child's end
        with tempfile.TemporaryFile() as out:
            subprocess.run([sys.executable, "-c", PRELUDE + ORPHAN], stdout=out, check=True, timeout=PATIENCE_S)
            out.seek(0)
            pid = json.loads(out.read())
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)  # ours, as an orphan: an engine is a subreaper
        assert signal.SIGKILL == os.WTERMSIG(status)  # it was still there, and ended by that alone

    for box in (held, only("namespaces")):
        while _goes_soon(box):  # the next one would have another runner than that which is its last
            box.run("pass")
            box.settle()
        serves(unlimited)  # somebody else's sandbox, which has just had a job
        before = processes()
        within(box, ORPHAN)

        assert processes() <= before


FILL = """
import resource
def fill():
    made = 0
    try:
        while made < 2000:
            os.open("/dev/null", os.O_RDONLY)
            made += 1
    except OSError as error:
        return made, error.errno
    return made, 0
read, write = os.pipe()
processes = 0
try:
    while processes < PROCESSES:
        if 0 == os.fork():
            made, why = fill()
            os.write(write, bytes([made >> 8, made & 255, why]))
            signal.pause()
        processes += 1
except OSError:
    pass
def exactly(size):
    data = b""
    while len(data) < size:
        data += os.read(read, size - len(data))
    return data
rows = [exactly(3) for _ in range(processes)]
"""


@pytest.mark.lock("rlimits")
def test_c061_cannot_have_more_descriptors_than_its_limit(held: Box, only: Only) -> None:
    """1,024 in each of its processes; the daemon has as many as before, and so has the host when the job is over."""
    def opened() -> int:
        return int(Path("/proc/sys/fs/file-nr").read_text().split()[0])

    most, tell = Limits().descriptors, "tell([[row[0] << 8 | row[1], row[2]] for row in rows])\n"
    with control():
        assert [[2000, 0]] * 2 == within(only(*LOCKS - {"rlimits"}), FILL + tell, PROCESSES=2)

    serves(held)
    held.settle()
    close_garbage()
    mine = os.listdir("/proc/self/fd")
    hold = "import errno, json, os, signal\nPROCESSES = 40\n" + FILL + "os.write(1, b'here')\nsignal.pause()\n"

    def grown() -> tuple[int, int]:
        """By how much the host has more open, while a job has all it can, and afterwards."""
        before = opened()
        with running(held, hold.encode()):
            during = opened() - before
        serves(held)
        held.settle()
        return during, opened() - before

    rows = within(held, FILL + tell, PROCESSES=40)

    assert MOST - 2 <= len(rows) + 1 <= MOST + BEYOND.get(held.engine.driver.name, 0)
    assert all(most - 16 < made < most and 24 == why for made, why in rows)  # EMFILE
    assert any(20 * most < during <= (MOST + 3) * most + 1000 and after < 2000  # others on this machine open files, too
               for during, after in (grown() for _ in range(5)))
    # The groups of one job more may be kept for the next one; and others of this run, say.
    assert len(os.listdir("/proc/self/fd")) <= len(mine) + 16 + 8

    for made, why in within(only("rlimits"), FILL + tell, PROCESSES=2):
        assert (True, 24) == (made < most, why)


RAISE = """
import resource
for most in (4096, 2048):
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        pass
"""


@pytest.mark.lock("hard-limit", beside=("rlimits",), because="it is that limit's other half")
def test_c061_cannot_raise_its_limit_on_descriptors(held: Box, only: Only) -> None:
    """A worker's processes are born with the hard limit that a request may ask for."""
    tell = "tell([[row[0] << 8 | row[1], row[2]] for row in rows])\n"
    with control():
        assert [[2000, 0]] * 2 == within(only(*LOCKS - {"hard-limit"}), RAISE + FILL + tell, PROCESSES=2)

    for box in (held, only("rlimits", "hard-limit")):
        assert all((True, 24) == (made < Limits().descriptors, why)
                   for made, why in within(box, RAISE + FILL + tell, PROCESSES=2))


CGROUP_MOUNTS = """
with open("/proc/self/mountinfo") as file:
    kinds = [line.partition(" - ")[2].split()[0] for line in file]
tell([sum(kind.startswith("cgroup") for kind in kinds),
      [name for name in ("cgroup.procs", "tasks", "cgroup.subtree_control", "unified", "memory", "pids")
       if os.path.exists(f"/sys/fs/cgroup/{name}")],
      attempt(os.open, "/sys/fs/cgroup/memory.max", os.O_WRONLY), attempt(os.mkdir, "/sys/fs/cgroup/mine")])
"""


@pytest.mark.lock("mounts")
def test_c063_no_cgroup_file_system_is_there(held: Box, only: Only) -> None:
    """
    There is nothing to write to, with every lock and with the mounts alone: /sys/fs/cgroup holds the limits, as files
    that leeward wrote.
    """
    with control():
        assert without(CGROUP_MOUNTS)[0] > 0

    for box in (held, only("mounts")):
        mounts, groups, *writes = within(box, CGROUP_MOUNTS)
        assert (0, []) == (mounts, groups)
        assert {"EROFS", "EACCES"} >= set(writes)


WRITE = """
names = ("cgroup.procs", "tasks", "memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max",
         "cgroup.subtree_control", "release_agent", "notify_on_release", "cgroup.kill", "memory.oom_control")
open_to_me, groups = [], 0
for home in homes:
    for folder, _, files in os.walk(home):
        groups += 1
        open_to_me += [f"{folder}/{name}" for name in names
                       if name in files and "" == attempt(lambda: os.close(os.open(f"{folder}/{name}", os.O_WRONLY)))]
        if "" == attempt(os.mkdir, f"{folder}/leeward-nested"):
            os.rmdir(f"{folder}/leeward-nested")
            open_to_me.append(f"{folder}/leeward-nested")
tell([groups, open_to_me])
"""


@pytest.mark.smoke
@pytest.mark.needs("root")
@pytest.mark.lock("limits")
def test_c063_cannot_change_the_group_it_is_in(held: Box, only: Only) -> None:
    """
    Where it can see them, with every lock off, the files that hold its limits aren't its own. What is: the way
    into the groups of its own worker, on version 2.
    """
    held_by = "memory.limit_in_bytes"
    if not features.is_met("cgroup-v1-controllers"):
        require("cgroup-v2-controllers")
        held_by = "memory.max"
    unified = next((each.mount for each in hierarchy.here() if 2 == each.version), "none")
    only().settle()
    (worker,) = only().engine.main.pool.workforce.workers
    armed = worker.arming.store[0]
    assert isinstance(armed, Runner)
    folders = features.own_cgroups(Path("/proc/self/mountinfo").read_text(),
                                   Path(f"/proc/{job_of(armed.pid)}/cgroup").read_text())
    homes = sorted({str(folder)[:at.end()] for folder in folders.values()
                    if (at := re.search(r"/leeward-\d[^/]*", str(folder)))})
    assert homes
    with control():  # root may, as the daemon does
        _, by_root = without(WRITE, homes=homes)
        assert any(path.endswith(f"/{held_by}") for path in by_root)
    assert any(path.endswith("leeward-nested") for path in by_root)

    seen, mine = within(only(), WRITE, homes=homes)

    assert seen >= len(homes)
    assert all(path.startswith(f"{unified}/") and path.endswith("/cgroup.procs") for path in mine), mine
    assert [0, []] == within(held, WRITE, homes=homes)


@pytest.mark.smoke
@pytest.mark.needs("x86-64")
@pytest.mark.lock("limits")
def test_c065_cannot_fork_before_it_is_counted(held: Box, held_alone: Box, unlimited: Box) -> None:
    """
    A runner is in its group before there is any code for it. The first thing that a job does is to try 5,000
    vforks: none of them gets past the limit.
    """
    driver = held.engine.driver.name
    for box in (held, held_alone):
        box.settle()  # by another worker, where nobody turned this reactor for as long as a keeper may take
        (worker,) = box.engine.main.pool.workforce.workers
        armed = worker.arming.store[0]
        assert isinstance(armed, Runner)
        groups = Path(f"/proc/{job_of(armed.pid)}/cgroup").read_text().splitlines()
        limited = [line for line in groups if {"memory", "pids", "cpu", ""} & set(line.split(":")[1].split(","))]
        if "none" != driver:
            assert all("/leeward-" in line for line in limited), groups

    first = VFORKS.replace("import mmap", "import ctypes, mmap") + "counts = chain(5000, 5000)\n"
    code = first + "print(counts[0], counts[1])\n"
    with control():
        assert 200 <= int(unlimited.run(code.replace("5000, 5000", "200, 5000")).stdout.split()[0])

    for box in (held, held_alone):
        got = box.run(code, limits=ROOMY)

        made, refused = map(int, got.stdout.split())
        assert (Outcome.FINISHED, Limit.PROCESSES) == (got.outcome, got.limit)
        assert MOST - 2 <= made + 1 <= MOST + BEYOND.get(driver, 0)
        assert 5000 == refused

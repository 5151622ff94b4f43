"""What C sees of a job where no controller counts, on real processes: an init of no kind, and its only child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from leeward._native.loop import Glance, JobWatch, first_look
from leeward.isolation.cgroup import none, watch
from leeward.spec.limits import MIB, Limits

#: Tells the child's number; the child runs lines of code, and answers each.
INIT = """
import os, sys
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
    os._exit(0)
sys.stdin.close()
os.waitpid(child, 0)
"""

#: Moves a page of memory to a table of its own, again and again; what is beside it keeps the table.
MOVES = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
start, page = libc.mmap(None, 64 << 30, 1, 0x4022, -1, 0), libc.mmap(None, 4096, 3, 0x22, -1, 0)
ctypes.memset(page, 1, 1)
def move(first, last):
    global page
    for at in range(start + 4096 + (first << 21), start + (last << 21), 1 << 21):
        if at != libc.mremap(page, 4096, 4096, 3, at):
            raise OSError("mremap")
        if page > start:
            libc.mmap(page, 4096, 1, 0x4032, -1, 0)
        page = at
move(0, 16)
"""


#: Bytes of such a file that C reads.
_READ = 2048


@dataclass
class Job:
    init: int
    pid: int
    process: subprocess.Popen[str]

    def run(self, code: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(f"exec({code!r}, globals())", file=self.process.stdin, flush=True)
        assert "done\n" == self.process.stdout.readline()

    def faults(self) -> int:
        with watch.process(self.pid) as folder:
            return int(watch.fields_of(folder)[7])


@pytest.fixture
def job() -> Iterator[Job]:
    with subprocess.Popen([sys.executable, "-c", INIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Job(process.pid, int(process.stdout.readline()), process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def glance(job: Job) -> Iterator[Glance]:
    first = first_look(job.init)
    assert first is not None
    fds = first.orphans, first.children, first.stat, first.status
    files = os.open("/proc/self", os.O_PATH)  # of a file system without blocks
    sockets = os.open("/proc/net/sockstat", os.O_RDONLY)
    yield Glance(JobWatch(job.pid, *fds, free_sockets=1 << 30, socket=1, inode=1, waited=0,
                          limit=1 << 30, peak=0, files=files, sockets=sockets))
    for fd in (*fds, files, sockets):
        os.close(fd)


@pytest.mark.needs("not-emulated")  # a process of the emulator's has threads of its own
def test_tables_of_pages_count_that_are_made_without_a_fault(job: Job, glance: Glance) -> None:
    """However few faults there were: a page that moves leaves a table each time."""
    job.run(MOVES)
    before, faults = glance.look(0), job.faults()
    job.run("move(16, 16 + 4096)")
    after, more = glance.look(0), job.faults() - faults

    assert before is not None
    assert after is not None
    assert more < 64
    assert after.memory - before.memory > 15 * MIB


@pytest.mark.needs("not-emulated")  # a process of the emulator's has threads of its own
def test_what_a_process_wore_is_told_with_its_time(job: Job, glance: Glance) -> None:
    before = glance.look(0)
    job.run("import mmap\nfor _ in range(4): mmap.mmap(-1, 8 << 20, flags=0x22 | mmap.MAP_POPULATE).close()")
    after = glance.look(0)

    assert before is not None
    assert after is not None
    assert 4 * 8 * MIB <= (after.faults - before.faults) * watch.PAGE
    assert after.resident - before.resident < 16 * MIB
    assert before.time < after.time < 60


@pytest.mark.needs("root")  # who has as many groups as it likes
def test_a_status_that_is_too_long_is_left_to_the_watch(job: Job, glance: Glance) -> None:
    """Lines behind what is read would be taken for none: here many groups push that of the page tables there."""
    job.run("import os; os.setgroups([])")
    before = Path(f"/proc/{job.pid}/status").read_text().index("\nVmPTE:")
    job.run(f"os.setgroups(range(100_000, 100_000 + {(_READ - before) // len('100000 ') + 1}))")
    after = Path(f"/proc/{job.pid}/status").read_text()
    assert after.index("\nRssAnon:") + 40 < _READ <= after.index("\nVmPTE:") + 7

    assert glance.look(0) is None


@pytest.mark.needs("not-emulated")  # a process of the emulator's has threads of its own
def test_a_leaf_with_company_is_not_for_the_fast_path(job: Job) -> None:
    """Of the others it knows at once, and not only by the next look."""
    leaf = none.NoneLeaf((0,), Limits())
    leaf.tick(job.init)
    assert leaf.gauges() is not None
    leaf.rest()
    leaf.joined(os.getpid())

    assert leaf.gauges() is None


@pytest.mark.needs("not-emulated")  # a process of the emulator's has threads of its own
def test_the_first_look_finds_what_the_watch_does(job: Job) -> None:
    init = watch.key_of(job.init)
    job.run("pass")
    while True:  # its memory is counted by the processor that it runs on, and for all some time later
        (before,), first, (seen,) = watch.look(init)[0], first_look(job.init), watch.look(init)[0]
        assert first is not None
        for fd in (first.orphans, first.children, first.stat, first.status):
            os.close(fd)
        if (before.resident, before.faults) == (seen.resident, seen.faults):
            break

    assert (seen.key, init[1], seen.resident, seen.tables, seen.shared, seen.faults, 0) == (
        (first.job, first.started), first.init_started, first.resident, first.tables, first.shared, first.faults, first.late)
    assert 0 < first.spent <= 1e9 * seen.time


@pytest.mark.needs("not-emulated")
@pytest.mark.parametrize(("code", "undone"), [
    ("import os, signal; child = os.fork() or signal.pause()", "os.kill(child, 9); os.waitpid(child, 0)"),
    ("import threading; go = threading.Event(); threading.Thread(target=go.wait).start()", "go.set()"),
], ids=["a child", "a thread"])
def test_a_first_look_at_more_than_one_task_is_left_to_the_watch(job: Job, code: str, undone: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    job.run(code)

    assert first_look(job.init) is None
    job.run(undone)
    assert before == len(os.listdir("/proc/self/fd"))
    assert first_look(os.getpid() + (1 << 22)) is None  # nobody has such a number

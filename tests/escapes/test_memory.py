"""
Memory: all that a job can take is counted against one limit, whoever holds it. Catalogue cases 53, 54 and 66.

What becomes of each attack under which driver is a table in docs/kernel.md, which these tests keep true.
"""

from __future__ import annotations

import os
import secrets
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from attack import serves, within
from box import RUNS, Box, run_outside
from drivers import BorrowedDriver
from leeward.outcome import Limit, Outcome, Result
from leeward.spec.limits import MIB
from promises import promised
from running import running, status

Only = Callable[..., Box]

#: How far a job may get before a watch has looked. docs/threat-model.md has what was measured; this is for a
#: machine so busy that the daemon waits for a processor, and tells only that it did look.
LATE = 2


@pytest.fixture(autouse=True)
def _still_serves(held: Box) -> Iterator[None]:
    yield
    assert serves(held)


#: Before an attack, which ends by a value or an error; that is what it says.
AROUND = """
import ctypes, errno, fcntl, mmap, os, select, signal, socket
MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
def touch(where):
    for at in range(0, len(where), 4096):
        where[at] = 1
def checked(got):
    if got in (-1, None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "")
    return got
def spread(job, processes):
    "Run job in so many children, which go on holding what it took; the sum of what they return."
    read, write = os.pipe()
    for _ in range(processes):
        if 0 == os.fork():
            os.write(write, job().to_bytes(8, "big"))
            signal.pause()
    os.close(write)  # a child that fails ends, and counts as nothing
    return sum(int.from_bytes(os.read(read, 8), "big") for _ in range(processes))
def attack():
{}
try:
    said = attack() or "done"
    select.select((), (), (), 0.05)  # a few looks of a watch
except MemoryError:
    said = "MemoryError"
except OSError as error:
    said = errno.errorcode[error.errno]
os.write(1, str(said).encode())
os._exit(0)
"""

#: Case 53: what a job touches.
TOUCH = {
    "touches 600 MiB of one bytearray": "touch(bytearray(600 * MIB))",
    "maps 600 MiB with MAP_POPULATE":
        "mmap.mmap(-1, 600 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)",
    "makes 600,000 objects of 1,000 bytes": "[bytes(1000) for _ in range(600_000)]",
    "touches 600 mappings of 1 MiB": """
kept = []
for _ in range(600):
    kept.append(mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    touch(kept[-1])
""",
    "touches 60 MiB in each of ten processes": """
def job():
    kept.append(b"x" * 60 * MIB)
    return 0
kept = []
spread(job, 10)
""",
}

#: Case 54: what no resident set shows, or not that of a process which still lives; and the limit that it has.
HIDDEN: dict[str, tuple[str, int]] = {
    "fills shared memory without a name": ("touch(mmap.mmap(-1, 300 * MIB))", 256 * MIB),
    "fills a memfd": ("""
fd = os.memfd_create("full")
for _ in range(300):
    os.write(fd, b"x" * MIB)
""", 256 * MIB),
    "fills a shared mapping of /dev/zero": ("touch(mmap.mmap(os.open('/dev/zero', os.O_RDWR), 300 * MIB))", 256 * MIB),
    "fills a System V segment": ("""
libc.shmat.restype = ctypes.c_void_p
segment = checked(libc.shmget(0, ctypes.c_size_t(300 * MIB), 0o1600))
ctypes.memset(checked(libc.shmat(segment, None, 0)), 1, 300 * MIB)
""", 256 * MIB),
    "fills a file in /dev/shm": ("""
fd = os.open("/dev/shm/full", os.O_CREAT | os.O_WRONLY)
for _ in range(60):
    os.write(fd, b"x" * MIB)
""", 48 * MIB),
    "fills a deleted file that is open": ("""
fd = os.open("/tmp/full", os.O_CREAT | os.O_WRONLY)
os.unlink("/tmp/full")
for _ in range(60):
    os.write(fd, b"x" * MIB)
""", 48 * MIB),
    "makes pipes larger and fills them": ("""
kept = [os.pipe() for _ in range(40)]
for read, write in kept:
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, MIB)
    os.set_blocking(write, False)
    os.write(write, b"x" * MIB)
""", 32 * MIB),
    "fills a thousand pipes": ("""
def job():
    size = 0
    for _ in range(120):
        kept.append(os.pipe())
        os.set_blocking(kept[-1][1], False)
        try:
            while True:
                size += os.write(kept[-1][1], b"x" * 4096)
        except BlockingIOError:
            pass
    return size
kept = []
# What one user's pipes may hold before new ones hold a page or two: fs.pipe-user-pages-soft, 64 MiB.
return f"{-(-spread(job, 8) // (64 * MIB)) * 64} MiB beyond its limit"
""", 48 * MIB),
    "fills socket buffers": ("""
def job():
    for _ in range(110):
        pair = socket.socketpair()
        kept.append(pair)
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    end.send(b"x" * 65536)
            except BlockingIOError:
                pass
    return 0
kept = []
spread(job, 8)
""", 64 * MIB),
    "makes page tables for memory that it only reads": ("""
libc.mmap.restype = ctypes.c_void_p
size, MAP_NORESERVE, MADV_NOHUGEPAGE = 64 << 30, 0x4000, 15
start = checked(libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ,
                          mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, ctypes.c_long(0)))
libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), MADV_NOHUGEPAGE)
for at in range(0, size, 2 * MIB):
    ctypes.c_ubyte.from_address(start + at).value
""", 32 * MIB),
}

#: Case 66: what the kernel keeps for a job beside its memory.
KERNEL: dict[str, tuple[str, int]] = {
    "registers 90,000 epoll watches": ("""
def job():
    kept.append(([select.epoll() for _ in range(122)], [os.eventfd(0) for _ in range(123)]))
    for epoll in kept[0][0]:
        for event in kept[0][1]:
            epoll.register(event)
    return 122 * 123
kept = []
return f"{spread(job, 6) * 200 // MIB} MiB beyond its limit"  # 200 bytes each: an epitem and an eppoll_entry
""", 20 * MIB),
}

#: Where the driver alone can't show that it holds one: the lock that it needs, and why.
BESIDE = {
    **dict.fromkeys(("fills shared memory without a name", "fills a memfd", "fills a System V segment",
                     "makes pipes larger and fills them"),
                    ("seccomp", "where nothing counts such memory, it is the filter that refuses it")),
    "fills a shared mapping of /dev/zero":
        ("landlock", "where nothing counts such memory, it is a rule that refuses the device"),
    **dict.fromkeys(("fills a file in /dev/shm", "fills a deleted file that is open"),
                    ("mounts", "the file has to be on the job's own disk and not on the host's")),
    "fills socket buffers": ("namespaces", "a watch counts the sockets of the job's own network namespace"),
}

ALL = {**dict.fromkeys(TOUCH, 256 * MIB), **{name: limit for name, (_, limit) in {**HIDDEN, **KERNEL}.items()}}


def code_of(name: str) -> str:
    code = TOUCH[name] if name in TOUCH else {**HIDDEN, **KERNEL}[name][0]
    return AROUND.replace("{}", textwrap.indent(code.strip("\n"), "    "))


def verdict(got: Result) -> str:
    """
    In the table's words.
    """
    if Outcome.OUT_OF_MEMORY is got.outcome:
        assert Limit.MEMORY is got.limit
        return "ended"
    assert Outcome.FINISHED is got.outcome, (got, got.error)
    assert not got.stderr, got.stderr
    return got.stdout_text


@pytest.fixture(scope="module")
def beyond(unlimited: Box) -> Callable[[str], str]:
    """
    What each attack says where no driver holds it, with every other lock: found out once.
    """
    found: dict[str, str] = {}

    def ask(name: str) -> str:
        if name in found:
            RUNS.append(unlimited.made_of)  # it did, for the driver before
        else:
            found[name] = verdict(unlimited.run(code_of(name), limits={"memory": ALL[name]}))
        return found[name]
    return ask


def hiding(names: Iterable[str]) -> list[ParameterSet]:
    """
    Each attack, and a mark for what holds it.
    """
    return [pytest.param(name, marks=pytest.mark.lock("limits", beside=BESIDE[name][:1], because=BESIDE[name][1])
                         if name in BESIDE else pytest.mark.lock("limits")) for name in names]


def expect(box: Box, name: str) -> None:
    driver = box.engine.driver.name
    # A watch charges six interpreters with more than a cgroup does; what they register it doesn't see at all.
    limit = 64 * MIB if name in KERNEL and "none" == driver else ALL[name]
    got = box.run(code_of(name), limits={"memory": limit})

    assert promised(name, driver) == verdict(got)
    if "none" != driver:
        assert got.memory_peak <= ALL[name] * 1.1
    elif name in TOUCH:  # others are charged by what they might hold
        assert got.memory_peak <= ALL[name] * LATE


@pytest.mark.lock("limits")
@pytest.mark.parametrize("name", TOUCH)
def test_c053_cannot_touch_more_than_its_limit(held: Box, held_alone: Box, beyond: Callable[[str], str],
                                               name: str) -> None:
    """
    Whatever way it asks for 600 MiB, it is ended or refused at 256; by the driver alone, too.
    """
    assert "done" == beyond(name)  # control: it is the driver that holds it

    for box in (held, held_alone):
        expect(box, name)


@pytest.mark.no_single_lock("nothing happens to a neighbour without a limit either: it is about what a limit ends")
def test_c053_a_job_beside_it_and_the_daemon_notice_nothing(held: Box) -> None:
    """
    A neighbour with 50 MiB of its own, keeper and zygote are what they were when the job has been ended.
    """
    neighbour = b"import os, signal\nkept = b'x' * (50 << 20)\nos.write(1, b'here')\nwhile True: signal.pause()\n"
    with Box(pool_size=2, driver=BorrowedDriver(held.engine.driver)) as box, running(box, neighbour) as there:
        box.run("print(1)")  # both workers have had a job

        def resident() -> dict[int, int]:
            return {pid: int(status(pid)["RssAnon"].split()[0]) >> 10
                    for pid in (there.job, there.keeper, there.zygote, os.getpid())}

        before = resident()
        assert before[there.job] >= 50  # control: it is there to be taken away

        expect(box, "touches 600 mappings of 1 MiB")

        after = resident()
        assert before[there.job] == after[there.job]
        assert all(abs(after[pid] - before[pid]) <= 4 for pid in before), (before, after)


@pytest.mark.parametrize("name", hiding(HIDDEN))
def test_c054_cannot_hide_memory_from_its_limit(held: Box, held_with: Only, beyond: Callable[[str], str],
                                                name: str) -> None:
    """
    Memory that is in no process's resident set is counted, or can't be had.
    """
    assert beyond(name) == ("64 MiB beyond its limit" if "thousand" in name else "done")  # control

    for box in (held, held_with(*BESIDE.get(name, ())[:1])):
        expect(box, name)


@pytest.mark.lock("mounts")
def test_c054_files_in_memory_go_with_the_job(held: Box, only: Only) -> None:
    """
    Six jobs, each of which leaves 30 MiB in files: the host has no more of such pages than before.
    """
    left = Path(f"/dev/shm/left-{secrets.token_hex(8)}")
    run_outside(f"open('{left}', 'wb').write(bytes(1 << 20))")
    assert 1 << 20 == left.stat().st_size  # control: without a mount of its own it outlives who made it
    left.unlink()

    def shared() -> int:
        row = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
        return int(row.split()[1]) >> 10

    full = "with open('/dev/shm/left', 'wb') as file:\n    file.write(bytes(30 << 20))\n"
    def shown() -> int:
        before = shared()
        with running(held, (full + "import os, signal\nos.write(1, b'here')\nsignal.pause()").encode()):
            return shared() - before

    def left_by(box: Box) -> int:
        before = shared()
        for _ in range(6):
            assert Outcome.FINISHED is box.run(full).outcome
        return shared() - before

    # Others on this machine make and remove files, too, but hardly so that each try looks otherwise than it is.
    assert any(shown() >= 20 for _ in range(5))  # control: this is where they show
    for box in (held, only("mounts")):
        assert any(left_by(box) < 90 for _ in range(5))  # of 180


@pytest.mark.lock("limits")
@pytest.mark.parametrize("name", KERNEL)
def test_c066_cannot_have_memory_of_the_kernel(held: Box, held_alone: Box, beyond: Callable[[str], str],
                                               name: str) -> None:
    """
    Watches are counted as memory is, where anything counts.
    """
    assert "beyond" in beyond(name)  # control

    for box in (held, held_alone):
        expect(box, name)


OBJECTS = """
kinds = {}
def until_refused(name, make):
    made, said = 0, ""
    while made < 10_000 and not said:
        got = make(made)
        made, said = (made + 1, "") if got >= 0 else (made, errno.errorcode[-got])
    kinds[name] = [made, said]
slot = ctypes.c_int()
until_refused("timers", lambda _: value("timer_create", 1, None, ctypes.byref(slot)))
until_refused("inotify", lambda _: value("inotify_init1", 0))
until_refused("mqueues", lambda n: value("mq_open", b"q%d" % n, os.O_CREAT | os.O_RDWR, 0o600, None))
until_refused("keys", lambda n: value("add_key", b"user", b"k%d" % n, b"x" * 1000, 1000, -3))
until_refused("keyrings", lambda _: value("keyctl", 1, None))
until_refused("segments", lambda _: value("shmget", 0, 4096, 0o1600))
until_refused("semaphores", lambda _: value("semget", 0, 250, 0o1600))
until_refused("queues", lambda _: value("msgget", 0, 0o1600))
until_refused("descriptors", lambda _: value("eventfd2", 0, 0))
import select
for fd in range(100, 200):
    os.close(fd)
nest = [select.epoll() for _ in range(20)]
until_refused("nests", lambda n: -1000 if n > 18 else value(
    "epoll_ctl", nest[n + 1].fileno(), 1, nest[n].fileno(), (ctypes.c_uint32 * 3)(1, 0, 0)))
tell(kinds)
"""


@pytest.mark.needs("unfiltered")
@pytest.mark.no_single_lock("each kind has a bound of its own: an rlimit, the filter, the namespace's size")
def test_c066_objects_of_the_kernel_are_bounded_and_released(held: Box, only: Only) -> None:
    """
    Timers, segments, queues, descriptors end at a limit; keys, mqueues and inotify can't be had. The next job
    of the worker has as many: nothing was left of them.
    """
    counted = held.engine.driver.memory_counted
    none = [0, "EACCES"]
    control = within(only("namespaces", "mounts"), OBJECTS)  # those of the host's own namespaces would stay
    assert 1024 < control["timers"][0]
    assert 256 < control["descriptors"][0]
    # What the user has of some is shared with his other processes, and given back a while after they end.
    assert not [kind for kind, (_, said) in control.items() if "EACCES" == said], control
    assert 0 < min(control[kind][0] for kind in ("segments", "semaphores", "queues"))

    first = within(held, OBJECTS)

    assert [1024, "EAGAIN"] == first["timers"]  # RLIMIT_SIGPENDING
    assert none == first["inotify"] == first["mqueues"] == first["keys"] == first["keyrings"]
    assert "EMFILE" == first["descriptors"][1]
    assert "ELOOP" == first["nests"][1]
    assert first["nests"][0] <= 5
    for kind, most in (("segments", 4096), ("semaphores", 32000), ("queues", 32000)):
        assert first[kind] == none if not counted else 0 < first[kind][0] <= most
    assert first == within(held, OBJECTS)


LOCKS = """
import fcntl, os, signal
kept = [os.open("/tmp/%d" % number, os.O_CREAT | os.O_RDWR) for number in range(100)]
for fd in kept:
    fcntl.flock(fd, fcntl.LOCK_SH)
    for at in range(100):
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * at)
os.write(1, b"here")
signal.pause()
"""


@pytest.mark.no_single_lock("nothing bounds them, and the kernel drops them with the process in any sandbox")
def test_c066_locks_of_files_are_released(held: Box) -> None:
    """
    No limit bounds them but that of time: docs/threat-model.md says so. None outlives its job.
    """
    def locks(pid: int) -> int:
        return sum(str(pid) in line.split() for line in Path("/proc/locks").read_text().splitlines())

    with running(held, LOCKS.encode()) as there:
        assert locks(there.job) >= 10_000  # control

    assert 0 == locks(there.job)

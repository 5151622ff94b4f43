"""
Shared mappings without a file, and memory files, where no cgroup counts memory: granted, and charged to the job.

What a job gains by hiding such memory is tested in tests/escapes/test_memory.py, with each driver.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit import features
from kit.box import Box
from kit.live import Live, opened
from kit.live_daemon import LiveDaemon
from kit.unclosed import close_garbage
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Outcome
from leeward.spec.stand_ins import FETCH_SYNC

pytestmark = pytest.mark.needs("user-namespaces")

#: What programs do with both: a counter that processes share, a file that is mapped, grows, and is passed on.
USES = """
import mmap, os, socket
shared = mmap.mmap(-1, 1 << 20)
if 0 == os.fork():
    shared[:5] = b"child"
    os._exit(0)
os.wait()
print(shared[:5])
fd = os.memfd_create("mine")
os.ftruncate(fd, 8192)
os.pwrite(fd, b"file", 4096)
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [fd])
_, (same,), _, _ = socket.recv_fds(theirs, 1, 1)
print(mmap.mmap(same, 8192)[4096:4100], os.fstat(fd).st_nlink, os.get_inheritable(fd))
"""
USED = "b'child'\nb'file' 0 False\n"

#: What each of these calls says.
TRIED = """
import errno, mmap, os
def tried(call):
    try:
        call()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """Without controllers, whoever runs this."""
    with Box(cgroup="none") as made:
        yield made

#: With what this user has: controllers for root, none for most others.
DAEMON = ("--pool-size=2",)


def test_by_a_client_and_by_the_command_line(daemon: LiveDaemon) -> None:
    with daemon.client() as client, client.session() as session:
        assert USED == client.execute(USES).stdout_text
        assert [USED, USED] == [session.execute(USES).stdout_text for _ in range(2)]
    done = daemon.run("exec", USES)

    assert (USED.encode(), b"", 0) == (done.stdout, done.stderr, done.returncode)


def test_by_a_program_in_a_live_sandbox(daemon: LiveDaemon) -> None:
    with leeward.Sandbox(socket=daemon.socket) as sandbox:
        assert USED == sandbox.execute(USES).stdout_text
        with sandbox.kernel() as kernel:
            assert [USED, USED] == [kernel.execute(USES).stdout_text for _ in range(2)]


def test_mappings_are_charged_by_length_without_controllers(box: Box) -> None:
    """Nothing is denied, and a mapping counts with its length though it was never touched."""
    got = box.run(USES)
    large = box.run("import mmap; kept = mmap.mmap(-1, 100 << 20)")

    assert (USED, {}) == (got.stdout_text, got.denied), got.stderr_text
    assert 100 * MIB < large.memory_peak < 130 * MIB


def test_a_mapping_beyond_the_limit_is_refused_by_its_length(box: Box) -> None:
    """ENOMEM, for one mapping and for their sum; an unmapped mapping counts as well. The next job has the whole limit."""
    for _ in range(2):
        got = box.run(TRIED + """
print(tried(lambda: mmap.mmap(-1, 65 << 20)), tried(lambda: mmap.mmap(-1, 1 << 62)))
print(*(tried(lambda: mmap.mmap(-1, 10 << 20).close()) for _ in range(8)))
""", limits={"memory": 64 * MIB, "time": 5})

        first, second = got.stdout_text.splitlines() if Outcome.FINISHED is got.outcome else ("", "")
        assert "ENOMEM ENOMEM" == first or Outcome.OUT_OF_MEMORY is got.outcome
        assert second in ("", "done done done done done done ENOMEM ENOMEM")
        assert {} == got.denied


def test_a_session_is_charged_until_it_ends_or_is_reset(daemon: LiveDaemon) -> None:
    """A process of its own lives on from job to job, and with it what it may have mapped."""
    code = TRIED + "print(tried(lambda: mmap.mmap(-1, 100 << 20).close()))"
    with daemon.client() as client:
        is_counted = "none" != client.status()["layers"]["cgroup"]["driver"]
        with client.session() as session:
            said = [session.execute(code).stdout_text.strip() for _ in range(4)]
            session.reset()
            again = session.execute(code).stdout_text

    assert ["done"] * 4 == said if is_counted else ["done", "done"] == said[:2] and "done" != said[3]
    assert "done\n" == again


#: As `tried` for a segment of System V: its key, MiB and flags.
SEGMENT = TRIED + """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def segment(key, size, flags=0o1600):
    got = libc.shmget(key, ctypes.c_size_t(size << 20), flags)
    return "done" if got >= 0 else errno.errorcode[ctypes.get_errno()]
"""


def test_a_segment_outlives_its_process_and_is_charged_until_its_sandbox_ends(live: Live) -> None:
    """Removed or not. To look for one costs nothing; control: another sandbox has the whole limit, and no such segment."""
    made = live.python(SEGMENT + "print(segment(7, 120), segment(0, 1 << 30), segment(0, 4, 0o5600))")
    again = live.python(SEGMENT + "print({segment(7, 0, 0) for _ in range(5000)}, segment(0, 100), segment(0, 60))")

    assert ["done ENOMEM EACCES\n", "{'done'} ENOMEM done\n"] == [made.out, again.out]


@pytest.mark.parametrize(("code", "says"), [
    ("os.memfd_create('x', os.MFD_ALLOW_SEALING)", "EACCES"),
    ("os.memfd_create('x', os.MFD_CLOEXEC | 0x4000)", "EACCES"),
    ("os.memfd_create('x', os.MFD_HUGETLB)", "ENOMEM"),
    ("mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)", "ENOMEM"),
    ("mmap.mmap(-1, 4096, flags=3 | mmap.MAP_ANONYMOUS)", "EACCES"),
    ("[os.memfd_create('x') for _ in range(2000)]", "EMFILE"),
    ("os.write(os.memfd_create('x'), bytes(65 << 20)) == 65 << 20 or os.write(99, b'')", "EBADF"),
    ("os.link('/proc/self/fd/%d' % os.memfd_create('x'), '/workspace/x', follow_symlinks=True)", "EXDEV"),
])
def test_other_kinds_of_shared_memory_are_refused(box: Box, code: str, says: str) -> None:
    """A memory file has no seals, which would be another kernel file; its size is that of the job's files at most."""
    assert f"{says}\n" == box.run(f"{TRIED}\nprint(tried(lambda: {code}))").stdout_text


def test_a_memory_file_has_the_seals_of_one_that_takes_none(box: Box) -> None:
    """As the kernel's own without MFD_ALLOW_SEALING."""
    fd = os.memfd_create("x")
    own = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    os.close(fd)

    got = box.run("import fcntl, os; fd = os.memfd_create('x'); print(fcntl.fcntl(fd, fcntl.F_GET_SEALS))")

    assert f"{own & ~0x20}\n" == got.stdout_text


@pytest.fixture
def live(box: Box) -> Iterator[Live]:
    with opened(box, Limits(memory=200 * MIB)) as made:
        yield made


def test_processes_of_a_live_sandbox_share_one_limit(live: Live) -> None:
    """What one of them was granted, another can't have; what an ended one had, the next one can."""
    said = TRIED + "import sys\nprint(tried(lambda: mmap.mmap(-1, 120 << 20)), flush=True)\n"
    python = os.path.realpath(live.python("import sys; print(sys.executable)").out.strip())

    first = live.start(python, "-c", said + "import signal; signal.pause()")
    first.says("done")
    assert "ENOMEM\n" == live.python(said).out

    first.process.kill()
    first.end()
    assert "done\n" == live.python(said).out


def test_the_daemon_has_no_descriptor_more(box: Box) -> None:
    """Of a memory file the job has the only one."""
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    box.run("1")
    box.settle()
    close_garbage()
    before = descriptors()
    for _ in range(5):
        box.run("import os; kept = [os.memfd_create('x') for _ in range(50)]")
    box.settle()

    assert before == descriptors()


#: What V8 does for the code of each thread: it makes 512 MiB writable and executable at once, and touches few of them.
CODE = """
import ctypes, os, resource, sys
size, libc = 512 << 20, ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for _ in range(int(sys.argv[1])):
    place = libc.mmap(None, size, 0, 0x4022, -1, 0)
    if libc.mprotect(place, size, 7):
        sys.exit(os.strerror(ctypes.get_errno()))
    ctypes.c_char.from_address(place).value = b"x"
print("made")
"""
MAKES = f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {CODE!r}, '4'], capture_output=True))"
FILLS = "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('refused')"


def test_a_program_has_room_for_code_that_it_doesnt_touch(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    python = os.path.realpath(live.python("import sys; print(sys.executable)").out.strip())

    assert "made\n" == live.run(python, "-c", CODE, "8").out
    assert "Cannot allocate memory\n" == live.run(python, "-c", CODE, "64").err  # it has a bound, too
    assert "refused\n" == live.python(FILLS).out  # others have what they had

    monkeypatch.setattr("leeward.isolation.rlimits.CODE", 0)  # control
    assert "Cannot allocate memory\n" == live.run(python, "-c", CODE, "8").err


def test_a_program_of_a_job_has_it_too(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"made" in box.run(MAKES).stdout

    monkeypatch.setattr("leeward.isolation.rlimits.CODE", 0)  # control
    assert b"Cannot allocate memory" in box.run(MAKES).stdout


@pytest.mark.needs("node24")
def test_threads_of_node(daemon: LiveDaemon) -> None:
    """With 512 MiB, as by Node's own way and by ours that waits."""
    node = features.node24()
    assert node is not None
    line = "for (let i = 0; i < 4; i++) new (require('worker_threads').Worker)('console.log(7)', { eval: true })"
    waits = "try { fetchSync('http://127.0.0.1:4999/') } catch (error) { console.log(error.message) }"
    with leeward.Sandbox(socket=daemon.socket, memory="512M", processes=64, mounts=[leeward.Mount(node, "/node")]) as box:
        threads = box.run(["/node/node", "-e", line])
        waited = box.run(["/node/node", "--require", FETCH_SYNC, "-e", waits])

    assert (0, "7\n" * 4) == (threads.exit_code, threads.stdout_text), threads.stderr_text
    assert (0, "fetch failed: ") == (waited.exit_code, waited.stdout_text[:14]), waited.stderr_text

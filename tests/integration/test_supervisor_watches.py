"""
The supervisor as what watches files for jobs: what it judges, by which names, and how many may ask.

The filter is the only lock here, and the view is the host's: what a real sandbox may watch is in
tests/escapes/test_watching.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import confined, features
from kit.confined import NUMBER
from kit.unclosed import close_garbage
from leeward.daemon.supervisor import Supervisor
from leeward.isolation.seccomp import filters
from leeward.isolation.watching import Watchers

pytestmark = pytest.mark.needs("seccomp-notify")

UNCOUNTED = filters.program(memory_counted=False, affinity_fixed=False, arch=os.uname().machine).insns

#: `init` makes a descriptor, `watch` adds to it; both give -errno.
INOTIFY = f"""
def init():
    return call({NUMBER["inotify_init1"]}, 0)
def watch(fd, path, mask=0xfff):
    text = ctypes.create_string_buffer(path if isinstance(path, bytes) else os.fsencode(path))
    return watch_at(fd, ctypes.addressof(text), mask)
def watch_at(fd, address, mask=0xfff):
    return call({NUMBER["inotify_add_watch"]}, fd, address, mask)
"""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor(watchers=Watchers(1, 4096))
    yield made
    made.close()


def told(supervisor: Supervisor, code: str, **options: Any) -> Any:
    """What a confined process tells by *code*, and what it was refused."""
    with confined.confined(INOTIFY + code, supervisor, **options) as child:
        return child.told(), supervisor.counts(child.job)


def test_a_job_watches_files_by_every_kind_of_name(supervisor: Supervisor, tmp_path: Path) -> None:
    """Absolute, relative, through links, and to the last byte of a page; the events come as outside."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").touch()
    got, refused = told(supervisor, f"""
import mmap
fd = init()
os.chdir({str(tmp_path)!r})
page = mmap.mmap(-1, 8192)
start = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.munmap(ctypes.c_void_p(start + 4096), 4096)
page[4096 - 7:4096] = b"folder\\0"
many = [watch(fd, "folder"), watch(fd, {str(tmp_path / "folder")!r}), watch(fd, "link"), watch(fd, "./link/../folder/."),
        watch_at(fd, start + 4096 - 7), watch(fd, "file"), watch(fd, "folder", 0xfff | 0x01000000)]  # IN_ONLYDIR
open("folder/new", "w").close()
event = os.read(fd, 4096)
tell([many, event.count(b"new"), call({NUMBER["inotify_rm_watch"]}, fd, many[0])])
""")

    assert [[1, 1, 1, 1, 1, 2, 1], 3, 0] == got  # made, opened, closed
    assert {} == refused


def test_what_the_kernel_refuses_is_refused_by_its_own_errors(supervisor: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    got, refused = told(supervisor, f"""
fd = init()
os.chdir({str(tmp_path)!r})
tell([watch(fd, "none"), watch(fd, ""), watch(fd, "file/x"), watch(fd, "link"), watch(fd, "x" * 5000), watch_at(fd, 8),
      watch(fd, "file", 0xfff | 0x01000000), watch(fd, "file", 0), watch(999, "file"), watch(2, "file")])
""")

    assert [-errno.ENOENT, -errno.ENOENT, -errno.ENOTDIR, -errno.ELOOP, -errno.ENAMETOOLONG, -errno.EFAULT,
            -errno.ENOTDIR, -errno.EINVAL, -errno.EBADF, -errno.EINVAL] == got
    assert {} == refused


def test_devices_proc_and_links_themselves_are_refused_and_counted(supervisor: Supervisor, tmp_path: Path) -> None:
    """So are the links of /proc, which would lead the supervisor to files of its own."""
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    got, refused = told(supervisor, f"""
fd = init()
tell([watch(fd, path, 0xfff | 0x02000000) for path in  # IN_DONT_FOLLOW
      ("/dev/null", "/proc", "/proc/1", f"/proc/{{os.getpid()}}/cwd/.", {f"{tmp_path}/link"!r}, {f"{tmp_path}/pipe"!r})])
""")

    assert {-errno.EACCES, -errno.ELOOP} >= set(got)
    assert {"inotify_add_watch": got.count(-errno.EACCES)} == refused


def test_without_watchers_every_call_is_refused(tmp_path: Path) -> None:
    supervisor = Supervisor()
    got, refused = told(supervisor, f"tell([init(), watch(0, {str(tmp_path)!r})])")

    assert [-errno.EACCES] * 2 == got
    assert {"inotify_init1": 1, "inotify_add_watch": 1} == refused
    supervisor.close()


def test_a_watch_needs_a_place_among_the_watchers(supervisor: Supervisor, tmp_path: Path) -> None:
    """Whoever has none can't add to a descriptor that came from elsewhere."""
    got, refused = told(supervisor, f"tell(watch(0, {str(tmp_path)!r}))")

    assert -errno.EACCES == got
    assert {"inotify_add_watch": 1} == refused


def test_as_many_sandboxes_watch_as_may(supervisor: Supervisor) -> None:
    """EMFILE beyond that; those that share a limit are one; the end of all of them gives the place back."""
    with contextlib.ExitStack() as stack:
        def child() -> confined.Confined:
            return stack.enter_context(confined.confined("parent.recv(1)\n" + INOTIFY + "tell(init())\nparent.recv(1)",
                                                         supervisor))

        def made(one: confined.Confined) -> bool:
            one.go()
            got = int(one.told())
            assert got >= 0 or -errno.EMFILE == got
            return got >= 0

        first, beside, other, later = child(), child(), child(), child()
        supervisor.share(beside.job, first.job)
        assert [True, True, False] == [made(first), made(beside), made(other)]
        supervisor.remove(first.job)
        assert not made(child())
        supervisor.remove(beside.job)
        assert made(later)


def test_a_call_that_waits_already_finds_its_grants(supervisor: Supervisor) -> None:
    """A sandbox's further processes run before their listeners arrive: with the first answer they share its place."""
    with contextlib.ExitStack() as stack:
        def asking() -> tuple[confined.Confined, int]:
            child, listener = confined.start(INOTIFY + "tell(init())\nparent.recv(1)")
            stack.callback(confined.stop, child)
            child.go()
            assert [listener] == select.select([listener], [], [], 60)[0]
            return child, listener

        for of in (0, 1, 1):
            child, listener = asking()
            number = 1 if not of else child.job
            supervisor.add(listener, number, of=of)
            assert child.told() >= 0
            assert {} == supervisor.counts(number)


def test_descriptors_are_charged_where_no_controller_counts_them(supervisor: Supervisor) -> None:
    """Their events as long as there may be more descriptors, and the watches once."""
    watches = 8192 * 256
    with confined.confined("parent.recv(1)\n" + INOTIFY + "tell([init() >= 0 for _ in range(10)])\ntell(init())\n"
                           "parent.recv(1)",
                           supervisor, program=UNCOUNTED) as child, \
            confined.confined("parent.recv(1)\n" + INOTIFY + "tell(init())", supervisor, program=UNCOUNTED) as poor:
        supervisor.grant(child.job, 1 << 30, -1)
        supervisor.grant(poor.job, watches, -1)
        poor.go()
        assert -errno.ENOMEM == poor.told()
        child.go()
        assert [True] * 10 == child.told()
        assert watches + 8 * 4096 == supervisor.charged(child.job)


def test_many_threads_and_refusals_beside_them_are_all_answered(supervisor: Supervisor, tmp_path: Path) -> None:
    """No answer is lost or goes to another call, while signals interrupt and other calls are refused."""
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    got, refused = told(supervisor, f"""
fd, said = init(), []
def add(folder):
    said.append({{watch(fd, folder) for _ in range(50)}})
def refuse():
    said.append({{call({NUMBER["kcmp"]}) for _ in range(200)}})
threads = [threading.Thread(target=add, args=(folder,)) for folder in {[str(folder) for folder in folders]!r}]
threads += [threading.Thread(target=refuse) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tell(sorted(map(sorted, said)))
""")

    assert [[-errno.EACCES]] * 2 + [[number] for number in range(1, 9)] == got
    assert {"kcmp": 400} == refused


def test_a_task_that_dies_while_it_asks_leaves_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    """No descriptor of the daemon's, and the next job is served."""
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    told(supervisor, "tell(init())")
    close_garbage()
    before = descriptors()
    for _ in range(5):
        got, _ = told(supervisor, f"""
fd = init()
def add():
    while True:
        watch(fd, {str(tmp_path)!r})
for _ in range(3):
    threading.Thread(target=add, daemon=True).start()
tell(watch(fd, {str(tmp_path)!r}))
os.kill(os.getpid(), signal.SIGKILL)
""")
        assert 1 == got
    assert 1 == told(supervisor, f"tell(watch(init(), {str(tmp_path)!r}))")[0]
    assert before == descriptors()


def test_without_descriptors_of_the_daemons_the_call_is_refused(supervisor: Supervisor, tmp_path: Path) -> None:
    """ENOMEM, uncounted, and no wait; afterwards it goes again."""
    with confined.confined("parent.recv(1)\n" + INOTIFY + f"""
fd = init()
for _ in range(2):
    tell(watch(fd, {str(tmp_path)!r}))
    parent.recv(1)
""", supervisor) as child:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            child.go()
            assert -errno.ENOMEM == child.told()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        child.go()
        assert 1 == child.told()
        assert {} == supervisor.counts(child.job)


def long_path(folder: Path) -> str:
    """One whose walk takes milliseconds: forty links that lead back and forth."""
    (folder / "a").mkdir()
    (folder / "l39").mkdir()
    for number in range(39):
        (folder / f"l{number}").symlink_to("a/../" * 817 + f"l{number + 1}")
    return str(folder / "l0")


def test_c490_a_walk_costs_its_job_the_time_that_it_takes(supervisor: Supervisor, tmp_path: Path) -> None:
    """However many are asked for, a fifth of a processor goes there."""
    def spent() -> float:
        return time.clock_gettime(~watcher << 3 | 6)  # the clock of a thread's processor time; clock_getcpuclockid(3)

    (watcher,) = (int(task) for task in os.listdir("/proc/self/task")
                  if "lw-watches\n" == Path("/proc/self/task", task, "comm").read_text())
    path = long_path(tmp_path)
    code = f"parent.recv(1)\nfd = init()\ntell([watch(fd, {path!r}) for _ in range(300)])"
    with confined.confined(INOTIFY + code, supervisor) as child:
        before, began = spent(), time.monotonic()
        child.go()
        assert 1 in child.told()
        took, passed = spent() - before, time.monotonic() - began

    assert 300 * 0.0005 < took  # control: they are that long
    assert took < 0.05 + passed / 4


def test_c493_the_charge_for_a_descriptor_stays_while_another_process_may_have_it(supervisor: Supervisor) -> None:
    """What one makes of the sandbox's processes it can pass to another, and end."""
    def child() -> confined.Confined:
        return stack.enter_context(confined.confined(
            "parent.recv(1)\n" + INOTIFY + "tell(init())\nparent.recv(1)", supervisor, program=UNCOUNTED))

    watches = 8192 * 256
    with contextlib.ExitStack() as stack:
        first, maker, other = child(), child(), child()
        supervisor.grant(first.job, 1 << 30, -1)
        for one in (maker, other):
            supervisor.share(one.job, first.job)
        maker.go()
        assert maker.told() >= 0
        supervisor.remove(maker.job)
        assert watches + 4096 == supervisor.charged(first.job)
        supervisor.remove(other.job)
        assert 0 == supervisor.charged(first.job)


#: `lingering` makes a TCP socket whose last close waits for SECONDS, since its peer, kept, doesn't read.
LINGERS = """
import socket, struct
kept = []
def lingering():
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    kept.extend([listener, listener.accept()[0]])
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(1 << 16))
    except BlockingIOError:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    return mine.detach()
"""
#: The last descriptor of a socket is in the place of inotify's while the path is walked, or from the beginning.
LINGER_S = 90 * features.SLOWER
SWAPS = """
given, spare = init(), init()
def later(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
def swap(number, wait):
    if wait:
        later(wait)
        os.dup2(number, given)
    else:
        os.dup2(number, given)
        started.set()
    os.close(number)
    later(0.001)
    os.dup2(spare, given)
for wait in [0] * 5 + [each / 1e6 for each in range(10, 400, 10)]:
    started = threading.Event()
    threading.Thread(target=swap, args=(lingering(), wait), daemon=True).start()
    wait or started.wait()
    watch(given, path)
    while "anon_inode:inotify" != os.readlink(f"/proc/self/fd/{given}"):
        pass  # the thread may have to wait for its own close
tell("over")
parent.recv(1)
"""


def test_c491_a_socket_in_place_of_the_descriptor_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever closes it last waits as long as it lingers: the thread that watches files for all sandboxes doesn't."""
    program = filters.program(memory_counted=True, affinity_fixed=False, arch=os.uname().machine, loopback=True).insns
    supervisor, began = Supervisor(watchers=Watchers(2, 4096)), time.monotonic()
    code = INOTIFY + LINGERS.replace("SECONDS", str(LINGER_S)) + f"path = {long_path(tmp_path)!r}\n" + SWAPS
    with confined.confined(code, supervisor, program=program) as child:
        assert "over" == child.told()
        assert 1 == told(supervisor, f"tell(watch(init(), {str(tmp_path)!r}))")[0]
        assert time.monotonic() - began < LINGER_S
    supervisor.close()

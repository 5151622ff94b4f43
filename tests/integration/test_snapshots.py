"""Snapshots of a kernel's state: rolled back to, begun with in other sandboxes, and refused by name."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import leeward
from kit.features import ROOT
from kit.live_daemon import PATIENCE, LiveDaemon, environment, run
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("x86-64")

DAEMON = ("--pool-size", "4")

#: State of many kinds, and afterwards the check that it is as it was.
STATE = """
import collections, contextlib, itertools, json, random, re, sqlite3, sys, weakref
numbers = {n: str(n) for n in range(5000)}
def count():
    n = 0
    while True:
        n += 1
        yield n
counter = count()
[next(counter) for _ in range(3)]
db = sqlite3.connect(":memory:")
db.execute("create table t (x)")
db.executemany("insert into t values (?)", [(n,) for n in range(100)])
class Node: pass
node = Node()
node.me = node
ref = weakref.ref(node)
file = open("file", "w+")
file.write("abcdef")
file.flush()
file.seek(3)
try: 1 / 0
except ZeroDivisionError as error: kept = error
"""
CHECK = """
assert "4999" == numbers[4999] and 4 == next(counter) and node is ref()
assert (100, 4950) == db.execute("select count(*), sum(x) from t").fetchone()
assert "def" == file.read() and kept.__traceback__ is not None
import gc, subprocess, threading
gc.collect()
threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(10)]
[each.start() for each in threads]
[each.join() for each in threads]
assert "hi" == subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout.strip()
import asyncio
assert 3 == asyncio.run(asyncio.sleep(0, 3))
"fine"
"""


def test_a_kernel_is_rolled_back(box: leeward.Sandbox) -> None:
    """To what it was, with all kinds of state; more than once, and also when it was lost."""
    kernel = box.kernel()
    kernel.execute(STATE)
    snapshot = kernel.snapshot()
    assert "fine" == kernel.execute(CHECK).value.strip("'")
    kernel.execute("numbers.clear(); del node; new = 1")
    for _ in range(2):
        kernel.rollback(snapshot)
        got = kernel.execute(CHECK)
        assert "'fine'" == got.value, got.stderr_text
        assert "NameError" in kernel.execute("new").stderr_text
    kernel.execute("import os; os._exit(1)")
    with pytest.raises(leeward.SessionOver):
        kernel.execute("1")
    kernel.rollback(snapshot.id)
    assert "'fine'" == kernel.execute(CHECK).value
    snapshot.remove()
    with pytest.raises(leeward.SnapshotFailed, match="no snapshot"):
        kernel.rollback(snapshot)
    assert "5" == kernel.execute("next(counter)").value


def test_kernels_of_other_sandboxes_begin_with_it(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """Each with a copy of its own; their seeds differ."""
    kernel = box.kernel()
    kernel.execute("import random, os, ssl\nx = [1]\nrandom.seed(1)")
    with kernel.snapshot() as snapshot:
        assert 0 < snapshot.size < 40 << 20
        with leeward.Sandbox(socket=daemon.socket) as other:
            one, two = other.kernel(snapshot=snapshot), other.kernel(snapshot=snapshot)
            one.execute("x.append(2)")
            assert "[1, 2]" == one.execute("x").value
            assert "[1]" == two.execute("x").value
            assert 3 == len({each.execute("random.random(), ssl.RAND_bytes(8)").value for each in (kernel, one, two)})
            assert one.execute("os.getpid()").value == one.execute("import threading; threading.get_native_id()").value
            assert b"out\n" == one.execute("print('out')").stdout


def test_what_a_snapshot_tells(box: leeward.Sandbox) -> None:
    """Its size, its Python, what was imported, and what copies don't have."""
    kernel = box.kernel()
    kernel.execute("import socket, tempfile\nopened, _ = pair = socket.socketpair()")
    kernel.execute("gone, log = tempfile.TemporaryFile(), open('log', 'a')")
    kernel.execute("import os, subprocess\nchild = subprocess.Popen(['true'])")
    kernel.execute("os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)")
    kernel.execute("import sys, types\nsys.modules['made_up'] = types.ModuleType('made_up')\n"
                   "sys.modules['made_up'].__version__ = '1.2'")
    with kernel.snapshot() as snapshot:
        assert "1.2" == snapshot.packages["made_up"]
        assert snapshot.python == kernel.execute("sys.version.split()[0]").value.strip("'")
        assert abs(snapshot.made - time.time()) < 3600
        assert 4 == len(snapshot.lost)
        assert any("socket" in each for each in snapshot.lost)
        assert any(each.startswith("child") for each in snapshot.lost)
        rows = [row for row in leeward.Snapshot.list(socket=box.socket) if snapshot.id == row["snapshot"]]
        assert snapshot.size == rows[0]["size"]
        found = leeward.Snapshot.find(snapshot.id, box.socket)
        assert (snapshot.lost, snapshot.packages) == (found.lost, found.packages)
        kernel.rollback(snapshot)
        assert "OSError" in kernel.execute("opened.send(b'x')").stderr_text
        kernel.execute("held = [open('/dev/null') for _ in range(20)]\n[each.close() for each in (*pair, gone)]")
        assert kernel.execute("print('x', file=log, flush=True)").ok  # no number was another one's
        assert b"x\n" == box.files.read("log")
    with pytest.raises(leeward.SnapshotFailed):
        leeward.Snapshot.find(snapshot.id, box.socket)


def test_one_snapshot_after_the_other(box: leeward.Sandbox) -> None:
    """Nothing is left in the kernel of the processes that wrote them."""
    kernel = box.kernel()
    kernel.execute("import os, signal")
    kernel.execute("def reap(*_):\n  try: os.waitpid(-1, os.WNOHANG)\n  except ChildProcessError: pass")
    for handler in ("signal.SIG_DFL", "signal.SIG_IGN", "reap", "signal.SIG_DFL"):
        kernel.execute(f"signal.signal(signal.SIGCHLD, {handler})")
        kernel.snapshot().remove()
    poll_until(lambda: "ChildProcessError" in kernel.execute("os.waitpid(-1, os.WNOHANG)").stderr_text, "a child is left")


@pytest.mark.parametrize(("code", "named"), [
    ("import threading\nthreading.Thread(target=threading.Event().wait, name='waits', daemon=True).start()", "'waits'"),
    ("import _thread, time\n_thread.start_new_thread(time.sleep, (1000,))", "threads"),
    ("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])", "sleep"),
    ("import os, time\nif not (made := os.fork()): time.sleep(1000)", "children"),
    ("import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')", "working folder"),
    ("import mmap\nshared = mmap.mmap(-1, 4096)", "shared memory"),
    ("import concurrent.futures as f\npool = f.ThreadPoolExecutor(1)\npool.submit(int).result()", "ThreadPoolExecutor"),
])
def test_what_cannot_be_taken_is_refused_by_name(box: leeward.Sandbox, code: str, named: str) -> None:
    """And the kernel is as it was."""
    kernel = box.kernel()
    assert kernel.execute(f"x = 1\n{code}").ok
    before = kernel.execute("import os; sorted(os.listdir('/proc/self/fd'))").value
    with pytest.raises(leeward.SnapshotFailed, match=named):
        kernel.snapshot()
    assert before == kernel.execute("sorted(os.listdir('/proc/self/fd'))").value
    assert "1" == kernel.execute("x").value


def test_a_file_that_is_not_there_is_named(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """Nothing begins, a rollback leaves the kernel as it was, and with the file all is well."""
    kernel = box.kernel()
    kernel.execute("file = open('data', 'w+')\nfile.write('12345')\nfile.flush()\nfile.seek(2)\nx = 'then'")
    snapshot = kernel.snapshot()
    kernel.execute("x = 'now'\nimport os\nos.remove('data')")
    with pytest.raises(leeward.SnapshotFailed, match="data"):
        kernel.rollback(snapshot)
    assert "'now'" == kernel.execute("x").value
    with leeward.Sandbox(socket=daemon.socket) as other:
        before = other.info()["processes"]
        with pytest.raises(leeward.SnapshotFailed, match="data"):
            other.kernel(snapshot=snapshot)
        assert before == other.info()["processes"]
        other.files.write("data", b"abcdef")
        assert "'cdef'" == other.kernel(snapshot=snapshot).execute("file.read()").value


def test_tasks_go_on_in_copies(box: leeward.Sandbox) -> None:
    """The event loop of top-level await has descriptors of its own in each."""
    kernel = box.kernel()
    kernel.execute("import asyncio\nseen = []\nasync def ticks():\n  while True:\n    seen.append(1)\n"
                   "    await asyncio.sleep(0.01)\ntask = asyncio.create_task(ticks())\nawait asyncio.sleep(0.05)")
    snapshot = kernel.snapshot()
    for each in (kernel, box.kernel(snapshot=snapshot), box.kernel(snapshot=snapshot)):
        before = int(each.execute("len(seen)").value)
        assert int(each.execute("await asyncio.sleep(0.1)\nlen(seen)").value) > before > 0
    kernel.rollback(snapshot)
    assert int(kernel.execute("await asyncio.sleep(0.1)\nlen(seen)").value) > int(kernel.execute("1").value)


def test_a_chain_of_snapshots(box: leeward.Sandbox) -> None:
    """A snapshot of a copy of a copy; sizes don't grow by that."""
    kernel = box.kernel()
    kernel.execute("import os\nblock = bytearray(os.urandom(1 << 20)) * 8\nn = 0")
    sizes = []
    for count in range(12):
        snapshot = kernel.snapshot()
        sizes.append(snapshot.size)
        kernel = box.kernel(snapshot=snapshot)
        snapshot.remove()
        assert str(count + 1) == kernel.execute("n += 1\nblock += b'x' * 100_000\nn").value
        assert (8 << 20) + (count + 1) * 100_000 == int(kernel.execute("len(block)").value)
    assert sizes[-1] < sizes[0] + (4 << 20)


def test_an_interrupt_and_a_deep_stack_in_a_copy(box: leeward.Sandbox) -> None:
    """Signals, recursion in C and in Python, and memory that grows."""
    kernel = box.kernel()
    kernel.execute("import json, signal\nbig = bytearray(200 << 10)")
    copy = box.kernel(snapshot=kernel.snapshot())
    got: list[leeward.Result] = []
    looping = threading.Thread(target=lambda: got.append(copy.execute("open('loops', 'w').close()\nwhile True: pass")))
    looping.start()
    poll_until(lambda: box.files.exists("loops"), "the copy never ran")
    assert copy.interrupt()
    looping.join(PATIENCE)
    assert "KeyboardInterrupt" in got[0].stderr_text
    assert copy.execute("import sys\nsys.setrecursionlimit(20000)\njson.loads('[' * 5000 + ']' * 5000)").ok
    assert copy.execute("def down(n): return n and down(n - 1)\ndown(5000)").ok
    assert str((200 << 10) + (100 << 20)) == copy.execute("big.extend(bytes(100 << 20))\nlen(big)").value


#: A block of the C library's that is a mapping by itself, and one that is aligned in such a one.
BLOCKS = """
import ctypes
libc = ctypes.CDLL(None)
for name in ("malloc", "memalign", "realloc"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.realloc.argtypes = libc.memalign.argtypes = [ctypes.c_size_t] * 2
libc.mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD
blocks = [libc.malloc(SIZE), libc.memalign(64, SIZE), libc.malloc(SIZE)]
for number, block in enumerate(blocks):
    ctypes.memset(block, 65 + number, SIZE)
def grown(block, number):
    block = libc.realloc(block, 40 << 20)
    ctypes.memset(block + SIZE, 1, (40 << 20) - SIZE)
    kept = {ctypes.string_at(block, SIZE)} == {bytes([65 + number]) * SIZE}
    libc.realloc(block, 0)
    return kept
""".replace("SIZE", str(1 << 20))


def test_blocks_of_the_c_library_grow_in_copies(box: leeward.Sandbox) -> None:
    """In copies of copies, too: what lies behind a block in the state's file, or behind that, is no part of it."""
    kernel = box.kernel()
    assert kernel.execute(BLOCKS).ok
    copy = box.kernel(snapshot=kernel.snapshot())
    again = box.kernel(snapshot=copy.snapshot())
    for each in (kernel, copy, again):
        assert "[True, True, True]" == each.execute("[grown(*each[::-1]) for each in enumerate(blocks)]").value


def test_copies_of_another_zygote(tmp_path: Path) -> None:
    """Another address layout: the state is laid out as it was."""
    (tmp_path / "config.toml").write_text("layout_jobs = 3")
    with LiveDaemon(tmp_path, "--pool-size", "2", "--config", str(tmp_path / "config.toml")) as daemon, \
            daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        kernel.execute(STATE)
        mine = "open('/proc/self/maps').readlines()[0]"
        snapshot, layout = kernel.snapshot(), kernel.execute(mine).value
        client.execute("pass")
        other = ""
        for _ in range(200):
            client.execute("pass")
            with leeward.Sandbox(socket=daemon.socket) as there:
                fresh = there.kernel()
                other = fresh.execute(mine).value
                if other == layout:
                    continue
                there.files.write("file", b"abcdef")
                copy = there.kernel(snapshot=snapshot)
                got = copy.execute(CHECK)
                assert "'fine'" == got.value, got.stderr_text
                assert "5" == there.kernel(snapshot=copy.snapshot()).execute("next(counter)").value
                assert "20000" == copy.execute("len([bytearray(5000) for _ in range(20000)])").value
                return
        pytest.fail("the layout was never another one")


def test_snapshots_are_bounded(tmp_path: Path) -> None:
    """By the bytes of a user together; one that goes makes room, and so does one that nobody used for long."""
    (tmp_path / "config.toml").write_text("snapshot_memory = '64M'\nsnapshot_idle = 1")
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, \
            leeward.Sandbox(socket=daemon.socket) as box:
        kernel = box.kernel()
        kernel.execute("import os\nblock = os.urandom(40 << 20)")
        first = kernel.snapshot()
        with pytest.raises((leeward.Busy, leeward.SnapshotFailed), match="snapshot_memory"):
            kernel.snapshot()
        first.remove()
        kernel.snapshot()
        poll_until(lambda: not leeward.Snapshot.list(socket=daemon.socket), "it stays")
        kernel.snapshot()


def test_a_sandbox_ends_during_a_snapshot(daemon: LiveDaemon) -> None:
    """The request is answered, and the daemon goes on."""
    for _ in range(5):
        with leeward.Sandbox(socket=daemon.socket) as box:
            kernel = box.kernel()
            kernel.execute("import os\nblock = os.urandom(30 << 20)")
            said: list[BaseException] = []

            def take(kernel: leeward.Kernel = kernel, said: list[BaseException] = said) -> None:
                try:
                    kernel.snapshot()
                except leeward.DaemonError as error:
                    said.append(error)

            taking = threading.Thread(target=take)
            taking.start()
            box.kill()
            taking.join(PATIENCE)
            assert not taking.is_alive()
            assert all(isinstance(each, leeward.SandboxOver) for each in said), said
    for row in leeward.Snapshot.list(socket=daemon.socket):
        leeward.Snapshot.find(row["snapshot"], daemon.socket).remove()
    with daemon.client() as client:
        assert b"on\n" == client.execute("print('on')").stdout


def test_each_worker_has_a_layout_of_its_own(tmp_path: Path) -> None:
    """A zygote for each worker: copies in other sandboxes are laid out as in the first."""
    (tmp_path / "config.toml").write_text("fresh_layout = true\npool_size = 3")
    with LiveDaemon(tmp_path, "--config", str(tmp_path / "config.toml")) as daemon, \
            leeward.Sandbox(socket=daemon.socket) as box, leeward.Sandbox(socket=daemon.socket) as other:
        kernel = box.kernel()
        kernel.execute(STATE)
        snapshot = kernel.snapshot()
        other.files.write("file", b"abcdef")
        copy = other.kernel(snapshot=snapshot)
        assert "'fine'" == copy.execute(CHECK).value
        kernel.rollback(snapshot)
        again = box.kernel(snapshot=copy.snapshot())
        assert "5" == again.execute("next(counter)").value
        assert "'fine'" == kernel.execute(CHECK).value


def test_functions_of_the_kernel_are_called_in_each_copy(box: leeward.Sandbox) -> None:
    """By `leeward.on_restore`; one that raises is the reason why the copy isn't begun."""
    kernel = box.kernel()
    kernel.execute("import leeward, random\ng = random.Random(1)\ncalls = 0")
    kernel.execute("@leeward.on_restore\ndef again():\n  global calls\n  calls += 1\n  g.seed()")
    snapshot = kernel.snapshot()
    copies = [box.kernel(snapshot=snapshot) for _ in range(2)]
    copies.append(box.kernel(snapshot=copies[0].snapshot()))
    assert ["0", "1", "1", "2"] == [each.execute("calls").value for each in (kernel, *copies)]
    assert 4 == len({each.execute("g.random()").value for each in (kernel, *copies)})
    kernel.execute("leeward.on_restore(lambda: 1 / 0)")
    with pytest.raises(leeward.SnapshotFailed, match="ZeroDivisionError"):
        kernel.rollback(kernel.snapshot())
    assert "0" == kernel.execute("calls").value


def test_what_a_fork_wipes_is_empty_in_copies(box: leeward.Sandbox) -> None:
    """And in their children: the C library may keep the state of its random numbers in such memory."""
    kernel = box.kernel()
    kernel.execute("import mmap\nwiped, kept = (mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE) for _ in range(2))")
    kernel.execute("wiped.madvise(18)\nwiped[:3] = kept[:3] = b'abc'")
    copy = box.kernel(snapshot=kernel.snapshot())
    both = "wiped[:3], kept[:3]"
    assert "(b'abc', b'abc')" == kernel.execute(both).value
    assert f"({bytes(3)!r}, b'abc')" == copy.execute(both).value
    copy.execute("wiped[:3] = b'new'")
    assert f"({bytes(3)!r}, b'abc')" == copy.fork().execute(both).value


def test_the_example_finds_its_way(daemon: LiveDaemon) -> None:
    """examples/tree_search.py; the search leaves no snapshot."""
    before = len(leeward.Snapshot.list(socket=daemon.socket))
    done = subprocess.run([sys.executable, ROOT / "examples/tree_search.py"], env=environment(daemon.socket),
                          capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert 0 == done.returncode, done.stderr
    assert "open after looking at 16 states: ([0, 0, 0, 0], " in done.stdout
    assert before == len(leeward.Snapshot.list(socket=daemon.socket))


def test_the_commands_list_and_remove(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """What somebody has forgotten."""
    kernel = box.kernel()
    kernel.execute("import socket\npair = socket.socketpair()")
    snapshot = kernel.snapshot()
    listed = run(daemon.socket, "snapshot", "list")
    assert snapshot.id in listed.stdout.decode()
    told = json.loads(run(daemon.socket, "snapshot", "info", snapshot.id, "--json").stdout)
    assert (snapshot.size, snapshot.lost) == (told["size"], told["lost"])
    shown = run(daemon.socket, "snapshot", "info", snapshot.id).stdout.decode()
    assert 2 == shown.count("lost") == len(snapshot.lost)
    assert 1 == run(daemon.socket, "snapshot", "rm", snapshot.id, "a" * 26).returncode
    assert snapshot.id not in run(daemon.socket, "snapshot", "list").stdout.decode()


def test_random_numbers_may_go_on(box: leeward.Sandbox) -> None:
    """With `same_random` those of the snapshot, in each copy and after each rollback."""
    kernel = box.kernel()
    kernel.execute("import random\nrandom.seed(5)")
    snapshot = kernel.snapshot()
    draw = "random.random()"
    first = kernel.execute(draw).value
    copies = [box.kernel(snapshot=snapshot, same_random=True) for _ in range(2)]
    assert [first, first] == [each.execute(draw).value for each in copies]
    kernel.rollback(snapshot, same_random=True)
    assert first == kernel.execute(draw).value
    kernel.rollback(snapshot)
    assert first != kernel.execute(draw).value


def test_branches_and_copies_of_each_other(box: leeward.Sandbox) -> None:
    """A branch's snapshot, a copy's branch, and a branch that is rolled back."""
    kernel = box.kernel()
    kernel.execute("import os\nx = [1]")
    with kernel.fork() as branch:
        branch.execute("x.append(2)")
        snapshot = branch.snapshot()
        branch.execute("x.append(3)")
        copy = box.kernel(snapshot=snapshot)
        twig = copy.fork()
        branch.rollback(snapshot)
        twig.execute("x.append(4)")
        assert ["[1]", "[1, 2]", "[1, 2]", "[1, 2, 4]"] == [
            each.execute("x").value for each in (kernel, branch, copy, twig)]
        assert 4 == len({each.execute("os.getpid()").value for each in (kernel, branch, copy, twig)})
        again = box.kernel(snapshot=twig.snapshot())
    assert "[1, 2, 4]" == again.execute("x").value
    assert "[1]" == kernel.execute("x").value


def there(box: leeward.Sandbox) -> tuple[int, int]:
    return len(leeward.Sandbox.list(socket=box.socket)), len(leeward.Snapshot.list(socket=box.socket))


def test_a_fork_has_files_and_kernels_of_its_own(box: leeward.Sandbox) -> None:
    """Each at the offsets that open files had; the first is as it was."""
    with leeward.Sandbox(socket=box.socket, env={"NAME": "value"}) as first, first.kernel() as kernel:
        kernel.execute("import os\nlog = open('log', 'w')\nlog.write('abc')\nlog.flush()\nopen('/tmp/t', 'w').write('t')")
        before = there(box)
        for number, copy in enumerate(first.fork(2, [kernel, kernel])):
            with copy.sandbox as sandbox:
                one, other = copy.kernels
                assert one.execute(f"log.write('{number}')\nlog.flush()\nname = os.environ['NAME']").ok
                assert (b"abc%d" % number, b"t") == (sandbox.files.read("log"), sandbox.files.read("/tmp/t"))
                assert "NameError" in other.execute("name").stderr_text
                assert b"value" == sandbox.run(["printenv", "NAME"]).stdout.strip()
        assert b"abc" == first.files.read("log")
        with kernel.fork(files=True) as own:
            assert own.execute("open('log', 'w').close()").ok
        assert b"abc" == first.files.read("log")
        assert before == there(box)


def test_what_is_only_reserved_takes_no_memory(daemon: LiveDaemon) -> None:
    """
    Also where a page of it is zero again, so that all is searched: page tables would take more than the sandbox has. Where
    no controller counts, no more can be reserved than the sandbox may have.
    """
    with daemon.client() as client:
        is_counted = "none" != client.status()["layers"]["cgroup"]["driver"]
    with leeward.Sandbox(socket=daemon.socket, memory="48M") as box, box.kernel() as kernel:
        got = kernel.execute("import mmap\nkept = mmap.mmap(-1, 24 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)\n"
                             "kept[0] = kept[8192] = kept[12 << 30] = 1\nkept[0] = 0")
        assert is_counted == got.ok
        if not is_counted:
            assert b"Cannot allocate memory" in got.stderr
            return
        with kernel.snapshot() as snapshot, box.kernel(snapshot=snapshot) as copy:
            assert "(0, 1, 1)" == copy.execute("kept[0], kept[8192], kept[12 << 30]").value


def test_a_fork_that_fails_leaves_nothing(box: leeward.Sandbox, tmp_path: Path) -> None:
    """A kernel that can't be taken; a sandbox whose files aren't all its own."""
    kernel = box.kernel()
    kernel.execute("import mmap\nshared = mmap.mmap(-1, 4096)")
    before = there(box)
    with leeward.Sandbox(socket=box.socket) as whole, pytest.raises(leeward.SnapshotFailed, match="shared memory"):
        whole.fork(2, [whole.kernel(), kernel])
    with pytest.raises(ValueError, match="writes to folders"):
        leeward.Sandbox(socket=box.socket, workdir=tmp_path).fork()
    with leeward.Sandbox(socket=box.socket) as opened:
        attached = leeward.Sandbox.attach(opened.id, socket=box.socket)
        with pytest.raises(ValueError, match="can't be forked"):
            attached.fork()
        attached.detach()
    assert before == there(box)


def test_a_session_is_rolled_back(daemon: LiveDaemon) -> None:
    """One that was opened with snapshots: every call of a session's is there, and it ends with its client."""
    with daemon.client() as client:
        with client.session() as plain, pytest.raises(leeward.SnapshotFailed, match="snapshots=True"):
            plain.snapshot()
        with client.session(snapshots=True, timeout=20, deadline=PATIENCE) as session:
            assert session.execute("x = [1]").value is None
            with session.snapshot() as snapshot, client.session(snapshots=True) as other:
                session.execute("x.append(2)")
                session.rollback(snapshot)
                other.rollback(snapshot)
                assert b"[1] ['a']\n" == session.execute("import sys; print(x, sys.argv[1:])", args=["a"]).stdout
                assert "[1]" == other.execute("x", display=True).value
            with pytest.raises(leeward.NoAnswer):
                session.execute("import time; time.sleep(1000)", deadline=0.2)
            with pytest.raises(leeward.SessionOver):
                session.execute("x")
            session.reset(PATIENCE)
            assert "NameError" in session.execute("x").stderr_text
            name = leeward.Sandbox.list(socket=daemon.socket)[-1]["sandbox"]
            leeward.Sandbox.attach(name, socket=daemon.socket).close()
            with pytest.raises(leeward.SessionOver, match="killed"):
                session.execute("x")
            session.reset()
            assert session.execute("import os").ok
        with pytest.raises(leeward.SessionOver):
            session.reset()  # which would open another sandbox
        assert not leeward.Sandbox.list(socket=daemon.socket)


def test_a_session_is_rolled_back_with_asyncio(daemon: LiveDaemon) -> None:
    async def search() -> list[str | None]:
        async with leeward.AsyncClient(daemon.socket) as client, client.session() as plain, client.session(
                snapshots=True, deadline=PATIENCE) as session:
            with pytest.raises(leeward.SnapshotFailed, match="snapshots=True"):
                await plain.rollback("id")
            await session.execute("x = [1]")
            async with await session.snapshot() as snapshot:
                seen = []
                for number in range(2):
                    await session.rollback(snapshot, same_random=True)
                    seen.append((await session.execute(f"x.append({number})\nx", display=True, deadline=PATIENCE)).value)
                sleeps = asyncio.create_task(session.execute("import time; time.sleep(1000)"))
                while not await session.interrupt():
                    await asyncio.sleep(0)
                assert "KeyboardInterrupt" in (await sleeps).stderr_text
            return seen

    assert ["[1, 0]", "[1, 1]"] == asyncio.run(search())

"""
Escapes from one job to the next, and from one tenant to another: A plants, B looks.

Every job has a process of its own, cloned from a keeper that runs none. What successive jobs of a worker
share is its user and network namespaces; jobs of one host user share that user's accounts in the kernel.
The hash seed and the address layout are the zygote's, and so the same for all: docs/threat-model.md.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from box import Box
from leeward.outcome import Outcome
from leeward.spec.job import Job
from leeward.worker.execution import Execution
from leeward.worker.report import Report
from leeward.worker.runner import Runner
from leeward.worker.worker import Worker

#: Pairs of A and B.
PAIRS = 1000 if os.environ.get("LEEWARD_LONG") else 20

LOOK = """
import json as _json
def _look():
    import atexit, builtins, ctypes, decimal, gc, json, locale, os, resource, signal, sys, threading, time, warnings
    def listed(folder):
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            return type(error).__name__
    libc = ctypes.CDLL(None)
    return {
        "builtins": [len(vars(builtins)), builtins.open is __import__("io").open, builtins.print.__module__],
        "json": json.dumps({"a": 1}), "modules": sorted(sys.modules), "path": sys.path, "meta": len(sys.meta_path),
        "hooks": [len(sys.path_hooks), repr(sys.excepthook)[:28], repr(sys.displayhook)[:29], sys.gettrace() is None],
        "gc": [gc.get_threshold(), gc.isenabled(), len(gc.callbacks)], "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(), "threads": [thread.name for thread in threading.enumerate()],
        "tasks": len(os.listdir("/proc/self/task")), "atexit": atexit._ncallbacks(),
        "signals": [str(signal.getsignal(n)) for n in range(1, 32)], "alarm": signal.getitimer(signal.ITIMER_REAL),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "umask": os.umask(0o022), "cwd": os.getcwd(),
        "files": [listed(folder) for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp")],
        "fds": [fd for fd in range(256) if libc.fcntl(fd, 1) >= 0],
        "limits": [resource.getrlimit(n) for n in range(16) if n != resource.RLIMIT_CORE], "nice": os.nice(0),
        "affinity": len(os.sched_getaffinity(0)), "env": sorted(os.environ.items()), "tz": time.tzname,
        "locale": locale.setlocale(locale.LC_ALL), "decimal": str(decimal.getcontext()),
        "filters": len(warnings.filters), "ids": [os.getuid(), os.getpid(), os.getppid(), os.getsid(0) == os.getpid()],
        "sockets": len(open("/proc/self/net/unix").readlines()),
        "processes": [n for n in listed("/proc") if n.isdigit()],
        "host": os.uname().nodename, "segment": libc.shmget(0x6c77, 0, 0), "interned": sys.intern("tenant") is _KEY,
        "oom": open("/proc/self/oom_score_adj").read(),
    }
_KEY = "tenant"
"""

PLANT = """
import atexit, builtins, ctypes, decimal, gc, json, os, resource, signal, socket, subprocess, sys, threading, time
import random, warnings
import array
builtins.leftover = 1
json.dumps = lambda *a, **k: "poisoned"
sys.modules["leftover"] = json
sys.path.append("/leftover")
sys.meta_path.append(None); sys.meta_path.pop(); sys.meta_path.append(sys.meta_path[0])
sys.excepthook = print
sys.setrecursionlimit(500); sys.setswitchinterval(1.0)
gc.set_threshold(1); gc.disable(); gc.callbacks.append(lambda *a: None)
threading.Thread(target=lambda: [time.sleep(0.001) or os.write(1, b"") for _ in iter(int, 1)], daemon=True).start()
atexit.register(lambda: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 1000)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.umask(0o077)
for folder in ("/workspace", "/tmp", "/dev/shm"):
    for name in ("leftover.pth", "usercustomize.py", "sitecustomize.py", "json.py", "token"):
        open(folder + "/" + name, "w").write("TOKEN")
os.makedirs("/workspace/.local/lib/python3.11/site-packages/__pycache__")
os.chdir("/tmp")
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
os.nice(5)
os.environ["LEFTOVER"] = "TOKEN"; os.environ["TZ"] = "Asia/Tokyo"; time.tzset()
decimal.getcontext().prec = 3
warnings.simplefilter("ignore")
ctypes.CDLL(None).shmget(0x6c77, 4096, 0o1666)
if 0 == os.fork():
    os.setsid()
    for number in set(range(1, 32)) - {9, 19}:
        signal.signal(number, signal.SIG_IGN)
    while True: os.fork() if random.random() < 0 else time.sleep(60)
server = socket.socket(socket.AF_UNIX); server.bind(chr(0) + "leftover"); server.listen()
one, other = socket.socketpair()
one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                      array.array("i", [one.fileno(), other.fileno(), server.fileno()]))])
open("/proc/self/oom_score_adj", "w").write("900") if os.access("/proc/self/oom_score_adj", os.W_OK) else None
"""

PRINT = "print(_dumps(_look(), default=str))\n"


def looked(box: Box) -> dict[str, Any]:
    got = box.run(LOOK + "_dumps = _json.dumps\n" + PRINT)
    assert Outcome.FINISHED is got.outcome, got
    found = json.loads(got.stdout)
    assert isinstance(found, dict)
    return found


#: By case, what a look tells of it: an interpreter, what runs in it, files, what is open, and its surroundings.
ASPECTS = {
    88: {"builtins", "json", "modules", "path", "meta", "hooks", "gc", "recursion", "switch", "interned"},
    89: {"threads", "tasks", "atexit", "signals", "alarm", "mask", "processes"},
    90: {"files"},
    91: {"fds", "sockets", "segment"},
    92: {"umask", "cwd", "limits", "nice", "affinity", "env", "locale", "tz", "decimal", "filters", "ids", "host",
         "oom"},
}

#: What the plant doesn't change on every host, or can't.
UNMOVED = {"interned", "segment", "affinity", "locale", "ids", "host", "oom"}


@pytest.fixture(scope="module")
def looks() -> dict[int, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """
    By size of the pool: what a first job finds, one after its own plant, and each of those after another's.
    """
    found = {}
    for pool_size in (1, 4):
        with Box(pool_size=pool_size) as box:
            fresh = looked(box)
            planted = json.loads(box.run(LOOK + "_dumps = _json.dumps\n" + PLANT + PRINT).stdout)
            after = []
            for _ in range(PAIRS):
                assert Outcome.FINISHED is box.run(PLANT).outcome
                after.append(looked(box))
            found[pool_size] = fresh, planted, after
    return found


def _nothing_of_the_one_before(looks: Any, pool_size: int, case: int) -> None:
    fresh, planted, after = looks[pool_size]
    of_case = ASPECTS[case]
    # control: in A's own process the look sees what A did
    assert of_case - UNMOVED <= {name for name in of_case if fresh[name] != planted[name]}

    for found in after:
        assert {name: fresh[name] for name in of_case} == {name: found[name] for name in of_case}


POOLS = pytest.mark.parametrize("pool_size", [1, 4])


def test_c088_to_c092_every_aspect_belongs_to_a_case(looks: Any) -> None:
    """
    Nothing of what is looked at goes unjudged.
    """
    assert set().union(*ASPECTS.values()) == set(looks[1][0])


@POOLS
def test_c088_a_job_finds_a_pristine_interpreter(looks: Any, pool_size: int) -> None:
    """
    Modules, builtins, hooks, collector: as in a fresh sandbox, pair after pair.
    """
    _nothing_of_the_one_before(looks, pool_size, 88)


@POOLS
def test_c089_nothing_of_the_job_before_runs(looks: Any, pool_size: int) -> None:
    """
    No thread, timer, handler, atexit function or process.
    """
    _nothing_of_the_one_before(looks, pool_size, 89)


@POOLS
def test_c090_no_file_of_the_job_before_is_there(looks: Any, pool_size: int) -> None:
    """
    In no place that could be written; so nothing is imported from one.
    """
    _nothing_of_the_one_before(looks, pool_size, 90)


@POOLS
def test_c091_nothing_that_the_job_before_opened_is_open(looks: Any, pool_size: int) -> None:
    """
    No descriptor, socket, name of a socket or segment.
    """
    _nothing_of_the_one_before(looks, pool_size, 91)


@POOLS
def test_c092_a_job_starts_from_the_documented_state(looks: Any, pool_size: int) -> None:
    """
    Folder, masks, limits, environment, locale, contexts.
    """
    _nothing_of_the_one_before(looks, pool_size, 92)


def test_c093_nothing_of_a_job_shows_in_the_output_of_the_next(box: Box):
    """
    A's children write on and on; B's output is B's, to the byte, and so is its error.
    """
    chatter = """
import os
for _ in range(3):
    if 0 == os.fork():
        while True:
            os.write(1, b"late\\n"); os.write(2, b"late\\n")
print("A")
"""
    for number in range(PAIRS):
        first = box.run(chatter)
        got = box.run(f"import sys; print({number}); print('e', file=sys.stderr)")

        assert b"late\n" in first.stdout + first.stderr or b"A\n" in first.stdout
        assert (f"{number}\n".encode(), b"e\n") == (got.stdout, got.stderr)


def test_c093_memory_and_files_come_zeroed(box: Box):
    """
    What A wrote everywhere is nowhere in what B gets from the kernel.
    """
    token = secrets.token_hex(16)
    box.run(f"kept = [{token!r} * 100_000 for _ in range(10)]\nopen('/tmp/t', 'w').write({token!r} * 100_000)")
    got = box.run("""
import mmap
page = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(page[:].count(0) == len(page))
with open("/tmp/new", "wb") as file:
    file.truncate(8 << 20)
print(open("/tmp/new", "rb").read().count(0) == 8 << 20)
""")

    assert "True\nTrue\n" == got.stdout_text


def test_c094_two_jobs_at_once_do_not_see_each_other():
    """
    Processes, names, files, segments of A, which runs, are nothing to B in the worker beside it.
    """
    with Box(pool_size=2) as box:
        box.reactor.run(lambda: all(worker.free for worker in box.engine.pool.workers))
        fresh = looked(box)
        running: list[Report] = []
        ticket = box.engine.pool.submit(
            Job(code=(PLANT + "os.write(1, b'planted')\nwhile True: time.sleep(60)").encode()), running.append, 9.0)
        worker = next(worker for worker in box.engine.pool.workers if worker.busy)
        assert worker._execution is not None
        stream = worker._execution._output.out
        box.reactor.run(lambda: stream.length > 0)
        reach = box.run("""
import socket
try:
    socket.socket(socket.AF_UNIX).connect(chr(0) + "leftover")
    print("connected")
except OSError as error:
    print(type(error).__name__)
""")

        assert fresh == looked(box)
        assert reach.stdout in (b"ConnectionRefusedError\n", b"PermissionError\n")
        assert not running
        ticket.cancel()


RANDOM = """
import json, multiprocessing.process, os, random, secrets, ssl, tempfile, uuid
print(json.dumps([random.random(), random.SystemRandom().random(), str(uuid.uuid4()), secrets.token_hex(8),
                  tempfile.mktemp(), os.urandom(8).hex(), ssl.RAND_bytes(8).hex(),
                  bytes(multiprocessing.process.current_process().authkey).hex()]))
"""


def test_c095_c164_no_two_jobs_draw_the_same():
    """
    Though all are copies of one interpreter, in which OpenSSL had a state and multiprocessing a key.
    """
    with Box(pool_size=2, preload=("ssl", "multiprocessing.process")) as box:
        drawn = [json.loads(box.run(RANDOM).stdout) for _ in range(PAIRS)]

    for column in zip(*drawn, strict=True):
        assert PAIRS == len(set(column))


EXHAUST = """
import array, fcntl, os, resource, select, signal, socket, time
kept = []
def until_it_fails(call):
    try:
        for _ in range(100_000):
            kept.append(call())
    except (OSError, ValueError, MemoryError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(32, 64))
def queue():
    signal.pidfd_send_signal
    os.kill(os.getpid(), 40)
for _ in range(2000):
    queue()
def pipe():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
    return read, write
for _ in range(3):
    if 0 == os.fork():
        until_it_fails(pipe)
        os.write(1, b"x")
        while True: time.sleep(60)
null = os.open("/dev/null", os.O_RDONLY)
def fly():
    ends = socket.socketpair()
    ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 200))])
    return ends
until_it_fails(fly)
print("full", flush=True)
%s
"""

NORMAL = """
import multiprocessing.connection, os, select, signal, socket, subprocess, threading
read, write = os.pipe(); os.write(write, b"x" * 4096)
epoll = select.epoll(); epoll.register(read, select.EPOLLIN); assert epoll.poll(0)
signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.001); signal.pause()
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout, end="")
one, other = socket.socketpair(); one.sendall(b"y"); assert other.recv(1) == b"y"
print("works")
"""


@pytest.mark.parametrize("end", ["", "while True: time.sleep(60)"], ids=["before", "beside"])
def test_c096_c162_what_a_job_uses_up_is_there_for_the_next(end: str):
    """
    Pipes, descriptors in flight, pending signals of one user id; A is over, or still runs in another worker.
    """
    with Box(pool_size=2) as box:
        box.reactor.run(lambda: all(worker.free for worker in box.engine.pool.workers))
        reports: list[Report] = []
        ticket = box.engine.pool.submit(Job(code=(EXHAUST % end).encode()), reports.append, 9.0)
        worker = next(worker for worker in box.engine.pool.workers if worker.busy)
        assert worker._execution is not None
        stream = worker._execution._output.out
        box.reactor.run(lambda: b"full" in stream.head or bool(reports))
        for _ in range(4):
            assert "thread\nchild\nworks\n" == box.run(NORMAL).stdout_text
        ticket.cancel()
        assert [] == box.log.of("worker failed")


def test_c097_a_job_is_charged_with_its_own_alone(box: Box):
    """
    Time and memory of B are B's, after an A that used much of both; arming is nobody's.
    """
    greedy = box.run("import time\nkept = bytearray(100 << 20)\nend = time.process_time() + 0.3\n"
                     "while time.process_time() < end: pass")
    modest = [box.run("import time; print(time.process_time())") for _ in range(PAIRS)]

    assert greedy.cpu_time >= 0.28  # control
    assert max(got.cpu_time for got in modest) < 0.25
    if not box.engine.driver.degraded:
        assert greedy.memory_peak > 100 << 20
        assert max(got.memory_peak for got in modest) < 50 << 20
        # control and promise of c165: the process has existed, and used time, before it was a job
        assert all(got.cpu_time < float(got.stdout) + 0.02 for got in modest)
    assert not any(got.denied for got in modest)


def test_c160_no_job_starts_before_the_one_before_is_dead(monkeypatch: pytest.MonkeyPatch):
    """
    A ignores signals and forks until it is killed: when B's code is sent no process of A's is left.
    """
    had_jobs: list[tuple[int, int]] = []  # inits of runners that had one, with their start times
    overlaps: list[int] = []
    start = Execution.start

    def born(pid: int) -> int:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[19])
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def watched(self: Execution) -> None:
        overlaps.extend(pid for pid, when in had_jobs if when == born(pid) != 0)
        had_jobs[:] = [(self._runner.pid, born(self._runner.pid))]
        start(self)

    monkeypatch.setattr(Execution, "start", watched)
    stubborn = """
import os, signal
for number in set(range(1, 32)) - {9, 19}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(4):
    os.fork()
if os.getpid() != 2:
    while True: pass
print("A")
"""
    with Box(pool_size=1) as box:
        for _ in range(PAIRS):
            box.run(stubborn)
            assert b"B\n" == box.run("print('B')").stdout

    assert [] == overlaps


CYCLE = """
import array, socket
server = socket.socket(socket.AF_UNIX); server.bind(chr(0) + "name"); server.listen()
one, other = socket.socketpair()
one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                      array.array("i", [one.fileno(), other.fileno(), server.fileno()]))])
"""

TAKE = """
import socket
print(len(open("/proc/self/net/unix").readlines()) - 1)
try:
    socket.socket(socket.AF_UNIX).bind(chr(0) + "name")
    print("bound")
except OSError as error:
    print(type(error).__name__)
"""


def test_c161_no_socket_waits_in_the_network_namespace(monkeypatch: pytest.MonkeyPatch):
    """
    Sockets in flight in their own queue outlive their processes, until the kernel collects them. A worker
    where a job left such retires: the next job sees no name, and gets the one it wants.
    """
    def pairs() -> list[str]:
        with Box() as box:
            return [(box.run(CYCLE), box.run(TAKE))[1].stdout_text for _ in range(PAIRS)]

    assert ["0\nbound\n"] * PAIRS == pairs()

    monkeypatch.setattr(Worker, "sockets", lambda self: 0)
    assert ["0\nbound\n"] * PAIRS != pairs()  # control


def test_c161_other_families_can_leave_nothing(box: Box):
    """
    No socket but Unix ones can be made, so no port, route or TIME_WAIT is left in a namespace.
    """
    made = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK):
        got = box.run(f"import socket; socket.socket({int(family)}, {int(socket.SOCK_DGRAM)})")
        if Outcome.RAISED is not got.outcome:
            made.append(family)

    assert [] == made
    assert Outcome.FINISHED is box.run("import socket; socket.socket(socket.AF_UNIX)").outcome  # control


def test_c165_time_counts_from_the_start_of_the_job(monkeypatch: pytest.MonkeyPatch):
    """
    A runner may have been armed for hours; its job has all of its time, and the limits that it asked for.
    """
    with Box() as box:
        (worker,) = box.engine.pool.workers
        runner = worker._armed[0]
        assert isinstance(runner, Runner)
        # As if days had gone by since it was armed.
        monkeypatch.setattr("leeward.worker.execution.time", SimpleNamespace(monotonic=lambda: 1e6))
        got = box.run("import resource; print(resource.getrlimit(resource.RLIMIT_CPU))", limits={"time": 5.0})

    assert (Outcome.FINISHED, b"(-1, -1)\n") == (got.outcome, got.stdout)
    assert 0.0 == got.duration

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
import select
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.attack import make_environment, within
from kit.box import Box, control, run_outside
from kit.locks import LOCKS as ALL
from kit.running import named
from kit.waiting import poll_until
from leeward.daemon.loop.fast_path import ReplyAddress
from leeward.daemon.run.execution import Execution
from leeward.daemon.run.report import Report
from leeward.daemon.run.runner import Runner
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome

Only = Callable[..., Box]

#: Why some of these are about no lock of a job's.
AT_ITS_START = "it is what the daemon does when it sends a job, and there is no sending without that"

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
    """By size of the pool: what a first job finds, one after its own plant, and each of those after another's."""
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
    with control():  # in A's own process the look sees what A did
        assert of_case - UNMOVED <= {name for name in of_case if fresh[name] != planted[name]}

    for found in after:
        assert {name: fresh[name] for name in of_case} == {name: found[name] for name in of_case}


POOLS = pytest.mark.parametrize("pool_size", [1, 4])
ALL_OF_THEM = pytest.mark.no_single_lock("a process, namespaces and mounts of its own: it takes all of them")


@pytest.mark.no_attack("it only says that no finding goes unjudged")
def test_c088_to_c092_every_aspect_belongs_to_a_case(looks: Any) -> None:
    """Nothing of what is looked at goes unjudged."""
    assert set().union(*ASPECTS.values()) == set(looks[1][0])


@ALL_OF_THEM
@POOLS
def test_c088_a_job_finds_a_pristine_interpreter(looks: Any, pool_size: int) -> None:
    """Modules, builtins, hooks, collector: as in a fresh sandbox, pair after pair."""
    _nothing_of_the_one_before(looks, pool_size, 88)


@ALL_OF_THEM
@POOLS
def test_c089_no_thread_or_process_of_the_job_before_runs(looks: Any, pool_size: int) -> None:
    """No thread, timer, handler, atexit function or process."""
    _nothing_of_the_one_before(looks, pool_size, 89)


@ALL_OF_THEM
@POOLS
def test_c090_no_file_of_the_job_before_is_there(looks: Any, pool_size: int) -> None:
    """In no place that could be written; so nothing is imported from one."""
    _nothing_of_the_one_before(looks, pool_size, 90)


@ALL_OF_THEM
@POOLS
def test_c091_no_descriptor_of_the_job_before_is_open(looks: Any, pool_size: int) -> None:
    """No descriptor, socket, name of a socket or segment."""
    _nothing_of_the_one_before(looks, pool_size, 91)


@ALL_OF_THEM
@POOLS
def test_c092_a_job_starts_from_the_documented_state(looks: Any, pool_size: int) -> None:
    """Folder, masks, limits, environment, locale, contexts."""
    _nothing_of_the_one_before(looks, pool_size, 92)


#: What a job may leave in namespaces that the next job of its connection may have (`reuse = "user"`).
LEFT = {
    "process": "if 0 == os.fork():\n    os.setsid(); signal.signal(15, signal.SIG_IGN)\n    while True: time.sleep(60)",
    "sibling": "if 0 == libc.syscall({'x86_64': 56}.get(os.uname().machine, 220), 0x8000 | 17, 0, 0, 0, 0):\n"  # CLONE_PARENT
               "    while True: time.sleep(60)",
    "file": "open('/dev/shm/left', 'w').close()",
    "content": "open('/tmp/left', 'w').write('x' * 10_000)",
    "attribute": "try: os.setxattr('/workspace', 'user.left', b'x')\nexcept OSError: open('/workspace/left', 'w').close()",
    "mode": "os.chmod('/tmp', 0o700); os.chmod('/workspace', 0o777); os.utime('/dev/shm', (1, 1))",
    "segment": "libc.shmget(0x6c77, 4096, 0o1666); libc.semget(0x6c77, 1, 0o1666); libc.msgget(0x6c77, 0o1666)",
    "queue": "libc.mq_open(b'/left', os.O_CREAT, 0o666, None)",
    "name": "server = socket.socket(socket.AF_UNIX); server.bind('\\0left'); server.listen()",
    "host": "libc.sethostname(b'left', 4); libc.mount(b'/tmp', b'/workspace', None, 4096, None)",
    "nothing": "",
}
#: Refused to any job, so that nothing is to be seen even by the job itself.
REFUSED = {"queue", "host"}

LOOK_AFTER = """
import ctypes, json, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def look():
    folders = ("/workspace", "/tmp", "/dev/shm")
    reached = socket.socket(socket.AF_UNIX).connect_ex("\\0left")
    return [sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())),
            [os.listdir(folder) for folder in folders], [os.listxattr(folder) for folder in folders],
            [oct(os.stat(folder).st_mode) for folder in folders], [os.stat(folder).st_mtime < 1e9 for folder in folders],
            [of(0x6c77, *more, 0) for of, more in ((libc.shmget, (0,)), (libc.semget, (0,)), (libc.msgget, ()))],
            libc.mq_open(b"/left", os.O_RDONLY), reached, os.uname().nodename, len(open("/proc/self/mountinfo").readlines()),
            [line for line in open("/proc/1/status") if line.startswith(("SigPnd", "ShdPnd"))]]
"""
#: The first job of a pid namespace has the number 2 there.
TELL = "print(json.dumps([time.monotonic(), os.readlink('/proc/self/ns/pid'), os.getpid() > 2, look()]))\n"


def _in_turn(box: Box, jobs: list[tuple[int, int, str]]) -> list[list[Any]]:
    """Send all *jobs* (user, connection, code) at once, and return what each has told."""
    told: dict[int, Report] = {}
    for number, (user, connection, code) in enumerate(jobs):
        box.engine.main.pool.submit(Job(code=(LOOK_AFTER + code + "\n" + TELL).encode()), partial(told.__setitem__, number),
                                    600.0, user, ReplyAddress(-1, number + 1, connection))
    box.reactor.run(lambda: len(told) == len(jobs))
    found = []
    for number in range(len(jobs)):
        result = told[number].result
        assert result is not None, told[number]
        assert Outcome.FINISHED is result.outcome, result
        found.append(json.loads(result.stdout))
    return found


@pytest.mark.needs("controllers")
@pytest.mark.no_single_lock("what is kept ends where anything is left, and the next job has all locks of its own")
def test_c430_nothing_is_left_in_namespaces_that_are_kept():
    """Of a process, a file, an attribute, an object of IPC, a name: the next job in the namespaces finds none of it."""
    with Box(reuse="user") as box:
        for name in LEFT.keys() - REFUSED - {"nothing"}:
            with control():  # in A's own process it is there
                empty, left = (json.loads(box.run(f"{LOOK_AFTER}{plant}\n{TELL}").stdout)[-1] for plant in ("", LEFT[name]))
                assert empty != left, name
        plants = [(0, 1, LEFT[name]) for name in LEFT]
        jobs = [job for plant in plants for job in (plant, (0, 1, ""))]
        found = _in_turn(box, [(0, 1, ""), (0, 1, ""), *jobs])[2:]

    for name, (*_, kept, seen) in zip(LEFT, found[1::2], strict=True):
        assert empty == seen, name
        assert kept is (name in REFUSED | {"mode", "segment", "name", "nothing"}), name


@pytest.mark.needs("controllers")
@pytest.mark.no_single_lock("the kernel drops them; before Linux 6.12 Landlock has no border for signals")
def test_c430_no_signal_waits_at_the_init_of_namespaces_that_are_kept():
    """For later jobs to see, and to lack: it counts for their user."""
    signals = "for number in (signal.SIGUSR2, 40): os.kill(1, number)"
    with Box(locks={*ALL} - {"landlock"}, reuse="user") as box:
        *_, (*_, before), _, (*_, kept, after) = _in_turn(box, [(0, 1, ""), (0, 1, ""), (0, 1, signals), (0, 1, "")])
        with control():  # they wait at one that is the job's own
            assert before != json.loads(box.run(f"{LOOK_AFTER}{signals}\n{TELL}").stdout)[-1]

    assert kept
    assert before == after


@pytest.mark.needs("controllers")
@pytest.mark.no_single_lock("it is the daemon that says whose jobs may follow each other")
def test_c431_no_other_connection_gets_namespaces_that_are_kept():
    """Not another user's, and not another one of the same user."""
    with Box(reuse="user") as box:
        jobs = [each for each, count in (((0, 1, ""), 12), ((0, 2, ""), 2), ((7, 3, ""), 2)) for _ in range(count)]
        told = _in_turn(box, jobs)
        alone = list[bool]()
        with control():  # one that comes alone has them, on a busy machine not each time
            poll_until(lambda: alone.extend(kept for *_, kept, _ in _in_turn(box, [(0, 9, "")] * 6)) or sum(alone) > 2,
                       "their jobs follow each other by chance")
            assert sum(alone) > 2

    assert any(kept for *_, kept, _ in told)
    last: dict[str, int] = {}  # the number of a namespace that has ended is given to others
    for (_, namespace, kept, _), (_, connection, _) in sorted(zip(told, jobs, strict=True)):
        assert not kept or last[namespace] == connection
        last[namespace] = connection


CHATTER = """
import os
for _ in range(3):
    if 0 == os.fork():
        while True:
            os.write(1, b"late\\n"); os.write(2, b"late\\n")
print("A", flush=True)
"""

#: Two programs that share a pipe, as A and B would: the second is silent, and the pipe isn't.
SHARED = """
import os, subprocess, sys
read, write = os.pipe()
first = subprocess.Popen([sys.executable, "-c", chatter], stdout=write, stderr=write, start_new_session=True)
while first.poll() is None:
    os.read(read, 1 << 16)
after = b""
while len(after) < 1 << 17:  # twice what the pipe holds
    after += os.read(read, 1 << 16)
os.killpg(first.pid, 9)
print(after[-200:])
"""


@pytest.mark.lock("pipes")
def test_c093_output_of_a_job_does_not_show_in_the_next_one(box: Box, only: Only):
    """A's children write on and on; B's output is B's, to the byte, and so is its error."""
    with control():  # the first is over, its children aren't
        assert "late" in run_outside(f"chatter = {CHATTER!r}{SHARED}")

    for one, pairs in ((box, PAIRS), (only(), 4)):
        for number in range(pairs):
            first = one.run(CHATTER)
            got = one.run(f"import sys; print({number}); print('e', file=sys.stderr)")

            assert b"late\n" in first.stdout + first.stderr or b"A\n" in first.stdout
            assert (f"{number}\n".encode(), b"e\n") == (got.stdout, got.stderr)


@pytest.mark.smoke
@pytest.mark.no_single_lock("a process of its own and the kernel's zeroes: neither can be left out")
def test_c093_memory_and_files_come_zeroed(box: Box):
    """What A wrote everywhere is nowhere in what B gets from the kernel."""
    token = secrets.token_hex(16)
    with control():  # in A's own process it is there
        planted = box.run(f"kept = [{token!r} * 100_000 for _ in range(10)]\n"
                          f"with open('/tmp/t', 'w') as file: file.write({token!r} * 100_000)\n"
                          f"print(open('/tmp/t').read().count({token!r}))")
        assert b"100000\n" == planted.stdout
    got = box.run("""
import mmap
page = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(page[:].count(0) == len(page))
with open("/tmp/new", "wb") as file:
    file.truncate(8 << 20)
print(open("/tmp/new", "rb").read().count(0) == 8 << 20)
""")

    assert "True\nTrue\n" == got.stdout_text


REACH = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect(chr(0) + "leftover")
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.smoke
@pytest.mark.lock("namespaces", beside=("mounts", "descriptors"), because="A plants in what is theirs, too")
def test_c094_two_jobs_at_once_do_not_see_each_other():
    """Processes, names, files, segments of A, which runs, are nothing to B in the worker beside it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0leftover")
        server.listen()
        with control():  # in one namespace the name is anybody's
            assert "connected\n" == run_outside(REACH)
    for locks in (None, {"namespaces", "mounts", "descriptors"}):
        _look_beside(locks)


def _look_beside(locks: set[str] | None) -> None:
    with Box(locks=locks, pool_size=2) as box:
        box.reactor.run(lambda: all(worker.free for worker in box.engine.main.pool.workforce.workers))
        fresh = looked(box)
        running: list[Report] = []
        ticket = box.engine.main.pool.submit(
            Job(code=(PLANT + "os.write(1, b'planted')\nwhile True: time.sleep(60)").encode()), running.append, 9.0)
        worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
        assert worker.leasing.execution is not None
        stream = worker.leasing.execution.output.out
        box.reactor.run(lambda: stream.length > 0)
        reach = box.run(REACH)

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


@pytest.mark.lock("randomness")
def test_c095_fork_hooks_of_a_library_run_in_each_job(folder: Path):
    """A library's random generator, for example, which it renews by os.register_at_fork."""
    packages = make_environment(folder)
    (packages / "hooking.py").write_text("""
import os
renewed = []
os.register_at_fork(after_in_child=lambda: renewed.append(os.urandom(8).hex()))
""")

    def renewed(locks: Iterable[str] | None) -> list[list[str]]:
        with Box(locks=locks, python_env=str(folder), preload=("hooking",)) as box:
            return [json.loads(box.run("import hooking, json; print(json.dumps(hooking.renewed))").stdout)
                    for _ in range(3)]

    with control():  # else it is everybody's
        before = renewed(ALL - {"randomness"})
        assert 1 == len(set(map(tuple, before)))

    for locks in (None, {"randomness"}):
        assert 3 == len({each[-1] for each in renewed(locks)})


@pytest.mark.lock("randomness")
def test_c095_c164_no_two_jobs_draw_the_same():
    """Though all are copies of one interpreter, in which OpenSSL had a state and multiprocessing a key."""
    with control():  # else it is everybody's
        *_, keys = zip(*_drawn(ALL - {"randomness"}, 4), strict=True)
        assert 1 == len(set(keys))

    for locks in (None, {"randomness"}):
        for column in zip(*_drawn(locks, PAIRS), strict=True):
            assert PAIRS == len(set(column))


def _drawn(locks: Iterable[str] | None, jobs: int) -> list[list[object]]:
    with Box(locks=locks, pool_size=2, preload=("ssl", "multiprocessing.process")) as box:
        return [json.loads(box.run(RANDOM).stdout) for _ in range(jobs)]


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
try:
    kept.append(fly())
    print("there is more", flush=True)
except OSError:
    print("full", flush=True)
%s
"""

NORMAL = """
import multiprocessing.connection, os, select, signal, socket, subprocess, threading
read, write = os.pipe(); os.write(write, b"x" * 4096)
epoll = select.epoll(); epoll.register(read, select.EPOLLIN); assert epoll.poll(0)
signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.01); signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)  # again and again, since the first one may come before pause()
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout, end="")
one, other = socket.socketpair(); one.sendall(b"y"); assert other.recv(1) == b"y"
print("works")
"""


@pytest.mark.no_single_lock("which limit of a user id bites first depends on the host")
@pytest.mark.parametrize("end", ["", "while True: time.sleep(60)"], ids=["before", "beside"])
def test_c096_c162_resources_that_a_job_uses_up_are_there_for_the_next(end: str):
    """Pipes, descriptors in flight, pending signals of one user id; A is over, or still runs in another worker."""
    with Box(pool_size=2) as box:
        box.reactor.run(lambda: all(worker.free for worker in box.engine.main.pool.workforce.workers))
        reports: list[Report] = []
        ticket = box.engine.main.pool.submit(Job(code=(EXHAUST % end).encode()), reports.append, 9.0)
        worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
        assert worker.leasing.execution is not None
        stream = worker.leasing.execution.output.out
        box.reactor.run(lambda: b"\n" in stream.head or bool(reports))
        with control():  # A itself gets no more
            assert b"full" in stream.head
        for _ in range(4):
            assert "thread\nchild\nworks\n" == box.run(NORMAL).stdout_text
        ticket.cancel()
        assert [] == box.log.of("worker failed")


@pytest.mark.no_single_lock("it is what the daemon counts, whatever confines a job")
def test_c097_a_job_is_charged_with_its_own_alone(box: Box):
    """Time and memory of B are B's, after an A that used much of both; arming is nobody's."""
    greedy = box.run("import time\nkept = bytearray(100 << 20)\nend = time.process_time() + 0.3\n"
                     "while time.process_time() < end: pass")
    modest = [box.run("import time; print(time.process_time())") for _ in range(PAIRS)]

    with control():
        assert greedy.cpu_time >= 0.28
    assert max(got.cpu_time for got in modest) < 0.25
    if not box.engine.driver.degraded:
        assert greedy.memory_peak > 100 << 20
        assert max(got.memory_peak for got in modest) < 50 << 20
        # The promise of c165, too: the process has existed, and used time, before it was a job.
        assert all(got.cpu_time < float(got.stdout) + 0.02 for got in modest)
    assert not any(got.denied for got in modest)


@pytest.mark.lock("turns", beside=("namespaces",), because="a pid namespace is what dies as one")
def test_c160_no_job_starts_before_the_one_before_is_dead(monkeypatch: pytest.MonkeyPatch):
    """A ignores signals and forks until it is killed: when B's code is sent no process of A's is left."""
    comm = "lw" + secrets.token_hex(6)
    overlaps: list[int] = []
    inits: list[int] = []  # by pidfd, of the runner before
    start = Execution.start

    def watched(self: Execution) -> None:
        for fd in inits:
            if not select.select([fd], [], [], 0)[0]:
                overlaps.append(fd)
            os.close(fd)
        overlaps.extend(named(comm))
        inits[:] = [os.dup(self._runner.pidfd)]
        start(self)

    monkeypatch.setattr(Execution, "start", watched)
    stubborn = f"""
import ctypes, os, signal
ctypes.CDLL(None).prctl(15, {comm.encode()!r})
for number in set(range(1, 32)) - {9, 19}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(4):
    os.fork()
if os.getpid() != 2:
    while True: pass
print("A")
"""
    with control(), Box(lacks={"turns"}) as hasty:  # B's code is sent while processes of A's are there
        for _ in range(PAIRS):
            hasty.run(stubborn)
            hasty.run("print('B')")
            if overlaps:
                break
        assert overlaps
    overlaps.clear()
    os.close(inits.pop())

    for locks, pairs in ((None, PAIRS), ({"namespaces"}, 4)):
        with Box(locks=locks) as box:
            for _ in range(pairs):
                box.run(stubborn)
                assert b"B\n" == box.run("print('B')").stdout

        assert [] == overlaps
        os.close(inits.pop())


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


@pytest.mark.lock("sockets", beside=("namespaces",), because="it counts what is in a network namespace")
def test_c161_no_socket_waits_in_the_network_namespace():
    """
    Sockets in flight in their own queue outlive their processes, until the kernel collects them. A worker
    where a job left such retires: the next job sees no name, and gets the one it wants.
    """
    def all_free(pairs: int, **made_of: Any) -> bool:
        with Box(**made_of) as box:
            return all("0\nbound\n" == (box.run(CYCLE), box.run(TAKE))[1].stdout_text for _ in range(pairs))

    with control():
        assert not all_free(PAIRS, lacks={"sockets"})

    assert all_free(PAIRS)
    assert all_free(4, locks={"namespaces"})


@pytest.mark.lock("seccomp")
def test_c161_cannot_leave_a_port_a_route_or_a_time_wait_socket(box: Box, only: Only):
    """No socket but Unix ones can be made, so no port, route or TIME_WAIT is left in a namespace."""
    attack = """
import json, socket
def makes(family):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        return True
    except OSError:
        return False
print(json.dumps([name for name in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK")
                  if makes(getattr(socket, name))]))
"""
    with control():
        assert {"AF_UNIX", "AF_INET", "AF_NETLINK"} <= set(json.loads(only().run(attack).stdout))

    for one in (box, only("seccomp")):
        assert ["AF_UNIX"] == json.loads(one.run(attack).stdout)


@pytest.mark.no_single_lock(AT_ITS_START)
def test_c165_time_counts_from_the_start_of_the_job(monkeypatch: pytest.MonkeyPatch):
    """A runner may have been armed for hours; its job has all of its time, and the limits that it asked for."""
    with Box() as box:
        with control():  # it is counted
            assert Outcome.TIMED_OUT is box.run("while True: pass", limits={"time": 0.1}).outcome
        box.reactor.run(lambda: box.engine.main.pool.any_free)
        (worker,) = box.engine.main.pool.workforce.workers
        runner = worker.arming.store[0]
        assert isinstance(runner, Runner)
        # As if days had gone by since it was armed. The clock runs on: what the daemon tries again waits for a timer.
        now = box.reactor.now
        monkeypatch.setattr(box.reactor, "now", lambda: now() + 1e6)
        got = box.run("import resource; print(resource.getrlimit(resource.RLIMIT_CPU))", limits={"time": 5.0})

    assert (Outcome.FINISHED, b"(-1, -1)\n") == (got.outcome, got.stdout)
    assert got.duration < 5.0


TAKES = "kept = bytearray(100 << 20)\nprint('has it')"


@pytest.mark.no_single_lock(AT_ITS_START)
def test_c165_a_parked_runner_has_the_limits_of_its_own_job(monkeypatch: pytest.MonkeyPatch):
    """It was armed under the daemon's limits, before anybody knew which job it would get."""
    with Box() as box:
        (worker,) = box.engine.main.pool.workforce.workers
        for limits, has_it in (({}, True), ({"memory": 64 << 20}, False), ({"memory": 192 << 20}, True)):
            box.reactor.run(lambda: 2 == len(worker.arming.store))  # nobody is armed for this job in particular
            assert has_it is (b"has it\n" == box.run(TAKES, limits=limits).stdout)

        monkeypatch.setattr(Runner, "limit", lambda self, limits: None)
        box.reactor.run(lambda: 2 == len(worker.arming.store))
        with control():  # nothing else sets them
            assert b"has it\n" == box.run(TAKES, limits={"memory": 64 << 20}).stdout


@pytest.mark.no_single_lock("a bind is the folder itself, and no state of it")
def test_c165_a_parked_runner_sees_an_environment_as_it_is_now(folder: Path):
    """What was added since it was armed is there, what was taken away isn't; what `preload` named is as it was."""
    packages = make_environment(folder)
    for name in ("loaded", "changed", "gone"):
        (packages / f"{name}.py").write_text("when = 'before'\n")
    look = """
import importlib, json
def when(name):
    try:
        return importlib.import_module(name).when
    except ImportError:
        return ""
print(json.dumps([when(name) for name in ("changed", "gone", "new", "loaded")]))
"""
    with Box(python_env=str(folder), preload=("loaded",)) as box:
        (worker,) = box.engine.main.pool.workforce.workers
        assert ["before", "before", "", "before"] == json.loads(box.run(look).stdout)
        box.reactor.run(lambda: 2 == len(worker.arming.store))
        parked = [runner.number for runner in worker.arming.store]
        for name in ("loaded", "changed", "new"):
            (packages / f"{name}.py").write_text("when = 'afterwards'\n")
        (packages / "gone.py").unlink()
        got = json.loads(box.run(look).stdout)

        assert parked[0] not in [runner.number for runner in worker.arming.store]  # it was that one
    assert ["afterwards", "", "afterwards"] == got[:3]
    with control():  # what was read before the change is stale until the daemon starts anew
        assert "before" == got[3]


#: One process has about as many pipes as it may, and makes them larger; then the size of one that is made anew.
LARGE_PIPES = """
import fcntl
kept = [os.pipe() for _ in range(100)]
said = {attempt(fcntl.fcntl, write, fcntl.F_SETPIPE_SZ, 1 << 20) for _, write in kept}
kept += [os.pipe() for _ in range(20)]
write = kept[-1][1]
tell([sorted(said), fcntl.fcntl(write, fcntl.F_GETPIPE_SZ) > 8192,
      attempt(fcntl.fcntl, write, fcntl.F_SETPIPE_SZ, 4096),
      attempt(fcntl.fcntl, write, fcntl.F_SETPIPE_SZ, 1 << 16)])
"""


@pytest.mark.lock("seccomp")
def test_c096_cannot_use_up_a_users_pipes_with_one_process(box: Box, only: Callable[..., Box]):
    """64 pipes of 1 MiB are all that the kernel grants a user (fs.pipe-user-pages-soft); then each gets 8 KiB."""
    with control():
        said, wide, *_ = within(only(), LARGE_PIPES)
        assert ("EPERM" in said, False) == (True, wide)
    only().settle()  # its pipes are gone, which are the same user's

    for sandbox in (box, only("seccomp")):
        assert [["EACCES"], True, "", ""] == within(sandbox, LARGE_PIPES)

"""
Escapes by shared memory and IPC: the result, System V and POSIX objects, sockets, descriptors in flight.

A job never holds the file that its result is in: its output is drained from pipes into a memfd that only
the daemon has, and its reply is one frame that is read once. So what a job could do to an arena it shares
with its reader (cases 67 to 71) is tested in the form that is left: lies in the frame, and tricks with the
pipes. Case 69 can't apply to a job, since no byte is read twice; neither can case 72, there is no ring. The arena that
a client has for its requests is the business of test_request_arena.py.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from kit import features
from kit.attack import ATTEMPTS, within
from kit.box import RUNS, Box, Run, control, run_outside
from kit.live_daemon import held
from kit.locks import LOCKS as ALL
from leeward.daemon.run.report import Report
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome, Result

#: Why some of these are about no lock of a job's.
PROTOCOL = "it is the daemon's reading of a reply, and there is no reading without that"

#: Rounds of what is tried again and again.
ROUNDS = 1000 if os.environ.get("LEEWARD_LONG") else 20

LARGE = 1 << 20  # of output: too much to travel inline
#: A memory file has this from the beginning, F_SEAL_EXEC: it can never be run.
MADE = 0x20 if features.is_met("kernel>=6.3") else 0
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL | MADE


def serves(box: Box) -> None:
    """Three plain jobs are answered as they should be."""
    for number in range(3):
        assert f"{number}\n".encode() == box.run(f"print({number})").stdout


def errors(got: Result) -> dict[str, str]:
    """What a job printed: attempt and outcome, as JSON."""
    assert got.stdout, got
    found = json.loads(got.stdout)
    assert isinstance(found, dict)
    return found


# --- the result ---------------------------------------------------------------

SHRINK = ATTEMPTS + """
import fcntl, os
for fd in (1, 2):
    attempt("shrink %d" % fd, lambda: os.ftruncate(fd, 0))
    attempt("grow %d" % fd, lambda: os.posix_fallocate(fd, 0, 1 << 24))
    attempt("seal %d" % fd, lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL))
"""


@pytest.mark.lock("pipes")
def test_c067_cannot_change_the_size_of_its_result(box: Box, only: Callable[..., Box]):
    """Descriptors 1 and 2 are pipes: no size, no seals. A large result arrives whole."""
    memfd = os.memfd_create("arena", os.MFD_ALLOW_SEALING)
    os.ftruncate(memfd, 4096)
    with control():  # a file is changed
        outside = run_outside(SHRINK.replace("(1, 2)", f"({memfd},)") + "print(json.dumps(tried))", pass_fds=[memfd])
        assert all(outcome.startswith("done") for outcome in json.loads(outside).values())
    os.close(memfd)

    for one in (box, only()):
        got = one.run(SHRINK + f"print(json.dumps(tried)); print('x' * {LARGE})")

        line, _, rest = got.stdout.partition(b"\n")
        tried = json.loads(line)
        assert {"EINVAL", "ESPIPE", "ENODEV"} >= set(tried.values()), tried
        assert b"x" * LARGE + b"\n" == rest


FORGE = """
import os, signal
os.write(4, {frame!r})
signal.pause()
"""

GOOD = {"exit": 7, "error": None, "limit": None, "files": {}}


def framed(body: bytes, length: int | None = None) -> bytes:
    return (len(body) if length is None else length).to_bytes(4, "big") + body


LIES = {
    "longer than it may be": framed(b"", 2**32 - 1),
    "half of 2^32": framed(b"", 2**31),
    "empty": framed(b""),
    "a map for a limit": framed(msgpack.packb({**GOOD, "limit": {}})),
    "a list for a limit": framed(msgpack.packb({**GOOD, "limit": []})),
    "no MessagePack": framed(b"\xc1" * 20),
    "an array of four thousand millions": framed(b"\xdd\xff\xff\xff\xff"),
    "a map of four thousand millions": framed(b"\x84\xa5files\xdf\xff\xff\xff\xff"),
    "deep": framed(b"\x91" * 100_000),
    "negative exit": framed(msgpack.packb({**GOOD, "exit": -1})),
    "exit of 64 bits": framed(msgpack.packb({**GOOD, "exit": 2**63})),
    "an unknown limit": framed(msgpack.packb({**GOOD, "limit": "none of yours"})),
    "an extension type": framed(msgpack.packb({**GOOD, "error": msgpack.ExtType(5, b"x")})),
    "a file outside": framed(msgpack.packb({**GOOD, "files": {"../../etc/cron.d/x": b"x"}})),
    "an absolute file": framed(msgpack.packb({**GOOD, "files": {"/etc/cron.d/x": b"x"}})),
    "too many files": framed(msgpack.packb({**GOOD, "files": {str(n): b"" for n in range(1001)}})),
    "one field too many": framed(msgpack.packb({**GOOD, "outcome": "finished"})),
    "something behind it": framed(msgpack.packb(GOOD) + b"\x00"),
}


@pytest.mark.no_single_lock(PROTOCOL)
@pytest.mark.parametrize("lie", LIES)
def test_c068_cannot_confuse_the_daemon_by_a_lie_in_its_reply(box: Box, lie: str):
    """One answer, `internal`, and the daemon goes on."""
    with control():  # this is the reply's pipe
        loose = box.run(FORGE.format(frame=framed(msgpack.packb(GOOD))))
        assert (Outcome.FINISHED, 7) == (loose.outcome, loose.exit_code)

    got = box.run(FORGE.format(frame=LIES[lie]))

    assert Outcome.INTERNAL is got.outcome
    assert not got.files
    serves(box)


@pytest.mark.no_single_lock(PROTOCOL)
def test_c068_cannot_make_the_daemon_build_objects_for_its_bytes(box: Box):
    """Three million bytes of nested arrays, which are 180 MB of lists to who decodes them."""
    bomb = """
import os, signal
def tree(depth):
    return b"\\x93" + 3 * tree(depth - 1) if depth else b"\\x80"
body = b"\\x84" + b"\\xa4exit\\x00" + b"\\xa5error" + tree(13) + b"\\xa5limit\\xc0" + b"\\xa5files\\x80"
frame = memoryview(len(body).to_bytes(4, "big") + body)
while frame:
    frame = frame[os.write(4, frame):]
signal.pause()
"""
    grown = """
import msgpack
def tree(depth):
    return b"\\x93" + 3 * tree(depth - 1) if depth else b"\\x80"
def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
before = resident()
kept = msgpack.unpackb(tree(13))
print(resident() - before)
"""
    with control():  # in KiB: it is one to an ordinary decoder
        assert int(run_outside(grown)) > 50_000

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = box.run(bomb, collect=("*",))  # with files to bring back a reply may be that long

    assert Outcome.INTERNAL is got.outcome
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000
    serves(box)


@pytest.mark.no_single_lock(PROTOCOL)
def test_c110_cannot_answer_twice_or_for_another(box: Box):
    """Of many replies the first counts; what follows belongs to nobody."""
    good, other = framed(msgpack.packb(GOOD)), framed(msgpack.packb({**GOOD, "exit": 8}))
    with control():
        loose = box.run(FORGE.format(frame=other))
        assert (Outcome.FINISHED, 8) == (loose.outcome, loose.exit_code)

    got = box.run(FORGE.format(frame=good + other * 200))

    assert (Outcome.FINISHED, 7) == (got.outcome, got.exit_code)
    serves(box)


@pytest.mark.no_single_lock(PROTOCOL)
@pytest.mark.parametrize("after", ["os.close(4)", "os.dup2(1, 4)", "os.write(4, b'\\0\\0')", "os.closerange(0, 99)"])
def test_c110_cannot_hang_the_daemon_by_its_descriptors(box: Box, after: str):
    """A reply pipe that is closed, replaced or broken off: the job ends at its time limit at the latest."""
    with control():  # the reply comes by that descriptor, and without one the daemon would wait for ever
        assert Outcome.TIMED_OUT is box.run("import os, signal\nos.write(4, b'\\0\\0')\nsignal.pause()",
                                            limits={"time": 0.1}).outcome

    got = box.run(f"import os\n{after}", limits={"time": 1.0})

    assert got.outcome in (Outcome.FINISHED, Outcome.RAISED, Outcome.TIMED_OUT, Outcome.INTERNAL)
    serves(box)


def arena_of(box: Box, code: str) -> Report:
    report = box.report(code)
    assert report.arena is not None, report
    return report


@pytest.mark.smoke
@pytest.mark.lock("sealing")
def test_c070_a_client_cannot_write_to_a_result(box: Box, only: Callable[..., Box]):
    """Not by write, mmap, truncation or new seals; nor by a descriptor opened anew."""
    def attempts(fd: int) -> list[str]:
        done = []
        for name, call in (("pwrite", lambda: os.pwrite(fd, b"B", 0)),
                           ("mmap", lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE).close()),
                           ("shrink", lambda: os.ftruncate(fd, 0)),
                           ("grow", lambda: os.ftruncate(fd, 1 << 30)),
                           ("seal", lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW))):
            try:
                call()
                done.append(name)
            except OSError:
                pass
        return done

    with control(), Box(lacks={"sealing"}) as careless:
        unsealed = arena_of(careless, f"print('A' * {LARGE})").arena
        assert unsealed is not None
        assert ["pwrite", "mmap", "shrink", "grow", "seal"] == attempts(unsealed.fd)
        unsealed.close()

    for one in (box, only()):
        arena = arena_of(one, f"print('A' * {LARGE})").arena
        assert arena is not None
        assert arena.stdout is not None
        again = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDWR)

        assert [] == attempts(arena.fd) + attempts(again)
        assert b"A" * LARGE + b"\n" == os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        os.close(again)
        arena.close()


LINGER = """
import os, signal, sys
for _ in range(4):
    if 0 == os.fork():
        os.setsid()
        for number in set(range(1, 32)) - {9, 19}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            os.write(1, b"late " * 1000)
sys.stdout.write("A" * %d)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.lock("sealing")
def test_c071_cannot_write_to_its_result_after_it_was_given(box: Box, only: Callable[..., Box]):
    """
    Children that ignore all signals and write on: what was given doesn't change, and nothing of it is in the
    next result.
    """
    with control(), Box(lacks={"sealing"}) as careless:  # else whoever has the file may
        unsealed = arena_of(careless, LINGER % LARGE).arena
        assert unsealed is not None
        assert 4 == os.pwrite(unsealed.fd, b"late", 0)
        unsealed.close()

    for one in (box,) * ROUNDS + (only(),) * 3:
        report = arena_of(one, LINGER % LARGE)
        arena = report.arena
        assert arena is not None
        assert arena.stdout is not None
        assert SEALS == fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
        first = os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        following = one.run("print('next')")

        assert first == os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        assert {ord(letter) for letter in "Alate "} >= set(first)
        assert b"next\n" == following.stdout
        arena.close()


#: Its output's descriptor is in flight twice: in a queue that nobody reads, which holds itself, and in one that a
#: child reads when all others have closed theirs.
IN_FLIGHT = """
import os, signal, socket, sys
loop, end = socket.socketpair()
socket.send_fds(loop, [b"x"], [1, loop.fileno(), end.fileno()])
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [1])
ours.close(); loop.close(); end.close()
sys.stdout.write("A" * %d)
sys.stdout.flush()
if 0 == os.fork():
    os.setsid()
    os.close(1)
    _, (late,), _, _ = socket.recv_fds(theirs, 1, 1)
    try:
        while True:
            os.write(late, b"late ")
    finally:
        os._exit(0)
%s
"""


@pytest.mark.no_single_lock("its output is a pipe and a result a copy of what was in it: neither can be left out")
def test_c159_cannot_write_to_its_result_by_a_descriptor_in_flight(box: Box):
    """
    A descriptor of its output that was sent away is one of a pipe: what is written to it after delivery
    changes nothing.
    """
    tail = "os.close(1)\nos.wait()"
    with subprocess.Popen([sys.executable, "-c", IN_FLIGHT % (LARGE, tail)], stdout=subprocess.PIPE) as outside:
        assert outside.stdout is not None
        assert b"A" * LARGE == outside.stdout.read(LARGE)
        with control():  # it is the same output
            assert b"late late " == outside.stdout.read(10)
        outside.stdout.close()

    for number in range(ROUNDS):
        arena = arena_of(box, IN_FLIGHT % (LARGE, "os._exit(0)" if number % 2 else "")).arena
        assert arena is not None
        assert arena.stdout is not None
        assert SEALS == fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
        first = os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        following = box.run("print('next')")

        assert first == os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        assert first.startswith(b"A" * LARGE)
        assert b"next\n" == following.stdout
        with pytest.raises(PermissionError):
            os.pwrite(arena.fd, b"late", 0)
        arena.close()


PARK = """
import errno, os, sys
with open("/tmp/page", "wb") as file:
    file.write(b"A" * 65536)
file = os.open("/tmp/page", os.O_RDWR)
for _ in range(%d):
    try:
        os.sendfile(1, file, 0, 65536)
    except OSError as refused:  # what programs do then
        if refused.errno != errno.EINVAL:
            raise
        os.write(1, os.pread(file, 65536, 0))
        os.write(2, b"refused")
os.pwrite(file, b"B" * 65536, 0)
os._exit(0)
"""


#: A page of its own file in a pipe, the file changed, and what the pipe then has; by each call that could do that.
PAGE_IN_A_PIPE = """
import socket
file = os.open("/tmp/page", os.O_RDWR | os.O_CREAT)
os.write(file, b"A" * 4096)
def through(write, read):
    os.lseek(file, 0, 0)
    said = attempt(os.sendfile, write, file, 0, 4096)
    os.pwrite(file, b"B", 0)
    os.write(write, b"-")
    got = os.read(read, 1).decode()
    os.pwrite(file, b"A", 0)
    return [said, got]
read, write = os.pipe()
one, other = socket.socketpair()
tell([through(write, read), through(one.fileno(), other.fileno())])
"""


@pytest.mark.lock("seccomp", beside=("mounts",), because="its page lies in a /tmp of its own")
def test_c157_cannot_send_a_page_into_a_pipe(box: Box, only: Callable[..., Box]):
    """sendfile(2) says EINVAL, to a pipe and to a socket: what is in them is copies."""
    with control():  # what is written to the file later shows in what was sent before
        assert ["", "B"] == within(only("mounts"), PAGE_IN_A_PIPE)[0]

    for sandbox in (box, only("seccomp", "mounts")):
        assert [["EINVAL", "-"]] * 2 == within(sandbox, PAGE_IN_A_PIPE)
    copied = """
import shutil, socket
with open("/tmp/one", "wb") as file:
    file.write(b"x" * 300_000)
shutil.copyfile("/tmp/one", "/tmp/two")
one, other = socket.socketpair()
with open("/tmp/one", "rb") as file:
    sent = one.sendfile(file, count=50_000)
tell([os.path.getsize("/tmp/two"), sent])
"""
    assert [300_000, 50_000] == within(box, copied)


@pytest.mark.lock("sealing", beside=("mounts",), because="its page lies in a /tmp of its own")
def test_c157_pages_parked_in_its_pipe_do_not_end_up_in_its_result(box: Box, only: Callable[..., Box]):
    """sendfile(2) puts pages of a job's file into its output, not copies. In the result they are copies: it is sealed."""
    with control():  # in the pipe it is the page itself, and what is written later shows
        assert b"B" == _parked_page()
    with control(), Box(lacks={"sealing"}) as careless:
        unsealed = arena_of(careless, PARK % 16).arena
        assert unsealed is not None
        assert MADE == fcntl.fcntl(unsealed.fd, fcntl.F_GET_SEALS)
        unsealed.close()

    for one, rounds in ((box, ROUNDS), (only("mounts"), 3)):
        for _ in range(rounds):
            arena = arena_of(one, PARK % 16).arena
            assert arena is not None
            assert arena.stdout is not None
            assert SEALS == fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
            assert 16 * 65536 == arena.stdout[1]
            arena.close()
    serves(box)


def _parked_page() -> bytes:
    """What comes out of a pipe that a page was sent into, when the file was changed in between."""
    file = os.memfd_create("page")
    os.write(file, b"A" * 4096)
    read, write = os.pipe()
    os.sendfile(write, file, 0, 4096)
    os.pwrite(file, b"B", 0)
    byte = os.read(read, 1)
    for fd in (file, read, write):
        os.close(fd)
    return byte


PIPES = ATTEMPTS + """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    got = getattr(libc, name)(*arguments)
    if got < 0:
        raise OSError(ctypes.get_errno(), name)
    return got
read, write = os.pipe()
again, more = os.pipe()
os.write(write, b"x" * 100)
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]
attempt("tee", lambda: call("tee", read, more, 10, 0))
attempt("splice", lambda: call("splice", read, None, more, None, 10, 0))
attempt("vmsplice", lambda: call("vmsplice", write, ctypes.byref(iovec(b"y" * 10, 10)), 1, 0))
print(json.dumps(tried))
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c157_cannot_splice(box: Box, only: Callable[..., Box]):
    """tee and vmsplice are refused, and counted; splice as sendfile is: at EINVAL programs read and write."""
    with control():
        assert {"done: 10"} == set(json.loads(run_outside(PIPES)).values())

    for one in (box, only("seccomp")):
        got = one.run(PIPES)

        assert {"tee": "EACCES", "splice": "EINVAL", "vmsplice": "EACCES"} == errors(got)
        assert {"tee": 1, "vmsplice": 1} == got.denied


# --- the daemon's descriptors -------------------------------------------------


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[], None]]:
    """Call it, and this process can't open one descriptor more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def starve() -> None:
        lowest = os.open("/dev/null", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))

    yield starve
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.no_single_lock("it is the daemon that is short of something")
def test_c073_a_daemon_without_descriptors_answers_and_recovers(few_descriptors: Callable[[], None]):
    """There is no arena for a large output: the job is told so. Afterwards all is as before."""
    with Box() as box:
        (worker,) = box.engine.main.pool.workforce.workers
        box.reactor.run(lambda: 2 == len(worker.arming.store))  # nothing else is under way
        unlimited = resource.getrlimit(resource.RLIMIT_NOFILE)
        few_descriptors()
        starved = box.run(f"print('x' * {LARGE})")
        resource.setrlimit(resource.RLIMIT_NOFILE, unlimited)

        assert Outcome.INTERNAL is starved.outcome
        assert starved.error is not None
        assert "descriptor" in starved.error.message
        with control():  # there are descriptors again
            assert LARGE + 1 == len(box.run(f"print('x' * {LARGE})").stdout)
        serves(box)


# --- System V, POSIX, abstract names ------------------------------------------

KEY = 0x6C656577
SEGMENT = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
found = libc.shmget({KEY:#x}, 0, 0)
if found < 0:
    print(errno.errorcode[ctypes.get_errno()])
else:
    print(ctypes.string_at(libc.shmat(found, None, 0o10000), 32).decode())
print(os.listdir("/dev/shm"))
"""


@pytest.fixture
def segment() -> Iterator[str]:
    """A random text in a System V segment of the host that everybody may read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmdt.argtypes = [ctypes.c_void_p]
    number = libc.shmget(KEY, 4096, 0o1644)
    assert number >= 0
    text = secrets.token_hex(16)
    address = libc.shmat(number, None, 0)
    ctypes.memmove(address, text.encode(), 32)
    yield text
    libc.shmdt(address)
    libc.shmctl(number, 0, None)


@pytest.fixture
def shared_file() -> Iterator[Path]:
    path = Path("/dev/shm") / f"leeward-canary-{secrets.token_hex(4)}"
    path.write_text("canary")
    path.chmod(0o644)
    yield path
    path.unlink()


@pytest.mark.lock("namespaces")
def test_c074_cannot_find_shared_memory_of_the_host(box: Box, only: Callable[..., Box], segment: str,
                                                    shared_file: Path):
    """Not by key, not by name."""
    with control():
        outside = run_outside(SEGMENT)
        assert segment in outside
    assert shared_file.name in outside

    got = box.run(SEGMENT).stdout_text.splitlines()

    assert ["ENOENT", "[]"] == got
    assert "ENOENT\n" == only("namespaces").run(SEGMENT).stdout_text.splitlines()[0] + "\n"


QUEUE = ATTEMPTS + """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def open_queue():
    got = libc.mq_open(b"/leeward-canary", os.O_RDWR)
    if got < 0:
        raise OSError(ctypes.get_errno(), "mq_open")
    return "opened"
attempt("mq_open", open_queue)
print(json.dumps(tried))
"""


@pytest.mark.lock("namespaces")
def test_c074_cannot_find_a_message_queue_of_the_host(box: Box, only: Callable[..., Box]):
    """POSIX queues are refused, and are another namespace's anyway."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.umask(0)
    queue = libc.mq_open(b"/leeward-canary", os.O_RDWR | os.O_CREAT, 0o666, None)
    os.umask(before)
    assert queue >= 0
    try:
        with control():
            assert "opened" in json.loads(run_outside(QUEUE))["mq_open"]
        assert {"mq_open": "EACCES"} == errors(box.run(QUEUE))
        assert {"mq_open": "ENOENT"} == errors(only("namespaces").run(QUEUE))
    finally:
        libc.mq_unlink(b"/leeward-canary")
        os.close(queue)


@pytest.fixture
def listener() -> Iterator[str]:
    """The abstract name of a socket of the host that answers everybody."""
    name = f"leeward-canary-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen(16)
        yield name


CONNECT = ATTEMPTS + """
import socket
def connect():
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(chr(0) + NAME)
        return "connected"
attempt("connect", connect)
print(json.dumps(tried))
"""


@pytest.mark.smoke
@pytest.mark.lock("namespaces")
def test_c075_cannot_reach_an_abstract_socket_of_the_host(box: Box, only: Callable[..., Box], listener: str):
    """Its network namespace has names of its own."""
    attack = f"NAME = {listener!r}" + CONNECT
    with control():
        assert "connected" in json.loads(run_outside(attack))["connect"]
    assert "connected" in errors(only().run(attack))["connect"]

    assert errors(box.run(attack))["connect"] in ("ECONNREFUSED", "EPERM")
    assert {"connect": "ECONNREFUSED"} == errors(only("namespaces").run(attack))


@pytest.mark.needs("landlock>=6")
@pytest.mark.lock("landlock")
def test_c075_cannot_reach_an_abstract_socket_with_landlock_alone(box: Box, only: Callable[..., Box], listener: str):
    """Landlock's scope stands alone."""
    attack = f"NAME = {listener!r}" + CONNECT
    with control():
        assert "connected" in errors(only().run(attack))["connect"]

    assert errors(box.run(attack))["connect"] in ("ECONNREFUSED", "EPERM")
    assert {"connect": "EPERM"} == errors(only("landlock").run(attack))


# --- descriptors in flight ----------------------------------------------------

HOARD = """
import array, os, signal, socket
null, kept = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        kept.append(socket.socketpair())
        kept[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 253))])
except OSError as error:
    print(error.errno, flush=True)
while True:
    signal.pause()
"""


def send_one_as(uid: int, most: int) -> int:
    """The errno with which a process of *uid* that may have *most* descriptors sends one; 0 if it can."""
    child = os.fork()
    if 0 == child:
        code = 255
        try:
            os.closerange(3, 4096)  # a descriptor has to be below the limit, too
            if 0 == os.geteuid():
                os.setresuid(uid, uid, uid)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            one, other = socket.socketpair()
            socket.send_fds(one, [b"x"], [other.fileno()])
            code = 0
        except OSError as error:
            code = error.errno or 255
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.lock("late-limit", beside=("rlimits",), because="it is that limit's own time")
def test_c076_cannot_keep_the_daemon_from_passing_descriptors():
    """
    The kernel bounds what all processes of one user id have in flight by the limit of the one that sends. A job
    fills that up to its own limit; newborn runners, of that id too, still get their listener out.
    """
    with control():  # else the listener of the next doesn't get out
        assert 0 < _lost_to_a_hoarder(ALL - {"late-limit"})

    for locks in (None, frozenset({"rlimits", "late-limit"})):
        assert 0 == _lost_to_a_hoarder(locks)


def _lost_to_a_hoarder(locks: frozenset[str] | None) -> int:
    """How many runners were stillborn while a job had all in flight that it may."""
    RUNS.append(Run(locks))
    with Box(locks=locks, pool_size=2, recycle_after=3) as box:
        workers = box.engine.main.pool.workforce.workers
        box.reactor.run(lambda: all(worker.free and 2 == len(worker.arming.store) for worker in workers))
        hoarder: list[Report] = []
        ticket = box.engine.main.pool.submit(Job(code=HOARD.encode()), hoarder.append, 1.0)
        busy = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
        assert busy.leasing.execution is not None
        stream = busy.leasing.execution.output.out
        box.reactor.run(lambda: stream.length > 0)
        assert errno.ETOOMANYREFS == int(stream.head)
        uid = box.engine.confinement.first_id + busy.slot if 0 == os.geteuid() else os.geteuid()
        with control():  # under a job's own limit no more go out
            assert errno.ETOOMANYREFS == send_one_as(uid, Limits().descriptors)
        assert 0 == send_one_as(uid, 4096)

        busy.arming.store[0].kill()  # the spare of its own worker, and so of its user id: another is armed in its place
        box.reactor.run(lambda: 0 == len(busy.arming.store))
        box.reactor.run(lambda: 1 == len(busy.arming.store) or bool(box.log.of("worker failed")))
        if not (lost := len(box.log.of("worker failed"))):
            for number in range(8):  # which recycles the other worker twice
                assert f"{number}\n".encode() == box.run(f"print({number})").stdout
            ticket.cancel()
            box.reactor.run(lambda: all(worker.free for worker in box.engine.main.pool.workforce.workers))

            lost = len(box.log.of("worker failed"))
            assert not hoarder
            serves(box)
        return lost


@pytest.mark.lock("pipes")
def test_c076_the_daemon_takes_no_descriptor_from_a_job(box: Box, only: Callable[..., Box]):
    """A job's descriptors are pipes: nothing can be passed on them. The daemon has as many as before."""
    attack = ATTEMPTS + """
import os, socket
for fd in (0, 1, 2, 4):
    attempt(str(fd), lambda: socket.send_fds(socket.socket(fileno=os.dup(fd)), [b"x"], [fd]))
print(json.dumps(tried))
"""
    box.run("pass")
    only().settle()
    box.settle()
    before = held("self")
    pair = socket.socketpair()
    passed = f"import socket; print(socket.send_fds(socket.socket(fileno={pair[0].fileno()}), [b'x'], [0]))"
    with control():  # on a socket it goes
        assert "1\n" == run_outside(passed, pass_fds=[pair[0].fileno()])
    for end in pair:
        end.close()

    assert {"ENOTSOCK"} == set(errors(box.run(attack)).values())
    assert {"ENOTSOCK"} == set(errors(only().run(attack)).values())
    box.run("pass")
    only().settle()
    box.settle()
    assert held("self") <= before + 6  # a runner more or less that is being armed


SEAL_FIRST = f"""
import fcntl, os
for fd in (1, 2):
    for seal in (fcntl.F_SEAL_SEAL, fcntl.F_SEAL_WRITE, 0x10, 0x20):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
            os.write(1, b"sealed ")
        except OSError:
            pass
os.write(1, b"A" * {LARGE})
"""


@pytest.mark.lock("pipes")
def test_c158_cannot_seal_its_result_first(box: Box, only: Callable[..., Box]):
    """There is nothing to seal in a pipe; the result is whole and immutable."""
    memfd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    with control():  # who seals first has the last word
        assert run_outside(SEAL_FIRST.replace("(1, 2)", f"({memfd},)"), pass_fds=[memfd]).startswith("sealed ")
        with pytest.raises(PermissionError):
            fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(memfd)

    for one in (box, only()):
        arena = arena_of(one, SEAL_FIRST).arena

        assert arena is not None
        assert arena.stdout is not None
        assert SEALS == fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
        assert b"A" * LARGE == os.pread(arena.fd, arena.stdout[1], arena.stdout[0])
        arena.close()

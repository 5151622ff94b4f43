"""Escapes by what is inherited: descriptors, environment, memory, and the job pipe."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.attack import ATTEMPTS
from kit.box import RUNS, Box, Run, control, run_outside
from kit.locks import LOCKS as ALL
from leeward.daemon.run.report import Report
from leeward.spec.job import Job
from leeward.spec.outcome import Outcome
from leeward.wire.job_frames import job_frame

#: Jobs after which the descriptors are looked at again.
ROUNDS = 1000 if os.environ.get("LEEWARD_LONG") else 20

#: Every open descriptor, what it is, and what can be had by it.
LOOK = """
import json, os
found = {}
for fd in range(1024):
    try:
        os.fstat(fd)
    except OSError:
        continue
    try:
        found[fd] = os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
    except OSError as error:
        found[fd] = type(error).__name__
for fd in found:
    for path in ("..", "."):
        try:
            found[fd] += " " + ",".join(os.listdir(os.open(path, os.O_RDONLY, dir_fd=fd)))
        except OSError:
            pass
    if fd > 4:
        try:
            found[fd] += " " + os.pread(fd, 100, 0).decode()
        except OSError:
            pass
print(json.dumps({"open": found, "listed": sorted(os.listdir("/proc/self/fd"), key=int)}))
"""

#: Standard input, output and error, and the reply's pipe. listdir's own is the last.
DOCUMENTED = {"0": "/dev/null", "1": "pipe", "2": "pipe", "4": "pipe"}


def documented(locks: set[str] | None) -> dict[str, str]:
    """What a job has open: the lock on its job pipe is another one."""
    return DOCUMENTED if locks is None else {**DOCUMENTED, "3": "pipe"}


@pytest.fixture
def careless() -> Iterator[str]:
    """A daemon with open, inheritable descriptors: a file, its folder, sockets, a pidfd. Gives the file's text."""
    text = secrets.token_hex(16)
    folder = Path("/var/tmp") / f"leeward-{secrets.token_hex(4)}"
    folder.mkdir()
    (folder / text).write_text(text)
    pair = socket.socketpair()
    made = [os.open(folder / text, os.O_RDWR), os.open(folder, os.O_RDONLY), os.pidfd_open(os.getpid()),
            *(end.fileno() for end in pair)]
    opened = [fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for fd in made]
    yield text
    for end in pair:
        end.close()
    for fd in (*made[:3], *opened):
        os.close(fd)
    (folder / text).unlink()
    folder.rmdir()


@pytest.mark.smoke
@pytest.mark.lock("descriptors")
def test_c077_cannot_use_a_descriptor_of_the_daemon(careless: str):
    """What a careless daemon had open when it started is in no job."""
    with control():
        assert careless in run_outside(LOOK, close_fds=False)
    with Box(locks=ALL - {"descriptors"}) as open_to_all, control():  # nothing else would hide it
        assert careless in open_to_all.run(LOOK).stdout_text

    for locks in (None, {"descriptors"}):
        with Box(locks=locks) as box:
            got = box.run(LOOK)

        assert documented(locks) == json.loads(got.stdout)["open"]
        assert careless not in got.stdout_text + got.stderr_text


@pytest.mark.lock("descriptors")
def test_c078_cannot_use_a_descriptor_of_another_job(careless: str):
    """Nor of a client's connection, a listener, an epoll or a cgroup folder, after many jobs and a new zygote's."""
    with control(), Box(locks=ALL - {"descriptors"}, pool_size=2) as open_to_all:
        seen = json.loads(open_to_all.run(LOOK).stdout)["open"]
        assert {"socket"} < {what.split()[0] for what in seen.values()} - {"/dev/null"}  # its keeper's channel

    for locks, rounds in ((None, ROUNDS), ({"descriptors"}, 8)):
        with Box(locks=locks, pool_size=2, recycle_after=7) as box:
            for _ in range(rounds):
                got = box.run(LOOK)
                seen = json.loads(got.stdout)

                assert documented(locks) == seen["open"]
                assert 1 == len({*seen["listed"]} - {*documented(locks)})  # listdir's own


@pytest.mark.no_single_lock("it is a flag of one descriptor, set where the reply's pipe is made")
def test_c078_a_program_that_a_job_starts_has_the_three_alone(box: Box):
    """The reply's pipe closes on exec."""
    shell = "os.execv('/bin/sh', ['sh', '-c', 'ls /proc/self/fd'])"
    with control():
        loose = box.run("import os; os.set_inheritable(4, True); " + shell)
        assert ["0", "1", "2", "3", "4"] == loose.stdout_text.split()

    got = box.run("import os; " + shell)

    assert ["0", "1", "2", "3"] == got.stdout_text.split()  # 3 is ls's own


ENVIRONMENT = """
import ctypes, json, os, subprocess
def read(path):
    try:
        return open(path, "rb").read().decode("latin-1")
    except OSError as error:
        return type(error).__name__
seen = {path: read(path) for path in (
    "/proc/self/environ", "/proc/1/environ", "/proc/%d/environ" % os.getppid(), "/proc/self/cmdline",
    "/proc/1/cmdline", "/proc/self/auxv", "/proc/1/auxv")}
libc = ctypes.CDLL(None)
block = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
entries = []
while block[len(entries)]:
    entries.append(block[len(entries)].decode())
shell = subprocess.run(["/bin/sh", "-c", "cat /proc/self/environ; env"], capture_output=True, text=True).stdout
print(json.dumps({"keys": sorted(os.environ), "block": entries, "shell": shell, **seen}))
"""

KEYS = {"PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME", "TERM", "PYTHONDONTWRITEBYTECODE", "MPLCONFIGDIR",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "GOMAXPROCS",
        "PYTHON_CPU_COUNT", "PYTHONUNBUFFERED", "JE_ARROW_MALLOC_CONF", "_RJEM_MALLOC_CONF"}


@pytest.mark.smoke
@pytest.mark.lock("environment")
def test_c079_cannot_read_the_environment_of_the_daemon(monkeypatch: pytest.MonkeyPatch):
    """Not its own, nor that of pid 1, its parent or a child: documented keys alone."""
    token = secrets.token_hex(16)
    monkeypatch.setenv("LEEWARD_CANARY", token)
    monkeypatch.setenv("TERM", "dumb")  # the one of the daemon's variables that jobs get
    with control():
        assert token in run_outside(ENVIRONMENT)

    with Box(locks=ALL - {"environment"}) as open_to_all, control():  # nothing else would hide it
        assert token in open_to_all.run(ENVIRONMENT).stdout_text

    for locks in (None, {"environment"}):
        with Box(locks=locks) as box:
            got = box.run(ENVIRONMENT, env={"MINE": "1"})
        seen = json.loads(got.stdout)

        assert token not in got.stdout_text
        assert KEYS | {"MINE"} == set(seen["keys"])
        assert KEYS | {"MINE"} == {entry.partition("=")[0] for entry in seen["block"]}


#: Copies what it can reach of its own memory to a file, and counts a text in it. write(2) gives EFAULT where
#: there is no page, so no map of the memory is needed, which a job can't read. Not to a pipe: up to Linux 6.12 at
#: least, a write that faults leaves an empty buffer in it, and sixteen of them are a full pipe.
SCAN = """
import ctypes, os, sys
needle = bytes(255 - byte for byte in bytes.fromhex({inverted!r}))
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
PAGE, REACH = 4096, 24 << 20
top = libc.sbrk(0)
places = [id(thing) for thing in ([], {{}}, "", b"", sys, os, object(), libc, (1, 2), 1.5, lambda: 0)]
places += [ctypes.addressof(ctypes.create_string_buffer(1 << 22)), ctypes.cast(libc.pwrite, ctypes.c_void_p).value]
pages = set(range((top - REACH) // PAGE, top // PAGE))
for place in places:
    pages |= set(range((place - REACH) // PAGE, (place + REACH) // PAGE))
file = os.open("/tmp/page", os.O_RDWR | os.O_CREAT)
{plant}
count, read_bytes, tail = 0, 0, b""
for page in sorted(pages):
    if libc.pwrite(file, page * PAGE, PAGE, 0) == PAGE:
        data = os.pread(file, PAGE, 0)
        read_bytes += PAGE
        count += (tail + data).count(needle)
        tail = data[-len(needle):]
    else:
        tail = b""
print(count, read_bytes)
"""


@pytest.mark.no_single_lock("the zygote is a program of its own, started anew: nothing can leave that out")
def test_c080_cannot_find_a_secret_of_the_daemon_or_another_job_in_its_memory(monkeypatch: pytest.MonkeyPatch):
    """The zygote, of which every job is a copy, never saw a request or the daemon's environment."""
    token = secrets.token_bytes(24)
    inverted = bytes(255 - byte for byte in token).hex()
    monkeypatch.setenv("LEEWARD_CANARY", token.hex())
    held = [token, bytearray(token * 100)]  # in the daemon's memory, from before the zygote starts

    with Box() as box:
        planted = box.run(SCAN.format(inverted=inverted, plant="kept = [needle + b'!' for _ in range(9)]"))
        other = box.run(f"token = bytes.fromhex({token.hex()!r})\nkept = [token * 1000 for _ in range(100)]\nprint(1)",
                        env={"TOKEN": token.hex()}, files={"token": token}, stdin=token)
        got = box.run(SCAN.format(inverted=inverted, plant="del needle; needle = bytes(255 - byte for byte in"
                                                           f" bytes.fromhex({inverted!r}))"))

    assert held
    assert b"1\n" == other.stdout
    copies, read = map(int, planted.stdout.split())
    with control():  # what is there is found
        assert copies >= 9
    assert read > 4 << 20
    own, read = map(int, got.stdout.split())
    assert read > 4 << 20
    assert own <= copies - 9  # the needle itself, in what the scan reads
    assert token.hex().encode() not in got.stdout


STREAMS = ATTEMPTS + """
import fcntl, os
attempt("write to stdin", lambda: os.write(0, b"x"))
attempt("stdin anew, for writing", lambda: os.write(os.open("/proc/self/fd/0", os.O_WRONLY), b"x"))
attempt("stdout anew, for reading", lambda: bool(os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)))
attempt("lease", lambda: fcntl.fcntl(1, fcntl.F_SETLEASE, fcntl.F_WRLCK))
attempt("lease on a file of the host", lambda: fcntl.fcntl(os.open("/usr/bin/env", os.O_RDONLY), fcntl.F_SETLEASE,
                                                           fcntl.F_RDLCK))
attempt("owner", lambda: fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid()))
attempt("seek", lambda: os.lseek(1, 0, os.SEEK_SET))
for name in ("O_NONBLOCK", "O_APPEND", "O_DIRECT", "O_ASYNC", "O_NOATIME"):
    attempt(name, lambda: fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | getattr(os, name)))
print(json.dumps(tried))
"""


@pytest.mark.lock("seccomp")
def test_c081_cannot_do_more_with_its_streams_than_they_are_for(box: Box, only: Callable[..., Box]):
    """They are pipes of this job alone; flags set on them change nothing for the daemon or the next job."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        outside = _reopened(file.name)
    with control():  # a file of the host behind stdin can be opened anew, for writing
        assert b"x" == outside

    with control():  # asked, the kernel has its own answers
        tried = json.loads(only().run(STREAMS).stdout)
        assert ("done: 0", "EINVAL") == (tried["owner"], tried["lease"])

    for sandbox in (box, only("seccomp")):
        tried = json.loads(sandbox.run(STREAMS).stdout)

        assert "EBADF" == tried["write to stdin"]
        assert {"EACCES"} == {tried["lease"], tried["lease on a file of the host"], tried["owner"]}
        assert "ESPIPE" == tried["seek"]
        following = sandbox.run("import os, fcntl; print(fcntl.fcntl(1, fcntl.F_GETFL) & ~0o100000)")
        assert [str(os.O_WRONLY)] == following.stdout_text.split()


def _reopened(path: str) -> bytes:
    """What stands in a file that was only open for reading as stdin of a program, after it opened that anew."""
    with open(path) as stdin:
        subprocess.run([sys.executable, "-c", "import os; os.write(os.open('/proc/self/fd/0', os.O_WRONLY), b'x')"],
                       stdin=stdin, check=True)
    return Path(path).read_bytes()


# --- the job pipe -------------------------------------------------------------


READ_ON = """
import os
for attempt in (lambda: os.set_blocking(3, False), lambda: os.read(3, 1),
                lambda: os.open("/proc/self/fd/3", os.O_RDONLY), lambda: os.write(3, b"x")):
    try:
        print("done", attempt())
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


@pytest.mark.smoke
@pytest.mark.lock("job-pipe")
def test_c166_cannot_read_on_from_its_job_pipe(box: Box, only: Callable[..., Box]):
    """It is closed before the job's code runs, and there is no other end to be had."""
    with control():  # it waits for what comes next
        kept = only(*ALL - {"job-pipe"}).run(READ_ON).stdout_text.splitlines()
        assert ["done None", f"BlockingIOError {errno.EAGAIN}"] == kept[:2]

    for sandbox in (box, only("job-pipe")):
        got = sandbox.run(READ_ON)

        assert "OSError 9" == got.stdout_text.splitlines()[0] == got.stdout_text.splitlines()[1]
        assert ["FileNotFoundError 2", "OSError 9"] == got.stdout_text.splitlines()[2:]
    assert b"3\n" == box.run("import os; print(os.open('/dev/null', os.O_RDONLY))").stdout


@pytest.mark.no_single_lock("it is how a frame is read, and there is no reading without that")
@pytest.mark.parametrize("sent", ["half a header", "half a job", "nothing"])
def test_c166_half_a_job_is_none(sent: str):
    """The daemon dies while it writes: the runner reads end of file and goes, and nothing of the code has run."""
    with Box() as box:
        (worker,) = box.engine.main.pool.workforce.workers
        box.reactor.run(lambda: 2 == len(worker.arming.store))
        runner, other = worker.arming.store
        frame = job_frame(Job(code=b"print('ran', flush=True)"))
        os.write(other.job, frame)
        os.set_blocking(other.out, True)
        with control():  # a whole one runs
            assert b"ran\n" == os.read(other.out, 100)
        other.kill()
        box.reactor.run(lambda: other not in worker.arming.store)
        os.write(runner.job, {"half a header": frame[:2], "half a job": frame[:-1], "nothing": b""}[sent])
        os.close(runner.job)
        runner.job = -1
        out = os.dup(runner.out)
        box.reactor.run(lambda: runner not in worker.arming.store)
        box.reactor.run(lambda: box.engine.main.pool.any_free)

        assert b"" == os.read(out, 100)
        os.close(out)
        assert b"1\n" == box.run("print(1)").stdout


@pytest.mark.lock("job-pipe")
def test_c166_two_jobs_in_one_pipe_are_one():
    """What stands behind the first frame is never read, by the job neither: one job for a process."""
    with control():  # else the first reads the other's code
        assert b"second" in _two_in_one(ALL - {"job-pipe"})

    for locks in (None, frozenset({"job-pipe"})):
        assert b"first\n" == _two_in_one(locks)


def _two_in_one(locks: frozenset[str] | None) -> bytes:
    """What the first of two jobs prints, of which one daemon gone wrong sends the second right behind it."""
    RUNS.append(Run(locks))
    with Box(locks=locks) as box:
        (worker,) = box.engine.main.pool.workforce.workers
        original = worker.arming.store[0].job
        reports: list[Report] = []
        code = b"import os\nprint('first')\ntry: print(os.read(3, 1000))\nexcept OSError: pass"
        box.engine.main.pool.submit(Job(code=code), reports.append, 5.0)
        try:
            os.write(original, job_frame(Job(code=b"print('second', flush=True)")))
        except BrokenPipeError:
            pass  # it has read the first, and closed
        box.reactor.run(lambda: bool(reports))
        (report,) = reports
        assert report.result is not None
        return report.result.stdout


@pytest.mark.no_attack("a large job is a job")
def test_c166_a_job_of_sixteen_mebibytes_arrives_whole(box: Box):
    got = box.run(f"print(len({'x' * (16 << 20)!r}))", limits={"memory": 512 << 20})

    assert (Outcome.FINISHED, b"16777216\n") == (got.outcome, got.stdout)

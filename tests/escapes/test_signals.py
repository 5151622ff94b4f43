"""Escapes by signals and ptrace: other processes, the sandbox's init, death at every stage, what is left behind."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.attack import ATTEMPTS
from kit.box import RUNS, Box, Run, control, run_outside
from kit.features import ROOT
from kit.locks import LOCKS as ALL
from kit.running import Running, named, running, status
from leeward._native import privileges
from leeward.daemon.run.report import Report
from leeward.daemon.run.verdict import Stop
from leeward.spec.job import Job
from leeward.spec.limits import Limits
from leeward.spec.outcome import Outcome


@pytest.fixture
def witness() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host, of the daemon's own user, that any signal would end."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def serves(box: Box) -> None:
    for number in range(3):
        assert f"{number}\n".encode() == box.run(f"print({number})").stdout


SIGNAL = ATTEMPTS + """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    got = libc.syscall(number, *map(ctypes.c_long, arguments))
    if got < 0:
        raise OSError(ctypes.get_errno(), "")
    return got
TKILL, TGKILL, QUEUE = {"x86_64": (200, 234, 129), "aarch64": (130, 131, 138)}[os.uname().machine]
info = ctypes.create_string_buffer(128)
info[8:12] = (-1 & 0xFFFFFFFF).to_bytes(4, "little")  # SI_QUEUE
attempt("kill 0", lambda: os.kill(PID, 0))
attempt("pidfd_open", lambda: signal.pidfd_send_signal(os.pidfd_open(PID), signal.SIGTERM))
attempt("tkill", lambda: call(TKILL, PID, signal.SIGTERM))
attempt("tgkill", lambda: call(TGKILL, PID, PID, signal.SIGTERM))
attempt("rt_sigqueueinfo", lambda: call(QUEUE, PID, signal.SIGTERM, ctypes.addressof(info)))
attempt("killpg", lambda: os.killpg(PID, signal.SIGTERM))
attempt("getpgid", lambda: os.getpgid(PID))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, PID, 19))
attempt("kill", lambda: os.kill(PID, signal.SIGKILL))
print(json.dumps(tried))
"""


@pytest.mark.smoke
@pytest.mark.lock("namespaces")
def test_c082_cannot_signal_a_process_of_the_host(box: Box, only: Callable[..., Box],
                                                  witness: subprocess.Popen[bytes]):
    """Whatever takes a pid says that there is none."""
    attack = f"PID = {witness.pid}" + SIGNAL
    with control(), subprocess.Popen(["sleep", "1000"]) as other:
        run_outside(f"PID = {other.pid}" + SIGNAL)
        assert other.wait() < 0

    for one in (box, only("namespaces")):
        assert {"ESRCH"} == set(json.loads(one.run(attack).stdout).values())
        assert witness.poll() is None


@pytest.mark.needs("landlock>=6")
@pytest.mark.lock("landlock")
def test_c082_cannot_signal_with_landlock_alone(box: Box, only: Callable[..., Box], witness: subprocess.Popen[bytes]):
    """Landlock's scope stands alone: not even a process of the job's own user id, its keeper, can be signalled."""
    keeper = """
import json, os
pid = os.getppid()
try:
    os.kill(int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]), 0)
    print("done")
except OSError as error:
    print(type(error).__name__)
"""
    with control():
        assert b"done\n" == only().run(keeper).stdout

    for one, refusal in ((box, "ESRCH"), (only("landlock"), "EPERM")):
        tried = json.loads(one.run(f"PID = {witness.pid}" + SIGNAL).stdout)

        assert {refusal} == {tried[name] for name in ("kill", "kill 0", "tkill", "tgkill", "pidfd_open")}
    assert b"PermissionError\n" == only("landlock").run(keeper).stdout
    assert witness.poll() is None


#: A process that makes the attack a child of its own, in a pid namespace of both: pid 1 keeps away from it, and is
#: in a process group of its own. Prints the signal that ended or stopped the process that was hit.
HIT = """
import ctypes, os, signal
assert 0 == ctypes.CDLL(None).unshare(0x30000000)  # CLONE_NEWUSER, CLONE_NEWPID
first = os.fork()
if 0 == first:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    neighbour = os.fork()
    if 0 == neighbour:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))
        if 0 == os.fork():
            os.kill(TARGET, signal.NUMBER)
        while True: signal.pause()
    _, how = os.waitpid(neighbour, os.WUNTRACED)
    print(os.WSTOPSIG(how) if os.WIFSTOPPED(how) else os.WTERMSIG(how), flush=True)
    os._exit(0)
os.waitpid(first, 0)
"""

ATTACK = """
import os, signal
child = os.fork()
if 0 == child:
    while True: signal.pause()
os.kill(TARGET, signal.NUMBER)
print(os.waitpid(child, os.WNOHANG | os.WUNTRACED)[0] == child)
"""


@pytest.mark.lock("namespaces")
@pytest.mark.parametrize("target", ["-1", "0", "1", "os.getppid()", "-os.getpgid(0)"])
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGSEGV", "SIGHUP"])
def test_c083_a_job_that_signals_all_it_can_hits_itself_alone(target: str, number: str,
                                                              beside: list[tuple[Box, Running]]):
    """kill(-1), kill(0), pid 1, its parent: one answer for it, and a neighbour's job goes on."""
    # Without a namespace 1 would be the host's own first process: the parent stands for it.
    with control():  # who shares a namespace with the attack is hit
        hit = run_outside(HIT.replace("TARGET", "os.getppid()" if "1" == target else target).replace("NUMBER", number))
        assert getattr(signal, number) == int(hit)

    for box, neighbour in beside:
        got = box.run(ATTACK.replace("TARGET", target).replace("NUMBER", number), limits={"time": 0.3})

        # RAISED: where Landlock has a scope for signals, pid 1 can't even be named.
        assert got.outcome in (Outcome.FINISHED, Outcome.RAISED, Outcome.SIGNALLED, Outcome.TIMED_OUT)
        assert status(neighbour.job)["State"].startswith("S")
        assert [] == box.log.of("worker failed")


@pytest.fixture(scope="module")
def beside() -> Iterator[list[tuple[Box, Running]]]:
    """With all locks, and with namespaces alone: two workers, and a job that waits in one of them."""
    with ExitStack() as stack:
        made = []
        for locks in (None, {"namespaces"}):
            box = stack.enter_context(Box(locks=locks, pool_size=2))
            made.append((box, stack.enter_context(running(box, limits=Limits(time=600.0)))))
        yield made


@pytest.mark.no_attack("that signals are sent at all, in the test above")
def test_c083_a_job_hits_its_own_processes(box: Box):
    """The control of the above: the signals are sent."""
    got = box.run("""
import os, signal
child = os.fork()
if 0 == child:
    while True: signal.pause()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(-1, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")

    assert f"{-signal.SIGTERM}\n" == got.stdout_text


INTO = ATTEMPTS + """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
def checked(got):
    if got < 0:
        raise OSError(ctypes.get_errno(), "")
    return got
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
secret = ctypes.create_string_buffer(b"secret")
sibling = os.fork()
if 0 == sibling:
    while True: signal.pause()
for name, pid in (("sibling", sibling), ("parent", PARENT)):
    here, there = ctypes.create_string_buffer(6), iovec(ctypes.addressof(secret), 6)
    mine = iovec(ctypes.addressof(here), 6)
    vectors = ctypes.byref(mine), 1, ctypes.byref(there), 1
    attempt("attach " + name, lambda: checked(libc.ptrace(16, pid, 0, 0)))
    attempt("seize " + name, lambda: checked(libc.ptrace(0x4206, pid, 0, 0)))
    attempt("read " + name, lambda: checked(libc.process_vm_readv(pid, *vectors, 0)))
    attempt("write " + name, lambda: checked(libc.process_vm_writev(pid, *vectors, 0)))
    attempt("mem " + name, lambda: os.open("/proc/%d/mem" % pid, os.O_RDWR))
    attempt("getfd " + name, lambda: checked(libc.syscall(438, os.pidfd_open(pid), 1, 0)))
    for file in ("maps", "environ", "auxv", "syscall", "stack", "fd", "cwd", "root", "exe", "map_files"):
        path = "/proc/%d/%s" % (pid, file)
        attempt(file + " " + name, lambda: os.readlink(path) if file in ("cwd", "root", "exe")
                else os.listdir(path) if file in ("fd", "map_files") else open(path, "rb").read(10))
os.kill(sibling, signal.SIGKILL)
print(json.dumps(tried))
"""


@pytest.mark.smoke
@pytest.mark.lock("seccomp")
def test_c084_cannot_look_into_another_process(box: Box, only: Callable[..., Box],
                                                witness: subprocess.Popen[bytes]):
    """Neither by ptrace nor by its memory, nor through /proc: not pid 1, its parent, and not even its own child."""
    with control():
        outside = json.loads(run_outside(INTO.replace("PARENT", str(witness.pid))).splitlines()[-1])
        assert "done: 0" == outside["attach sibling"]
    assert outside["environ sibling"] != "EACCES"

    for one in (box, only("seccomp")):
        tried = json.loads(one.run(INTO.replace("PARENT", "1")).stdout)

        calls = {name: outcome for name, outcome in tried.items()
                 if name.split()[0] in ("attach", "seize", "read", "write", "getfd")}
        assert {"EACCES"} == set(calls.values()), calls
    tried = json.loads(box.run(INTO.replace("PARENT", "1")).stdout)
    assert "EACCES" == tried["mem sibling"] == tried["mem parent"] == tried["fd sibling"]
    assert {"EACCES"} == {outcome for name, outcome in tried.items() if name.endswith("parent")
                          and name.split()[0] in ("maps", "environ", "auxv", "fd", "cwd", "root", "exe", "map_files")}


#: Why some of these are about no lock of a job's.
ACCOUNT = "it is what the daemon says of a death, and it always says something"

STAGES = {
    "while it is compiled": ("(" * 150 + "1" + ")" * 150 + "\nimport os, signal\nos.kill(os.getpid(), 9)", -9),
    "while it runs": ("import os\nprint('here', flush=True)\nos.kill(os.getpid(), 9)", -9),
    "in atexit": ("import atexit, os\natexit.register(os.kill, os.getpid(), 9)\nprint('here')", -9),
    "half way in its reply": ("import os\nprint('here', flush=True)\nos.write(4, b'..')\nos.kill(os.getpid(), 9)", -9),
    "by a child": ("import os, signal\nos.fork() or os.kill(os.getppid(), 9)\nsignal.pause()", -9),
    "by abort": ("import os\nprint('here', flush=True)\nos.abort()", -6),
    "by a fault": ("import ctypes\nprint('here', flush=True)\nctypes.string_at(8)", -11),
    "by leaving": ("import os\nprint('here', flush=True)\nos._exit(9)", 9),
}


@pytest.mark.no_single_lock(ACCOUNT)
@pytest.mark.parametrize("stage", STAGES)
def test_c085_death_in_any_stage_gives_one_answer(box: Box, stage: str):
    """With the signal in it; and the worker takes the next job."""
    with control():  # of who doesn't die
        assert Outcome.FINISHED is box.run("import os\nprint('here', flush=True)").outcome
    code, end = STAGES[stage]
    reports: list[Report] = []
    box.engine.main.pool.submit(Job(code=code.encode()), reports.append, 30.0)
    box.reactor.run(lambda: bool(reports))
    serves(box)

    (report,) = reports
    assert report.result is not None
    assert (Outcome.SIGNALLED if end < 0 else Outcome.FINISHED) is report.result.outcome
    assert (128 - end if end < 0 else end) == report.result.exit_code


@pytest.mark.no_single_lock(ACCOUNT)
def test_c085_a_death_right_after_the_reply_does_not_change_the_result(box: Box):
    """A thread that waits for the reply's pipe to fill and ends the process then: the reply counts, once."""
    code = """
import fcntl, os, struct, termios, threading
def wait():
    while struct.unpack("i", fcntl.ioctl(4, termios.FIONREAD, b"\\0" * 4))[0] == 0:
        pass
    os.kill(os.getpid(), 9)
threading.Thread(target=wait, daemon=True).start()
print("done", flush=True)
"""
    at_once = "import os\nprint('done', flush=True)\nos.kill(os.getpid(), 9)"
    with control():  # before its reply it would count
        assert Outcome.SIGNALLED is box.run(at_once).outcome
    for _ in range(20):
        got = box.run(code)

        assert (Outcome.FINISHED, b"done\n") == (got.outcome, got.stdout)
    serves(box)


ORPHANS = """
import ctypes, os, signal, subprocess, sys, time
def name():
    open("/proc/self/comm", "w").write(COMM) if os.access("/proc/self/comm", os.W_OK) else None
    ctypes.CDLL(None).prctl(15, COMM.encode())
def stay():
    name()
    for number in set(range(1, 32)) - {9, 19}:
        signal.signal(number, signal.SIG_IGN)
    os.write(ready, b"x")
    while True: time.sleep(60)
read, ready = os.pipe()
if 0 == os.fork():                      # double fork, own session
    os.setsid()
    if 0 == os.fork():
        stay()
    os._exit(0)
if 0 == os.fork():                      # stopped
    name()
    os.write(ready, b"x")
    os.kill(os.getpid(), signal.SIGSTOP)
if 0 == os.fork():                      # a zombie of its own under one that lives
    os.fork() or os._exit(0)
    stay()
subprocess.Popen(["/bin/sh", "-c", "trap '' 1 2 15; echo > /dev/null; exec sleep 1000"], start_new_session=True)
for _ in range(3):
    os.read(read, 1)
print("left", flush=True)
"""


@pytest.mark.lock("namespaces")
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "while True: time.sleep(60)"])
def test_c086_no_orphan_outlives_its_job(end: str):
    """Double forks, sessions of their own, stopped ones, those that ignore everything."""
    with control():  # they outlive who made them
        assert _leave_orphans_outside() >= 3
    for locks in (None, {"namespaces"}):
        _leave_orphans(locks, end)


def _leave_orphans_outside() -> int:
    """How many are left to this process, which adopts and ends them: an engine's is the reaper of all below it."""
    RUNS.append(Run(outside=True))
    comm = "lw" + secrets.token_hex(6)
    before = children(os.getpid())
    privileges.be_subreaper()
    with subprocess.Popen([sys.executable, "-c", f"COMM = {comm!r}" + ORPHANS], stdout=subprocess.DEVNULL):
        pass
    orphans = len(named(comm))
    while left := children(os.getpid()) - before:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert [] == named(comm)
    return orphans


def children(pid: int) -> set[int]:
    """Of a process with one thread."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _leave_orphans(locks: set[str] | None, end: str) -> None:
    comm = "lw" + secrets.token_hex(6)
    code = f"COMM = {comm!r}" + ORPHANS
    with Box(locks=locks) as box:
        alive: list[Report] = []
        box.engine.main.pool.submit(Job(code=(code + "while True: time.sleep(60)").encode()), alive.append, 30.0)
        worker = next(worker for worker in box.engine.main.pool.workforce.workers if worker.busy)
        assert worker.leasing.execution is not None
        stream = worker.leasing.execution.output.out
        box.reactor.run(lambda: stream.length > 0)
        assert len(named(comm)) >= 3  # while it runs the host sees them
        worker.leasing.execution.stop(Stop.CANCELLED)
        box.reactor.run(lambda: bool(alive) and box.engine.main.pool.any_free)
        assert [] == named(comm)

        got = box.run(code + end, limits={"time": 1.0})
        box.reactor.run(lambda: box.engine.main.pool.any_free)

        assert b"left\n" == got.stdout
        assert [] == named(comm)


#: Where a process is signalled by its number, and by what: itself, a thread of its own, or the group of a child that
#: wasn't collected yet, whose number nobody else can have.
BY_NUMBER = {**dict.fromkeys(("cli/leeward_cli/interrupts.py", "cli/leeward_cli/terminal.py", "leeward/inside/answer.py",
                              "leeward/apps/approvals/requester.py"), "os.kill(os.getpid(),"),
             "leeward/_native/src/threads.c": "SYS_tgkill, getpid(),",
             "leeward/apps/approvals/git/git_host.py": "os.killpg(child.pid,",
             "leeward/daemon/pool/ways_out.py": "os.killpg(self._process.pid,"}
#: Programs that `leeward selftest` runs as jobs.
JOBS = "selftest/attacks.py"


@pytest.mark.no_attack("it is about what stands in the source")
def test_c087_no_process_is_signalled_by_a_remembered_pid():
    """Processes are signalled by pidfd and by cgroup alone: a pid may be another process's by now."""
    found: dict[str, int] = {}
    for path in [*ROOT.glob("leeward/**/*.py"), *ROOT.glob("cli/**/*.py"), *ROOT.glob("leeward/_native/src/*.c")]:
        pattern = (r"os\.kill\(|os\.killpg\(" if ".py" == path.suffix else
                   r"\b(kill|tgkill)\((?!2\))|\bSYS_(tg|t)?kill\b")
        count = len(re.findall(pattern, path.read_text()))
        if count and not path.match(JOBS):
            found[str(path.relative_to(ROOT))] = count

    assert dict.fromkeys(BY_NUMBER, 1) == found
    for name, whom in BY_NUMBER.items():
        assert whom in (ROOT / name).read_text()


KEEPER = """
import json, os
print(json.dumps({"parent": os.getppid(), "seen": sorted(n for n in os.listdir("/proc") if n.isdigit()),
                  "group": os.getpgid(1), "session": os.getsid(1)}))
"""


@pytest.mark.lock("namespaces", beside=("mounts",), because="/proc shows what its pid namespace is")
def test_c163_the_keeper_is_out_of_reach(box: Box, only: Callable[..., Box]):
    """A job's parent is pid 1 of its namespace, and above that there is nothing that it could name."""
    with control():  # the host's pids
        bare = json.loads(only().run(KEEPER).stdout)
        assert bare["parent"] > 2
        assert len(bare["seen"]) > 2

    for one in (box, only("namespaces", "mounts")):
        seen = json.loads(one.run(KEEPER).stdout)

        assert {"parent": 1, "seen": ["1", "2"], "group": 0, "session": 0} == seen


#: As what a job's orphan comes under whom.
ORPHAN = """
import os
read, write = os.pipe()
if 0 == os.fork():
    here = os.getpid()
    if 0 == os.fork():
        while here == os.getppid(): pass
        os.write(write, str(os.getppid()).encode())
        os._exit(0)
    os._exit(0)
os.close(write)
print(os.read(read, 100).decode())
"""


@pytest.mark.lock("namespaces")
def test_c163_a_storm_of_exits_leaves_the_keeper_as_it_was(box: Box, only: Callable[..., Box]):
    """What dies in a job is its init's to reap: the keeper has the armed runners' inits for children, no zombie."""
    only().run("pass")
    (bare,) = only().engine.main.pool.workforce.workers
    with control():  # else they come to the keeper
        assert bare.keeper.pid == int(only().run(ORPHAN).stdout)

    for one in (box, only("namespaces")):
        assert b"1\n" == one.run(ORPHAN).stdout
        _storm(one)


def _storm(box: Box) -> None:
    box.run("pass")
    box.reactor.run(lambda: box.engine.main.pool.any_free)
    (worker,) = box.engine.main.pool.workforce.workers
    got = box.run("""
import os
for _ in range(20):
    for _ in range(25):
        if 0 == os.fork():
            os.fork()
            os._exit(0)
print("done")
""")
    box.reactor.run(lambda: worker.free and 2 == len(worker.arming.store))

    assert b"done\n" == got.stdout or b"BlockingIOError" in got.stderr
    assert worker in box.engine.main.pool.workforce.workers
    assert children(worker.keeper.pid) == {runner.pid for runner in worker.arming.runners.values() if runner.pid > 0}


#: Fills whatever it has open beyond its own, and then its output.
FILL = """
import os
for fd in range(5, 256):
    try:
        os.set_blocking(fd, False)
        while True:
            os.write(fd, b"\\xc1" * 512)
    except OSError:
        pass
while True:
    os.write(1, b"x" * 65536)
"""


@pytest.mark.lock("descriptors")
def test_c163_a_job_that_fills_every_pipe_it_has_fills_none_of_the_keepers():
    """Its output ends it, as it should; the keeper has heard nothing, and arms the next runner."""
    with control():  # else it speaks in the keeper's name, whichever end the daemon sees first
        assert not _fill(ALL - {"descriptors"})[1]

    for locks in (None, frozenset({"descriptors"})):
        assert (Outcome.OUTPUT_LIMIT, True) == _fill(locks)


def _fill(locks: frozenset[str] | None) -> tuple[Outcome, bool]:
    """How such a job ends, and whether its worker was kept."""
    with Box(locks=locks) as box:
        before = [worker.keeper.pid for worker in box.engine.main.pool.workforce.workers]
        got = box.run(FILL)
        box.reactor.run(lambda: box.engine.main.pool.any_free)

        kept = before == [worker.keeper.pid for worker in box.engine.main.pool.workforce.workers]
        serves(box)
        return got.outcome, kept

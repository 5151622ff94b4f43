"""
The loop of a keeper by itself: orders go in, runners and their ends come out.

Each test runs a short program of its own, which stands in for zygote and daemon: what it clones
would otherwise be a copy of pytest.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kit.features import ROOT

pytestmark = pytest.mark.needs("user-namespaces")

#: `here` is the daemon's end of the channel of a keeper whose jobs do `job(born)` and leave. Their ends
#: have the numbers from 2 on, in the order of ENDS.
PRELUDE = """
import os, select, signal, socket, struct, sys
from leeward._native.job_pipes import Pipes
from leeward._native.keeper_loop import Kept, keep
from leeward._native.spawn import Clone, clone
from leeward._native.steps import Call, Table, returns
from leeward.crossing.birth import ENDS
from leeward.isolation import descriptors
from leeward.isolation.channel import Channel
from leeward.wire import control

ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
NAMESPACES = Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS
WAY = descriptors.steps((*ENDS[2:4], *ENDS), 2)  # 0 and 1 are stdout and stderr, 2 to 6 the ends
uid, gid = os.geteuid(), os.getegid()
pipes = []

def start(job, filter=ALLOW_ALL, way=WAY, pages=(), renew=None, once=0):
    here, there = Channel.pair()
    go, went = os.pipe()
    pid, pidfd = clone(Clone.NEWUSER | Clone.NEWNS | Clone.NEWNET)
    if pid == 0:
        code = 1
        try:
            os.read(go, 1)
            here.close()
            kept = Kept(NAMESPACES, filter=filter, way=Table(way), ends=ENDS, once=once)
            kept.copy_at_once(pages)
            if renew is not None:
                pipes.append(Pipes(2, 3, lone=b"x", workspace="/", nothing=b"", last=True))
                kept.begin_early(6, b"ready", renew)
            born = keep(there.fileno(), -1, kept)
            code = 0 if born is None else job(born) or 0
        except Exception as error:
            print(error, flush=True)
        finally:
            os._exit(code)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)
    os.write(went, b"x")
    there.close()
    return here, pid

def arm(here, runner, attach=(), cpu=None, hurried=False, proved=False):
    birth, far = Channel.pair()
    here.send(control.Arm(runner, False, len(attach), cpu, hurried, proved), [far.fileno(), *attach])
    far.close()
    return birth

def end(here, pid):
    here.close()
    return os.waitpid(pid, 0)[1]
"""


def program(body: str, prelude: str = PRELUDE) -> str:
    """The output of *body*."""
    got = subprocess.run([sys.executable, "-c", prelude + body], cwd=ROOT, capture_output=True, text=True, check=False,
                         timeout=60, stdin=subprocess.DEVNULL)
    assert 0 == got.returncode, got.stdout + got.stderr
    return re.sub(r", (spent|largest)=[0-9.e-]+", "", got.stdout)  # which no run repeats


def test_a_runner_comes_with_its_pipes_and_its_end_is_reported():
    """What goes into the job pipe comes out of the others; the daemon's ends don't block; the status is whole."""
    said = program("""
def job(born):
    data = os.read(2, 100)
    for fd, name in ((3, b"reply "), (4, b"out "), (5, b"err ")):
        os.write(fd, name + data)
    held = sorted(map(int, os.listdir("/proc/thread-self/fd")))
    os.write(6, repr((born, os.getpid(), os.getppid(), held, os.sched_getaffinity(0))).encode())
    return 7
here, pid = start(job)
cpu = max(os.sched_getaffinity(0))
birth = arm(here, 11, cpu=cpu)
message, (pidfd, job, reply, out, err) = here.receive()
print(message == control.Armed(11, message.pid), not any(map(os.get_blocking, (job, reply, out, err))))
os.write(job, b"code")
print(here.receive())
print(*(os.read(fd, 100) for fd in (reply, out, err)))
born = f"Born(join_error=0, affinity_error=0, done={len(WAY)}, result=0, hurried=False, beside=0, again=False, begun=False)"
said = f"({born}, 2, 1, [0, 1, 2, 3, 4, 5, 6, 7], {{{cpu}}})"
print(birth.socket.recv(1000).decode() == said)
print(end(here, pid))
""")

    assert said.splitlines() == ["True True", "(Ended(runner=11, status=1792), [])",
                                 "b'reply code' b'out code' b'err code'", "True", "0"]


def test_many_runners_end_in_any_order_without_a_leak():
    """
    Five are armed and the third, the first and the last end; then the others. The keeper has the descriptors
    and the children that it had.
    """
    said = program("""
def job(born):
    return os.read(2, 1)[0]
here, pid = start(job)
def held():
    return len(os.listdir(f"/proc/{pid}/fd")), open(f"/proc/{pid}/task/{pid}/children").read().split()
def take(runner):
    birth = arm(here, runner)
    message, fds = here.receive()
    birth.close()
    return message.pid, fds
first = take(1)
os.write(first[1][1], b"a")
here.receive()
before = held()
runners = {number: take(number) for number in range(2, 7)}
print(len(held()[1]))
for number in (4, 2, 6, 5, 3):
    os.write(runners[number][1][1], bytes([number]))
    print(here.receive()[0])
print(held() == before, end(here, pid))
""")

    assert said.splitlines() == ["5", *(f"Ended(runner={n}, status={n << 8})" for n in (4, 2, 6, 5, 3)), "True 0"]


def test_a_killed_init_has_no_status():
    said = program("""
def job(born):
    signal.pause()
here, pid = start(job)
birth = arm(here, 1)
_, (pidfd, *_) = here.receive()
signal.pidfd_send_signal(pidfd, signal.SIGKILL)
print(here.receive()[0], end(here, pid))
""")

    assert "Ended(runner=1, status=None) 0\n" == said


def test_a_runner_that_cannot_be_made_is_reported_without_a_leak():
    """
    The init's filter is refused by the kernel. The keeper says the call and the errno, and lives: forty times, with
    descriptors for ten.
    """
    said = program("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
here, pid = start(lambda born: 0, filter=b"\\xff" * 8)
said = set()
for number in range(1, 41):
    birth = arm(here, number)
    said.add(str(here.receive()[0]).replace(str(number), "N", 1))
print(*said, open(f"/proc/{pid}/task/{pid}/children").read(), end(here, pid))
""")

    assert said == ("Failed(number=N, layer='namespaces', message='clone3(a runner): EINVAL: invalid argument')"
                    "  0\n")


def test_a_cgroup_that_cannot_be_joined_is_reported_by_the_job():
    said = program("""
def job(born):
    return born.join_error
here, pid = start(job)
file = os.open("/dev/full", os.O_WRONLY)
birth = arm(here, 1, attach=[file])
here.receive()
print(here.receive()[0], end(here, pid))
""")

    assert f"Ended(runner=1, status={28 << 8}) 0\n" == said  # ENOSPC


def test_the_step_that_fails_is_the_last_one():
    """The job knows which it was and what the call returned."""
    said = program("""
def job(born):
    os.write(6, repr((born.done - len(WAY), born.result, os.getcwd())).encode())
here, pid = start(job, way=[*WAY, *(returns(Call.CHDIR, path) for path in ("/", "/missing", "/proc"))])
birth = arm(here, 1)
here.receive()
print(birth.socket.recv(100).decode(), here.receive()[0], end(here, pid))
""")

    assert "(1, -2, '/') Ended(runner=1, status=0) 0\n" == said


def test_a_missing_processor_is_reported():
    said = program("""
def job(born):
    return born.affinity_error
here, pid = start(job)
birth = arm(here, 1, cpu=1000)
here.receive()
print(here.receive()[0], end(here, pid))
""")

    assert f"Ended(runner=1, status={22 << 8}) 0\n" == said  # EINVAL


@pytest.mark.parametrize("datagram", ["b'x'", "b'\\xc1' * 16", "control.encode(control.Arm(1, False, 3))",
                                      "control.encode(control.Ready({}))"])
def test_a_malformed_message_ends_the_keeper(datagram: str):
    """A short one, an unknown kind, descriptors that are missing, MessagePack."""
    said = program(f"""
here, pid = start(lambda born: 0)
here.send_raw({datagram})
print(here.receive(), end(here, pid))
""")

    assert said.splitlines() == ["recvmsg(the keeper's control channel): EPROTO: protocol error", "None 256"]


def test_runners_die_with_their_keeper():
    said = program("""
def job(born):
    signal.pause()
here, pid = start(job)
birth = arm(here, 1)
_, (_, _, reply, _, _) = here.receive()
print(end(here, pid))
os.set_blocking(reply, True)
print(os.read(reply, 1))
""")

    assert "0\nb''\n" == said


def test_pages_that_a_job_will_write_are_its_own_from_the_start():
    """
    Nobody shares the one that was named, though the job hasn't touched it; the control is the one beside it, and
    a job that was waited for.
    """
    said = program("""
import ctypes, mmap
memory = mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes([1]) * len(memory)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def job(born):
    with open("/proc/thread-self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        os.write(6, repr([bool(entry >> 56 & 1) for entry in struct.unpack("2Q", pagemap.read(16))]).encode())
    os.write(6, repr(born.hurried).encode())
here, pid = start(job, pages=[(address, mmap.PAGESIZE)])
for number, hurried in enumerate((False, True), 1):
    birth = arm(here, number, hurried=hurried)
    here.receive()
    print(birth.socket.recv(100).decode(), birth.socket.recv(100).decode(), here.receive()[0])
print(end(here, pid))
""")

    assert ["[True, False] False Ended(runner=1, status=0)", "[False, False] True Ended(runner=2, status=0)",
            "0"] == said.splitlines()


def test_a_scout_finds_the_pages_that_a_rehearsal_writes():
    """Some hundred pages, whole, and none twice."""
    said = program("""
from leeward.crossing import scout
found = scout.written()
whole = all(0 == number % 4096 for each in found for number in each)
apart = all(one[0] + one[1] <= other[0] for one, other in zip(found, found[1:]))
print(sum(size for _, size in found) // 4096 > 100, whole, apart)
""")

    assert "True True True\n" == said


#: A job that says by its reply pipe whether it has begun, and its frame. Behind it: what came by its birth channel.
BEGINS = """
import random, time
from leeward.isolation import privileges
LOCKED = [*WAY, *privileges.steps()]
RENEW = super(random.Random, random._inst).seed

def job(born):
    os.write(3, repr((born.begun, pipes[0].taken() if born.begun else os.read(2, 100)[4:])).encode())

def tell(**given):
    here, pid = start(job, **given)
    birth = arm(here, 1, hurried=given.get("renew") is not None)
    message, (pidfd, frame, reply, out, err) = here.receive()
    os.write(frame, struct.pack(">I", 5) + b"frame")
    os.set_blocking(reply, True)
    told = os.read(reply, 100).decode()
    ended = here.receive()[0]
    print(told, birth.socket.recv(100), ended, end(here, pid))
"""


def test_a_requested_runner_begins_in_c():
    """The control is one for which nobody does."""
    said = program(BEGINS + """
tell(way=LOCKED, renew=RENEW)
tell(way=LOCKED)
""")

    assert ["(True, b'frame') b'ready' Ended(runner=1, status=0) 0",
            "(False, b'frame') b'' Ended(runner=1, status=0) 0"] == said.splitlines()


def test_a_runner_in_c_reports_nothing_after_a_failed_step_a_kept_capability_or_a_missing_renewal():
    said = program(BEGINS + """
tell(way=[*LOCKED, returns(Call.GETUID, value=1)], renew=RENEW)
tell(way=WAY, renew=RENEW)
tell(way=LOCKED, renew="".join)
""")

    assert ["(False, b'frame') b'' Ended(runner=1, status=0) 0"] * 3 == said.splitlines()


def test_a_runner_ends_where_its_job_never_comes():
    said = program(BEGINS + """
here, pid = start(job, way=LOCKED, renew=RENEW)
birth = arm(here, 1, hurried=True)
message, (pidfd, frame, reply, out, err) = here.receive()
print(birth.socket.recv(100))
os.close(frame)
print(here.receive()[0], os.read(reply, 100), end(here, pid))
""")

    assert ["b'ready'", "Ended(runner=1, status=0) b'' 0"] == said.splitlines()


def test_a_step_that_is_left_out_once_it_is_proved():
    """
    A runner fails at it until the daemon says that one has passed; then the next goes past it, and fails at a step
    behind it if that fails.
    """
    said = program("""
def job(born):
    os.write(6, repr((born.done, born.result)).encode())

def tell(way, once):
    here, pid = start(job, way=way, once=once)
    for number in (1, 2, 3):
        birth = arm(here, number, proved=number > 2)
        here.receive()
        print(birth.socket.recv(100).decode(), end="; ")
        here.receive()
    print(len(way), end(here, pid))

bad, good = returns(Call.GETPID, value=77), returns(Call.GETPID, value=2)
tell([*WAY, bad, good], len(WAY))
tell([*WAY, bad, good], 0)
tell([*WAY, good, bad], len(WAY))
tell([*WAY, good], len(WAY))
""")
    steps = int(said.split()[-2]) - 1

    assert [f"({steps}, 2); ({steps}, 2); ({steps + 2}, 0); {steps + 2} 0",
            f"({steps}, 2); ({steps}, 2); ({steps}, 2); {steps + 2} 0",
            f"({steps + 1}, 2); ({steps + 1}, 2); ({steps + 1}, 2); {steps + 2} 0",
            f"({steps + 1}, 0); ({steps + 1}, 0); ({steps + 1}, 0); {steps + 1} 0"] == said.splitlines()


#: `zygote(steps)` is the daemon's end of the channel of a zygote whose keepers settle by these steps, and its pid.
ZYGOTE = PRELUDE + """
from types import SimpleNamespace
from leeward._native.keeper_loop import Settling
from leeward.crossing import keeper

def zygote(steps):
    here, there = Channel.pair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            here.close()
            kept = Kept(NAMESPACES, filter=ALLOW_ALL, way=Table(WAY), ends=ENDS)
            table = Table([*steps, returns(Call.FCNTL, keeper.CHANNEL, 1, 0, value=1)])
            keeper.make_all(SimpleNamespace(kept=kept), Settling(table, 0, 0, keeper.CHANNEL, None, kept), there.fileno())
            code = 0
        finally:
            os._exit(code)
    there.close()
    return here, pid

def made(here, *attach):
    end, far = Channel.pair()
    here.send(control.MakeKeeper(7, False, len(attach)), [far.fileno(), *attach])
    far.close()
    message, (pidfd,) = here.receive()
    assert 7 == message.slot
    return end, pidfd

def gone(pidfd):
    return bool(select.select([pidfd], [], [], 60)[0])
"""


def test_a_keeper_that_serves_ends_with_its_channel():
    """The zygote reaps it, has none of its descriptors, makes others, and ends with its own."""
    said = program("""
here, pid = zygote([])
seen = []
for count in (1, 3):
    ends = [made(here) for _ in range(count)]
    children = open(f"/proc/{pid}/task/{pid}/children")
    print(len(children.read().split()))
    for end_, pidfd in ends:
        end_.close()
        print(gone(pidfd))
    while children.seek(0) == 0 and children.read():
        pass
    seen.append(len(os.listdir(f"/proc/{pid}/fd")))
print(seen[0] == seen[1], end(here, pid))
""", ZYGOTE)

    assert ["1", "True", "3", "True", "True", "True", "True 0"] == said.splitlines()


@pytest.mark.parametrize(("steps", "attach", "why"), [
    pytest.param("[]", "os.open('/dev/null', os.O_RDONLY)", "write(tasks): EBADF", id="group"),
    pytest.param("[returns(Call.CLOSE, 1000)]", "", "close(0x3e8): EBADF", id="step"),
])
def test_a_keeper_that_cannot_settle_says_which_call_failed(steps: str, attach: str, why: str):
    """And exits, alone: the next one is asked of the same zygote."""
    said = program(f"""
here, pid = zygote({steps})
for _ in range(2):
    end_, pidfd = made(here, {attach})
    message, _ = end_.receive()
    print(message.number, message.layer, message.message)
    print(end_.receive(), gone(pidfd))
print(end(here, pid))
""", ZYGOTE)

    first, second, *rest = said.splitlines()
    assert first.startswith(f"-1 mounts {why}"), first
    assert "None True" == second
    assert [first, second, "0"] == rest

"""
Keepers, inits and jobs as the shim makes them, without any lock.

Each test runs a short program of its own: what it clones would otherwise be a copy of pytest.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit.features import ROOT

pytestmark = pytest.mark.needs("user-namespaces")

#: Makes a keeper with its maps written, and in it `runner(work)`: the wait status of a job that does *work*.
PRELUDE = """
import os, struct, sys, random, threading, signal
sys.path.append("tests")
from leeward._native import privileges
from leeward._native.spawn import Clone, clone
from kit.inits import Init

ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
NAMESPACES = Clone.NEWPID | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS
uid, gid = os.geteuid(), os.getegid()

def runner(work, filter=ALLOW_ALL):
    init = Init()
    if init.spawn(NAMESPACES, cgroup=-1, attach=[], ruleset=-1, filter=filter):
        try:
            code = work()
        except BaseException:
            os._exit(99)
        os._exit(code or 0)
    os.waitpid(init.pid, 0)
    os.close(init.pidfd)
    status = init.status()
    init.free()
    return status

def keeper(work):
    go, went = os.pipe()
    pid, pidfd = clone(Clone.NEWUSER | Clone.NEWNS | Clone.NEWNET)
    if pid == 0:
        try:
            os.read(go, 1)
            work()
            code = 0
        except BaseException as error:
            import traceback
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)
    os.write(went, b"x")
    assert os.waitpid(pid, 0)[1] == 0
"""


def program(body: str) -> str:
    """The output of *body*, which runs in a keeper."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    got = subprocess.run([sys.executable, "-c", f"{PRELUDE}\ndef main():\n{lines}\n\nkeeper(main)\n"], cwd=ROOT,
                         capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    assert 0 == got.returncode, got.stdout + got.stderr
    return got.stdout


def test_a_job_is_pid_2_and_its_status_comes_back_whole():
    """Exit codes and signals, SIGKILL and SIGABRT among them, are what they are for any process."""
    said = program("""
own = [runner(lambda: 0 if os.getpid() == 2 and os.getppid() == 1 else 5), runner(lambda: 7)]
killed = [runner(lambda: os.kill(os.getpid(), number)) for number in (signal.SIGTERM, signal.SIGKILL)]
aborted = runner(os.abort)
print(*own, *killed, aborted)
""")

    assert "0 1792 15 9 6\n" == said


def test_an_orphan_is_reaped_and_dies_with_the_job():
    """A job's daemonised child ends when the job does; the keeper reaps the init and nothing else."""
    said = program("""
read, write = os.pipe()
def work():
    if os.fork() == 0:
        if os.fork() == 0:
            signal.pause()   # holds `write` for as long as it lives
        os._exit(0)
    os.wait()
print(runner(work))
os.close(write)
print(os.read(read, 1))
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child")
""")

    assert "0\nb''\nno child\n" == said


def test_a_spawned_process_has_the_state_that_fork_prepares():
    """Random numbers differ, thread ids are the new namespace's, threads start, the processor is known."""
    said = program("""
read, write = os.pipe()
def work():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.get_native_id()))
    thread.start(); thread.join()
    import ctypes
    libc = ctypes.CDLL(None)
    libc.sched_getcpu()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    moved = libc.sched_getcpu() == max(os.sched_getaffinity(0))
    os.write(write, f"{random.random()} {threading.get_native_id()} {seen} {moved};".encode())
own = random.random()
print(runner(work), runner(work))
rows = os.read(read, 4096).decode().split(";")[:2]
numbers = {row.split()[0] for row in rows}
print(len(numbers), str(own) in numbers, [row.split(" ", 1)[1] for row in rows])
""")

    assert "0 0\n2 False ['2 [3] True', '2 [3] True']\n" == said


def test_an_init_that_cannot_lock_itself_leaves_no_process():
    """A filter that the kernel refuses: an error with the errno, no child, and the next one works."""
    said = program("""
try:
    runner(lambda: 0, filter=b"\\xff" * 8)
except Exception as error:
    print(error)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child", runner(lambda: 3))
""")

    assert "EINVAL" in said
    assert said.endswith("no child 768\n")


def test_an_init_that_is_killed_takes_the_job_along():
    """The status isn't known then, and that is said."""
    said = program("""
read, write = os.pipe()
init = Init()
if init.spawn(NAMESPACES, cgroup=-1, attach=[], ruleset=-1, filter=ALLOW_ALL):
    os.close(read)
    signal.pause()
    os._exit(0)
os.close(write)
signal.pidfd_send_signal(init.pidfd, signal.SIGKILL)
print(repr(os.read(read, 1)), os.WTERMSIG(os.waitpid(init.pid, 0)[1]), init.status())
""")

    assert "b'' 9 None\n" == said


def test_many_runners_leave_no_descriptor_and_no_mapping():
    said = program("""
def held():
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), len(maps.readlines())
for _ in range(5):
    runner(lambda: 0)
before = held()
for _ in range(50):
    runner(lambda: 0)
after = held()
print(after[0] == before[0], after[1] - before[1] < 25)  # an allocator may map some; a leak is 50
""")

    assert "True True\n" == said


def test_a_branch_has_no_parent_but_who_adopts_it():
    """It leads a session, has its ends and says so; functions around a fork have run; no descriptor is left open."""
    said = program("""
import socket
from leeward._native.spawn import branch
ran = []
os.register_at_fork(before=lambda: ran.append("before"), after_in_parent=lambda: ran.append("parent"),
                    after_in_child=lambda: ran.append("child"))
privileges.be_subreaper()
door, far = socket.socketpair()
pipes = [os.pipe() for _ in range(4)]
ends = [far.fileno(), pipes[0][0], *(write for _, write in pipes[1:])]
places = [60, 61, 62, 63, 64]
for place in places:
    os.dup2(0, place)
before = os.listdir("/proc/self/fd")
made = branch(ends, places, b"w")
if not made:
    more = [fd for fd in os.listdir("/proc/self/fd") if fd not in before]
    inherited = [os.get_inheritable(place) for place in places]
    os.write(62, repr((ran, os.getpid() == os.getsid(0) == threading.get_native_id(), inherited, more)).encode())
    os._exit(7)
print(door.recv(2), ran, [fd for fd in os.listdir("/proc/self/fd") if fd not in before])
print(os.read(pipes[1][0], 500).decode())
print(os.waitpid(made, 0) == (made, 7 << 8))
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("alone")
""")

    assert said.splitlines() == ["b'w' ['before', 'parent'] []",
                                 "(['before', 'child'], True, [False, False, False, True, True], [])", "True", "alone"]

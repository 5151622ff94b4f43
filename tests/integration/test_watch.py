"""
The watch of the `none` driver, when numbers of processes pass to strangers.

In a pid namespace of its own, where the number of the next process can be chosen.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest

import leeward
from kit.features import ROOT
from leeward.daemon.run.runner import Runner
from leeward.errors import LeewardError
from leeward.isolation.cgroup.none import NoneLeaf
from leeward.isolation.channel import Channel
from leeward.spec.limits import Limits

pytestmark = pytest.mark.needs("user-namespaces", "ns-last-pid")

#: As pid 1 and daemon: a sandbox's init with a job below it, which is a process that does what it is told by a pipe.
PRELUDE = """
import json, os, resource, signal, time
from leeward.isolation.cgroup import watch
from leeward.isolation.cgroup.none import NoneLeaf
from leeward.spec.limits import Limits

def fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def ticks():
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * watch.TICKS_PER_S)

def with_number(pid, work):
    start = ticks()
    while ticks() < start + 2:  # in none of the clock's ticks in which the number was another's
        pass
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    made = fork(work)
    assert made == pid, (made, pid)
    return made

def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def lives(pid):
    return os.waitpid(pid, os.WNOHANG) == (0, 0)

orders, order = os.pipe()
answers, answer = os.pipe()

def be_init():
    job = fork(signal.pause)
    os.write(answer, job.to_bytes(4, "little"))
    os.read(orders, 1)
    end(job)
    os.write(answer, b"gone")
    signal.pause()

init = fork(be_init)
job = int.from_bytes(os.read(answers, 4), "little")
leaf = NoneLeaf((0,), Limits())
leaf.tick(init)
leaf.apply(Limits())
"""


def told(program: str) -> Any:
    """What *program* prints, behind PRELUDE."""
    got = subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc",
                          sys.executable, "-c", PRELUDE + program],
                         env={**os.environ, "PYTHONPATH": os.path.dirname(leeward.__path__[0])}, cwd=ROOT,
                         capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
    assert 0 == got.returncode, got.stderr
    return json.loads(got.stdout)


def test_a_stranger_with_the_number_of_the_job_is_left_alone():
    """Nobody is killed by a number that has passed on."""
    got = told("""
os.write(order, b"x")
os.read(answers, 4)
stranger = with_number(job, signal.pause)
control = stranger in {key[0] for key in leaf._alive}
leaf.kill()
leaf.tick(init)
print(json.dumps([control, lives(stranger), leaf._alive == set()]))
""")

    assert [True, True, True] == got


def test_no_limit_is_set_by_a_number_once_the_init_has_ended():
    """The job's number may be a stranger's then: here it is this process's own."""
    gone = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(gone.pid)
    here, there = Channel.pair()
    runner = Runner(1, NoneLeaf((0,), Limits()), here, MagicMock(), lambda: 0, Limits().descriptors)
    runner.pidfd, runner._job_pid = pidfd, os.getpid()
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        select.select([pidfd], [], [])
        with pytest.raises(LeewardError, match="has gone"):
            runner.limit(Limits())
        assert before == resource.getrlimit(resource.RLIMIT_NPROC)
    finally:
        runner.dispose()
        there.close()
        gone.wait()


def test_a_stranger_with_the_number_of_the_init_is_not_looked_at():
    """What is below it isn't charged to the job, and isn't killed."""
    got = told("""
before = len(leaf._alive)
end(init)
pids = os.pipe()
def be_stranger():
    os.write(pids[1], fork(signal.pause).to_bytes(4, "little"))
    signal.pause()
stranger = with_number(init, be_stranger)
child = int.from_bytes(os.read(pids[0], 4), "little")
control = [process.key[0] for process in watch.look(watch.key_of(init))[0]] == [child]
leaf.tick(init)
leaf.kill()
after = len(leaf._alive)
is_dead = open(f"/proc/{child}/stat").read().split()[2] in "ZX"  # nobody reaps it
print(json.dumps([before, control, after, is_dead, lives(stranger)]))
""")

    assert [1, True, 0, False, True] == got


def test_a_stranger_with_the_number_of_a_child_is_not_taken_for_one():
    """The number was read while it was the child's."""
    got = told("""
read = watch.children_of
stranger = fork(signal.pause)
watch.children_of = lambda folder, pid, tasks=1: [*read(folder, pid, tasks), stranger]
leaf.tick(init)
print(json.dumps([sorted(key[0] for key in leaf._alive) == [job], lives(stranger)]))
""")

    assert [True, True] == got

"""C's look at the processes of a sandbox where no controller counts: what the watch in Python sees, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from leeward._native.loop import ProcessTree
from leeward.isolation.cgroup import watch
from leeward.spec.limits import MIB

#: An init with a job below it, which runs lines of code and answers each.
INIT = """
import os, sys
child = os.fork()
if not child:
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
    os._exit(0)
sys.stdin.close()
os.waitpid(child, 0)
"""

#: Some children that wait, and their end.
FORKS = """
import os, signal
children = []
for _ in range(COUNT):
    if not (child := os.fork()):
        signal.pause()
    children.append(child)
"""
ENDS = "for child in children: os.kill(child, 9), os.waitpid(child, 0)"


@dataclass
class Sandbox:
    process: subprocess.Popen[str]
    looks: watch.Looks = field(default_factory=watch.Looks)
    tree: ProcessTree = field(default_factory=ProcessTree)

    def __post_init__(self) -> None:
        self.init = watch.key_of(self.process.pid)

    def run(self, code: str) -> None:
        self.send(code)
        assert self.process.stdout is not None
        assert "done\n" == self.process.stdout.readline()

    def send(self, code: str) -> None:
        assert self.process.stdin is not None
        print(f"exec({code!r}, globals())", file=self.process.stdin, flush=True)

    def seen(self, *beside: watch.Key) -> list[watch.ProcessSample]:
        """By C, once its processes rest and the watch in Python has seen the same before and afterwards."""
        while True:
            before, ours, after = (look(self.init, beside)[0] for look in (watch.look, self.looks.look, watch.look))
            if before == after:
                # C doesn't read the memory of one that didn't run again, so its faults may be late ones
                assert [replace(each, late=0) for each in after] == [replace(each, late=0) for each in ours]
                return ours

    def rest(self, *roots: watch.Key) -> None:
        """Return once a look finds that nothing has run since the one before."""
        while self.tree.look([self.init, *roots]) is not False:
            pass


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with subprocess.Popen([sys.executable, "-c", INIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        made = Sandbox(process)
        made.run("pass")
        yield made
        os.killpg(process.pid, signal.SIGKILL)


pytestmark = pytest.mark.needs("not-emulated")  # a process of the emulator's has threads of its own


def test_it_sees_what_the_watch_does(sandbox: Sandbox) -> None:
    """Children and theirs, processes beside, and those that have ended, with memory, tables of pages and time."""
    sandbox.run(FORKS.replace("COUNT", "3"))
    sandbox.run("if not os.fork(): os.fork(), signal.pause()")
    sandbox.run("if not os.fork(): os._exit(0)")
    with subprocess.Popen(["sleep", "60"]) as beside:
        while len(seen := sandbox.seen(watch.key_of(beside.pid))) < 8:
            pass
        assert [beside.pid] == [each.key[0] for each in seen if each.beside]
        beside.kill()
    sandbox.run(f"kept = b'x' * {50 * MIB}")
    assert seen[0].resident + 40 * MIB < sandbox.seen()[0].resident
    sandbox.run(ENDS)
    assert 4 == len(sandbox.seen())


def test_where_nothing_has_run_it_says_so(sandbox: Sandbox) -> None:
    sandbox.rest()
    assert 1 == len(sandbox.tree.processes())
    sandbox.run("pass")
    assert sandbox.tree.look([sandbox.init]) is True


def test_one_that_runs_is_never_said_to_rest(sandbox: Sandbox) -> None:
    """Although the kernel adds up its time at intervals alone."""
    sandbox.rest()
    sandbox.send("while not os.path.exists('/proc/self/fd/99'): pass")
    while not sandbox.tree.look([sandbox.init]):
        pass
    assert {True} == {sandbox.tree.look([sandbox.init]) for _ in range(2000)}


def test_a_child_that_has_come_or_gone_is_a_difference(sandbox: Sandbox) -> None:
    """Whoever else runs."""
    sandbox.rest()
    with subprocess.Popen(["sleep", "60"]) as beside:
        key = watch.key_of(beside.pid)
        assert sandbox.tree.look([sandbox.init, key]) is True
        sandbox.rest(key)
        beside.kill()
    assert sandbox.tree.look([sandbox.init, key]) is True
    assert 1 == len(sandbox.tree.processes())


def test_a_number_that_another_process_has_by_now_is_not_looked_at(sandbox: Sandbox) -> None:
    """The key tells, of the init, and of what is beside."""
    (pid, started), me = sandbox.init, watch.key_of(os.getpid())
    assert sandbox.tree.look([(pid, started + 1)]) is None
    assert sandbox.tree.look([sandbox.init, (me[0], me[1] + 1)]) is not None
    assert 1 == len(sandbox.tree.processes())


@pytest.mark.parametrize(("code", "undone"), [
    (FORKS.replace("COUNT", "32"), ENDS),
    ("import threading; go = threading.Event(); threading.Thread(target=go.wait).start()", "go.set()"),
], ids=["many", "a thread"])
def test_more_than_it_can_see_is_left_to_the_watch(sandbox: Sandbox, code: str, undone: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sandbox.rest()
    sandbox.run(code)
    assert sandbox.tree.look([sandbox.init]) is None
    assert [] == sandbox.tree.processes()
    assert sandbox.seen()
    sandbox.run(undone)
    assert before == len(os.listdir("/proc/self/fd"))

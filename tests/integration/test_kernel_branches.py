"""Branches of a kernel: what they have of it, and that each of them lives and ends by itself."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from pathlib import Path

import pytest

import leeward
from kit import reactors
from kit.live_daemon import PATIENCE, LiveDaemon, held
from kit.stalling import standing_still
from kit.waiting import poll_until
from leeward.daemon.sandboxes.sandbox import AHEAD_S
from leeward.spec.outcome import Outcome

DAEMON, REACTORS = ("--pool-size", "4"), reactors.WAYS


def test_a_branch_has_the_state_and_then_its_own(box: leeward.Sandbox) -> None:
    """Variables, functions and imports; what either of them sets afterwards is its own."""
    with box.kernel() as kernel:
        kernel.execute("import json, os\nx = [1]\ndef twice(n): return 2 * n")
        with kernel.fork() as branch:
            assert "[1, 2]" == branch.execute("x.append(2); x").value
            assert "[1]" == kernel.execute("x").value
            assert "'[4]'" == branch.execute("json.dumps([twice(2)])").value
            kernel.execute("x = 'mine'")
            assert "[1, 2]" == branch.execute("x").value
            assert kernel.execute("os.getpid()").value != branch.execute("os.getpid()").value
            assert b"out\n" == branch.execute("print('out')").stdout
            assert b"err" in branch.execute("1 / 0").stderr + b"err"
            assert "[1, 2]" == branch.execute("x").value
        assert "'mine'" == kernel.execute("x").value


def test_branches_answer_at_the_same_time(box: leeward.Sandbox) -> None:
    """One runs and waits for a file that the other one writes; an interrupt hits the one that it is for."""
    kernel = box.kernel()
    branch = kernel.fork()
    got: list[leeward.Result] = []
    waiting = threading.Thread(target=lambda: got.append(branch.execute(
        "import os, time\nwhile not os.path.exists('there'): time.sleep(0.01)\n'seen'")))
    waiting.start()
    assert kernel.execute("open('there', 'w').close()").ok
    waiting.join(PATIENCE)
    assert "'seen'" == got[0].value
    looping = threading.Thread(target=lambda: got.append(branch.execute("open('loops', 'w')\nwhile True: pass")))
    looping.start()
    poll_until(lambda: box.files.exists("loops"), "the branch never ran")
    assert not kernel.interrupt()
    assert branch.interrupt()
    looping.join(PATIENCE)
    assert "KeyboardInterrupt" in got[1].stderr_text
    assert "1" == branch.execute("1").value
    assert "2" == kernel.execute("2").value


def test_ended_branches_take_no_room(daemon: LiveDaemon) -> None:
    """More than a limit on processes has room for at once; where a kernel adopts them, it reaps them."""
    with leeward.Sandbox(socket=daemon.socket, processes=8) as box:
        kernel = box.kernel()
        for _ in range(10):
            with kernel.fork() as branch:
                assert "1" == branch.execute("1").value


@pytest.mark.parametrize("first", ["kernel", "branch"])
def test_a_branch_ends_and_the_others_live_on(box: leeward.Sandbox, first: str) -> None:
    """With what it has started; and a branch of a branch has no need of the one between."""
    kernel = box.kernel()
    kernel.execute("x = 1\nimport os, subprocess")
    branch = kernel.fork()
    branch.execute("x = 2\nchild = subprocess.Popen(['sleep', '1000'])")
    twig = branch.fork()
    assert "2" == twig.execute("x").value
    (kernel if "kernel" == first else branch).close()
    with pytest.raises(leeward.SessionOver):
        (kernel if "kernel" == first else branch).execute("x")
    assert "2" == twig.execute("x").value
    if "kernel" == first:
        assert "2" == branch.execute("x").value
        assert "None" == branch.execute("repr(child.poll())").value.strip("'")
        branch.close()
    else:
        assert "1" == kernel.execute("x").value
        kernel.close()
    assert "2" == twig.execute("x").value
    twig.close()
    poll_until(lambda: b"sleep" not in box.shell("cat /proc/[0-9]*/comm").stdout, "a child of a branch is left")


def test_a_kernel_that_was_alone_again_ends_without_its_next_branch(box: leeward.Sandbox) -> None:
    """Its group is theirs again."""
    kernel = box.kernel()
    kernel.execute("x = 1")
    kernel.fork().close()
    with kernel.fork() as branch:
        assert "1" == branch.execute("x").value
        kernel.close()
        assert "1" == branch.execute("x").value


def test_a_branch_that_exits_or_runs_too_long_ends_alone(daemon: LiveDaemon, box: leeward.Sandbox) -> None:
    """And it can be reset."""
    kernel = box.kernel()
    kernel.execute("x = 1")
    branch = kernel.fork()
    branch.execute("import os; os._exit(3)")
    with pytest.raises(leeward.SessionOver):
        branch.execute("x")
    assert "1" == kernel.execute("x").value
    branch.reset()
    assert "NameError" in branch.execute("x").stderr_text
    other = kernel.fork()
    late = other.execute("import signal\nsignal.signal(2, lambda *_: None)\nwhile True: pass", timeout=0.2)
    assert Outcome.TIMED_OUT == late.outcome
    assert "1" == kernel.execute("x").value
    last = kernel.fork()
    assert "1" == last.execute("x").value  # it is there
    assert kernel.execute("import os; os._exit(0)") is not None
    assert "1" == last.execute("x").value


def test_the_request_waits_for_its_turn(box: leeward.Sandbox) -> None:
    """Behind what was asked before it, and the branch has what that left."""
    kernel = box.kernel()
    before = threading.Thread(target=lambda: kernel.execute(
        "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 'left'"))
    before.start()
    poll_until(lambda: box.files.exists("begun"), "the kernel never ran")
    branch = kernel.fork()
    box.files.write("go", b"")
    assert "'left'" == branch.execute("x").value
    before.join(PATIENCE)


def test_a_branch_is_counted_and_held(daemon: LiveDaemon) -> None:
    """As a process of the sandbox's, with every lock of its kernel's."""
    with leeward.Sandbox(socket=daemon.socket, processes=30) as small:
        kernel = small.kernel()
        before = small.info()["processes"]
        branch = kernel.fork()
        same = "[each.split()[1:] for each in open('/proc/self/status') if each[:3] in ('Cap', 'NoN', 'Sec', 'Uid')]"
        assert kernel.execute(same).value == branch.execute(same).value
        assert before + 1 == small.info()["processes"]
        assert "PermissionError" in branch.execute("import ctypes, os\nos.chroot('/')").stderr_text
        assert branch.execute("import os\nos.chroot('/')").denied
        limits = "import resource; [resource.getrlimit(n) for n in range(16)]"
        assert kernel.execute(limits).value == branch.execute(limits).value


#: Gives `names`, those of the module that makes branches, whose functions a job can replace.
NAMES = """
import os, sys
frame = sys._getframe()
while "BranchSocket" not in frame.f_globals:
    frame = frame.f_back
names = frame.f_globals
"""


#: Writes the number of each branch that is forked ahead once it waits, and 0 for one that may not be.
TELLS = NAMES + """
import signal
x = 1
still, rehearse = names["_is_still"], names["_rehearse"]
def tell(number):
    with open("told", "a") as file:
        print(number, file=file)
def tells(*given):
    return still(*given) or tell(0)
def rehearses(*given, **named):
    rehearse(*given, **named)
    tell(os.getpid())
names["_is_still"], names["_rehearse"] = tells, rehearses
"""


@pytest.mark.parametrize(("left", "may"), [
    ("import random", True),
    ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", False),
    ("signal.signal(signal.SIGUSR1, print)", False),
    ("import asyncio; task = asyncio.create_task(asyncio.sleep(1000))", False),
    ("sys.setprofile(lambda *_: None)", False),
    ("log = open('log', 'w')", False),
    ("ends = os.pipe()", False),
])
def test_a_further_branch_is_forked_ahead_unless_code_may_run_meanwhile(box: leeward.Sandbox, left: str, may: bool) -> None:
    """It has a seed of its own. What its kernel runs first ends it. One that is refused is in no later one's way."""
    def told(lines: int) -> str:
        poll_until(lambda: box.files.exists("told") and box.files.read("told").count(b"\n") >= lines, "nothing was told")
        return box.files.read("told").decode().split()[-1]

    def in_branch(code: str) -> str | None:
        with kernel.fork() as branch:
            return branch.execute(code).value

    kernel = box.kernel()
    kernel.execute(TELLS + left)
    drawn = [in_branch("__import__('random').random()")]
    since = time.monotonic()
    drawn.append(in_branch("__import__('random').random()"))
    ahead = told(1)
    assert may == (ahead != "0")
    if not may:
        assert ["1", "1"] == [in_branch("x"), in_branch("x")]
    else:
        assert not kernel.interrupt()
        for lines in itertools.count(2):
            before, expected = time.monotonic(), ahead
            drawn.append(in_branch("random.random(), os.getpid()"))
            late, since = time.monotonic() - since > AHEAD_S, before
            ahead = told(lines)
            assert drawn[-1] is not None
            if expected == drawn[-1].strip("()").split(", ")[1]:
                break
            assert late  # nobody asked for it in time, on a busy machine
        assert len(drawn) == len({each.strip("()").split(",")[0] for each in drawn if each})
        kernel.execute("x = 2")
        poll_until(lambda: "False" == kernel.execute(f"os.path.exists('/proc/{ahead}')").value, "it lives on")
        assert "(2, False)" == in_branch(f"x, os.getpid() == {ahead}")


def test_a_branch_that_cannot_be_made_is_in_no_later_ones_way(box: leeward.Sandbox) -> None:
    """Here since a stream of an earlier job can't be flushed."""
    kernel = box.kernel()
    kernel.execute("import sys\nx = 1\nclass Broken:\n    def __getattr__(self, name):\n        raise KeyError(name)\n"
                   "out, sys.stdout = sys.stdout, Broken()")
    with pytest.raises(leeward.SessionOver):
        kernel.fork().execute("x")
    kernel.execute("sys.stdout = out")
    with kernel.fork() as branch:
        assert "1" == branch.execute("x").value


@pytest.mark.parametrize("hostile", [
    "import os; os.close(5)",
    NAMES + "names['BranchSocket'].fork = lambda *_: (_ for _ in ()).throw(OSError('none'))",
    NAMES + "names['BranchSocket'].fork = lambda *_: 1",
])
def test_c269_a_kernel_that_forks_no_branch_harms_itself_alone(box: leeward.Sandbox, hostile: str) -> None:
    """The branch is over at its first request, and the sandbox goes on."""
    kernel = box.kernel()
    kernel.execute("x = 1")
    kernel.execute(hostile)
    branch = kernel.fork()
    with pytest.raises(leeward.SessionOver):
        branch.execute("x")
    assert "1" == kernel.execute("x").value
    assert "2" == box.kernel().execute("2").value


def test_branches_by_asyncio(daemon: LiveDaemon) -> None:
    """The same calls with await."""
    async def run() -> list[str | None]:
        async with leeward.AsyncSandbox(socket=daemon.socket) as box:
            kernel = await box.kernel()
            await kernel.execute("x = 1")
            branches = await asyncio.gather(*(kernel.fork() for _ in range(3)))
            got = await asyncio.gather(*(branch.execute(f"x += {n}; x") for n, branch in enumerate(branches)))
            return [each.value for each in got]

    assert ["1", "2", "3"] == asyncio.run(run())


def test_branches_leave_no_descriptor_or_group(daemon: LiveDaemon) -> None:
    """However they end."""
    def round_trip() -> None:
        with leeward.Sandbox(socket=daemon.socket) as box:
            kernel = box.kernel()
            branch = kernel.fork()
            branch.execute("1")
            branch.fork().execute("1")
            for _ in range(3):  # the last one may have been forked ahead, and one more be there
                branch.fork().execute("1")
            branch.close()

    round_trip()
    daemon.idle()
    before = held(daemon.process.pid)
    for _ in range(5):
        round_trip()
    daemon.idle()
    poll_until(lambda: held(daemon.process.pid) <= before, "the daemon holds more than before")


def test_c270_a_kernel_cannot_be_its_own_branch(daemon: LiveDaemon) -> None:
    """Nor can any process be one that the daemon has already: it would be ended and counted twice."""
    with leeward.Sandbox(socket=daemon.socket, timeout=1) as box:
        kernel = box.kernel()
        kernel.execute(NAMES + "os.fork = lambda: 0\nos.setsid = lambda: None\nfork = names['BranchSocket'].fork\n"
                               "names['BranchSocket'].fork = lambda self, pipes, _: fork(self, pipes, names['_fork'])")
        branch = kernel.fork()
        with pytest.raises(leeward.SessionOver, match="isn't a branch"):
            branch.execute("1")
        assert "2" == box.kernel().execute("2").value


#: In place of the branch it sends its door the last descriptor of a socket that lingers.
PASSES = NAMES + """
import array, socket, struct
kept = []
received, word = names["received"], names["wire"].BRANCH_WORD
def passing(door, *how):
    ends = received(door, *how)
    listener = socket.create_server(("127.0.0.1", 0))
    mine = socket.create_connection(listener.getsockname())
    kept.extend([listener, listener.accept()[0]])
    mine.setblocking(False)
    try:
        while True:
            mine.send(bytes(1 << 16))
    except BlockingIOError:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    with mine, socket.socket(fileno=os.dup(ends[0])) as far:
        for _ in range(WORDS):
            far.send(word)
        far.sendmsg([word], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine.fileno()]))])
    return ends
names["received"] = passing
"""


@pytest.mark.parametrize(("words", "rights"), [
    (1, True), (1, False), *([(0, True), (2, True)] if os.environ.get("LEEWARD_LONG") else [])])
def test_c492_a_kernel_cannot_have_the_daemon_close_what_lingers(tmp_path: Path, words: int, rights: bool) -> None:
    """Where the system refuses descriptors, and where it doesn't: the branch is over, and nobody waits for the close."""
    seconds = 4 * PATIENCE
    (tmp_path / "work").mkdir()
    with standing_still(tmp_path, rights=rights) as daemon, \
            leeward.Sandbox(socket=daemon.socket, profile="workdir", workdir=tmp_path / "work", timeout=8) as box:
        kernel = box.kernel()
        assert kernel.execute(PASSES.replace("SECONDS", str(int(seconds))).replace("WORDS", str(words))).ok
        began, branch = time.monotonic(), kernel.fork()
        with pytest.raises(leeward.SessionOver):
            branch.execute("1")
        assert "2" == kernel.execute("len(kept)").value
        with daemon.client() as client:
            assert b"on\n" == client.execute("print('on')").stdout
        assert time.monotonic() - began < seconds / 2

"""A runner for which somebody waits begins in C: its job finds what any other finds, and an interrupt is told."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from integration.test_rehearsal import state_in
from kit.box import Box, begins_with
from leeward.spec.outcome import Outcome
from leeward.wire import control

pytestmark = pytest.mark.needs("user-namespaces")

#: The frames below a job's code, as C sees them.
STACK = """
import sys
frame, names = sys._getframe(), []
while frame is not None:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
print("serve_started" in names, "main" in names)
"""

ARM = control.Arm


@pytest.fixture
def hurried() -> Iterator[None]:
    """Every runner is armed as one for which somebody waits."""
    class Hurried(ARM):
        __slots__ = ()

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "hurried": True})

    with mock.patch.object(control, "Arm", Hurried):
        yield


def test_only_a_runner_for_which_a_job_waits_begins_in_c(hurried: None) -> None:
    with Box() as box:
        assert b"True True\n" == box.run(STACK).stdout
    with mock.patch.object(control, "Arm", ARM), Box() as box:
        assert b"False True\n" == box.run(STACK).stdout  # control


def test_a_job_finds_the_same_state_however_its_runner_began(hurried: None) -> None:
    with Box() as box:
        begun = state_in(box)
    with mock.patch.object(control, "Arm", ARM), Box() as box:
        assert state_in(box) == begun  # control


def test_no_two_jobs_draw_the_same_numbers(hurried: None) -> None:
    with Box() as box:
        drawn = [box.run("import random\nprint(random.random(), random.gauss(0, 1), random.getrandbits(64))").stdout
                 for _ in range(8)]

    assert 8 == len(set(drawn))


@pytest.mark.parametrize("code", ["print(input())", "import os\nprint(os.read(3, 1))"])
def test_the_job_pipe_of_a_runner_that_begins_in_c_is_empty(hurried: None, code: str) -> None:
    with Box() as box:
        got = box.run(code)

    assert got.exit_code == 1
    assert b"EOFError" in got.stderr or b"Bad file descriptor" in got.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_before_the_first_line_is_reported(hurried: None, times: int) -> None:
    """SIGINT while it waits in C for its frame: the interpreter hears of it when it is back."""
    with Box(spares=0) as box:
        box.settle()
        (worker,) = box.engine.main.pool.workforce.workers
        (runner,) = worker.arming.runners.values()
        for _ in range(times):
            assert runner.signal(signal.SIGINT)
        got = box.run("print('not here')")
        again = box.run("print('here')")

    assert (Outcome.RAISED, b"") == (got.outcome, got.stdout)
    assert got.error is not None
    assert "KeyboardInterrupt" == got.error.type
    assert b"here\n" == again.stdout


@pytest.mark.parametrize("fields", [
    {"files": {"data": b"content"}}, {"args": ("one", "two")}, {"collect": ("*.txt",)}, {"stdin": b"text"},
])
def test_a_job_with_more_than_code(hurried: None, fields: dict[str, Any]) -> None:
    with Box() as box:
        got = box.run("import os, sys\nopen('a.txt', 'w').write('x')\n"
                      "print(sorted(os.listdir()), sys.argv[1:], sys.stdin.read())", **fields)

    assert 0 == got.exit_code, got.stderr
    assert "a.txt" in got.stdout_text


#: What a job can tell of its locks: of its process and its init, limits, mounts, ids, network and groups. Numbers of this
#: run are left out.
LOCKS_SEEN = """
import ctypes, json, os, re, socket

def tried(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return error.errno

def text(path):
    got = tried(lambda: open(path).read())
    return got if isinstance(got, int) else re.sub("leeward[-._0-9a-z/]*", "", got)

libc = ctypes.CDLL(None, use_errno=True)
status = "^(?:Umask|[UG]id|Groups|NSpid|Shd.*|Sig(?!Q).*|Cap.*|NoNewPrivs|Seccomp.*|Spec.*|THP.*|CoreDumping)"
print(json.dumps({
    "processes": [re.findall(f"{status}:.*$", text(f"/proc/{pid}/status"), re.MULTILINE) for pid in ("1", "self")],
    "files": {path: text(path) for path in (
        "/proc/self/limits", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups", "/proc/self/cgroup",
        "/proc/net/dev", "/.sealed", "/proc/1/mem")},
    "mounts": [line.split()[4:] for line in open("/proc/self/mountinfo")],
    "folders": {path: tried(os.listdir, path) for path in ("/", "/dev", "/etc", "/proc/sys", "/workspace", "/proc/self/ns")},
    "prctl": [libc.prctl(number, 0, 0, 0, 0) for number in (3, 7, 21, 23, 27, 30, 39, 42)],
    "ids": [os.getsid(0), os.getpgid(0), os.getpid(), os.getppid(), socket.gethostname(), len(os.sched_getaffinity(0))],
    "refused": [tried(os.open, "/", os.O_TMPFILE | os.O_RDWR), tried(os.kill, 1, 9), tried(socket.sethostname, "other"),
                tried(socket.socket, socket.AF_PACKET, socket.SOCK_RAW), tried(os.chroot, "/tmp"), tried(os.setuid, 0),
                tried(socket.socket), sum(libc.inotify_init1(0) >= 0 for _ in range(200))],
}))
"""

#: A zygote's beginning with which its keepers, or their runners, take their steps in Python.
IN_PYTHON = "from leeward.crossing import keeper\nkeeper._settles_in_c = keeper._begins_in_c = lambda: False\n"


def test_a_job_has_the_same_locks_however_its_keeper_and_its_runner_began(hurried: None) -> None:
    """In C or in Python: what one of the two leaves out shows here."""
    with Box() as box:
        in_c = box.run(LOCKS_SEEN)
    with begins_with(IN_PYTHON), Box() as box:
        assert b"False True\n" == box.run(STACK).stdout
        in_python = box.run(LOCKS_SEEN)

    assert (b"", b"") == (in_c.stderr, in_python.stderr)
    # Each worker has a user id of its own, and on a busy machine another one may take the job.
    python, c = (json.loads(re.sub(rb"\b200\d{7}\b", b"its own", got.stdout)) for got in (in_python, in_c))
    assert python == c
    assert in_python.denied == in_c.denied

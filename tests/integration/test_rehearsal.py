"""A job can't tell whether its process has rehearsed."""

from __future__ import annotations

import functools
import json
from typing import Any, cast

import pytest

from kit.box import Box
from leeward.daemon.pool import confinement
from leeward.isolation.plan import WorkerPlan

#: Everything that a rehearsal touches, as a job sees it.
LOOK = """
import atexit, gc, json, linecache, os, signal, sys, threading, warnings

def state_of(fd):
    try:
        seen = os.fstat(fd)
    except OSError:
        return None
    try:
        offset = os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        offset = None
    return seen.st_mode, offset, os.get_inheritable(fd)

named = [each for each in gc.get_objects() if callable(each) and "rehearse" == getattr(each, "__name__", "")]
mains = [each for each in gc.get_objects() if isinstance(each, type(sys)) and "__main__" == each.__name__]
print(json.dumps({
    "modules": sorted(sys.modules),
    "argv": sys.argv,
    "path": sys.path,
    "environ": dict(os.environ),
    "lines": sorted(linecache.cache),
    "descriptors": {fd: state_of(fd) for fd in range(100)},
    "folders": [os.getcwd(), os.listdir("/workspace"), os.listdir("/tmp"), os.listdir("/dev/shm")],
    "threads": [threading.active_count(), threading.main_thread().is_alive()],
    "atexit": atexit._ncallbacks(),
    "signals": {str(number): str(getattr(signal.getsignal(number), "__qualname__", signal.getsignal(number)))
                for number in signal.valid_signals()},
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "warnings": [len(warnings.filters), len(warnings.onceregistry), "__warningregistry__" in globals()],
    "globals": sorted(globals()),
    "last": [name for name in ("last_type", "last_value", "last_traceback") if hasattr(sys, name)],
    "streams": [sys.stdout.line_buffering, sys.stdout.errors, sys.stderr.line_buffering, sys.stdin.read()],
    "left": [len(named), len(mains)],
}))
"""


def state_in(box: Box) -> dict[str, Any]:
    """What a job of the box finds, by LOOK."""
    got = box.run(LOOK)
    assert b"" == got.stderr
    return cast("dict[str, Any]", json.loads(got.stdout))


def test_a_job_finds_the_same_state_with_and_without_a_rehearsal(monkeypatch: pytest.MonkeyPatch):
    with Box() as box:
        rehearsed = state_in(box)
    monkeypatch.setattr(confinement, "WorkerPlan", functools.partial(WorkerPlan, rehearse=False))
    with Box() as box:
        assert state_in(box) == rehearsed  # control

    assert [0, 1] == rehearsed["left"]


def test_a_rehearsal_has_no_visible_output():
    """It prints; an empty job has no output, and no error."""
    with Box() as box:
        got = box.run("")

    assert (b"", b"", 0, None) == (got.stdout, got.stderr, got.exit_code, got.error)
    assert {} == got.denied


def test_a_rehearsal_takes_the_page_faults_of_a_first_job():
    """Counted, not timed: what runs before the code itself is the reading of the job."""
    code = """
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        exec(compile("def f(x):\\n    return [str(i) for i in range(x)]\\nprint(f(3), flush=True)", "<x>", "exec"), {})
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """

    def faults(rehearse: bool) -> int:
        with Box(rehearse=rehearse) as box:
            return int(box.run(code).stdout.split()[-1])

    assert faults(True) * 2 < faults(False)

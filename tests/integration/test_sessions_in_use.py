"""
Sessions as people use them: what tracebacks show, how `exit()` ends, what a time limit leaves, and that no output is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kit import reactors
from kit.box import Box
from kit.sessions import Peer, Wire
from leeward.daemon.loop.native import NativeReactor

GRACE_S = 0.5


@pytest.fixture(scope="module", params=[reactors.REFERENCE, "native"])
def loop(request: pytest.FixtureRequest) -> str:
    """All in Python; and the shim's, where plain jobs take the fast path."""
    return str(request.param)


@pytest.fixture(scope="module")
def box(loop: str) -> Iterator[Box]:
    with _box(loop, GRACE_S) as made:
        yield made


@pytest.fixture
def peer(box: Box) -> Iterator[Peer]:
    """A client with one session, which is number 1."""
    with _session(box) as made:
        yield made


@pytest.fixture
def patient(loop: str) -> Iterator[Peer]:
    """The same; however busy the machine is, a job gets a processor within the grace."""
    with _box(loop, 60.0) as box, _session(box) as made:
        yield made


def _box(loop: str, grace: float) -> Box:
    made_by = NativeReactor("auto", fast_path=True) if "native" == loop else reactors.reactor(loop)
    return Box(pool_size=2, spares=0, max_sessions=1, session_grace=grace, reactor=made_by)


@contextmanager
def _session(box: Box) -> Iterator[Peer]:
    with Wire(box) as wire:
        made = wire.peer()
        assert 1 == made.open(limits={"time": 20.0})
        yield made


# --- tracebacks -------------------------------------------------------------------


def test_a_traceback_shows_the_lines_of_earlier_jobs(peer: Peer):
    """Of jobs that did not raise, and whose code has no newline at its end."""
    peer.run(1, "def f(x):\n    return g(x) + 1")
    peer.run(1, "def g(x): return x / 0")
    got = peer.run(1, "f(2)")

    assert got["stderr"].decode() == got["error"]["traceback"] == (
        'Traceback (most recent call last):\n'
        '  File "<job 3>", line 1, in <module>\n'
        '    f(2)\n'
        '  File "<job 1>", line 2, in f\n'
        '    return g(x) + 1\n'
        '           ^^^^\n'
        '  File "<job 2>", line 1, in g\n'
        '    def g(x): return x / 0\n'
        '                     ~~^~~\n'
        'ZeroDivisionError: division by zero\n')


def test_the_source_of_a_function_of_an_earlier_job(peer: Peer):
    peer.run(1, "import functools\ndef plain(x):\n    # twice\n    return 2 * x\n")
    peer.run(1, "@functools.lru_cache\ndef cached(): return 1", name="a cell")
    got = peer.run(1, "import inspect\nprint(inspect.getsource(plain), inspect.getsource(cached), sep='|', end='')")

    assert b"def plain(x):\n    # twice\n    return 2 * x\n|@functools.lru_cache\ndef cached(): return 1\n" == got[
        "stdout"], got["stderr"]


def test_a_traceback_has_suggestions_and_no_frames_of_leeward(peer: Peer):
    peer.run(1, "import inspect, traceback\ndef stack(): return [(f.filename, f.function) for f in inspect.stack()]")
    got = peer.run(1, "print(stack())\ntraceback.print_stack()\ninpsect")

    assert b"[('<job 1>', 'stack'), ('<job 2>', '<module>')]\n" == got["stdout"]
    assert b'  File "<job 2>", line 2, in <module>\n    traceback.print_stack()\n' in got["stderr"]
    assert b"leeward" not in got["stderr"]
    assert got["stderr"].endswith(b"NameError: name 'inpsect' is not defined. Did you mean: 'inspect'?\n")


# --- exit() -------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["exit", "quit", "sys.exit"])
def test_exit_ends_a_job_and_no_more(peer: Peer, leave: str):
    """State, standard input and streams are there for the next one."""
    left = peer.run(1, f"import sys\nx = 1\nprint('before')\n{leave}(3)\nprint('after')")
    said = peer.run(1, f"{leave}('why')")
    got = peer.run(1, f"print(x, sys.stdin.closed, sys.stdin.read() == '', {leave} is not None)")

    assert ("finished", 3, b"before\n") == (left["outcome"], left["exit_code"], left["stdout"])
    assert (1, b"why\n") == (said["exit_code"], said["stderr"])
    assert b"1 False True True\n" == got["stdout"], got


# --- the time limit -------------------------------------------------------------------


STOPPED = {
    "sleeps": "import time; time.sleep(60)",
    "spins": "while True: pass",
    "waits": "import threading; threading.Event().wait()",
    "handles it": "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('handled')",
    "waits for a child": "import subprocess; subprocess.run(['sleep', '60'])",
}


@pytest.mark.parametrize("way", STOPPED)
def test_a_time_out_leaves_the_state(peer: Peer, way: str):
    """It interrupts; what was printed and written before comes back, and the session goes on."""
    peer.run(1, "x = 'kept'")
    got = peer.run(1, "open('/workspace/f', 'w').write('1')\nprint('before')\nprint('half', end='')\n" + STOPPED[way],
                   limits={"time": 0.2}, collect=["f"])
    after = peer.run(1, "print(x)")

    assert ("timed_out", 124, "time") == (got["outcome"], got["exit_code"], got["limit"])
    assert got["stdout"].startswith(b"before\nhalf")
    assert {"f": b"1"} == got["files"]
    assert 0.2 <= got["duration"]
    if "handles it" == way:
        assert (b"before\nhalfhandled\n", None) == (got["stdout"], got["error"])
    else:
        assert "KeyboardInterrupt" == got["error"]["type"]
        assert b"KeyboardInterrupt" in got["stderr"]
        assert b"leeward" not in got["stderr"]
    assert b"kept\n" == after["stdout"], after


@pytest.mark.parametrize("code", [
    "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
    "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(60)",
    "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(60)",
    "sum(range(1 << 62))"], ids=["catches all", "ignores it", "blocks it", "is in C"])
def test_a_job_that_does_not_end_by_that_is_killed(peer: Peer, code: str):
    """When the grace is over, not before: by itself none of them ends."""
    got = peer.run(1, f"print('before')\n{code}", limits={"time": 0.2})
    refused = peer.run(1, "pass")

    assert ("timed_out", 124, "time", b"before\n") == (
        got["outcome"], got["exit_code"], got["limit"], got["stdout"])
    assert 0.2 + GRACE_S <= got["duration"]
    assert ("session_over", True) == (refused["kind"], "time limit" in refused["message"])
    assert {} == peer.ask("session_reset", session=1)
    assert b"1\n" == peer.run(1, "print(1)")["stdout"]


def test_a_job_that_dies_of_the_interrupt_has_timed_out(peer: Peer):
    got = peer.run(1, "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\ntime.sleep(60)",
                   limits={"time": 0.2})

    assert ("timed_out", 124, "time") == (got["outcome"], got["exit_code"], got["limit"])
    assert "session_over" == peer.run(1, "pass")["kind"]


def test_other_limits_hold_in_the_grace(peer: Peer):
    got = peer.run(1, "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt:\n    print('x' * 3_000_000)",
                   limits={"time": 0.2, "output": 1 << 20, "overflow": "end"})

    assert ("output_limit", "output") == (got["outcome"], got["limit"])
    assert "output limit" in peer.run(1, "pass")["message"]


def test_a_time_out_never_hits_a_later_job(patient: Peer):
    """Jobs that last about as long as their limit: the interrupt hits, or comes too late and is forgotten."""
    hit = 0
    for count in range(60):
        got = patient.run(1, f"for n in range({count * count * 200}): pass", limits={"time": 0.01})
        assert got["outcome"] in ("finished", "timed_out")
        hit += "timed_out" == got["outcome"]
        quiet = patient.run(1, "n = 0\nfor _ in range(2000): n += 1\nprint(n)")
        assert (b"2000\n", b"", None) == (quiet["stdout"], quiet["stderr"], quiet["error"])
    assert hit


def test_without_a_grace_the_limit_ends_the_session():
    with Box(pool_size=2, spares=0, max_sessions=1, session_grace=0.0) as box, Wire(box) as wire:
        peer = wire.peer()
        peer.open()
        got = peer.run(1, "while True: pass", limits={"time": 0.2})
        assert ("timed_out", None) == (got["outcome"], got["error"])
        assert "session_over" == peer.run(1, "pass")["kind"]


# --- no output is lost ----------------------------------------------------------------


#: How a job ends in the middle, and as what; all of them end the session.
CUT = {
    "time": ("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "timed_out"),
    "output": ("sys.__stderr__.write('x' * 3_000_000)", "output_limit"),
    "signal": ("os.kill(os.getpid(), 9)", "signalled"),
    "abort": ("os.abort()", "signalled"),
    "exit": ("os._exit(3)", "finished"),
}

WRITERS = {
    "print": "print('said')",
    "sys.stdout replaced": "import io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)\n"
                           "print('said')",
    "a subprocess": "import subprocess; subprocess.run(['echo', 'said'])",
    "a subprocess's pipe": "import subprocess\nprint(subprocess.run(['echo', 'said'], stdout=-1, text=True).stdout,"
                           " end='')",
    "the system": "os.system('echo said')",
}


@pytest.mark.parametrize("end", CUT)
@pytest.mark.parametrize("writer", WRITERS)
def test_output_before_an_end_in_the_middle_comes_back(peer: Peer, writer: str, end: str):
    code, outcome = CUT[end]
    peer.run(1, "import os, sys")
    got = peer.run(1, f"{WRITERS[writer]}\n{code}", limits={"time": 0.4, "output": 1 << 20, "overflow": "end"})

    assert (outcome, b"said\n") == (got["outcome"], got["stdout"]), got


def test_output_before_the_memory_ran_out_comes_back(peer: Peer):
    """Without a group that counts memory so large a piece is refused by an rlimit: a MemoryError, and the session lives."""
    got = peer.run(1, "print('said')\nx = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1")

    assert b"said\n" == got["stdout"]
    assert (got["outcome"], got["limit"]) in (("out_of_memory", "memory"), ("raised", "memory"))


def test_a_signal_in_a_session_is_reported_with_its_place(peer: Peer):
    peer.run(1, "import ctypes\ndef f():\n    return ctypes.string_at(0)")
    got = peer.run(1, "print('said')\nf()")

    assert ("signalled", 139, b"said\n") == (got["outcome"], got["exit_code"], got["stdout"])
    assert got["error"]["message"].startswith("killed by SIGSEGV: segmentation fault, in string_at (")
    assert got["error"]["traceback"].startswith("Fatal Python error: Segmentation fault\n")
    assert '  File "<job 1>", line 3 in f\n  File "<job 2>", line 2 in <module>\n' in got["error"]["traceback"]
    assert "inside/program.py" not in got["error"]["traceback"]

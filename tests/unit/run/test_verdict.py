"""
What the daemon makes of an end: the last words of a job that a signal has ended, and an end after the time limit.
"""

from __future__ import annotations

import random
import signal

import pytest

from leeward.outcome import EXIT_TIMED_OUT, JobError, Limit, Outcome
from leeward.run.verdict import Stop, Verdict, ended, last_words, overdue, stopped

WORDS = """\
something else
Fatal Python error: Segmentation fault

Thread 0x00007f0b6b46e000 (most recent call first):
  File "/usr/lib/python3/threading.py", line 9 in wait

Current thread 0x00007f0b6b46eb80 (most recent call first):
  File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at
  File "<string>", line 7 in <module>
  File "/opt/leeward/inside/program.py", line 105 in _run_code
  File "/opt/leeward/inside/main.py", line 91 in serve
  File "<string>", line 1 in <module>

Extension modules: numpy.core (total: 1)
"""


def test_the_last_words_without_our_frames() -> None:
    trace, place = last_words(WORDS.encode())

    assert trace.startswith("Fatal Python error: Segmentation fault\n\nThread 0x")
    assert trace.endswith('line 519 in string_at\n  File "<string>", line 7 in <module>\n\nExtension modules:'
                          " numpy.core (total: 1)\n")
    assert ', in string_at ("/usr/lib/python3/ctypes/__init__.py", line 519)' == place


@pytest.mark.parametrize("words", [b"", b"Fatal Python", b"Fatal", b"said", "é".encode()[:1]])
def test_no_last_words(words: bytes) -> None:
    assert ("", "") == last_words(words)


@pytest.mark.parametrize("words", [
    b"Fatal Python error: Aborted", b"Fatal Python error: \xff\n\nCurrent thread 0x1 (most recent call first):\n",
    b'Fatal Python error: x\n  File "' + b"a" * 9000 + b'", line 1 in f\n'])
def test_words_without_a_place(words: bytes) -> None:
    trace, place = last_words(words)
    assert trace.startswith("Fatal Python error: ")
    assert not place


def test_any_words_are_only_text() -> None:
    """
    They are the job's: cut, repeated and garbled words give text, of a bounded length, and no exception.
    """
    dice, source = random.Random(1), WORDS.encode()
    for _ in range(5000):
        pieces = [source[dice.randrange(len(source)):][:dice.randrange(200)] for _ in range(dice.randrange(1, 12))]
        words = dice.choice((b"", b"Fatal Python error: ")) + b"".join(pieces) + dice.randbytes(3)
        trace, place = last_words(words)
        assert len(trace) <= 3 * len(words)
        assert len(place) < 500


@pytest.mark.parametrize(("number", "traced"), [(signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False),
                                                (signal.SIGTERM, False)])
def test_words_belong_to_the_signals_that_faulthandler_tells_of(number: int, traced: bool) -> None:
    error = ended(number, "", oom=False, words=WORDS.encode()).error
    assert error is not None
    assert traced == bool(error.traceback) == ("string_at" in error.message)


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.RAISED, Outcome.SIGNALLED])
def test_an_end_after_the_limit_is_a_time_out(outcome: Outcome) -> None:
    """
    With what it told and brought.
    """
    error = JobError("KeyboardInterrupt", "", "trace")
    got = overdue(Verdict(outcome, 130, error=error, files={"f": b"1"}))
    assert Verdict(Outcome.TIMED_OUT, EXIT_TIMED_OUT, Limit.TIME, error, {"f": b"1"}) == got


@pytest.mark.parametrize("why", [Stop.OUTPUT, Stop.MEMORY, Stop.REPLY, Stop.CANCELLED, Stop.TIME])
def test_what_ended_it_after_the_limit_is_told_as_it_is(why: Stop) -> None:
    assert stopped(why) == overdue(stopped(why))

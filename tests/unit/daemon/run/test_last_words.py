"""What faulthandler wrote of a job, without our frames, whatever bytes a job has put there."""

from __future__ import annotations

import random
import time

import pytest

from leeward.daemon.run.verdict import read

PACKAGE = "/opt/leeward"

#: A job's thread, and its main thread, in which a function of ours was called by it and calls it.
WORDS = """\
something else
  File "/opt/leeward/inside/program.py", line 105 in _run_code
Fatal Python error: Segmentation fault

Thread 0x00007f0b6b46e000 (most recent call first):
  File "/usr/lib/python3/threading.py", line 9 in wait
  File "<string>", line 3 in work

Thread 0x00007f0b6b46e111 (most recent call first):
  File "/opt/leeward/inside/functions.py", line 9 in _receive
  File "/opt/leeward/inside/functions.py", line 3 in run

Current thread 0x00007f0b6b46eb80 (most recent call first):
  File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at
  File "<string>", line 2 in _repr_html_
  File "/opt/leeward/inside/showing.py", line 91 in add
  File "/workspace/leeward/inside/program.py", line 1 in mine
  File "<string>", line 7 in <module>
  File "/opt/leeward/inside/program.py", line 105 in _run_code
  File "/opt/leeward/inside/main.py", line 91 in serve
  File "/opt/leeward/crossing/zygote.py", line 68 in main
  File "<string>", line 4 in <module>
  File "<string>", line 1 in <module>

Extension modules: numpy.core (total: 1)
  File "/opt/leeward/inside/main.py", line 1 in later
"""

#: Lines of it that are left out, counted from 0.
OURS = (8, 9, 10, 11, 15, 18, 19, 20, 21, 22)


def without(lines: str) -> str:
    return "".join(line for number, line in enumerate(lines.splitlines(keepends=True)) if number not in OURS)


def test_only_leewards_frames_are_left_out() -> None:
    fault = read(WORDS.encode(), PACKAGE)

    assert without(WORDS) == fault.words.decode()
    assert fault.trace == without(WORDS)[WORDS.index("Fatal"):]
    assert ', in string_at ("/usr/lib/python3/ctypes/__init__.py", line 519)' == fault.place


def test_a_text_whose_beginning_was_cut_off_loses_them_too() -> None:
    cut = WORDS[WORDS.index("Current thread"):]
    fault = read(cut.encode(), PACKAGE)

    assert ("", "") == (fault.trace, fault.place)
    assert b"/opt/leeward/inside/showing.py" not in fault.words
    assert b"/opt/leeward/crossing" not in fault.words


def test_the_thread_with_the_fault_stays_though_all_its_frames_are_leewards() -> None:
    words = (b"Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
             b'  File "/opt/leeward/inside/program.py", line 2 in wind_up\n\n')
    assert words.partition(b"  File")[0] + b"\n" == read(words, PACKAGE).words


def test_only_the_last_text_is_touched() -> None:
    fault = read(WORDS.encode() + WORDS.encode(), PACKAGE)

    assert WORDS + without(WORDS) == fault.words.decode()


def test_frames_of_another_installation_stay() -> None:
    assert WORDS.encode() == read(WORDS.encode(), "/elsewhere/leeward").words


def test_a_folder_is_known_by_the_way_faulthandler_writes_it() -> None:
    """In ASCII, with escapes."""
    words = WORDS.replace(PACKAGE, "/opt/\\xe9\\u0119/leeward")
    assert b"showing.py" not in read(words.encode(), "/opt/\xe9\u0119/leeward").words


@pytest.mark.parametrize("words", [b"", b"Fatal Python", b"Fatal", b"said", "\xe9".encode()[:1], b"\n\n", b"\0"])
def test_no_last_words(words: bytes) -> None:
    assert (words, "", "") == read(words)


@pytest.mark.parametrize("words", [
    b"Fatal Python error: Aborted", b"Fatal Python error: \xff\n\nCurrent thread 0x1 (most recent call first):\n",
    b'Fatal Python error: x\n  File "' + b"a" * 9000 + b'", line 1 in f\n'])
def test_words_without_a_place(words: bytes) -> None:
    fault = read(words)
    assert fault.trace.startswith("Fatal Python error: ")
    assert (words, "") == (fault.words, fault.place)


def test_any_words_are_only_text() -> None:
    """
    They are the job's: cut, repeated and garbled words give text, of a bounded length, and no exception. What is left
    is what was there, but for whole lines.
    """
    dice, source = random.Random(1), WORDS.encode()
    for _ in range(5000):
        pieces = [source[dice.randrange(len(source)):][:dice.randrange(200)] for _ in range(dice.randrange(1, 12))]
        words = dice.choice((b"", b"Fatal Python error: ")) + b"".join(pieces) + dice.randbytes(3)
        fault = read(words, PACKAGE)
        assert len(fault.trace) <= 3 * len(words)
        assert len(fault.place) < 500
        there = iter(words.split(b"\n"))
        assert all(line in there for line in fault.words.split(b"\n"))


@pytest.mark.parametrize("piece", [
    b'  File "', b'  File "/opt/leeward/inside/', b"Current thread 0x1 (most recent call first):\n", b"Thread 0x",
    b"Fatal Python error: ", b"\n", b'  File "<string>", line 1 in '])
def test_reading_takes_no_longer_for_odd_words(piece: bytes) -> None:
    """As much as is ever read, within what a loop that serves others can spare."""
    words = piece * (16384 // len(piece))
    took = []
    for _ in range(5):
        begun = time.thread_time()
        read(words, PACKAGE)
        took.append(time.thread_time() - begun)

    assert min(took) < 0.05

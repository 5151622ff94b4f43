"""
Removes leeward's frames from the text that faulthandler has written about a job's fault.

Runs in:   the daemon; pure.
Trust:     none in the bytes: they are the end of a job's stderr, as long as `Output.tail` returns it. Each line is
           read once. Only lines that name a file of our own package are removed.

faulthandler writes each thread's frames from the innermost outwards. A job's frames come first. Below them are those of
`inside` and `crossing`, which called the job's code, and then two frames of the zygote's first lines, which have no
file. Frames of leeward are between a job's frames where the job called leeward: `display`, or a client's function.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: The beginning of faulthandler's text.
FAULT = b"Fatal Python error: "

# Compiled at the first fault: that takes 2 ms, for which a daemon's start doesn't wait.
_THREAD = rb"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}[^\n]{0,200} \(most recent call first\):$"
_FRAME = rb'^  File "([^"\n]{1,600})", line (?:[0-9]{1,9}|\?\?\?) in [^\n]{1,600}$'

#: The beginning of the line for a thread other than the one with the fault.
_OTHER = b"Thread 0x"

#: The file name in a frame of the zygote's first lines.
_NO_FILE = b"<string>"

_PLACE = r'^  File ("[^"\n]{1,300}"), line (\d{1,9}) in (.{1,100})$'


class Fault(NamedTuple):
    """
    The result of `read`.

    Attributes:
        words: the given bytes without leeward's frames.
        trace: faulthandler's text in `words`, empty if there is none.
        place: where the fault was, as ', in f ("file", line 1)'; empty if the text doesn't say.
    """

    words: bytes
    trace: str
    place: str


def read(words: bytes, package: str = _PACKAGE) -> Fault:
    """
    Remove leeward's frames from the last text of faulthandler in *words*.

    Args:
        words: the end of a job's stderr. Untrusted.
        package: the folder of leeward's package, whose `inside` and `crossing` ran the job.
    """
    at = words.rfind(FAULT)
    before, text = (words[:max(at, 0)], words[max(at, 0):])
    text = _without_ours(text, package)
    if at < 0:
        return Fault(text, "", "")
    trace = text.decode("utf-8", "replace")
    current = trace.partition("Current thread")[2].partition("\n\n")[0] or trace
    frame = re.search(_PLACE, current, re.MULTILINE)
    return Fault(before + text, trace, "" if frame is None else f", in {frame[3]} ({frame[1]}, line {frame[2]})")


def _without_ours(text: bytes, package: str) -> bytes:
    inside, crossing = (_as_written(f"{package}/{room}/") for room in ("inside", "crossing"))
    kept: list[bytes] = []
    in_thread = below = left = False  # among a thread's frames; below a frame of the job; frames were left out
    for line in text.split(b"\n"):
        frame = re.match(_FRAME, line) if in_thread else None
        if frame is None:
            if left and kept[-1].startswith(_OTHER) and not line:
                kept.pop()  # a thread with leeward's frames only is removed, with its empty line
            else:
                kept.append(line)
            in_thread, below, left = re.match(_THREAD, line) is not None, False, False
        elif frame[1].startswith(crossing):
            below = left = True
        elif frame[1].startswith(inside) or (below and frame[1] == _NO_FILE):
            left = True
        else:
            kept.append(line)
    return b"\n".join(kept)


def _as_written(path: str) -> bytes:
    """*path* as faulthandler writes it: in ASCII."""
    return path.encode("ascii", "backslashreplace")

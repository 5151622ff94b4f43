"""
The Node of a `WorkdirSandbox`: what it may have of the memory, what code it takes, and how its end is told.

Runs in:   anybody's program; pure.
"""

from __future__ import annotations

from leeward.dataclass import replace
from leeward.errors import RequestRejected
from leeward.outcome import EXIT_OUT_OF_MEMORY, Limit, Outcome, Result
from leeward.spec.sizes import parse_size

#: What Node does without arguments and without a terminal is to read a program from stdin, which is empty here.
USAGE = "echo 'usage: node [options] [-e CODE | -p CODE | FILE] [arguments]' >&2; exit 2"

#: What V8 writes before it aborts because its heap is full, and the status of that.
_HEAP_FULL, _ABORTED = b"JavaScript heap out of memory", 134

#: Bytes of code that `node -e` takes: MAX_ARG_STRLEN of the kernel, with a NUL behind.
MOST_CODE = (128 << 10) - 1
#: Characters of code that goes by standard input: no more than an argument has.
MOST_WARM = (128 << 10) // 4


def heap_of(memory: int | str) -> int:
    """
    MiB of V8's heap in a sandbox with so many bytes of memory: V8 is to give up before the kernel has no page left,
    which takes longer, and once took until the time limit.

    Raises:
        RequestRejected: *memory* is neither a whole number nor a size.
    """
    size = parse_size(memory) if isinstance(memory, str) else memory
    if type(size) is not int:
        raise RequestRejected(f"memory is a whole number of bytes or a size such as '512M', not {memory!r:.40}")
    total = size >> 20
    return max(16, total - 64 - total // 8)


def check_code(code: object) -> None:
    """
    Raises:
        RequestRejected: *code* is no text, or more than `node -e` takes.
    """
    if not isinstance(code, str):
        raise RequestRejected(f"code is JavaScript as text, not {type(code).__name__}")
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        raise RequestRejected(f"code can't be sent: {error}") from None
    if size > MOST_CODE:
        raise RequestRejected(f"code has {size} bytes, and `node -e` takes {MOST_CODE} at most: write_file('job.js',"
                              " code), and then exec('node', ['job.js'])")


def told(got: Result) -> Result:
    """
    A heap that is full isn't an abort.
    """
    if _ABORTED == got.exit_code and _HEAP_FULL in got.stderr:
        return replace(got, outcome=Outcome.OUT_OF_MEMORY, exit_code=EXIT_OUT_OF_MEMORY, limit=Limit.MEMORY)
    return got

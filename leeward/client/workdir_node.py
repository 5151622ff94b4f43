"""The Node of a `WorkdirSandbox`: the size of its heap, the code that it accepts, and the result when its heap is full."""

from __future__ import annotations

from leeward.dataclass import replace
from leeward.errors import RequestRejected
from leeward.outcome import EXIT_OUT_OF_MEMORY, Limit, Outcome, Result
from leeward.spec.sizes import parse_size

#: The shell line that runs for `node` without arguments. Node would read a program from stdin, which is empty here.
USAGE = "echo 'usage: node [options] [-e CODE | -p CODE | FILE] [arguments]' >&2; exit 2"

#: The text that V8 writes before it aborts because its heap is full, and the exit code of that abort.
_HEAP_FULL, _ABORTED = b"JavaScript heap out of memory", 134

#: Bytes of code that `node -e` accepts: MAX_ARG_STRLEN of the kernel, minus the NUL at the end.
MOST_CODE = (128 << 10) - 1
#: Characters of code that is sent by standard input: a quarter of 128 KiB, as each may have 4 bytes of UTF-8.
MOST_WARM = (128 << 10) // 4


def heap_of(memory: int | str) -> int:
    """
    The limit on V8's heap, in MiB, in a sandbox of *memory*: lower than the sandbox's, so that V8 aborts before the
    kernel runs out of pages for the sandbox, which takes longer, at worst until the time limit.
    """
    size = parse_size(memory) if isinstance(memory, str) else memory
    if type(size) is not int:
        raise RequestRejected(f"memory is a whole number of bytes or a size such as '512M', not {memory!r:.40}")
    total = size >> 20
    return max(16, total - 64 - total // 8)


def check_code(code: object) -> None:
    """Raise RequestRejected unless *code* is text of at most MOST_CODE bytes, which `node -e` accepts."""
    if not isinstance(code, str):
        raise RequestRejected(f"code is JavaScript as text, not {type(code).__name__}")
    try:
        size = len(code.encode())
    except UnicodeEncodeError as error:
        raise RequestRejected(f"code can't be sent: {error}") from None
    if size > MOST_CODE:
        raise RequestRejected(f"code has {size} bytes, and `node -e` takes {MOST_CODE} at most: write_file('job.js',"
                              " code), and then exec('node', ['job.js'])")


def with_heap_limit(got: Result) -> Result:
    """*got*, or, if V8 aborted because its heap was full, a copy of *got* with the outcome OUT_OF_MEMORY."""
    if got.exit_code == _ABORTED and _HEAP_FULL in got.stderr:
        return replace(got, outcome=Outcome.OUT_OF_MEMORY, exit_code=EXIT_OUT_OF_MEMORY, limit=Limit.MEMORY)
    return got

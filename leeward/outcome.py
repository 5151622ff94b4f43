"""
How a job ended, and what it left.

Runs in:   anywhere; pure data.
Trust:     the daemon says outcome, limit, times and counts. stdout, stderr, files and
           the error text are the job's own bytes, bounded and never interpreted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from leeward.dataclass import dataclass, field


class Outcome(enum.StrEnum):
    """
    The way a job ended. Exactly one holds.
    """

    FINISHED = "finished"            # ran to its end, or sys.exit
    RAISED = "raised"                # an exception left the main module
    SIGNALLED = "signalled"          # a signal ended its main process
    TIMED_OUT = "timed_out"          # the time limit, counted from sending the code
    OUT_OF_MEMORY = "out_of_memory"  # the kernel or the memory watch ended it
    OUTPUT_LIMIT = "output_limit"    # stdout and stderr together went past their limit
    INTERNAL = "internal"            # the worker was lost under it; `error` says why


class Limit(enum.StrEnum):
    """
    The limit that a job ran into, whether or not that ended it.
    """

    MEMORY = "memory"
    PROCESSES = "processes"
    FILES = "files"
    OUTPUT = "output"
    TIME = "time"


#: Exit codes for ends that are not the job's own, after timeout(1) and the shell's 128 + n.
EXIT_TIMED_OUT = 124
EXIT_INTERNAL = 125
EXIT_OUT_OF_MEMORY = 137  # 128 + SIGKILL
EXIT_OUTPUT_LIMIT = 153   # 128 + SIGXFSZ
EXIT_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class JobError:
    """
    The exception that ended a job's main module, as the job told it.
    """

    type: str
    message: str
    traceback: str


#: How many bytes of stdout and stderr the repr of a Result shows.
_SHOWN = 200


@dataclass(frozen=True, repr=False)
class Result:
    """
    What one job gave. Times in seconds, memory in bytes.

    Attributes:
        stdout, stderr: what the job wrote. A client that got them as a memory file
            copies one the first time it is asked for; `stdout_view` doesn't copy.
        limit: the limit that was hit, if any.
        memory_peak: of all the job's processes and files together; 0 if the host can't tell.
        denied: syscalls that were refused, by name, with counts.
        truncated: stdout or stderr was cut at the output limit.
        degraded: the layers that the operator allowed to be missing.
        files: what `collect` brought back, by name under /workspace.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    outcome: Outcome
    limit: Limit | None = None
    duration: float = 0.0
    cpu_time: float = 0.0
    memory_peak: int = 0
    denied: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False
    degraded: tuple[str, ...] = ()
    error: JobError | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def stdout_view(self) -> memoryview:
        """
        stdout without a copy; it lives as long as somebody holds it.
        """
        return memoryview(self.stdout)

    @property
    def stderr_view(self) -> memoryview:
        """
        stderr without a copy; it lives as long as somebody holds it.
        """
        return memoryview(self.stderr)

    @property
    def stdout_text(self) -> str:
        """
        stdout as UTF-8, with U+FFFD where it is not valid.
        """
        return str(self.stdout_view, "utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """
        stderr as UTF-8, with U+FFFD where it is not valid.
        """
        return str(self.stderr_view, "utf-8", "replace")

    def __repr__(self) -> str:
        shown = [f"{self.outcome}", f"exit_code={self.exit_code}"]
        if self.limit is not None:
            shown.append(f"limit={self.limit}")
        for name, view in (("stdout", self.stdout_view), ("stderr", self.stderr_view)):
            more = f" and {len(view) - _SHOWN} bytes more" if len(view) > _SHOWN else ""
            shown.append(f"{name}={bytes(view[:_SHOWN])!r}{more}")
        return f"<Result {' '.join(shown)}>"

"""
The result of a job: how it ended, and what it wrote.

Runs in:   anywhere; pure data.
Trust:     outcome, limit, times and counts come from the daemon. stdout, stderr, files
           and the error text are the job's own bytes: bounded, and never interpreted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from leeward.dataclass import dataclass, field


class Outcome(enum.StrEnum):
    """
    The way a job ended. Each job has exactly one.

    Attributes:
        FINISHED: the code ran to its end, or called `sys.exit`.
        RAISED: an exception left the main module; `Result.error` has it.
        SIGNALLED: a signal ended the job's main process.
        TIMED_OUT: the time limit ended the job; it counts from the moment that the code was sent to a worker.
        OUT_OF_MEMORY: the kernel or the daemon's memory watch ended the job.
        OUTPUT_LIMIT: stdout and stderr together exceeded their limit.
        INTERNAL: the daemon lost the worker; `Result.error` says why.
    """

    FINISHED = "finished"
    RAISED = "raised"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    INTERNAL = "internal"


class Limit(enum.StrEnum):
    """
    A limit that a job hit, whether or not that ended it.

    Attributes:
        MEMORY: memory of all processes and files together.
        PROCESSES: processes and threads at once.
        FILES: bytes in the job's writable folders together. As the job reports it.
        OUTPUT: stdout and stderr together.
        TIME: seconds since the code was sent to a worker.
        CPU: processor seconds of one program of a live sandbox, and of all that descends from it.
    """

    MEMORY = "memory"
    PROCESSES = "processes"
    FILES = "files"
    OUTPUT = "output"
    TIME = "time"
    CPU = "cpu"


class LeftOutReason(enum.StrEnum):
    """
    Why `collect`, or what a job showed, left something out.

    Attributes:
        NO_MATCH: nothing is there under this name, or nothing matches this pattern.
        HIDDEN: its name, or that of a folder around it, begins with a dot, and the pattern names no dot there.
        FOLDER: a pattern with wildcards matches a folder, and stands for files only: `NAME/**` has what is in it.
        LINK: a symbolic link, or reached by one.
        SPECIAL: a FIFO, a socket, a device.
        UNREADABLE: it can't be opened; by its mode, say. Of something shown: its own method for this form failed.
        NAME: the name can't be sent: not UTF-8, not printable, longer than 1,024 characters, more than 16 folders deep.
        TOO_LARGE: it is larger than what is left of the bytes that may come back.
        TOO_MANY: as many files as the daemon's `max_collected` have come back already.
        ENDED: the job's process had ended, or didn't answer, so that nobody could look. Its name is the pattern.
        MORE: more was left out than is listed. It has no name, and is the last of the list.
    """

    NO_MATCH = "no_match"
    HIDDEN = "hidden"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    NAME = "name"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    ENDED = "ended"
    MORE = "more"


#: Exit codes of jobs that didn't exit by themselves, after timeout(1) and the shell's 128 + n.
EXIT_TIMED_OUT = 124
EXIT_INTERNAL = 125
EXIT_OUT_OF_MEMORY = 137  # 128 + SIGKILL
EXIT_OUTPUT_LIMIT = 153   # 128 + SIGXFSZ
EXIT_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class JobError:
    """
    The exception that left a job's main module, as the job reported it. Untrusted text.

    Attributes:
        type: the exception's class, at most 255 characters.
        message: the exception as text, at most 64 KiB.
        traceback: the formatted traceback, at most 64 KiB.
    """

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """
    Something that `collect` left out, or a form of something that a job showed.

    Attributes:
        name: of the file or folder below /workspace, or the pattern. Untrusted text, cut after 255 characters; what
            can't be shown in it is written as Python's repr does. Of what was shown it is
            "result 2: image/png" for a form of the second thing.
        reason: why.
    """

    name: str
    reason: LeftOutReason


#: How many bytes of stdout and stderr the repr of a Result shows.
_SHOWN = 200


@dataclass(frozen=True, repr=False)
class Result:
    """
    The result of one job.

    Attributes:
        stdout: what the job wrote to descriptor 1. Large output is in a memory file, which the first
            access copies; `stdout_view` doesn't copy.
        stderr: what the job wrote to descriptor 2; as `stdout`.
        exit_code: 0 to 255: the job's own; 124 timed out, 125 internal, 137 out of memory, 153 output
            limit, 128 + n for signal n.
        outcome: the way the job ended.
        limit: the limit that the job hit, or None. A job may hit a limit and go on.
        duration: seconds from sending the code to the job's end.
        cpu_time: seconds of processor time of all the job's processes.
        memory_peak: bytes of all the job's processes and files together; 0 if the host can't tell.
        denied: system calls that the sandbox refused: counts by name. Beside them `network` counts those that asked
            for a socket of any kind but Unix's.
        truncated: stdout or stderr was cut at the output limit.
        degraded: layers of the sandbox that were missing, by the operator's leave.
        error: the exception that left the main module, or None.
        files: the files that `collect` matched, by name below /workspace.
        label: the label that the request had, or "".
        job: the daemon's number of the job, by which its logs name it; 0 unless the request had a label.
        left_out: what `collect` matched or named, and didn't bring back, with the reason; at most 257 entries.
            And what of `results` was left out.
        results: what the job showed, where `display` was asked for: for each thing a map from MIME type to its content,
            text as str and images as bytes. They are the job's bytes: HTML and SVG of it can hold scripts.
        value: the repr of the last expression's value, cut after 65,536 characters; None where there was none.
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
    label: str = ""
    job: int = 0
    left_out: tuple[LeftOut, ...] = ()
    results: tuple[Mapping[str, str | bytes], ...] = ()
    value: str | None = None

    @property
    def ok(self) -> bool:
        """
        Whether the job ran to its end, with exit code 0.
        """
        return self.outcome is Outcome.FINISHED and 0 == self.exit_code

    @property
    def text(self) -> str:
        """
        What the job printed: the same as `stdout_text`.
        """
        return self.stdout_text

    @property
    def stdout_view(self) -> memoryview:
        """
        stdout without a copy. A mapped result stays mapped while the view exists.
        """
        return memoryview(self.stdout)

    @property
    def stderr_view(self) -> memoryview:
        """
        stderr without a copy. A mapped result stays mapped while the view exists.
        """
        return memoryview(self.stderr)

    @property
    def stdout_text(self) -> str:
        """
        stdout decoded as UTF-8, with U+FFFD for invalid bytes.
        """
        return str(self.stdout_view, "utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """
        stderr decoded as UTF-8, with U+FFFD for invalid bytes.
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

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """
        For notebooks: what the job showed and wrote, as HTML in which nothing of the job's can run.
        """
        from leeward.notebook import bundle  # only who looks pays

        return bundle(self)

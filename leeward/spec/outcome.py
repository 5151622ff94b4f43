"""
The result of a job: how it ended, and what it wrote.

Trust:     outcome, limit, times and counts come from the daemon. stdout, stderr, files and the error text are the job's
           own bytes: bounded, and never interpreted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from leeward.base.dataclass import dataclass, field
from leeward.base.hints import hint


class Outcome(enum.StrEnum):
    """
    The way a job ended. Each job has exactly one.

    Attributes:
        FINISHED: the code ran to its end, or called `sys.exit`.
        RAISED: an exception left the main module; `Result.error` describes it.
        SIGNALLED: a signal ended the job's main process.
        TIMED_OUT: the time limit ended the job. The time counts from the moment that the code was sent to a worker.
        OUT_OF_MEMORY: the kernel or the daemon's memory watch ended the job.
        OUTPUT_LIMIT: stdout and stderr together exceeded their limit, and the job wasn't to go on.
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
    A limit that a job hit, whether or not that ended the job. Of a program in a live sandbox, its standard error may
    say so.

    Attributes:
        MEMORY: memory of all processes and files together. Of a program in a live sandbox: a process of the sandbox was
            killed for it while the program ran.
        PROCESSES: processes and threads at once. Of a program in a live sandbox: one more was refused to the sandbox
            while the program ran.
        FILES: bytes in the job's writable folders together, as the job itself reports it.
        OUTPUT: stdout and stderr together.
        DESCRIPTORS: open descriptors in one process, as the job itself reports it.
        TIME: seconds since the code was sent to a worker.
        CPU: processor seconds of a job, or of one program of a live sandbox, and all its descendants.
    """

    MEMORY = "memory"
    PROCESSES = "processes"
    FILES = "files"
    DESCRIPTORS = "descriptors"
    OUTPUT = "output"
    TIME = "time"
    CPU = "cpu"


class LeftOutReason(enum.StrEnum):
    """
    Why a file that `collect` names, or a form of an object that a job showed, isn't in the result.

    Attributes:
        NO_MATCH: no file has this name or matches this pattern.
        HIDDEN: the name of the file, or of a folder above it, begins with a dot, and the pattern has no dot there.
        FOLDER: a pattern with wildcards matches a folder, and stands for files only; `NAME/**` is all in it.
        LINK: the file is a symbolic link, or is reached by one.
        SPECIAL: the file is a FIFO, a socket or a device.
        UNREADABLE: the file can't be opened, because of its mode for instance; a shown object's method for this form
            failed.
        NAME: the name can't be sent: it isn't UTF-8 or printable, has more than 1,024 characters, or 16 folders.
        TOO_LARGE: the file is larger than the rest of the bytes that may be returned.
        TOO_MANY: the daemon's greatest number of files, `max_collected`, was returned already.
        ENDED: the job's process had ended, or didn't answer, so its files couldn't be read. The name is the pattern.
        MORE: more was left out than is listed. This entry has no name, and is the last one.
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
    A file that `collect` left out, or a form of an object that a job showed.

    Attributes:
        name: of the file or folder below /workspace, or the pattern; for a form of the second shown object "result 2:
            image/png", for instance. Untrusted text, cut after 255 characters; characters that can't be shown are
            escaped.
        reason: why it was left out.
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
        stdout: the bytes that the job wrote to descriptor 1. Large output is in a memory file, which the first access
            copies; `stdout_view` doesn't copy.
        stderr: the bytes that the job wrote to descriptor 2, as for `stdout`.
        exit_code: the job's own exit code, or 124 for the time limit, 125 for an internal error, 137 for the memory
            limit, 153 for the output limit, and 128 + n for signal n.
        outcome: the way the job ended.
        limit: the limit that the job hit, or None. A job may hit a limit and go on.
        duration: seconds from sending the code to the job's end.
        starved: seconds of the duration for which the job could have run and had no processor, where it had the limit
            `wall`; else None.
        cpu_time: seconds of processor time of all the job's processes.
        memory_peak: the greatest number of bytes of all processes and files together; 0 if the host can't measure it.
        denied: the numbers of system calls that the sandbox refused, by name; `network` counts refused calls for
            sockets that aren't Unix sockets.
        truncated: whether stdout or stderr was cut at the output limit.
        stdout_omitted: bytes of stdout that aren't in the result, if the job was let go on at its output limit. Their
            place is marked by a line, "[N bytes left out]".
        stderr_omitted: the same of stderr.
        degraded: layers of the sandbox that were missing, which the operator has allowed.
        error: the exception that left the main module, or None.
        files: the files that `collect` matched, by name below /workspace.
        label: the label that the request had, or "".
        job: the job's number in the daemon's logs; 0 unless the request had a label.
        left_out: the files that `collect` matched or named but didn't return, and the forms that `results` lacks, each
            with the reason; at most 257 entries.
        results: the objects that the job showed, if the request had `display`. Each is a map from MIME types to
            contents, text as str and images as bytes. The job chooses them: its HTML and SVG can have scripts.
        value: the repr of the last expression's value, cut after 65,536 characters; None if there was none.
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
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    starved: float | None = None

    @property
    def hint(self) -> str:
        """
        One line about the limit that the job has reached, and how to allow more; how a job that lacks a module has a
        package; what to do where a folder can't be renamed; otherwise "". None of it is the job's text.
        """
        return hint(self.limit, None if self.error is None else (self.error.type, self.error.message),
                    self.stderr if self.exit_code else b"")

    @property
    def ok(self) -> bool:
        """Whether the job ran to its end, with exit code 0."""
        return self.outcome is Outcome.FINISHED and self.exit_code == 0

    @property
    def text(self) -> str:
        """The job's standard output as text; the same as `stdout_text`."""
        return self.stdout_text

    @property
    def stdout_view(self) -> memoryview:
        """stdout without a copy. A mapped result stays mapped while the view exists."""
        return memoryview(self.stdout)

    @property
    def stderr_view(self) -> memoryview:
        """stderr without a copy. A mapped result stays mapped while the view exists."""
        return memoryview(self.stderr)

    @property
    def stdout_text(self) -> str:
        """stdout decoded as UTF-8, with U+FFFD for invalid bytes."""
        return str(self.stdout_view, "utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """stderr decoded as UTF-8, with U+FFFD for invalid bytes."""
        return str(self.stderr_view, "utf-8", "replace")

    def __repr__(self) -> str:
        shown = [f"{self.outcome}", f"exit_code={self.exit_code}"]
        if self.limit is not None:
            shown.append(f"limit={self.limit}")
        for name, view in (("stdout", self.stdout_view), ("stderr", self.stderr_view)):
            more = f" and {len(view) - _SHOWN} bytes more" if len(view) > _SHOWN else ""
            shown.append(f"{name}={bytes(view[:_SHOWN])!r}{more}")
        if self.truncated:
            shown.append("truncated")
        return f"<Result {' '.join(shown)}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The forms of the result for notebooks. No script of the job can run in the HTML."""
        from leeward.spec.notebook import bundle  # here, since only notebooks need it

        return bundle(self)

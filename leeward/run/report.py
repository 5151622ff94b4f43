"""
The report of a job that is over, and the memory files with its large contents.

Runs in:   the daemon, and `leeward run`; pure but for `Arena.close`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from leeward.dataclass import dataclass
from leeward.errors import Refused
from leeward.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.wire.frames import MAX_REPLY

#: An offset and a length, in bytes.
Region = tuple[int, int]


@dataclass(slots=True)
class Arena:
    """
    A sealed memfd that holds the large parts of a result.

    The seals SHRINK, GROW, WRITE and SEAL are set before the memfd is given to anybody; no job ever held it.

    Attributes:
        fd: owned by this object.
        size: of the file, in bytes.
        stdout, stderr: where the stream is in the file, or None if it is inline in the result.
    """

    fd: int
    size: int
    stdout: Region | None = None
    stderr: Region | None = None

    def close(self) -> None:
        """Close the descriptor. Mappings and descriptors that were sent stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True)
class FileArena:
    """
    An arena that holds the files that a job brings back, one after the other.

    Attributes:
        places: where each file is in the arena, by name.
    """

    arena: Arena
    places: Mapping[str, Region]

    def contents(self) -> dict[str, bytes]:
        """Read all files. Returns their contents by name."""
        return {name: os.pread(self.arena.fd, size, at) for name, (at, size) in self.places.items()}


@dataclass(slots=True)
class Report:
    """
    The one answer to a request: a refusal, or a result with arenas where it is large.

    Attributes:
        answered: the client has the whole answer already; the report has only its figures.
        files: the files that aren't in the result, because they are large.
    """

    result: Result | None = None
    refusal: Refused | None = None
    arena: Arena | None = None
    answered: bool = False
    files: FileArena | None = None

    def close(self) -> None:
        """Close the descriptors of a report that isn't used."""
        if self.arena is not None:
            self.arena.close()
        if self.files is not None:
            self.files.arena.close()


def internal(name: str, message: str, duration: float = 0.0, degraded: tuple[str, ...] = ()) -> Report:
    """
    The answer to a job without a result, for a reason that isn't the job's.

    Args:
        name: the name of the error, in place of an exception's.
        duration: the seconds for which the job ran.
        degraded: the layers that are missing.
    """
    return Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL, duration=duration, degraded=degraded,
                                error=JobError(name, message, "")))


#: Bytes of contents that travel in the reply by default. A pipe holds so many, so that the whole output of a short job
#: takes one read; and from so many on a memory file is faster: docs/measurements.
INLINE = 64 << 10


@dataclass(frozen=True, slots=True)
class Placement:
    """
    The largest numbers of bytes that travel in the reply; larger contents go into a memory file.

    Attributes:
        output: stdout and stderr together.
        output_beside_files: the same for a job that collects files or shows things, which need room in the reply.
        files: all collected files together.
    """

    output: int
    output_beside_files: int
    files: int


#: By the configuration's `results`. "inline" is bounded by the size of a reply, 16 MiB with all its other fields.
PLACEMENTS = {
    "auto": Placement(output=INLINE, output_beside_files=INLINE, files=1 << 20),
    "inline": Placement(output=12 << 20, output_beside_files=8 << 20, files=MAX_REPLY),
    "memfd": Placement(output=0, output_beside_files=0, files=0),
}

RESULTS = tuple(PLACEMENTS)

#: The fast path takes at most half of this, LW_MOST_OUTPUT; a job whose limit is smaller doesn't take the fast path.
SHORT_OUTPUT = INLINE

#: A reply above this size counts as a memory file does while it waits for its client.
LARGE_REPLY = INLINE


def inline_bytes(results: str, *, files: bool = False) -> int:
    """
    The largest number of bytes of output that travel in the reply.

    Args:
        results: one of RESULTS.
        files: whether collected files, or things that the job shows, are in the reply as well.
    """
    placement = PLACEMENTS[results]
    return placement.output_beside_files if files else placement.output

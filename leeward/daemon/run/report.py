"""
The report of a job that is over, the memory files with its large contents, and the thresholds that decide which bytes
travel in the reply (docs/decisions/0013-shared-memory.md; a unit test holds C's bound against these).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from leeward.base.dataclass import dataclass
from leeward.errors import Refused
from leeward.spec.outcome import EXIT_INTERNAL, JobError, Outcome, Result
from leeward.wire.frames import MAX_REPLY

#: An offset and a length, in bytes.
Region = tuple[int, int]


@dataclass(slots=True)
class Arena:
    """
    A sealed memfd that holds the large parts of a result. The seals SHRINK, GROW, WRITE and SEAL are set before anybody
    gets it; no job ever held it. *stdout*, *stderr*: where the stream is in the file, None if it is inline.
    """

    fd: int  # owned by this object
    size: int  # of the file, in bytes
    stdout: Region | None = None
    stderr: Region | None = None

    def close(self) -> None:
        """Close the descriptor. Mappings and descriptors that were sent stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True)
class FileArena:
    """An arena that holds the files that a job brings back, one after the other."""

    arena: Arena
    places: Mapping[str, Region]  # where each file is in the arena, by name

    def contents(self) -> dict[str, bytes]:
        return {name: os.pread(self.arena.fd, size, at) for name, (at, size) in self.places.items()}


@dataclass(slots=True)
class Report:
    """The one answer to a request: a refusal, or a result with arenas where it is large."""

    result: Result | None = None
    refusal: Refused | None = None
    arena: Arena | None = None
    answered: bool = False  # the client has the whole answer already; the report has only its figures
    files: FileArena | None = None  # the files that aren't in the result, because they are large

    def close(self) -> None:
        """Close the descriptors of a report that isn't used."""
        if self.arena is not None:
            self.arena.close()
        if self.files is not None:
            self.files.arena.close()


def internal(name: str, message: str, duration: float = 0.0, degraded: tuple[str, ...] = ()) -> Report:
    """The answer to a job without a result, for a reason that isn't the job's; *name* is in place of an exception's."""
    return Report(result=Result(b"", b"", EXIT_INTERNAL, Outcome.INTERNAL, duration=duration, degraded=degraded,
                                error=JobError(name, message, "")))


#: Bytes of contents that travel in the reply by default. A pipe holds so many, so that the whole output of a short job
#: takes one read; and from so many on a memory file is faster: docs/measurements.
INLINE = 64 << 10


@dataclass(frozen=True, slots=True)
class Placement:
    """The largest numbers of bytes that travel in the reply; larger contents go into a memory file."""

    output: int  # stdout and stderr together
    output_beside_files: int  # the same for a job that collects files or shows things, which need room in the reply
    files: int  # all collected files together


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
    """The most bytes of output in the reply; *files*: collected files, or things that the job shows, are there, too."""
    placement = PLACEMENTS[results]
    return placement.output_beside_files if files else placement.output

"""
All thresholds that decide which bytes of an answer travel in the reply, and which in a memory file.

Runs in:   the daemon, and `leeward run`; pure.
See also:  docs/decisions/0013-shared-memory.md. tests/unit/run/test_placement.py holds C's bound and the documents
           against these.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.wire.frames import MAX_REPLY

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

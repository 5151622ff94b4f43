"""
Which bytes of an answer travel in the reply, and which in a memory file: every threshold, in one place.

Runs in:   the daemon, and `leeward run`; pure.
See also:  docs/decisions/0013-shared-memory.md, with the measurements. tests/unit/run/test_placement.py holds C's
           bound and the documents against these.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.wire.frames import MAX_REPLY

#: Bytes of an answer's contents that travel in it by default: one pipe's worth of output, so that the whole output of a
#: short job takes one read, and the measured crossover: bench/results.py.
INLINE = 64 << 10


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Up to how many bytes travel in the reply; more of them go into a memory file.

    Attributes:
        output: of stdout and stderr together.
        output_beside_files: the same, of a job that collects files or shows things: they need room in the reply.
        files: of collected files together.
    """

    output: int
    output_beside_files: int
    files: int


#: By the configuration's `results`. "inline" is as far as a reply goes, of 16 MiB with all its other fields.
PLACEMENTS = {
    "auto": Placement(output=INLINE, output_beside_files=INLINE, files=1 << 20),
    "inline": Placement(output=12 << 20, output_beside_files=8 << 20, files=MAX_REPLY),
    "memfd": Placement(output=0, output_beside_files=0, files=0),
}

RESULTS = tuple(PLACEMENTS)

#: The fast path takes at most half of this, LW_MOST_OUTPUT; a job that may have less output goes the long one.
SHORT_OUTPUT = INLINE

#: A reply above this counts, while it waits for its client, as a memory file does.
LARGE_REPLY = INLINE


def inline_bytes(results: str, *, files: bool = False) -> int:
    """
    Up to how many bytes output travels in the reply.

    Args:
        results: one of RESULTS.
        files: collected files, or what the job shows, go with it.
    """
    placement = PLACEMENTS[results]
    return placement.output_beside_files if files else placement.output

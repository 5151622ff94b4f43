"""
Which bytes of a result travel in the reply, and which in a memory file: every threshold, in one table.

Runs in:   the daemon, and `leeward run`; pure.
See also:  docs/decisions/0013-shared-memory.md, with the measurements.
"""

from __future__ import annotations

from leeward.dataclass import dataclass
from leeward.wire.frames import MAX_REPLY


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


#: By the configuration's `results`. "auto" is one pipe's worth of output, so the whole output of a short job takes
#: one read, and the measured crossover: bench/results.py. "inline" is as far as a reply goes, of 16 MiB with all its
#: other fields.
PLACEMENTS = {
    "auto": Placement(output=64 << 10, output_beside_files=64 << 10, files=1 << 20),
    "inline": Placement(output=12 << 20, output_beside_files=8 << 20, files=MAX_REPLY),
    "memfd": Placement(output=0, output_beside_files=0, files=0),
}

RESULTS = tuple(PLACEMENTS)

#: The fast path takes at most this much output, with room to spare; a job that may have less goes the long one.
SHORT_OUTPUT = 64 << 10

#: A reply above this counts, while it waits for its client, as a memory file does.
LARGE_REPLY = 64 << 10


def inline_bytes(results: str, *, files: bool = False) -> int:
    """
    Up to how many bytes output travels in the reply.

    Args:
        results: one of RESULTS.
        files: collected files, or what the job shows, go with it.
    """
    placement = PLACEMENTS[results]
    return placement.output_beside_files if files else placement.output

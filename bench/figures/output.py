"""Large output: the time until the client has mapped it, beside that of one process to write it into a memory file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, compared, in_turn
from leeward.client.blocking import Client
from leeward.errors import LeewardError
from leeward_cli.bench import floors
from leeward_cli.bench.floors import CalledSubject, Subject
from leeward_cli.bench.ours import daemon, good

#: Bytes of the whole output, and of one write.
_SIZE, _PIECE = 64 << 20, 1 << 20

#: Seconds between calls, in which the memory of the previous call is freed.
_GAP_S = 0.1

_WRITE = f"""
import os
piece = bytes({_PIECE})
for _ in range({_SIZE // _PIECE}):
    os.write(1, piece)
"""


def alone() -> None:
    """Write as much as the job into a memory file of one process's own."""
    piece = bytes(_PIECE)
    fd = os.memfd_create("alone")
    try:
        for _ in range(_SIZE // _PIECE):
            os.write(fd, piece)
    finally:
        os.close(fd)


def measure(settings: FigureSettings) -> Sequence[Row]:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(stack.enter_context(daemon(None))))

        def mapped() -> None:
            """Have a job write the output, map it and read its last byte."""
            view = good(client.execute(_WRITE, output=2 * _SIZE)).stdout_view
            if len(view) != _SIZE or view[-1]:
                raise LeewardError(f"bench: {len(view)} bytes came of {_SIZE}")

        ours = CalledSubject("leeward, 64 MiB mapped", mapped)
        subjects: list[Subject] = [ours, CalledSubject("write of 64 MiB into a memory file", alone)]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.pour(settings.program, _SIZE)))
        found = in_turn(subjects, settings.some(20), 1, _GAP_S)
    return [compared(f"64 MiB of output, until the client has it mapped, over {under.name}", found, ours.name, under.name,
                     target, gap_s=_GAP_S) for under, target in zip(subjects[1:], (1.3, None), strict=False)]

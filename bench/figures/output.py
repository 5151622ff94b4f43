"""
Large output: the time until the client has mapped it, beside that of one process to write it into a memory file.

Runs in:   a developer's shell. bench/results.py has the sizes between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from bench.figures.row import FigureSettings, Row, times
from bench.figures.turns import beside, in_turn
from leeward.client.blocking import Client
from leeward.errors import LeewardError
from leeward_cli.bench import floors
from leeward_cli.bench.floors import Subject
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


class MappedOutput:
    """A job that writes the output; the client maps it and reads its last byte."""

    name = "leeward, 64 MiB mapped"

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(self) -> None:
        view = good(self._client.execute(_WRITE, output=2 * _SIZE)).stdout_view
        if len(view) != _SIZE or view[-1]:
            raise LeewardError(f"bench: {len(view)} bytes came of {_SIZE}")


class Alone:
    """One process that writes as much into a memory file of its own."""

    name = "write of 64 MiB into a memory file"

    def call(self) -> None:
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
        subjects: list[Subject] = [MappedOutput(client), Alone()]
        if settings.program is not None:
            subjects.append(stack.enter_context(floors.Pour(settings.program, _SIZE)))
        found = in_turn(subjects, settings.some(20), 1, _GAP_S)

    def over(under: str, most: float | None) -> Row:
        return Row(f"64 MiB of output, until the client has it mapped, over {under}",
                   beside(found, MappedOutput.name, under), "x", most,
                   measured=[times(name, _GAP_S, found[name]) for name in (MappedOutput.name, under)])

    return [over(Alone.name, 1.3), *(over(each.name, None) for each in subjects[2:])]

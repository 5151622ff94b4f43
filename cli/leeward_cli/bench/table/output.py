"""
Much output, until the client has it mapped, beside what one process takes to write as much into a memory file.

Runs in:   the CLI. bench/results.py has the sizes between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from leeward.client.blocking import Client
from leeward.errors import LeewardError
from leeward_cli.bench.ours import daemon, good
from leeward_cli.bench.table.row import Ground, Row, times
from leeward_cli.bench.table.turns import beside, in_turn

#: Bytes of it all, and of one write.
_SIZE, _PIECE = 64 << 20, 1 << 20

#: Seconds between calls: what the one before has left behind takes a while to go.
_GAP_S = 0.1

_WRITE = f"""
import os
piece = bytes({_PIECE})
for _ in range({_SIZE // _PIECE}):
    os.write(1, piece)
"""


class Mapped:
    """
    A job writes it; the client maps it and looks at its last byte.
    """

    name = "leeward, 64 MiB mapped"

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(self) -> None:
        view = good(self._client.execute(_WRITE, output=2 * _SIZE)).stdout_view
        if len(view) != _SIZE or view[-1]:
            raise LeewardError(f"bench: {len(view)} bytes came of {_SIZE}")


class Alone:
    """
    One process writes it into a memory file of its own.
    """

    name = "write of 64 MiB into a memory file"

    def call(self) -> None:
        piece = bytes(_PIECE)
        fd = os.memfd_create("alone")
        try:
            for _ in range(_SIZE // _PIECE):
                os.write(fd, piece)
        finally:
            os.close(fd)


def measure(ground: Ground) -> Sequence[Row]:
    with daemon(None) as path, Client(path) as client:
        ours, alone = Mapped(client), Alone()
        found = in_turn([ours, alone], ground.some(20), 1, _GAP_S)
    return [Row("64 MiB of output, until the client has it mapped, over a write of as much",
                beside(found, ours.name, alone.name), "x", 1.3,
                measured=[times(each.name, _GAP_S, found[each.name]) for each in (ours, alone)])]

"""
Jobs and sandboxes on several daemons: of one host, of a list of hosts, or of a cluster of Ray's.

Runs in:   a client's process; with Ray also in one actor for each of its nodes.

    import leeward.fleet

    with leeward.fleet.connect("auto") as fleet:
        for number, result in fleet.execute_many(["print(6 * 7)"] * 1000):
            ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from leeward.apps.fleet.aio_fleet import AsyncFleet as AsyncFleet
from leeward.apps.fleet.errors import NodeLost as NodeLost
from leeward.apps.fleet.errors import NoNodeFits as NoNodeFits
from leeward.apps.fleet.fleet import Fleet as Fleet


def connect(nodes: str | Iterable[str | Mapping[str, Any]]) -> Fleet:
    """
    A fleet of *nodes*: "auto" or "ray://HOST:PORT" for a cluster of Ray's, or a list of addresses (docs/fleet.md). With
    asyncio, use AsyncFleet.
    """
    return Fleet(nodes)

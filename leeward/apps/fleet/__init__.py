"""
Jobs and sandboxes on several daemons: of one host, of a list of hosts, or of a cluster of Ray's.

Runs in:   a client's process; with Ray also in one actor for each of its nodes.

    import leeward.fleet

    with leeward.fleet.connect("auto") as fleet:
        for number, result in fleet.execute_many(["print(6 * 7)"] * 1000):
            ...
"""

from __future__ import annotations

import os

from leeward.apps.fleet.addresses import Nodes, configured
from leeward.apps.fleet.aio_fleet import AsyncFleet as AsyncFleet
from leeward.apps.fleet.errors import NodeLost as NodeLost
from leeward.apps.fleet.errors import NoNodeFits as NoNodeFits
from leeward.apps.fleet.fleet import Fleet as Fleet


def connect(nodes: Nodes | None = None) -> Fleet:
    """
    A fleet of *nodes*: "auto" or "ray://HOST:PORT" for a cluster of Ray's, or a list of addresses. By default those of
    LEEWARD_FLEET or the configuration: docs/fleet.md. With asyncio, use AsyncFleet.
    """
    return Fleet(configured(os.environ) if nodes is None else nodes)

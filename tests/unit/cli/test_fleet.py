"""The table of `leeward fleet`."""

from __future__ import annotations

from typing import Any

from leeward_cli.fleet import table


def node(name: str, **about: Any) -> dict[str, Any]:
    return {"name": name, "standing": "up", "workers": 4, "busy": 1, "waiting": 2, "open": 3, "room": 93, "tags": [],
            "resources": {}, "why": "", **about}


def test_each_node_has_a_line_with_what_is_wrong():
    lines = table({"nodes": [node("a", tags=["arch:x86_64"], resources={"gpu": 8.0}),
                             node("longer", standing="lost", why="no daemon answers")],
                   "workers": 4, "waiting": 2, "waiting_per_worker": 0.5})

    assert ["NODE    STATE  WORKERS  BUSY  WAITING  OPEN  ROOM",
            "a       up           4     1        2     3    93  arch:x86_64 gpu=8",
            "longer  lost         4     1        2     3    93  no daemon answers",
            "", "4 workers, 2 waiting, 0.5 for each worker"] == lines


def test_a_fleet_without_nodes_has_no_share():
    assert "0 workers, 0 waiting" == table({"nodes": [], "workers": 0, "waiting": 0, "waiting_per_worker": None})[-1]

"""A fleet's figures for Prometheus."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kit.exposition import read
from leeward.apps.fleet.exposition import exposition


def node(name: str, standing: str = "up") -> dict[str, Any]:
    return {"name": name, "standing": standing, "workers": 4, "busy": 1, "waiting": 2, "open": 3, "room": 93}


def test_each_node_has_its_figures_and_a_lost_one_says_so():
    rows = [node("a"), node('a "\\ b', "draining"), node("c", "lost")]
    found = read("\n".join(exposition({"nodes": rows, "workers": 4, "waiting": 2})) + "\n")

    assert [1.0, 0.0, 0.0] == list(found["leeward_fleet_up"].samples.values())
    assert (1, 2, 3) == tuple(found[f"leeward_fleet_{name}"].value(node="a") for name in ("busy", "waiting", "open"))
    assert 2 == len(found["leeward_fleet_workers"].samples)


@pytest.mark.parametrize(("workers", "waiting", "more", "expected"), [
    (4, 2, 0, 0.5), (4, 2, 6, 2.0), (0, 1, 0, math.inf), (0, 0, 3, math.inf), (0, 0, 0, 0.0)])
def test_one_figure_says_whether_nodes_are_missing(workers: int, waiting: int, more: int, expected: float):
    found = read("\n".join(exposition({"nodes": [], "workers": workers, "waiting": waiting}, more)) + "\n")

    assert expected == found["leeward_fleet_waiting_per_worker"].value()

"""Which node gets a request."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from leeward.apps.fleet.placement import DEPTH, LACKING, STARTS, Demand, Node, NodePlacement, NodeState, NoNode


def chosen(placement: NodePlacement, request: Demand | None = None) -> Node:
    node = placement.choose(request or Demand())
    assert isinstance(node, Node)
    return node


def refused(placement: NodePlacement, request: Demand | None = None) -> NoNode:
    nothing = placement.choose(request or Demand())
    assert isinstance(nothing, NoNode)
    return nothing


def fleet(*nodes: Node) -> NodePlacement:
    return NodePlacement(list(nodes), random.Random(1))


def many(count: int, **about: Any) -> NodePlacement:
    return fleet(*(Node(f"n{number}", **about) for number in range(count)))


def test_the_node_with_fewer_waiting_per_worker_is_taken():
    assert "idle" == chosen(fleet(Node("busy", waiting=3), Node("idle", waiting=2))).name
    assert "large" == chosen(fleet(Node("small", workers=2, waiting=3), Node("large", workers=16, waiting=8))).name
    assert "idle" == chosen(fleet(Node("others", others=3), Node("idle", waiting=2))).name


@pytest.mark.parametrize(("node", "request_", "why", "may_come"), [
    (Node("n", standing=NodeState.LOST), Demand(), "doesn't answer", False),
    (Node("n", standing=NodeState.DRAINING), Demand(), "is draining", False),
    (Node("n", tags=frozenset({"arch:x86_64"})), Demand(tags=frozenset({"arch:aarch64"})), "lacks arch:aarch64", False),
    (Node("n"), Demand(resources={"gpu": 1}), "has 0 gpu, and 1 are wanted", False),
    (Node("n", resources={"gpu": 2}, taken={"gpu": 1.5}), Demand(resources={"gpu": 1}),
     "has 0.5 of 2 gpu left, and 1 are wanted", True),
    (Node("n"), Demand(avoid=frozenset({"n"})), "has just refused it", True),
    (Node("n", workers=2, waiting=2 * DEPTH), Demand(), f"has {2 * DEPTH} requests waiting for 2 workers", True),
    (Node("n", workers=2, starting=2 * STARTS), Demand(opens=True), f"is starting {2 * STARTS} sandboxes", True),
    (Node("n", room=7, open=7), Demand(opens=True), "has 7 sandboxes and sessions, and room for 7", True),
])
def test_a_node_that_does_not_fit_says_why(node: Node, request_: Demand, why: str, may_come: bool):
    for more in ((), tuple(Node(f"lost{number}", standing=NodeState.LOST) for number in range(20))):
        nothing = refused(fleet(node, *more), request_)

        assert why == nothing.reasons["n"]
        assert may_come == nothing.may_come
        assert 1 + len(more) == len(nothing.reasons)


def test_no_node_is_no_reason():
    assert NoNode({}, may_come=False) == refused(fleet())


def test_the_one_node_of_a_thousand_that_fits_is_found():
    placement = many(1000)
    placement.add(Node("gpu", resources={"gpu": 1}))

    assert "gpu" == chosen(placement, Demand(resources={"gpu": 1})).name


def test_a_node_that_has_the_environment_is_preferred_until_it_has_much_to_do():
    placement = many(100)
    placement.add(Node("warm", environments=frozenset({"e"})))
    wanted = Demand(environment="e")
    assert {"warm"} == {chosen(placement, wanted).name for _ in range(100)}
    assert {"warm"} != {chosen(placement).name for _ in range(100)}  # the others are spread

    placement.nodes["warm"].waiting = int(LACKING) * placement.nodes["warm"].workers + 1
    assert "warm" not in {chosen(placement, wanted).name for _ in range(100)}


def test_resources_are_kept_by_what_is_open():
    placement, wanted = fleet(Node("n", resources={"gpu": 1})), Demand(resources={"gpu": 1}, opens=True)
    node = chosen(placement, wanted)
    placement.begin(node, wanted)
    placement.end(node, wanted, opened=True)

    assert "has 0 of 1 gpu left, and 1 are wanted" == refused(placement, wanted).reasons["n"]
    assert (1, 0) == (node.open, node.starting)

    placement.closed(node, wanted)
    assert node is chosen(placement, wanted)
    assert 0 == node.open


def test_a_request_that_has_ended_is_counted_no_more():
    placement, wanted = fleet(Node("n", resources={"gpu": 1})), Demand(resources={"gpu": 1})
    node = chosen(placement, wanted)
    placement.begin(node, wanted)
    assert 1 == node.waiting

    placement.end(node, wanted)
    assert node is chosen(placement, wanted)
    assert (0, {"gpu": 0.0}) == (node.waiting, node.taken)


def test_sandboxes_are_within_ten_percent_of_even():
    for count in (3, 10):
        placement = many(count, room=2000)
        for _ in range(1000):
            node = chosen(placement, Demand(opens=True))
            placement.begin(node, Demand(opens=True))
            placement.end(node, Demand(opens=True), opened=True)

        assert all(0.9 * 1000 / count <= node.open <= 1.1 * 1000 / count for node in placement.nodes.values())


def test_a_node_that_comes_back_gets_no_more_than_twice_its_share():
    placement = many(100, workers=100)
    for node in placement.nodes.values():
        node.waiting = 300
    placement.add(Node("back", workers=100))
    drawn = Counter(chosen(placement).name for _ in range(10_000))  # all before any of them is counted

    assert 1.5 * 10_000 / 101 < drawn["back"] < 2.5 * 10_000 / 101
    assert max(drawn.values()) == drawn["back"]


def test_a_node_that_is_removed_is_drawn_no_more():
    placement = many(20)
    placement.remove("n3")

    assert "n3" not in {chosen(placement).name for _ in range(1000)}
    assert 19 == len(refused(placement, Demand(tags=frozenset({"none"}))).reasons)

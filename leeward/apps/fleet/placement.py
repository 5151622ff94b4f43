"""
Chooses the node for a request.

Runs in:   anywhere; no clock, no connection. Chance comes from the `random.Random` that it is given.

Theory of operation. Whoever places knows of a node what it has sent there itself, at once, and what others have there
as the node has told last. If each placer took the least loaded node by what was told, all would take the same one (a
herd). So each request looks at two nodes drawn by chance, and takes the one with fewer waiting per worker: that spreads
nearly as evenly as a look at all, needs no more than two looks whatever the number of nodes, and a node that has just
come gets no more than twice its share. Of a few nodes all are looked at. Nodes that have what the request needs already
(an environment) are drawn as well, and count as less loaded by the cost of making it.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass, field


class NodeState(enum.Enum):
    """Whether a node takes requests."""

    UP = "up"
    DRAINING = "draining"  # open sandboxes may still be used
    LOST = "lost"          # it doesn't answer


#: Requests that one placer has under way on a node, for each of its workers: enough that none is idle while an answer
#: travels. More would be lost with a node, and would wait behind others while another node is free.
DEPTH = 8
#: Sandboxes that a node may be starting at once, for each of its workers. One start is some ms of processor time.
STARTS = 2
#: What the lack of an environment counts, in requests or sandboxes per worker.
LACKING = 4.0
#: So many nodes are all looked at: a herd on one of them is no more than a few times its share, and the spread is even.
FEW = 8
#: Draws for each of the two nodes before all are looked at.
_DRAWS = 4


@dataclass(slots=True, eq=False)
class Node:
    """
    One daemon, as whoever places sees it.

    Attributes:
        name: its name in the fleet.
        workers: how many jobs it runs at once.
        room: how many sandboxes and sessions it may have.
        tags: words that requests may ask for, such as "arch:x86_64".
        resources: what sandboxes and jobs may ask amounts of, such as {"gpu": 8}.
        environments: the environments and images that it has.
        standing: whether it takes requests.
        waiting: requests that this placer has under way there.
        others: requests of others there, as the node has told last.
        starting: sandboxes that are being opened there.
        open: sandboxes and sessions there.
        taken: of each resource, what this placer's requests have.
    """

    name: str
    workers: int = 4
    room: int = 1000
    tags: frozenset[str] = frozenset()
    resources: Mapping[str, float] = field(default_factory=dict)
    environments: frozenset[str] = frozenset()
    standing: NodeState = NodeState.UP
    waiting: int = 0
    others: int = 0
    starting: int = 0
    open: int = 0
    taken: dict[str, float] = field(default_factory=dict)

    @property
    def load(self) -> float:
        """Requests per worker."""
        return (self.waiting + self.others) / self.workers


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What is known of a job or a sandbox before it is sent.

    Attributes:
        environment: the one that it needs, by a name that equal ones have in common; "" for none in particular.
        tags: words that its node must have.
        resources: amounts that its node must have left.
        opens: it is a sandbox or a session, which stays.
        avoid: nodes that have just refused it.
    """

    environment: str = ""
    tags: frozenset[str] = frozenset()
    resources: Mapping[str, float] = field(default_factory=dict)
    opens: bool = False
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NoNode:
    """
    No node can take the request.

    Attributes:
        reasons: of each node, by its name, why it can't.
        may_come: whether one can as soon as it has done some of what it has.
    """

    reasons: Mapping[str, str]
    may_come: bool


class NodePlacement:
    """
    The nodes of a fleet.

    Args:
        nodes: those that are known; `add` and `remove` change them.
        chance: where the draws come from.
    """

    def __init__(self, nodes: list[Node], chance: random.Random | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self._drawn: list[Node] = []
        self._chance = chance or random.Random()
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._drawn = list(self.nodes.values())

    def remove(self, name: str) -> None:
        self.nodes.pop(name, None)
        self._drawn = list(self.nodes.values())

    def choose(self, request: Demand) -> Node | NoNode:
        """The node for *request*, which isn't counted there before `begin`; or why there is none."""
        drawn = self._two(self._drawn, request)
        if drawn is None:  # few nodes fit, so that all have to be looked at
            fitting = [node for node in self._drawn if not _obstacle(node, request)]
            if not fitting:
                return self.nothing(request)
            drawn = fitting if len(fitting) <= FEW else self._chance.sample(fitting, 2)
        if request.environment and not any(request.environment in node.environments for node in drawn):
            having = [node for node in self._drawn
                      if request.environment in node.environments and not _obstacle(node, request)]
            drawn += self._chance.sample(having, min(2, len(having)))
        return min(drawn, key=lambda node: _weight(node, request))

    def _two(self, nodes: list[Node], request: Demand) -> list[Node] | None:
        """Two nodes that fit, drawn by chance; None if some draws haven't found two."""
        if len(nodes) <= FEW:
            return None
        found: list[Node] = []
        for _ in range(2 * _DRAWS):
            node = nodes[int(self._chance.random() * len(nodes))]
            if node not in found and not _obstacle(node, request):
                found.append(node)
                if len(found) == 2:
                    return found
        return None

    def nothing(self, request: Demand) -> NoNode:
        """Why no node takes *request* now."""
        obstacles = {node.name: _obstacle(node, request) for node in self._drawn}
        return NoNode({name: each[0] for name, each in obstacles.items() if each},
                      any(each and each[1] for each in obstacles.values()))

    def begin(self, node: Node, request: Demand) -> None:
        """Count *request*, which is sent to *node* now."""
        node.waiting += not request.opens
        node.starting += request.opens
        for name, amount in request.resources.items():
            node.taken[name] = node.taken.get(name, 0.0) + amount

    def end(self, node: Node, request: Demand, *, opened: bool = False) -> None:
        """*node* has answered *request*, or is lost. What was *opened* there keeps its resources until `closed`."""
        node.waiting -= not request.opens
        node.starting -= request.opens
        if opened:
            node.open += 1
        else:
            _give_back(node, request)

    def closed(self, node: Node, request: Demand) -> None:
        """What was opened by *request* on *node* has ended."""
        node.open = max(0, node.open - 1)
        _give_back(node, request)


def _give_back(node: Node, request: Demand) -> None:
    for name, amount in request.resources.items():
        node.taken[name] = max(0.0, node.taken.get(name, 0.0) - amount)


def _weight(node: Node, request: Demand) -> float:
    """How much speaks against *node*, of those that fit, in requests or sandboxes per worker."""
    lacks = LACKING if request.environment and request.environment not in node.environments else 0.0
    return lacks + ((node.open + node.starting) / node.workers if request.opens else node.load)


def _obstacle(node: Node, request: Demand) -> tuple[str, bool] | None:
    """Why *node* can't take *request*, and whether that ends by itself; None if it can."""
    if node.standing is not NodeState.UP:
        return ("is draining" if node.standing is NodeState.DRAINING else "doesn't answer"), False
    if not request.tags <= node.tags:
        return f"lacks {', '.join(sorted(request.tags - node.tags))}", False
    for name, amount in request.resources.items():
        has = node.resources.get(name, 0.0)
        if amount > has:
            return f"has {has:g} {name}, and {amount:g} are wanted", False
        if amount > has - node.taken.get(name, 0.0):
            return f"has {has - node.taken.get(name, 0.0):g} of {has:g} {name} left, and {amount:g} are wanted", True
    if node.name in request.avoid:
        return "has just refused it", True
    if request.opens:
        if node.open + node.starting >= node.room:
            return f"has {node.open} sandboxes and sessions, and room for {node.room}", True
        if node.starting >= STARTS * node.workers:
            return f"is starting {node.starting} sandboxes", True
    elif node.waiting >= DEPTH * node.workers:
        return f"has {node.waiting} requests waiting for {node.workers} workers", True
    return None

"""
NodePlacement on many nodes, in virtual time: jobs whose times differ by hundreds, several placers that know of each other's
jobs only what a node told a second ago, nodes that end and come back.
"""

from __future__ import annotations

import heapq
import os
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from leeward.apps.fleet.placement import Demand, Node, NodePlacement, NodeState

#: Nodes, and jobs: the short form, and the long one.
NODES, JOBS = (1000, 1_000_000) if os.environ.get("LEEWARD_LONG") else (100, 60_000)
WORKERS, PLACERS = 4, 4
#: Seconds between two reports of a node, and for which one that ends stays away.
TELLS_S, AWAY_S = 1.0, 10.0
#: The share of the workers that jobs keep busy; the standard deviation of their times' logarithm. The mean is 1 s.
BUSY, SKEW = 0.8, 1.0
ANY = Demand()

Choice = Callable[[NodePlacement], Node]


def by_placement(placement: NodePlacement) -> Node:
    node = placement.choose(ANY)
    assert isinstance(node, Node), node
    return node


def least_loaded(placement: NodePlacement) -> Node:
    """The control: what is most obvious."""
    return min((node for node in placement.nodes.values() if NodeState.UP is node.standing), key=lambda node: node.load)


@dataclass(slots=True)
class Host:
    """A node as it is. *life* counts its ends, *got* the jobs since it told last, *loads* adds up those of *tells* times."""

    number: int
    up: bool = True
    life: int = 0
    waiting: deque[tuple[int, float]] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)
    got: int = 0
    loads: int = 0
    tells: int = 0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)


class Simulation:
    """
    Runs JOBS jobs, each sent by one of the placers in turn.

    Attributes:
        answers: how many jobs had a result, and how many were lost with their node.
        bursts: the most jobs that one node got between two reports, in each second.
        depths: the most jobs that were on one node, per worker, in each second.
        shares: of each node, its mean load while it was up.
    """

    def __init__(self, choice: Choice, seed: int) -> None:
        self._choice, self._chance = choice, random.Random(seed)
        self._hosts = [Host(number) for number in range(NODES)]
        self._placers = [NodePlacement([Node(str(number), WORKERS) for number in range(NODES)], random.Random(seed + number))
                         for number in range(PLACERS)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = self._sent = 0
        self.now = 0.0
        self.answers: Counter[str] = Counter()
        self.bursts: list[int] = []
        self.depths: list[float] = []

    def at(self, when: float, what: Callable[..., None], *about: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, what, about))

    def run(self) -> Simulation:
        self.rate = BUSY * NODES * WORKERS
        self.at(0.0, self._arrive)
        self.at(TELLS_S, self._tell)
        for host in self._chance.sample(self._hosts, NODES // 10):
            self.at(self._chance.uniform(0.2, 0.6) * JOBS / self.rate, self._die, host)
        while self._sent < JOBS:
            self.now, _, what, about = heapq.heappop(self._events)
            what(*about)
        self.shares = [host.loads / host.tells
                       for host in self._hosts]
        while self.answers.total() < JOBS:
            self.now, _, what, about = heapq.heappop(self._events)
            what(*about)
        return self

    def _arrive(self) -> None:
        placer = self._sent % PLACERS
        self._sent += 1
        node = self._choice(self._placers[placer])
        self._placers[placer].begin(node, ANY)
        host = self._hosts[int(node.name)]
        host.got += 1
        host.waiting.append((placer, self._chance.lognormvariate(-SKEW * SKEW / 2, SKEW)))
        self._start(host)
        if self._sent < JOBS:
            self.at(self.now + self._chance.expovariate(self.rate), self._arrive)

    def _start(self, host: Host) -> None:
        while host.waiting and len(host.running) < WORKERS:
            placer, seconds = host.waiting.popleft()
            host.running.append(placer)
            self.at(self.now + seconds, self._end, host, host.life, placer, seconds)

    def _end(self, host: Host, life: int, placer: int, seconds: float) -> None:
        if life == host.life:
            host.running.remove(placer)
            self._answer("result", host, placer)
            self._start(host)

    def _answer(self, what: str, host: Host, placer: int) -> None:
        self.answers[what] += 1
        self._placers[placer].end(self._placers[placer].nodes[str(host.number)], ANY)

    def _tell(self) -> None:
        """Each node tells each placer how many jobs it has; what is not this placer's own is others'."""
        for host in self._hosts:
            for placement in self._placers:
                node = placement.nodes[str(host.number)]
                node.others = host.load - node.waiting
        self.bursts.append(max(host.got for host in self._hosts))
        self.depths.append(max(host.load for host in self._hosts) / WORKERS)
        for host in self._hosts:
            host.got = 0
            host.loads += host.load
            host.tells += host.up
        self.at(self.now + TELLS_S, self._tell)

    def _die(self, host: Host) -> None:
        self._stand(host, NodeState.LOST)
        host.up, host.life = False, host.life + 1
        for placer in (*host.running, *(placer for placer, _ in host.waiting)):
            self._answer("node_lost", host, placer)
        host.running.clear()
        host.waiting.clear()
        self.at(self.now + AWAY_S, self._return, host)

    def _return(self, host: Host) -> None:
        host.up = True
        for placement in self._placers:
            placement.nodes[str(host.number)].others = 0
        self._stand(host, NodeState.UP)

    def _stand(self, host: Host, standing: NodeState) -> None:
        for placement in self._placers:
            placement.nodes[str(host.number)].standing = standing


@pytest.fixture(scope="module")
def placed() -> Simulation:
    return Simulation(by_placement, 1).run()


@pytest.mark.thorough
def test_nodes_have_even_loads(placed: Simulation):
    """The mean load of nearly each node is within 10 % of that of all. The rest is chance: one long job is much."""
    mean = fmean(placed.shares)
    shares = [share / mean for share in placed.shares]

    assert 0.95 <= sum(0.9 <= share <= 1.1 for share in shares) / NODES
    assert 0.8 <= min(shares)
    assert max(shares) <= 1.2


@pytest.mark.thorough
def test_no_herd_runs_to_one_node(placed: Simulation):
    """In no second one node gets many times its share; with the obvious choice it does."""
    fair = BUSY * WORKERS * TELLS_S

    assert max(placed.bursts) <= 6 * fair
    assert max(placed.depths) <= 4
    if NODES <= 100:  # the control looks at every node for each job
        herd = Simulation(least_loaded, 1).run()
        assert fmean(herd.bursts) > 1.5 * fmean(placed.bursts)
        assert max(herd.bursts) > 1.5 * max(placed.bursts)


@pytest.mark.thorough
def test_each_job_has_one_answer(placed: Simulation):
    """Also those on the nodes that ended."""
    assert JOBS == placed.answers.total()
    assert 0 < placed.answers["node_lost"] < JOBS // 1000

"""What the daemon counts, for the metrics: its own counts, and those of its shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leeward.daemon.shards import messages
from leeward.daemon.shards.dealer import Dealer
from leeward.daemon.shards.merge import added
from leeward.daemon.telling.log import log
from leeward.daemon.telling.metrics import Metrics, Now
from leeward.errors import PeerError
from leeward.loop.reactor import Reactor
from leeward.pool.engine import Engine
from leeward.pool.memory import memory_of
from leeward.worker.worker import Worker

#: Workers whose memory is read in one turn of the loop: some 20 us each.
_TURN_WORKERS = 16
#: Gauges that are sums over all processes; the others are the daemon's own.
_SUMS = "workers", "memory", "recycles", "queued", "runners_made"


class Counting:
    """Collects the text of the metrics."""

    def __init__(self, reactor: Reactor, engine: Engine, metrics: Metrics, *, connections: Callable[[], int],
                 uptime: Callable[[], float], dealer: Dealer | None) -> None:
        self._reactor, self._engine, self._metrics = reactor, engine, metrics
        self._connections, self._uptime, self._dealer = connections, uptime, dealer

    def collect(self, done: Callable[[str], None]) -> None:
        """Make the text of the metrics, with each worker's memory, and pass it to *done*."""
        self._look(self._engine.workers, {}, done)

    def _look(self, workers: list[Worker], memory: dict[int, int], done: Callable[[str], None]) -> None:
        for worker in workers[:_TURN_WORKERS]:
            memory[worker.slot] = memory_of(worker)
        if len(workers) > _TURN_WORKERS:
            self._reactor.soon(partial(self._look, workers[_TURN_WORKERS:], memory, done))
            return
        if self._dealer is None:
            done(self._text(memory, {}))
        else:
            self._dealer.gather(lambda found: done(self._text(memory, found)))

    def _text(self, memory: Mapping[int, int], found: dict[int, messages.ShardCounts]) -> str:
        pools, tried = self._engine.pools, self._engine.exits.record
        states = [pool.workforce.states() for pool in pools]
        gauges: dict[str, Any] = {
            "workers": {name: sum(each[name] for each in states) for name in states[0]},
            "memory": {str(slot): size for slot, size in sorted(memory.items())},
            "recycles": sum(pool.workforce.recycled for pool in pools),
            "queued": sum(len(pool.queue) for pool in pools),
            "runners_made": sum(pool.workforce.runners_made for pool in pools)}
        metrics, dealer = self._metrics, self._dealer
        every = {number: counts.metrics for number, counts in found.items()}
        if dealer is not None and dealer.ended:
            every[0] = messages.pack_map(dealer.ended)
        for number, counted in every.items():
            try:
                theirs = messages.unpack_map(counted)
                summed = Metrics.of(added(metrics.counts(), theirs["counters"]))
                gauges = added(gauges, {name: theirs["now"][name] for name in _SUMS if name in theirs["now"]})
                metrics = summed
            except (PeerError, KeyError, TypeError, ValueError) as error:
                log.warning("counts of a shard can't be used", shard=number, error=str(error))
        return metrics.text(Now(
            **gauges, connections=self._connections(), sessions=sum(pool.sessions for pool in pools),
            uptime=self._uptime(), egress=tried.verdicts,
            egress_bytes={"sent": tried.sent, "received": tried.received}))

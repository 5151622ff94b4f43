"""
The ways out of sandboxes: each pool's policy, the broker that keeps them all, and the record of what they tried.

Runs in:   the daemon, on the reactor's thread.
Bound:     the record has the last MOST_ROWS rows of all sandboxes together.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from leeward.isolation import landlock
from leeward.isolation.egress import EgressPlan
from leeward.isolation.seccomp import filters
from leeward.loop.reactor import Reactor
from leeward.pool.begin import Settings
from leeward.pool.broker import BrokerLink, check
from leeward.pool.confinement import Confinement
from leeward.pool.zygotes import EventLog
from leeward.wire.egress_control import Begin, Decided
from leeward.worker.hatch import import_path
from leeward.worker.terms import NoWaysOut, WaysOut

#: Rows of the record that are kept.
MOST_ROWS = 10_000

#: What the C library's resolver reads, and where systemd and others keep the list of name servers.
_RESOLVERS = ("/etc", "/usr", "/lib", "/lib32", "/lib64", "/run/systemd/resolve", "/run/resolvconf",
              "/run/NetworkManager", "/run/nscd")


class PoolWays:
    """
    For the workers of a pool: `leeward.worker.terms.WaysOut`.

    Args:
        policy: as `spec.egress.policy_map` makes it.
    """

    def __init__(self, broker: BrokerLink, plan: EgressPlan, policy: dict[str, Any]) -> None:
        self._broker, self._plan, self._policy = broker, plan, policy

    @property
    def listeners(self) -> int:
        return self._plan.listeners

    def stand(self, worker: object, listeners: Sequence[int]) -> None:
        self._broker.stand(worker, self._plan, listeners)

    def lease(self, worker: object, runner: int) -> None:
        self._broker.lease(worker, runner, self._policy)

    def over(self, worker: object) -> None:
        self._broker.over(worker)

    def gone(self, worker: object) -> None:
        self._broker.gone(worker)


class Exits:
    """
    An engine's.

    Attributes:
        record: the last rows, the oldest first.
        rows: how many there have been.
    """

    def __init__(self, reactor: Reactor, log: EventLog) -> None:
        self._reactor, self._log = reactor, log
        self.record: deque[Decided] = deque(maxlen=MOST_ROWS)
        self.rows = 0
        self.broker: BrokerLink | None = None

    def ways(self, settings: Settings, confinement: Confinement) -> WaysOut:
        """
        Those of a pool with these *settings*.

        Raises:
            Unsupported: a package that the broker needs isn't installed.
        """
        plan = confinement.plan.egress
        if settings.egress is None or plan is None:
            return NoWaysOut()
        check()
        from leeward.spec.egress import policy_map

        if self.broker is None:
            self.broker = BrokerLink(self._reactor, self._log, partial(begin, confinement), self._decided)
        return PoolWays(self.broker, plan, policy_map(settings.egress))

    def _decided(self, row: Decided) -> None:
        self.rows += 1
        self.record.append(row)

    def close(self) -> None:
        """
        The daemon ends.
        """
        if self.broker is not None:
            self.broker.close()


def begin(confinement: Confinement) -> Begin:
    """
    What a broker becomes.

    Args:
        confinement: of any pool. The broker's id is the one before those of all workers.
    """
    number = confinement.first_id - 1
    prefixes = (sys.prefix, sys.base_prefix, *import_path())
    return Begin(
        ids=[number, number] if confinement.first_id > 0 else [], filter=filters.broker_program(os.uname().machine),
        landlock=list(landlock.reader_rights(landlock.probe())),
        readable=list(dict.fromkeys((*_RESOLVERS, *prefixes))))

"""The settings and objects that all workers of a pool share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leeward.base.dataclass import dataclass, field
from leeward.daemon.run.live_runner import Awake
from leeward.daemon.run.runner import Denials
from leeward.daemon.worker.orphans import Orphans
from leeward.spec.limits import Limits

if TYPE_CHECKING:
    from leeward.daemon.pool.begin import Patience
    from leeward.daemon.pool.pool import Ticket
    from leeward.daemon.worker.layers import HandedMounts
    from leeward.daemon.worker.warmth import Warmth


@dataclass(frozen=True, slots=True, repr=False)
class Lent:
    """What belongs to one lease only. *variables*: environment variables of its processes, beside those of all jobs."""

    variables: Mapping[str, str] = field(default_factory=dict)
    certificate: bytes = b""  # of an authority that only this lease's processes trust, PEM; b"" for none


#: The usual value: no variables and no certificate.
NOTHING_LENT = Lent()


class WaysOut:
    """
    The broker, as the workers of a pool see it; this one is of a pool without egress. No call waits for it. A worker's
    listeners have one lease at a time, which has the number of its runner. Connections that come without a lease wait
    in the kernel's queue; at its end they are reset.
    """

    listeners = 0  # of each keeper
    ports: Sequence[int] = ()  # of TCP and UDP, that they have
    certificates: bytes | None = None  # the beginning of each worker's file of certificates, if workers have one

    def stand(self, worker: object, listeners: Sequence[int]) -> None:
        """Pass the listeners of a worker's keeper to the broker. They stay open until `gone`."""

    def lease(self, worker: object, runner: int, policy: Mapping[str, Any] | None) -> Lent:
        """Lease the listeners of *worker* to the tenant of *runner*, under *policy*; under the pool's if it is None."""
        return NOTHING_LENT

    def owned(self, runner: int, ticket: Ticket) -> None:
        """Note that the tenant of *runner* belongs to *ticket*."""

    def over(self, worker: object, cleared: Callable[[], None]) -> bool:
        """End the lease. Returns whether the listeners are free at once; if not, *cleared* is called later."""
        return True

    def gone(self, worker: object) -> None:
        """Forget the listeners of *worker*: its keeper has ended."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    limits: Limits
    inside: tuple[int, int]  # the uid and gid of jobs, in their user namespace
    spares: int
    recycle_after: int  # jobs after which a worker is replaced
    degraded: tuple[str, ...]
    patience: Patience
    denials: Denials  # the supervisor
    results: str = "auto"
    session_grace: float = 0.0  # seconds that a job of a session has after its time limit
    ways_out: WaysOut = field(default_factory=WaysOut)  # the broker, where there is egress
    awake: Awake = field(default_factory=Awake)  # live sandboxes that hold all their descriptors
    mounts: HandedMounts | None = None  # of an image, if the daemon hands some to each keeper
    reuse: bool = False  # jobs of one connection may follow each other in a runner's namespaces
    warmth: Warmth | None = None  # the state that interpreters begin with, where the environment has one
    orphans: Orphans = field(default_factory=Orphans)

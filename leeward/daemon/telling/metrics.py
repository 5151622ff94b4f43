"""
The daemon's counters for Prometheus, and the text format, version 0.0.4, in which they are exposed.

No client and no job chooses a label: the values are from fixed lists, so that nobody can make the number of series
grow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from leeward.base.dataclass import dataclass, field
from leeward.daemon.loop.barrier import COSTS
from leeward.spec.outcome import Limit, Outcome, Result
from leeward.wire.egress_control import VERDICTS

#: Seconds. A warm job takes a third of a millisecond; the longest may have 600 s by default.
DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
WAITS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0)

#: Reasons for a failed execution: its outcome, or that the client has cancelled it.
REASONS = (*(str(outcome) for outcome in Outcome if outcome is not Outcome.FINISHED), "cancelled")
#: Why a request was refused, as docs/wire.md has it.
KINDS = ("busy", "queue_timeout", "shutting_down", "cancelled", "bad_request", "version", "session_over",
         "sandbox_over", "process_over", "snapshot_failed", "pool_failed", "forbidden",
         "internal")
#: Why a connection was refused.
PEERS = ("forbidden", "busy", "protocol")
#: Names of denied calls of which there are series. The kernel has some 400; more can only be an error of ours.
MOST_CALLS = 600
#: The label of calls whose number has no name; a job may choose among four billion numbers.
OTHER = "other"
#: Users with a series of their own; users that come later are counted together.
MOST_USERS = 64

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Counts of observations by upper bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum!r}"
        yield f"{name}_count {total}"


@dataclass(frozen=True, slots=True)
class Now:
    """Values that are read when the metrics are requested: workers by state, memory by worker, rows by verdict, and so on."""

    workers: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    recycles: int = 0
    connections: int = 0
    sessions: int = 0
    queued: int = 0
    runners_made: int = 0
    uptime: float = 0.0
    egress: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    egress_bytes: Mapping[str, int] = field(default_factory=lambda: {"sent": 0, "received": 0})


@dataclass(slots=True)
class User:
    """Counters of one user, or of all users beyond MOST_USERS together."""

    executions: int = 0
    cpu_seconds: float = 0.0
    refused: int = 0


class Metrics:
    """The counters. Each only ever grows."""

    def __init__(self) -> None:
        self.requests = 0
        self.executions = 0
        self.cpu_seconds = 0.0
        self.worker_failures = 0
        self.durations = Histogram(DURATIONS)
        self.waits = Histogram(WAITS)
        self.failed = dict.fromkeys(REASONS, 0)
        self.limits: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.refused = dict.fromkeys(KINDS, 0)
        self.peers = dict.fromkeys(PEERS, 0)
        self.faults = dict.fromkeys(COSTS, 0)
        self.users: dict[str, User] = {}

    def _user(self, uid: int) -> User:
        name = str(uid)
        user = self.users.get(name)
        if user is None:
            user = self.users.setdefault(name if len(self.users) < MOST_USERS else OTHER, User())
        return user

    def job_ended(self, result: Result, waited: float, cancelled: bool, user: int) -> None:
        self.executions += 1
        his = self._user(user)
        his.executions += 1
        his.cpu_seconds += result.cpu_time
        self.durations.observe(result.duration)
        self.waits.observe(waited)
        self.cpu_seconds += result.cpu_time
        if cancelled:
            self.failed["cancelled"] += 1
        elif result.outcome is not Outcome.FINISHED:
            self.failed[str(result.outcome)] += 1
        if result.limit is not None:
            self.limits[str(result.limit)] += 1

    def call_denied(self, syscall: str, count: int) -> None:
        if syscall.startswith("syscall_") or (syscall not in self.denied and len(self.denied) >= MOST_CALLS):
            syscall = OTHER
        self.denied[syscall] += count

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        self._user(user).refused += count
        self.refused[kind if kind in self.refused else "internal"] += count

    def peer_refused(self, reason: str) -> None:
        self.peers[reason] += 1

    def callback_failed(self, cost: str) -> None:
        self.faults[cost if cost in self.faults else "nothing"] += 1

    def text(self, now: Now) -> str:
        lines: list[str] = []

        def family(name: str, kind: str, about: str, samples: Iterable[str]) -> None:
            lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples))

        def one(name: str, kind: str, about: str, value: float) -> None:
            family(name, kind, about, (f"{name} {value!r}",))

        def by(name: str, kind: str, about: str, label: str, values: Mapping[str, float]) -> None:
            family(name, kind, about, (f'{name}{{{label}="{key}"}} {value}' for key, value in values.items()))

        by("leeward_workers_total", "gauge", "Workers, by what they do now.", "state", now.workers)
        one("leeward_worker_recycles_total", "counter", "Workers that were replaced.", now.recycles)
        one("leeward_worker_failures_total", "counter", "Times that a worker could not do its duty.",
            self.worker_failures)
        one("leeward_runners_made_total", "counter", "Processes that were armed for a job.", now.runners_made)
        one("leeward_executions_total", "counter", "Jobs that have ended, in whatever way.", self.executions)
        by("leeward_executions_failed_total", "counter", "Jobs that ended otherwise than by themselves without an"
           " exception.", "reason", self.failed)
        by("leeward_executions_limited_total", "counter", "Jobs that ran into a limit, whether or not it ended them.",
           "limit", {each.value: self.limits[each.value] for each in Limit})
        family("leeward_execution_duration_seconds", "histogram", "Seconds from the moment that a job's code was sent"
               " to its end.", self.durations.lines("leeward_execution_duration_seconds"))
        family("leeward_queue_wait_seconds", "histogram", "Seconds that an execution waited for a worker.",
               self.waits.lines("leeward_queue_wait_seconds"))
        one("leeward_queue_length", "gauge", "Requests that wait for a worker.", now.queued)
        by("leeward_memory_usage_bytes", "gauge", "Memory of a worker now, its keeper and armed runners included.",
           "worker", now.memory)
        one("leeward_cpu_time_seconds_total", "counter", "Processor time of jobs that have ended.", self.cpu_seconds)
        one("leeward_connections_active", "gauge", "Connections of clients.", now.connections)
        by("leeward_connections_refused_total", "counter", "Connections that were refused or cut off.", "reason",
           self.peers)
        one("leeward_requests_total", "counter", "Requests of clients, of every kind.", self.requests)
        by("leeward_requests_refused_total", "counter", "Requests that were refused, by kind.", "kind", self.refused)
        one("leeward_sessions_active", "gauge", "Sessions that are open.", now.sessions)
        for name, about, field_ in (
            ("executions_total", "Jobs that have ended, by user.", "executions"),
            ("cpu_time_seconds_total", "Processor time of jobs that have ended, by user.", "cpu_seconds"),
            ("requests_refused_total", "Requests that were refused, by user.", "refused"),
        ):
            by(f"leeward_user_{name}", "counter", about, "user",
               {user: getattr(had, field_) for user, had in self.users.items()})
        by("leeward_denied_syscalls_total", "counter", "System calls that jobs were refused, by name.", "syscall",
           dict(sorted(self.denied.items())))
        by("leeward_faults_total", "counter", "Exceptions that were bugs of leeward's, by what each of them ended.",
           "cost", self.faults)
        by("leeward_egress_rows_total", "counter", "Rows of the record of egress, by verdict.", "verdict",
           now.egress)
        by("leeward_egress_bytes_total", "counter", "Bytes that sandboxes have sent and received by egress, of"
           " connections that are over.", "direction", now.egress_bytes)
        one("leeward_uptime_seconds", "gauge", "Seconds since the daemon started.", now.uptime)
        return "\n".join(lines) + "\n"

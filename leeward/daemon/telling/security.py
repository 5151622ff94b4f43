"""
The security log: what was denied, limited or refused, and which user caused it.

Runs in:   the daemon; pure, except for the sink. Times are arguments.
Trust:     a job chooses how often it is denied what, a client how often it is refused. No record has a text
           of theirs, and the number of records is bounded three times:

    of one call of one job there is a record for the first, the tenth, the hundredth time and so on,
    and one at the job's end for the rest: each denied call is counted in exactly one of them;

    of one event, for one reason and by one user, OWN_BURST records may come at once and OWN_RATE a second after that,
    so that a flood by one user doesn't hide what others do; of all kinds together, BURST and RATE. Further ones are
    added up by event, reason and user, and reported by a record `records left out` every SUMMARY_S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leeward.dataclass import dataclass, field

#: Called with the event and its fields.
Sink = Callable[[str, dict[str, object]], None]

#: Records, and records a second: of all kinds together, and of one event, reason and user.
BURST, RATE = 500, 100.0
OWN_BURST, OWN_RATE = 50, 5.0
#: Seconds between two summaries of the records that were left out.
SUMMARY_S = 1.0
#: Kinds of left-out records that are told apart; further users are one.
KINDS = 256
#: Stands for users beyond the bound, who are counted together.
SOMEBODY = -1


class _Bucket:
    """Gives a token for each record: *burst* at once, and *rate* a second."""

    __slots__ = ("_burst", "_counted", "_rate", "_tokens")

    def __init__(self, burst: int, rate: float) -> None:
        self._burst, self._rate = float(burst), rate
        self._tokens, self._counted = self._burst, 0.0

    def has_one(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._counted) * self._rate)
        self._counted = now
        return self._tokens >= 1

    def is_full(self, now: float) -> bool:
        return self.has_one(now) and self._tokens >= self._burst

    def take(self) -> None:
        self._tokens -= 1


class Digest:
    """Passes records to *sink*, within the bounds."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._all = _Bucket(BURST, RATE)
        self._own: dict[tuple[str, str, int], _Bucket] = {}
        self._left_out: dict[tuple[str, str, int], list[int]] = {}

    def record(self, now: float, event: str, reason: str, user: int, fields: Mapping[str, object],
               count: int = 1) -> None:
        """
        Pass one record to the sink, or count it as left out.

        Args:
            now: seconds, by a clock that never goes back.
            fields: further fields.
            count: the number of occurrences, for `records left out`.
        """
        key = (event, reason, user)
        own = self._bucket_of(key, now)
        if own.has_one(now) and self._all.has_one(now):
            own.take()
            self._all.take()
            self.sink(event, {"reason": reason, "user": user, **fields})
            return
        if key not in self._left_out and len(self._left_out) >= KINDS:
            key = (event, reason, SOMEBODY)
        sums = self._left_out.setdefault(key, [0, 0])
        sums[0] += 1
        sums[1] += count

    def _bucket_of(self, key: tuple[str, str, int], now: float) -> _Bucket:
        found = self._own.get(key)
        if found is None:
            if len(self._own) >= KINDS:  # a full bucket equals a missing one
                self._own = {each: bucket for each, bucket in self._own.items() if not bucket.is_full(now)}
            if len(self._own) >= KINDS:
                key = (key[0], key[1], SOMEBODY)
            found = self._own.setdefault(key, _Bucket(OWN_BURST, OWN_RATE))
        return found

    @property
    def owes(self) -> bool:
        """Whether records were left out since the last `summary`."""
        return bool(self._left_out)

    def summary(self) -> None:
        """Record how many records were left out."""
        left_out, self._left_out = self._left_out, {}
        for (event, reason, user), (records, count) in left_out.items():
            self.sink("records left out", {"reason": reason, "user": user, "of": event, "records": records,
                                           "count": count})


@dataclass(slots=True)
class _Call:
    """How often one job was denied one call: in all, and in records so far."""

    total: int = 0
    logged: int = 0
    next: int = 1
    pid: int = 0


@dataclass(slots=True)
class Offender:
    """
    A job that was denied system calls, and its records.

    Attributes:
        about: fields of each of its records.
    """

    user: int
    about: dict[str, object]
    calls: dict[tuple[str, str], _Call] = field(default_factory=dict)

    def denied(self, digest: Digest, now: float, syscall: str, arch: str, pid: int, count: int) -> None:
        """Record that *syscall* was denied to the job *count* times since the last call of this method."""
        call = self.calls.setdefault((syscall, arch), _Call())
        call.total += count
        call.pid = pid or call.pid
        if call.total >= call.next:
            self._record(digest, now, syscall, arch, call)
            while call.next <= call.total:
                call.next *= 10

    def over(self, digest: Digest, now: float) -> None:
        """Record the rest: the job has ended."""
        for (syscall, arch), call in self.calls.items():
            if call.logged < call.total:
                self._record(digest, now, syscall, arch, call)

    def _record(self, digest: Digest, now: float, syscall: str, arch: str, call: _Call) -> None:
        count = call.total - call.logged
        call.logged = call.total
        digest.record(now, "system call denied", "seccomp", self.user, {
            **self.about, "syscall": syscall, "arch": arch, "pid": call.pid, "count": count, "total": call.total,
        }, count)

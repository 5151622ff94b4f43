"""
Counts and records what happens: metrics and the security log, which says what was denied, limited or refused to whom.

Trust: a job chooses how often it is denied what, a client how often it is refused. No record has a text of theirs, and
their number is bounded. Of one call of one job there is a record for the first, the tenth, the hundredth time and so
on, and one at its end for the rest: each denied call is counted in exactly one. Of one event, reason and user OWN_BURST
records may come at once and OWN_RATE a second after that, so that one user's flood doesn't hide what others do; of all
together BURST and RATE. Further ones are added up in a record `records left out` every SUMMARY_S.

Engine and server call the observer always after the client was answered.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping

from leeward.base.closing import on_failure
from leeward.base.dataclass import dataclass, field
from leeward.base.line_writer import LineWriter
from leeward.base.token_bucket import TokenBucket
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.pool.pool import Ticket
from leeward.daemon.run.report import Report
from leeward.daemon.supervisor import Denied
from leeward.daemon.telling.events import EventBook
from leeward.daemon.telling.log import clean, log, stamp
from leeward.daemon.telling.metrics import Metrics
from leeward.errors import BadRequest, quoted, reason_of
from leeward.spec.writers import cure, others_write

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


class Digest:
    """Passes records to *sink*, within the bounds."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._all = TokenBucket(BURST, RATE)
        self._own: dict[tuple[str, str, int], TokenBucket] = {}
        self._left_out: dict[tuple[str, str, int], list[int]] = {}

    def record(self, now: float, event: str, reason: str, user: int, fields: Mapping[str, object],
               count: int = 1) -> None:
        """Pass one record of *count* occurrences to the sink, or count it as left out."""
        key = (event, reason, user)
        own = self._bucket_of(key, now)
        if own.left(now) >= 1 and self._all.take(now):
            own.take(now)
            self.sink(event, {"reason": reason, "user": user, **fields})
            return
        if key not in self._left_out and len(self._left_out) >= KINDS:
            key = (event, reason, SOMEBODY)
        sums = self._left_out.setdefault(key, [0, 0])
        sums[0] += 1
        sums[1] += count

    def _bucket_of(self, key: tuple[str, str, int], now: float) -> TokenBucket:
        found = self._own.get(key)
        if found is None:
            if len(self._own) >= KINDS:  # a full bucket equals a missing one
                self._own = {each: bucket for each, bucket in self._own.items() if bucket.left(now) < OWN_BURST}
            if len(self._own) >= KINDS:
                key = (key[0], key[1], SOMEBODY)
            found = self._own.setdefault(key, TokenBucket(OWN_BURST, OWN_RATE))
        return found

    @property
    def owes(self) -> bool:
        """Whether records were left out since the last `summary`."""
        return bool(self._left_out)

    def summary(self) -> None:
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
    """A job that was denied system calls, and its records, each of which has the fields *about*."""

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


#: Jobs that have ended and whose denied calls between reply and end may still be reported, at most.
ENDED = 256



@dataclass(frozen=True, slots=True)
class _Sent:
    """Who sent a job, and its number. A ticket would keep the job's contents, and its result's, in memory."""

    user: int
    job: int
    label: str = ""

    @property
    def named(self) -> dict[str, str]:
        """The label, for a record, if there is one."""
        return {"label": self.label} if self.label else {}


def _sent(ticket: Ticket) -> _Sent:
    return _Sent(ticket.user, ticket.number, ticket.job.label)


class Observer:
    """Counts events, and records them in the security log at *path*; without one in the daemon's log."""

    def __init__(self, reactor: Reactor, metrics: Metrics, path: str = "") -> None:
        self.metrics = metrics
        self.events = EventBook()
        self._reactor = reactor
        self._file: _File | None = None
        self._offenders: dict[int, Offender] = {}  # by the number of the runner
        self._ended: dict[int, _Sent] = {}  # by the number of the runner, the eldest first
        self._digest = Digest(to_log)
        self._due = False
        self.open(path)

    def open(self, path: str) -> None:
        """Write records to *path* from now on; BadRequest if it can't be written, and nothing has changed."""
        file = _File(path) if path else None
        if self._file is not None:
            self._file.close()
        self._file = file
        self._digest.sink = to_log if file is None else file.record

    def close(self) -> None:
        """Record what was left out, and write to the daemon's own log from now on."""
        self._digest.summary()
        self.open("")

    # --- from the engine ------------------------------------------------------

    def job_ended(self, ticket: Ticket, report: Report) -> None:
        result = report.result
        if result is None:
            return
        self.metrics.job_ended(result, ticket.waited, ticket.cancelled, ticket.user)
        self.events.job(ticket.user, ticket.number, ticket.job.label, result)
        offender = self._offenders.pop(ticket.runner, None)
        if offender is not None:
            offender.over(self._digest, self._reactor.now())
        if result.limit is not None:
            self._record("limit", result.limit.value, ticket.user, job=ticket.number, outcome=result.outcome.value,
                         **_sent(ticket).named)
        if offender is not None and self._digest.owes:
            self._summarise_later()
        self._ended[ticket.runner] = _sent(ticket)
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]

    def denied(self, denied: Denied, worker: int | None, ticket: Ticket | None) -> None:
        offender = self._offenders.get(denied.job)
        late = None
        if offender is None:
            late = self._ended.get(denied.job)
            sent = late if ticket is None else _sent(ticket)
            if sent is None:
                return  # a runner's self-check
            offender = Offender(sent.user, {"job": sent.job, "worker": worker, "runner": denied.job, **sent.named})
            if late is None:
                self._offenders[denied.job] = offender
        self.metrics.call_denied(denied.syscall, denied.count)
        offender.denied(self._digest, self._reactor.now(), denied.syscall, denied.arch, denied.pid, denied.count)
        if self._digest.owes:
            self._summarise_later()

    def worker_failed(self, worker: int) -> None:
        self.metrics.worker_failures += 1

    def callback_failed(self, cost: str) -> None:
        self.metrics.callback_failed(cost)

    def broken(self, _error: Exception) -> None:
        self._due = False

    # --- from the server ------------------------------------------------------

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        """*count* requests of *user* were refused; *kind* is the wire's word for the reason."""
        self.metrics.request_refused(kind, user, count)
        if kind in ("busy", "forbidden"):
            for _ in range(count):
                self._record("request refused", kind, user)

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        self.metrics.peer_refused(reason)
        self._record("peer refused", reason, user, pid=pid)

    def port_connected(self, user: int, sandbox: str, port: int) -> None:
        """*user* got a connection to a server in a sandbox of theirs."""
        self._record("port connected", "owner", user, sandbox=sandbox, port=port)

    # --- records --------------------------------------------------------------

    def _record(self, event: str, reason: str, user: int, **fields: object) -> None:
        self._digest.record(self._reactor.now(), event, reason, user, fields)
        if self._digest.owes:
            self._summarise_later()

    def _summarise_later(self) -> None:
        if not self._due:
            self._due = True
            self._reactor.after(SUMMARY_S, self._summarise)

    def _summarise(self) -> None:
        self._due = False
        self._digest.summary()


def to_log(event: str, fields: dict[str, object]) -> None:
    """A record among the daemon's own lines, where `security` marks it."""
    log.warning(event, security=True, **fields)


class _File:
    def __init__(self, path: str) -> None:
        try:
            # Not blocking: somebody may have put a FIFO there.
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                               | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise BadRequest(f"security_log {quoted(path)}: {reason_of(error)}") from None
        with on_failure(os.close, self._fd):
            about = os.fstat(self._fd)
            if not stat.S_ISREG(about.st_mode):
                raise BadRequest(f"security_log {quoted(path)}: is no regular file")
            if about.st_uid != os.geteuid():
                raise BadRequest(f"security_log {quoted(path)}: belongs to user {about.st_uid}, not to you")
            if others_write(self._fd, about):
                raise BadRequest(f"security_log {quoted(path)}: its mode {about.st_mode & 0o777:04o}"
                                 f" lets others write it; {cure(path)}")
        self._writer = LineWriter(self._fd)

    def record(self, event: str, fields: dict[str, object]) -> None:
        row = clean({"time": stamp(), "event": event, **fields})
        self._writer.line(json.dumps(row))

    def close(self) -> None:
        os.close(self._fd)

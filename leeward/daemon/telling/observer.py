"""
Counts and records what happens: metrics and the security log, put together.

Runs in:   the daemon. Engine and server call it, always after the client was answered.
"""

from __future__ import annotations

import os
import stat

from leeward.daemon.telling.events import EventBook
from leeward.daemon.telling.log import LineWriter, as_json, clean, log, stamp
from leeward.daemon.telling.metrics import Metrics
from leeward.daemon.telling.security import SUMMARY_S, Digest, Offender, Sink
from leeward.dataclass import dataclass
from leeward.errors import BadRequest, quoted
from leeward.loop.reactor import Reactor
from leeward.pool.ticket import Ticket
from leeward.run.report import Report
from leeward.spec.writers import cure, others_write
from leeward.supervisor import Denied

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
    """
    Counts events in the metrics, and records them in the security log.

    Args:
        metrics: the counters.
        path: of the security log; "" for *sink*.
        sink: takes the records if there is no security log; by default they go to the daemon's own log.

    Raises:
        BadRequest: the security log can't be written.
    """

    def __init__(self, reactor: Reactor, metrics: Metrics, path: str = "", sink: Sink | None = None) -> None:
        self.metrics = metrics
        self.events = EventBook()
        self._reactor = reactor
        self._file: _File | None = None
        self._offenders: dict[int, Offender] = {}  # by the number of the runner
        self._ended: dict[int, _Sent] = {}  # by the number of the runner, the eldest first
        self._sink = to_log if sink is None else sink
        self._digest = Digest(self._sink)
        self._due = False
        self.open(path)

    def open(self, path: str) -> None:
        """
        Open *path*, and write to it from now on.

        Raises:
            BadRequest: it can't be written; nothing has changed.
        """
        file = _File(path) if path else None
        if self._file is not None:
            self._file.close()
        self._file = file
        self._digest.sink = self._sink if file is None else file.record

    def record(self, event: str, fields: dict[str, object]) -> None:
        """Write a record that another process of the daemon has made, and counted."""
        self._digest.sink(event, fields)

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
        """For the barrier: the summary was not written. The next record asks for it again."""
        self._due = False

    # --- from the server ------------------------------------------------------

    def request_refused(self, kind: str, user: int, count: int = 1) -> None:
        """*count* requests of *user* were refused; *kind* is the wire's word for the reason."""
        self.metrics.request_refused(kind, user, count)
        if kind in ("busy", "forbidden"):
            for _ in range(count):
                self._record("request refused", kind, user)

    def peer_refused(self, reason: str, user: int, pid: int) -> None:
        """A connection of *user* was turned away, or cut off."""
        self.metrics.peer_refused(reason)
        self._record("peer refused", reason, user, pid=pid)

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
    """A file of records, one JSON object a line."""

    def __init__(self, path: str) -> None:
        try:
            # Not blocking: somebody may have put a FIFO there.
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                               | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise BadRequest(f"security_log {quoted(path)}: {(error.strerror or str(error)).lower()}") from None
        try:
            about = os.fstat(self._fd)
            if not stat.S_ISREG(about.st_mode):
                raise BadRequest(f"security_log {quoted(path)}: is no regular file")
            if about.st_uid != os.geteuid():
                raise BadRequest(f"security_log {quoted(path)}: belongs to user {about.st_uid}, not to you")
            if others_write(self._fd, about):
                raise BadRequest(f"security_log {quoted(path)}: its mode {about.st_mode & 0o777:04o}"
                                 f" lets others write it; {cure(path)}")
        except BaseException:
            os.close(self._fd)
            raise
        self._writer = LineWriter(self._fd)

    def record(self, event: str, fields: dict[str, object]) -> None:
        row = clean({"time": stamp(), "event": event, **fields})
        self._writer.line(as_json(row))

    def close(self) -> None:
        os.close(self._fd)

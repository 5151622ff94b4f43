"""
How long a job would wait for a worker, and when that is too long: the queue is bounded by time.

Runs in:   the daemon, and `leeward run`; pure: times are arguments.

Theory of operation. A worker is occupied from a job's start until it can take the next one, teardown and arming
included. The *job time* is the moving average of that, and never less than the mean age of the jobs that run now.
Workers that sessions hold are left out. A job behind n others waits about (n + 1) * job time / workers.

A burst and an overload look the same when they begin, and differ in what follows: a burst is worked off, and then
nobody waits. So there are three states:

    calm         every job may wait, as far as the queue has places
    standing     at every moment some job has waited for a worker, for longer than *bound*, which is the greater of
                 the configured delay and 10 job times: a job that would wait longer than *bound* is refused
    overloaded   a job was refused for that reason, or found a standing queue full, within the last second or so: a job
                 that would wait longer than half a job time is refused, so that admitted jobs hardly wait at all. A
                 connection that had no job refused of late may wait for a whole job time, or behind one other job

The third state keeps latency low under an overload that lasts. If the queue were always refilled up to its bound,
every job would wait for all of the bound, and no more jobs would be done. Clients that wait for answers before they
send more, however many, don't reach it unless they wait for longer than *bound* already. An overload is *dense* while
more jobs are refused than start. A free worker is then idle only for a moment, even if no job waits (shedding.py).

No job is refused before any job has ended, nor because of another user's jobs: n counts only the jobs that come before
it in the line's order, and that may start.
"""

from __future__ import annotations

#: Job times for which a job may wait, if that is more than the configured delay, so that long jobs can queue.
JOBS = 10
#: How long a job may wait under overload: a part of a job time; and a part of the configured delay, where jobs are much
#: shorter.
STRICT_JOB, STRICT_DELAY = 0.5, 0.01
#: Delays after the last refusal before an overload is over.
REMEMBERED = 10
#: Fewer refusals than this may be chance: they make no overload dense.
_LEAST = 8
#: The weight of the latest job in the average.
_WEIGHT = 1 / 16


class Backlog:
    """
    Args:
        delay: seconds; 0 is no bound by time.
        workers: the number of workers; no session holds one of them yet.

    Attributes:
        delay: may be replaced at any time.
        workers: the number of workers that take jobs now.
    """

    def __init__(self, delay: float, workers: int) -> None:
        self.delay, self.workers = delay, workers
        self._average: float | None = None
        self._since: dict[int, float] = {}  # by the slot of a worker that is occupied: the start of its job
        self._starts = 0.0                  # the sum of those
        self._standing_since: float | None = None
        self._refused: float | None = None
        self._counted_from = 0.0
        self._counts = self._counts_before = (0, 0)  # jobs that were started, and refused; in the time before

    # --- what happens ---------------------------------------------------------

    def started(self, slot: int, now: float) -> None:
        """The worker *slot* has a job from now on."""
        self._forget(slot)
        self._since[slot] = now
        self._starts += now
        self._count(1, 0, now)

    def free(self, slot: int, now: float) -> None:
        """The worker *slot* can take a job. May be called repeatedly."""
        since = self._forget(slot)
        if since is not None:
            average = self._average
            self._average = now - since if average is None else average + (now - since - average) * _WEIGHT

    def waits(self, now: float) -> None:
        """A job that may start has to wait for a worker."""
        if self._standing_since is None:
            self._standing_since = now

    def idle(self) -> None:
        """No job that may start waits any more."""
        self._standing_since = None

    def full(self, now: float) -> None:
        """A job was refused because the queue is full."""
        if self.delay and self._average is not None and self._stands(now):
            self._refused = now

    def refused(self, count: int, now: float) -> None:
        """*count* jobs were refused because no worker was free, or would have been free in time."""
        self._refused = now
        self._count(0, count, now)

    def _count(self, started: int, refused: int, now: float) -> None:
        seconds = self._bound(now)
        if now - self._counted_from > seconds:
            self._counts_before = self._counts if now - self._counted_from < 2 * seconds else (0, 0)
            self._counts, self._counted_from = (0, 0), now
        self._counts = self._counts[0] + started, self._counts[1] + refused

    # --- what follows ---------------------------------------------------------

    def job_time(self, now: float) -> float:
        """Seconds that a job occupies a worker; 0 as long as none has ended."""
        if self._average is None:
            return 0.0
        count = len(self._since)
        return max(self._average, now - self._starts / count) if count else self._average

    def refusal(self, before: int, now: float, *, quiet: bool = False) -> float | None:
        """
        None if a job that comes behind *before* others may wait; otherwise the seconds for which it would have to wait.

        Args:
            quiet: no job of the connection was refused recently, so the connection doesn't cause the overload.
        """
        if not self.refuses(now):
            return None
        overloaded = self._overloaded(now)
        job = self.job_time(now)
        wait = (before + 1) * job / self.workers
        bound = self._bound(now)
        if overloaded and before > quiet:  # the next job in line may always wait, so that no worker stays idle
            bound = min(bound, max(STRICT_DELAY * self.delay, job if quiet else STRICT_JOB * job))
        if wait <= bound:
            return None
        self.refused(1, now)
        return wait

    def refuses(self, now: float) -> bool:
        """Whether `refusal` may return anything but None for the next job, whoever sends it."""
        return (self._standing_since is not None and bool(self.delay) and self._average is not None
                and self.workers > 0 and (self._overloaded(now) or self._stands(now)))

    def _overloaded(self, now: float) -> bool:
        return self._refused is not None and now - self._refused < REMEMBERED * self.delay

    def dense(self, now: float) -> bool:
        """Whether more jobs were refused than started recently."""
        self._count(0, 0, now)
        started, refused = self._counts_before
        return bool(self.delay) and refused >= max(_LEAST, started)

    def _bound(self, now: float) -> float:
        return max(self.delay, JOBS * self.job_time(now))

    def _stands(self, now: float) -> bool:
        return self._standing_since is not None and now - self._standing_since > self._bound(now)

    def _forget(self, slot: int) -> float | None:
        since = self._since.pop(slot, None)
        if since is not None:
            self._starts -= since
        if not self._since:
            self._starts = 0.0  # removes rounding errors
        return since

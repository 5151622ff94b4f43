"""
How much of the daemon one user may have at once. Pure: times are arguments.

Beyond a user's bound on jobs at once or on memory in sum, further jobs wait. Beyond the rate they are refused, and so
is a job that could never run. The daemon's own user and root have no quota unless one is set for them by number. No job
is ended to make room for another, so workers are kept free in advance: guests leave workers to root and the daemon's
owner, and each guest leaves one to other guests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leeward.base.dataclass import dataclass, field
from leeward.base.token_bucket import TokenBucket
from leeward.errors import BadRequest, Busy
from leeward.spec.sizes import size_text


@dataclass(frozen=True, slots=True)
class Quota:
    """The bounds of one user. 0 means no bound."""

    jobs: int = 0  # running jobs
    memory: int = 0  # bytes, the sum of the limits of all running jobs of the user
    rate: float = 0.0  # jobs a second; those of one second may come at once
    connections: int = 0  # at once
    sandboxes: int = 0  # live ones at once
    snapshot_memory: int = 0  # bytes of the user's snapshots, if that isn't what all others may have
    sleep_size: int = 0  # bytes of the user's sandboxes that sleep on disk, if that isn't a part of what is free
    folder_reserve: int = 0  # bytes that stay free where the user's sandboxes can write, if that is more than for all


#: The quota of a user for whom none is set: no bounds.
NONE = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    others: Quota = NONE  # the quota of users who are neither in *users* nor in *exempt*
    users: Mapping[int, Quota] = field(default_factory=dict)  # by uid
    exempt: tuple[int, ...] = ()  # uids without a quota, unless they are in *users*; all other users are guests
    reserve: int = 0  # workers that guests leave to the users in *exempt*; the last worker isn't reserved

    def of(self, user: int) -> Quota:
        found = self.users.get(user)
        if found is not None:
            return found
        return NONE if user in self.exempt else self.others

    def leaves(self, user: int, own: int, left: int, bound: int = 0) -> bool:
        """
        Whether *user* may have *own* of what all users share while *left* are left: no more than *bound*, or, if that is 0,
        than are left, so that who comes next always finds room. Those in *exempt* may have all.
        """
        return own <= bound if bound else user in self.exempt or own <= left

    def guest(self, user: int) -> bool:
        """Whether *user* has to leave workers to others."""
        return self.reserve > 0 and user not in self.exempt

    def most(self, user: int, workers: int) -> int:
        """How many jobs *user*, a guest, may run on *workers* workers: its quota, with one left for the next guest."""
        return self.of(user).jobs or max(1, workers - self.reserve - 1)

    def all_guests(self, workers: int) -> int:
        """Return the number of jobs that all guests together may run at once on *workers* workers."""
        return max(1, workers - self.reserve)


@dataclass(slots=True)
class _Account:
    """What a user uses now. *pace* has the jobs that the user may still send, if they have a rate."""

    jobs: int = 0
    memory: int = 0
    pace: TokenBucket | None = None


#: Accounts of users without a running job, before unused ones are removed.
_IDLE = 256


class Book:
    """
    The ledgers of all pools of a daemon. A quota holds for all of them together; the rate is counted in the first one.
    *freed*: called when a job has ended and there are several pools, because one in another pool may have waited for
    that.
    """

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self.freed: Callable[[], None] = lambda: None


class Ledger:
    """
    Holds users to their *quotas*, which may be replaced at any time. *workers* returns the number of workers there
    would be if sessions held that many more. *forget_connection* has its pool forget what it knows of a connection.
    """

    def __init__(self, quotas: Quotas | None = None, workers: Callable[[int], int] = lambda more: 1,
                 book: Book | None = None) -> None:
        self.quotas = Quotas() if quotas is None else quotas
        self._workers = workers
        self._accounts: dict[int, _Account] = {}
        self._running = 0  # of all users
        self.wake: Callable[[], None] = lambda: None  # lets its pool check whether a waiting job may start
        self.forget_connection: Callable[[int], None] = lambda _: None
        self._book = Book() if book is None else book
        self._book.ledgers.append(self)

    def connection_closed(self, connection: int) -> None:
        """Have all pools forget a connection that was closed, because the next connection may have its number."""
        for ledger in self._book.ledgers:
            ledger.forget_connection(connection)

    def close(self) -> None:
        """Remove this ledger from the book: its pool has ended."""
        self._book.ledgers.remove(self)

    def admit(self, user: int, memory: int, now: float) -> None:
        """Count a job that *user* sends; BadRequest if it could never run, Busy beyond the rate."""
        quota = self.quotas.of(user)
        if 0 < quota.memory < memory:
            raise BadRequest(f"limit memory={memory} is above the quota of user {user}, {size_text(quota.memory)}"
                             " for all jobs of a user together")
        if quota.rate:
            self._book.ledgers[0].count(user, quota, now)

    def count(self, user: int, quota: Quota, now: float) -> None:
        """Count a job against *user*'s rate; Busy as `admit`."""
        account = self._account(user)
        burst = max(1.0, quota.rate)
        if account.pace is None:
            account.pace = TokenBucket(burst, quota.rate, now)
        account.pace.most, account.pace.rate = burst, quota.rate
        if not account.pace.take(now):
            wait = account.pace.wait(now)
            raise Busy(f"user {user} may send {quota.rate:g} jobs a second; the next one in {wait:.3f} s", retry_after=wait)

    def may_start(self, user: int, memory: int, lasting: bool = False) -> bool:
        """Whether *user* may run one more job; *lasting*: a session or a sandbox, for which a worker may be made."""
        if not self.leaves_others(user, self._workers(lasting)):
            return False
        quota = self.quotas.of(user)
        if quota is NONE:
            return True
        found = [account for ledger in self._book.ledgers if (account := ledger.account_of(user)) is not None]
        jobs = sum(account.jobs for account in found)
        if not jobs:
            return True  # `admit` has checked that a single job fits
        return (not quota.jobs or jobs < quota.jobs) and (
            not quota.memory or sum(account.memory for account in found) + memory <= quota.memory)

    def leaves_others(self, user: int, workers: int) -> bool:
        """Whether one more job of *user* on *workers* workers leaves as many as it should to others."""
        if not self.quotas.guest(user):
            return True
        guests = self._running - sum(self.running(each) for each in set(self.quotas.exempt))
        return guests < self.quotas.all_guests(workers) and self.running(user) < self.quotas.most(user, workers)

    def account_of(self, user: int) -> _Account | None:
        """Return the account of *user*, for the ledgers of other pools."""
        return self._accounts.get(user)

    def start(self, user: int, memory: int) -> None:
        account = self._account(user)
        account.jobs += 1
        self._running += 1
        account.memory += memory

    def end(self, user: int, memory: int) -> None:
        account = self._accounts[user]
        account.jobs -= 1
        self._running -= 1
        account.memory -= memory
        if len(self._book.ledgers) > 1:
            self._book.freed()

    def running(self, user: int) -> int:
        """Return the number of *user*'s jobs that run in this pool."""
        account = self._accounts.get(user)
        return 0 if account is None else account.jobs

    def running_anywhere(self, user: int) -> int:
        """Return the number of *user*'s jobs that run in all pools together."""
        return sum(ledger.running(user) for ledger in self._book.ledgers)

    def alone(self, user: int) -> bool:
        """Whether all that runs, in all pools, is *user*'s."""
        return all(ledger.running(user) == ledger._running for ledger in self._book.ledgers)

    def _account(self, user: int) -> _Account:
        account = self._accounts.get(user)
        if account is None:
            if len(self._accounts) >= _IDLE:
                self._tidy()
            account = self._accounts[user] = _Account()
        return account

    def _tidy(self) -> None:
        # An account with a rate is kept, because a new one would have the full rate again.
        self._accounts = {user: account for user, account in self._accounts.items()
                          if account.jobs or (account.pace is not None and self.quotas.of(user).rate)}

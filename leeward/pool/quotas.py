"""
How much of the daemon one user may have at once.

Runs in:   the daemon, and `leeward run`; pure: times are told, not asked for.

Jobs at once and memory in sum make a user's further jobs wait; a rate, and a job that could never
run, are refused. The daemon's own user and root have no quota unless one is set for them by number.
"""

from __future__ import annotations

from collections.abc import Mapping

from leeward.dataclass import dataclass, field
from leeward.errors import BadRequest, Busy
from leeward.spec.sizes import size_text


@dataclass(frozen=True, slots=True)
class Quota:
    """
    What one user may have. 0 is as much as there is.

    Attributes:
        jobs: that run at once.
        memory: bytes, the limits of all his running jobs together.
        rate: jobs a second; a second's worth may come at once.
        connections: at once.
    """

    jobs: int = 0
    memory: int = 0
    rate: float = 0.0
    connections: int = 0


#: Of somebody who has none.
NONE = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """
    Every user's quota.

    Attributes:
        others: of those who are not in *users* and not in *exempt*.
        users: by uid.
        exempt: uids that have none, unless they are in *users*.
    """

    others: Quota = NONE
    users: Mapping[int, Quota] = field(default_factory=dict)
    exempt: tuple[int, ...] = ()

    def of(self, user: int) -> Quota:
        found = self.users.get(user)
        if found is not None:
            return found
        return NONE if user in self.exempt else self.others


@dataclass(slots=True)
class _Account:
    """
    What a user has now. *tokens* are jobs that he may still send, as of *counted*.
    """

    jobs: int = 0
    memory: int = 0
    tokens: float | None = None
    counted: float = 0.0


#: Accounts of users of whom nothing runs, before they are looked through.
_IDLE = 256


class Ledger:
    """
    Holds users to their *quotas*, which may be replaced at any time.
    """

    def __init__(self, quotas: Quotas | None = None) -> None:
        self.quotas = Quotas() if quotas is None else quotas
        self._accounts: dict[int, _Account] = {}

    def admit(self, user: int, memory: int, now: float) -> None:
        """
        Count a job that *user* sends, with a limit of *memory* bytes, at time *now*.

        Raises:
            BadRequest: it could never run.
            Busy: he sends more jobs than his rate.
        """
        quota = self.quotas.of(user)
        if 0 < quota.memory < memory:
            raise BadRequest(f"limit memory={memory} is above the quota of user {user}, {size_text(quota.memory)}"
                             " for all his jobs together")
        if not quota.rate:
            return
        account = self._account(user)
        burst = max(1.0, quota.rate)
        tokens = burst if account.tokens is None else \
            min(burst, account.tokens + (now - account.counted) * quota.rate)
        account.counted = now
        account.tokens = tokens - 1 if tokens >= 1 else tokens
        if tokens < 1:
            raise Busy(f"user {user} may send {quota.rate:g} jobs a second; the next one in"
                       f" {(1 - tokens) / quota.rate:.3f} s")

    def may_start(self, user: int, memory: int) -> bool:
        """
        Is there room in *user*'s quota for one more running job?
        """
        quota = self.quotas.of(user)
        account = self._accounts.get(user)
        if account is None or not account.jobs:
            return True  # `admit` has seen to it that one fits
        return (not quota.jobs or account.jobs < quota.jobs) and \
            (not quota.memory or account.memory + memory <= quota.memory)

    def start(self, user: int, memory: int) -> None:
        account = self._account(user)
        account.jobs += 1
        account.memory += memory

    def end(self, user: int, memory: int) -> None:
        account = self._accounts[user]
        account.jobs -= 1
        account.memory -= memory

    def running(self, user: int) -> int:
        """
        How many of *user*'s jobs run.
        """
        account = self._accounts.get(user)
        return 0 if account is None else account.jobs

    def _account(self, user: int) -> _Account:
        account = self._accounts.get(user)
        if account is None:
            if len(self._accounts) >= _IDLE:
                self._tidy()
            account = self._accounts[user] = _Account()
        return account

    def _tidy(self) -> None:
        # Who has used some of his rate is remembered, or forgetting would give it back to him.
        self._accounts = {user: account for user, account in self._accounts.items()
                          if account.jobs or (account.tokens is not None and self.quotas.of(user).rate)}

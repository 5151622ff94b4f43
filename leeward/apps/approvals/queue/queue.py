"""
The queue of requests: takes them in, has rules or a person decide, and notifies subscribers and waiting callers.

Threads:   any may call; one lock is around each transaction. Subscribers are called by the thread that decided, after
           the transaction and without the lock, in the order of decisions.
Holds:     a request is decided once. Of two people who decide at once, the second gets the first one's decision. A
           request's content never changes, so a decision about an id is about what was shown under it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from leeward.apps.approvals.queue.approval_request import (
    COLLECTED,
    LASTING,
    ApprovalRequest,
    IntakeBounds,
    IntakeRate,
    NewRequest,
    Resolution,
    check_room,
    checked,
    digest_of,
    reached,
)
from leeward.apps.approvals.queue.rules import (
    MOST_RULES,
    ApprovalRule,
    Effect,
    RuleSet,
    check_mode,
    decide_subject,
    generate_rule,
    parse_rule,
)
from leeward.apps.approvals.queue.store import RequestStore
from leeward.apps.approvals.queue.subjects import ProjectPath, storable, subject_text
from leeward.errors import BadRequest, Busy, ShuttingDown
from leeward.spec.hosts import Host

#: Requests of one query.
MOST_ROWS = 500
#: Seconds between two attempts to write what was carried out.
AGAIN_S = 1.0

T = TypeVar("T")

_EFFECTS: tuple[Effect, Effect] = ("deny", "allow")


class Notices:
    """
    Passes changed requests to subscribers, in the order of the changes. One thread at a time calls subscribers; a
    change that a subscriber makes is passed on after the present one. *lock* is held while requests change; `failed`
    counts the exceptions of subscribers.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self.failed = lock, 0
        self._subscribers: list[Callable[[ApprovalRequest], None]] = []
        self._noted: deque[ApprovalRequest] = deque()
        self._passing = False

    def subscribe(self, subscriber: Callable[[ApprovalRequest], None]) -> Callable[[], None]:
        def end() -> None:
            with self._lock:
                self._subscribers.remove(subscriber)

        with self._lock:
            self._subscribers.append(subscriber)
        return end

    def note(self, requests: Iterable[ApprovalRequest]) -> None:
        """Note changed requests for the subscribers. The caller holds the lock."""
        if self._subscribers:
            self._noted.extend(requests)

    def pass_on(self) -> None:
        """Call the subscribers with what was noted. The caller doesn't hold the lock."""
        while True:
            with self._lock:
                if self._passing or not self._noted:
                    return
                self._passing = True
                request, subscribers = self._noted.popleft(), list(self._subscribers)
            for subscriber in subscribers:
                try:
                    subscriber(request)
                except Exception:
                    self.failed += 1  # it costs that subscriber this notice
            with self._lock:
                self._passing = False


class ApprovalQueue:
    """
    Methods raise ShuttingDown after `shut_down` or `close`, and Busy if the disk can't be written.

    Args:
        folder: of the user, for the file of requests and rules.
        forbidden: rules of the configuration, which no other rule overrules.
        endpoints: hosts of the configuration that are allowed.
        bounds: of one sandbox's requests.
        lasting: seconds after which a request expires, by category; requests of other categories don't.
        clock: returns seconds since the epoch.
        steady: returns seconds of a monotonic clock.
    """

    def __init__(self, folder: str, *, forbidden: Sequence[ApprovalRule] = (), endpoints: Sequence[Host] = (),
                 bounds: IntakeBounds | None = None, lasting: Mapping[str, float] = LASTING,
                 clock: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._lasting, self._clock, self._steady = bounds or IntakeBounds(), lasting, clock, steady
        self._rate = IntakeRate(self._bounds.each_minute)
        self._store = RequestStore(folder)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._notices = Notices(self._lock)
        self._open, self._closed = True, False
        self._forbidden, self._endpoints = tuple(forbidden), tuple(endpoints)
        self._rules = self._stored_rules()

    def close(self) -> None:
        """Close the file. Pending requests stay pending; `wait` raises ShuttingDown in the threads that wait."""
        with self._lock:
            if self._closed:
                return
            self._open, self._closed = False, True
            self._changed.notify_all()
            self._store.close()

    def subscribe(self, subscriber: Callable[[ApprovalRequest], None]) -> Callable[[], None]:
        """Have *subscriber*, which returns soon, called with each request that changes. Returns what ends that."""
        return self._notices.subscribe(subscriber)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[float]:
        """Hold the lock while requests change, once those that are overdue have expired; gives seconds since the epoch."""
        try:
            with self._lock:
                self._check_open()
                now = self._clock()
                self._expire(now)
                yield now
        finally:
            self._notices.pass_on()

    # --- requests ---------------------------------------------------------------------

    def submit(self, new: NewRequest) -> ApprovalRequest:
        """
        Take a request in; a rule may decide it at once. A request that equals a pending one isn't taken twice, and one
        for a file supersedes a pending one of the same sandbox for that file.

        Raises:
            BadRequest: a field is too large or isn't valid.
            Busy: the sandbox has made too many requests.
        """
        new = checked(new)
        with self._changing() as now:
            wait = self._rate.take(new.sandbox, self._steady())
            if wait:
                raise Busy(f"more than {self._bounds.each_minute} requests a minute of one sandbox", wait)
            with self._store.transaction():
                number, changed = self._insert(new, now, lambda size: check_room(
                    self._bounds, self._store.load_of(new.sandbox), size))
                self._store.prune()
            return self._tell(changed)[-1] if changed else self._kept(number)

    def _kept(self, number: int) -> ApprovalRequest:
        found = self._store.get(number)
        assert found is not None
        return found

    def _insert(self, new: NewRequest, now: float, check: Callable[[int], None]) -> tuple[int, list[int]]:
        """
        Store a request, within a transaction, and decide it if a rule does. *check* gets the bytes of the payload of one
        that takes room. Returns the id, and those that were changed or made, which is the last one: none if *new* equals
        a pending request.
        """
        same, digest = self._store.pending_of(new.sandbox, subject_text(new.subject)), digest_of(new)
        for request in same:
            if request.digest == digest:
                self._store.repeat(request.id)
                return request.id, []
        superseded, ruling = list[int](), decide_subject(self._rules, new.subject, new.project)
        if ruling.answer == "ask" and isinstance(new.subject, ProjectPath):
            superseded = [each.id for each in same
                          if self._store.decide(each.id, "superseded", "supersession", now)]
        if ruling.answer != "deny":
            check(len(new.payload or b""))
        lasts = self._lasting.get(new.subject.category)
        number = self._store.insert(new, now, None if lasts is None else now + lasts)
        if ruling.answer != "ask":
            self._store.decide(number, ruling.status, ruling.decider, now, ruling.rule)
        return number, [*superseded, number]

    def collect(self, news: Sequence[NewRequest]) -> list[ApprovalRequest]:
        """
        Take in requests of one sandbox that the operator collects, in one transaction, within COLLECTED and without a
        rate. Returns them in this order, fewer if there is no room for the others; BadRequest and none if one isn't valid.
        """
        news = [checked(new) for new in news]
        found, changed = list[int](), list[int]()
        with self._changing() as now:
            with self._store.transaction():
                load = self._store.load_of(news[0].sandbox) if news else (0, 0, 0)
                for new in news:
                    try:
                        check_room(COLLECTED, load, len(new.payload or b""))
                    except Busy:
                        break
                    number, more = self._insert(new, now, lambda _size: None)
                    found.append(number)
                    changed += more
                    if more:
                        load = load[0] + 1, load[1] + len(new.payload or b""), load[2] + 1
                self._store.prune()
            self._tell(changed)
            return [self._kept(number) for number in found]

    def get(self, number: int) -> ApprovalRequest | None:
        with self._lock:
            return self._store.get(number)

    def payload(self, number: int) -> bytes | None:
        """The order of a request; None if it has none, or none any more."""
        with self._lock:
            return self._store.payload(number)

    def pending(self, limit: int = 50, after: int = 0, category: str | None = None,
                sandbox: str | None = None) -> list[ApprovalRequest]:
        """Pending requests with ids above *after*, the oldest first; only of *category* and *sandbox*, if these are given."""
        with self._lock:
            return self._store.pending(min(limit, MOST_ROWS), after, category, sandbox)

    def counts(self, sandbox: str | None = None) -> dict[str, int]:
        """The numbers of pending requests, of all or of *sandbox*, by category; one without any is left out."""
        with self._lock:
            return self._store.counts(sandbox)

    def recent(self, limit: int = 50, sandbox: str | None = None) -> list[ApprovalRequest]:
        """Requests of any status, the newest first."""
        with self._lock:
            return self._store.recent(min(limit, MOST_ROWS), sandbox)

    def wait(self, number: int, timeout: float | None = None) -> ApprovalRequest | None:
        """Wait until a request is decided or expires, *timeout* seconds at most; returns it then, None if there is none."""
        end = None if timeout is None else self._steady() + timeout
        while True:
            with self._lock:
                if self._closed:
                    raise ShuttingDown("the service for approvals is shutting down")
                if not self._expire(self._clock()):
                    request = self._store.get(number)
                    left = None if end is None else end - self._steady()
                    if request is None or request.status != "pending" or (left is not None and left <= 0):
                        return request
                    if request.expires is not None:
                        until = max(0.001, request.expires - self._clock())
                        left = until if left is None else min(left, until)
                    self._changed.wait(left)
            self._notices.pass_on()

    def expire(self) -> float | None:
        """Expire the requests that are overdue; returns when the next one does, in seconds since the epoch."""
        with self._changing():
            return self._store.next_expiry()

    def shut_down(self) -> None:
        """
        Deny the pending requests for whose answers programs wait, and take in no more. Those about files and branches
        stay pending: they have all that is to be carried out. Orders that were begun can be finished until `close`.
        """
        with self._changing() as now:
            with self._store.transaction():
                decided = [row.id for row in self._all_pending() if not (
                    row.category in ("filesystem", "git") and self._store.has_payload(row.id))
                    and self._store.decide(row.id, "denied", "shutdown", now)]
            self._open = False
            self._changed.notify_all()
            self._tell(decided)

    def _all_pending(self, category: str | None = None) -> Iterator[ApprovalRequest]:
        after = 0
        while rows := self._store.pending(MOST_ROWS, after, category):
            after = rows[-1].id
            yield from rows

    # --- decisions --------------------------------------------------------------------

    def decide(self, numbers: Iterable[int], approved: bool, by: str, *, always: bool = False,
               everywhere: bool = False) -> Resolution:
        """
        Approve or deny requests by their ids.

        Args:
            numbers: ids.
            approved: False to deny.
            by: "cli" or "page".
            always: store a rule for subjects like the first one's in its project, and decide pending requests by it.
            everywhere: the rule holds in all projects.

        Raises:
            BadRequest: nothing was decided: no rule can be made, the request has no project and *everywhere* is False,
                or *by* is something else.
            Unsupported: a rule for a name needs the list of public suffixes, which isn't installed.
        """
        _check_person(by)
        effect: Effect = "allow" if approved else "deny"
        decided, before, unknown, rule = list[int](), list[int](), list[int](), None
        wanted = list(dict.fromkeys(numbers))
        with self._changing() as now:
            with (self._store.changing_rules if always else self._store.transaction)():
                if always:
                    rule = self._rule_for(wanted, effect, everywhere)
                for number in wanted:
                    done = self._store.decide(number, "approved" if approved else "denied", by, now,
                                              "" if rule is None else rule.text)
                    (decided if done else before if self._store.get(number) else unknown).append(number)
                if rule is not None:
                    self._keep(rule, now)
                    decided += self._decide_pending(now)
            if rule is not None:
                self._reload()
            found = self._tell(decided)
            return Resolution(tuple(found), tuple(filter(None, map(self._store.get, before))), tuple(unknown),
                              *(("", "") if rule is None else (rule.text, rule.project)))

    def replace(self, number: int, new: NewRequest, by: str) -> Resolution:
        """
        Supersede request *number* by *new*, a part or another form of it, and approve that, in one transaction. If the
        request was decided before, nothing changes, and the result has it under `before`. BadRequest if *new* or *by*
        isn't valid.
        """
        new = checked(new)
        _check_person(by)
        with self._changing() as now:
            with self._store.transaction():
                is_first = self._store.decide(number, "superseded", "supersession", now)
                made = self._store.insert(new, now, None) if is_first else 0
                if made:
                    self._store.decide(made, "approved", by, now)
                    self._store.take_place(number, made)
            if not made:
                found = self._store.get(number)
                return Resolution(before=() if found is None else (found,), unknown=() if found else (number,))
            return Resolution(tuple(self._tell([number, made])[1:]))

    def decide_category(self, category: str, approved: bool, by: str, upto: int) -> Resolution:
        """Decide the pending requests of a category up to the id *upto*, the last that the person has seen."""
        return self.decide(self.numbers_of(category, upto), approved, by)

    def numbers_of(self, category: str, upto: int) -> list[int]:
        """The ids of the pending requests of a category up to *upto*."""
        with self._lock:
            return [row.id for row in self._all_pending(category) if row.id <= upto]

    # --- rules ------------------------------------------------------------------------

    def rules(self) -> RuleSet:
        with self._lock:
            return self._rules

    def add_rule(self, text: str, effect: Effect, project: str = "") -> tuple[ApprovalRule, Resolution]:
        """
        Store the rule `category(pattern)` of *project* ("": of all), and decide pending requests by it. BadRequest if
        it is none, or there are too many.
        """
        rule = parse_rule(text, effect, storable(project))
        with self._changing() as now:
            with self._store.changing_rules():
                self._keep(rule, now)
                decided = self._decide_pending(now)
            self._reload()
            return rule, Resolution(tuple(self._tell(decided)), rule=rule.text, project=rule.project)

    def remove_rule(self, text: str, project: str | None = None) -> bool:
        """Remove a rule of *project* (None: of any) from both lists; False if there was none, BadRequest if it is none."""
        where = None if project is None else storable(project)
        with self._lock:
            self._check_open()
            with self._store.changing_rules():
                found = [self._store.remove_rule(effect, parse_rule(text, effect).text, where) for effect in _EFFECTS]
            self._reload()
            return any(found)

    def set_mode(self, category: str, mode: str) -> Resolution:
        """Set the mode of a category, and decide pending requests by it; BadRequest if the category can't have it."""
        check_mode(category, mode)
        with self._changing() as now:
            with self._store.changing_rules():
                self._store.set_mode(category, mode)
                decided = self._decide_pending(now)
            self._reload()
            return Resolution(tuple(self._tell(decided)))

    def _stored_rules(self) -> RuleSet:
        deny, allow = (tuple(parse_rule(text, effect, project) for text, project in self._store.rules(effect))
                       for effect in _EFFECTS)
        return RuleSet(self._forbidden, self._endpoints, deny, allow, self._store.modes())

    def _reload(self) -> None:
        """Put the rules of the store in force. Called after the transaction."""
        self._rules = self._stored_rules()

    def _keep(self, rule: ApprovalRule, now: float) -> None:
        if len(self._store.rules(rule.effect)) >= MOST_RULES:
            raise BadRequest(f"there are {MOST_RULES} rules already; remove some")
        self._store.add_rule(rule.effect, rule.text, rule.project, now)

    def _rule_for(self, numbers: Sequence[int], effect: Effect, everywhere: bool) -> ApprovalRule:
        """The rule for the first of *numbers* that is pending; errors as for `decide`."""
        for number in numbers:
            request = self._store.get(number)
            if request is not None and request.status == "pending":
                if not everywhere and not request.project:
                    raise BadRequest("this request is of no project, so a rule for it holds everywhere or not at all")
                return generate_rule(request.subject, effect, "" if everywhere else request.project)
        raise BadRequest("none of these is pending, so there is nothing to make a rule of")

    def _decide_pending(self, now: float) -> list[int]:
        """Decide the pending requests about which the rules or modes of the store decide; returns their ids."""
        rules, decided = self._stored_rules(), list[int]()
        for request in self._all_pending():
            ruling = decide_subject(rules, request.subject, request.project)
            if ruling.answer != "ask" and self._store.decide(request.id, ruling.status, ruling.decider, now, ruling.rule):
                decided.append(request.id)
        return decided

    # --- carrying out -----------------------------------------------------------------

    def begin(self, number: int, temporary: str = "") -> bytes | None:
        """
        Begin to carry out an approved request. Only one caller gets its order, and calls `finish` with the result; None
        if it isn't due. *temporary* is the name of a file that may be left behind if this program ends in between.
        """
        def begun() -> bytes | None:
            self._check_open()
            with self._store.transaction():
                is_first = self._store.begin(number, temporary)
            return self._store.payload(number) if is_first else None

        with self._lock:
            return self._once_written(begun)

    def finish(self, number: int, note: str = "", *, failed: bool = False, stale: bool = False) -> None:
        """
        Record the result of an order that was begun, and 1000 characters of *note*: a remark, or why it wasn't carried
        out. *stale*: since the host was changed after the request, which becomes a denied one.
        """
        def finished() -> bool:
            # Of a file that is found out again after a crash of the machine (`apply.recover`).
            with self._store.transaction(lasting=not self._store.temporary_name(number)):
                return self._store.finish(number, "failed" if failed or stale else "applied", note[:1000], stale=stale,
                                          now=self._clock())

        with self._lock:
            self._tell([number] if self._once_written(finished) else [])
        self._notices.pass_on()

    def _once_written(self, change: Callable[[], T]) -> T:
        """
        What *change* returns, a step of what is carried out: nobody would come back to it, so a disk that is full is waited
        for. Busy if the service ends meanwhile. The caller holds the lock.
        """
        while True:
            try:
                return change()
            except Busy:
                if not self._open:
                    raise
                self._changed.wait(AGAIN_S)

    def due(self) -> list[ApprovalRequest]:
        """The approved requests that no caller has begun."""
        with self._lock:
            return self._store.staged("due")

    def interrupted(self) -> list[tuple[ApprovalRequest, str]]:
        """The requests that were begun and aren't finished, each with the `temporary` of its `begin`."""
        with self._lock:
            return [(request, self._store.temporary_name(request.id)) for request in self._store.staged("applying")]

    def _check_open(self) -> None:
        if not self._open:
            raise ShuttingDown("the service for approvals is shutting down")

    def _expire(self, now: float) -> bool:
        overdue = self._store.overdue(now)
        if overdue:
            with self._store.transaction():
                done = [number for number in overdue if self._store.decide(number, "expired", "expiry", now)]
            self._tell(done)
        return bool(overdue)

    def _tell(self, numbers: Iterable[int]) -> list[ApprovalRequest]:
        """Wake the threads in `wait`, and note the requests for subscribers. The caller holds the lock."""
        found = [request for request in map(self._store.get, numbers) if request is not None]
        if found:
            self._notices.note(found)
            self._changed.notify_all()
        reached("decided")
        return found


def _check_person(by: str) -> None:
    if by not in ("cli", "page"):
        raise BadRequest("by: cli or page")

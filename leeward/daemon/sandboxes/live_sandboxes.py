"""
The daemon's live sandboxes: opened, found, extended, ended.

Theory of operation. The registry has each user's sandboxes and when they end; the pool provides workers; one timer ends
sandboxes whose time is over. A request that waits for a sandbox counts as use of it, between `busy` and `free`. Every
end of a sandbox goes through `_end`: the registry stores the reason, requests that wait are answered, and the seat is
given back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from leeward.base.dataclass import dataclass, replace
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, Reactor
from leeward.daemon.sandboxes import importing
from leeward.daemon.sandboxes.last_uses import LastUses
from leeward.daemon.sandboxes.mounting import Mounting, Mounts
from leeward.daemon.sandboxes.parting import KEPT_S, Parting
from leeward.daemon.sandboxes.registry import Reason, Registry, RegistryEntry, State
from leeward.daemon.sandboxes.reserve import Reserve
from leeward.daemon.sandboxes.retiring import Retiring
from leeward.daemon.sandboxes.sandbox import LiveSandbox
from leeward.daemon.sandboxes.sleep_folder import Asleep, SleepFolder
from leeward.daemon.sandboxes.sleeping import Sleep, SleepStage
from leeward.daemon.sandboxes.snapshots import Leaves, Snapshots, all_of_it
from leeward.daemon.sandboxes.terms import SandboxFacts, SandboxTerms
from leeward.daemon.sandboxes.user_turns import UserTurns
from leeward.daemon.worker.opener import Opener
from leeward.errors import Bug, Busy, LeewardError, Refused, RequestRejected, SandboxOver, told
from leeward.spec.sandbox import View

if TYPE_CHECKING:
    from leeward.daemon.pool.pool import Pool
    from leeward.daemon.pool.sessions import Seat
    from leeward.daemon.run.dumping import KernelState
    from leeward.daemon.telling.events import EventBook

#: Terminals of one user's sandboxes together. File systems made in user namespaces share 3,072 on a host with the
#: kernel's defaults (kernel.pty.max less kernel.pty.reserve), so a dozen users may have as many.
MOST_TERMINALS_OF_USER = 256

#: Sandboxes of one user that fall asleep at once.
MOST_FALLING = 4
_NO_SLEEP = "it couldn't sleep"

#: Bytes of unread input of one user's started processes, which outlive their requests.
MOST_INPUT_OF_USER = 256 << 20


@dataclass(slots=True)
class Held:
    sandbox: LiveSandbox
    seat: Seat | None = None
    on_open: Callable[[str | Refused], None] | None = None  # of the request for the opening
    held: bool = False  # it ends with the connection that has opened it
    mounts: Mounts | None = None
    mounting: Mounting | None = None
    pool: Callable[[], Pool] | None = None  # that has its worker, also after it has slept
    patience: float = 0.0  # seconds for which it waits for a worker
    sleep: Sleep | None = None
    sleeps: bool = False  # in place of its end, when it was idle for too long


#: A sandbox in the registry.
SandboxEntry: TypeAlias = RegistryEntry[Held]


class LiveSandboxes:
    """
    Opens, finds and ends the sandboxes of all users. *own* returns the places of the host that no sandbox is given,
    *reserve* the bytes that stay free in file systems to which a user's sandboxes can write, *snapshots* the bytes that a
    user's snapshots may take, *snapshot_idle* the seconds after which an unused one is removed; *leaves* is `Snapshots`'s.
    `seated` is called with the number of each sandbox's runner, its id, and its client's settings for egress.
    """

    def __init__(self, reactor: Reactor, pool: Pool, terms: Callable[[], SandboxTerms],
                 wall: Callable[[], float] = time.time, own: Callable[[], Sequence[str]] = tuple,
                 book: EventBook | None = None, reserve: Callable[[int], int] = lambda _user: 0,
                 snapshots: Callable[[int], int] = lambda _user: 0,
                 snapshot_idle: Callable[[], float] = lambda: 3600.0, leaves: Leaves = all_of_it) -> None:
        self._reactor, self._pool, self._terms, self._wall = reactor, pool, terms, wall
        self._book = book
        self.reactor, self.now = reactor, reactor.now
        self.opener = Opener(reactor, own)
        self.seated: Callable[[int, str, Any], None] = lambda _runner, _sandbox, _egress: None
        self._registry: Registry[Held] = Registry(since=wall())
        self._reserve = Reserve(reactor, reserve, lambda name, why: self._end(name, Reason.FILES, why))
        self.last_uses = LastUses(reactor)
        self.snapshots = Snapshots(reactor, self.last_uses, snapshots, snapshot_idle, leaves, wall)
        self.falling = UserTurns(MOST_FALLING, reactor.soon)
        self._timer = NO_TIMER
        self._input: dict[int, int] = {}
        self.sleepers: SleepFolder | None = None  # where sleeping sandboxes are, if not in memory
        self.warns: Callable[..., None] = _silent  # they write to the daemon's log
        self.tells: Callable[..., None] = _silent
        self._retiring: Retiring | None = None
        self._ends = False  # the daemon does, and what sleeps on disk is the next one's

    def __len__(self) -> int:
        return len(self._registry)

    @property
    def view(self) -> View:
        """The view of files that every sandbox of the usual pool has."""
        return self._terms().view

    # --- opening --------------------------------------------------------------------

    def open(self, user: int, facts: SandboxFacts, on_open: Callable[[str | Refused], None], *, idle: float,
             lifetime: float, most: int, patience: float, mounts: Mounts | None = None, pool: Pool | None = None,
             terms: SandboxTerms | None = None, place: Callable[[LiveSandbox], Pool] | None = None,
             sleeps: bool = False) -> str:
        """
        Open a sandbox for *user*, who may have *most*. Returns its id, for `give_up`; *on_open* is called once, later,
        with the id or the error. The worker is *pool*'s, for which the request may wait *patience* seconds, and *terms*
        are that pool's; *place* returns the pool of its kind when it wakes, and sets its terms. If it *sleeps* it does so,
        if it can, when it was idle for too long. The desk owns *mounts* from now on, unless this raises: Busy, ShuttingDown
        or BadRequest.
        """
        self._registry.admit(user, most)
        now = self._reactor.now()
        name = ""
        sandbox = LiveSandbox(self._reactor, facts, terms or self._terms(),
                              lambda reason, why: self._end(name, reason, why))
        again = partial(place, sandbox) if place is not None else lambda: self._pool
        held = Held(sandbox, on_open=on_open, mounts=mounts, pool=again, patience=patience, sleeps=sleeps)
        entry = self._registry.add(user, held, idle=idle, lifetime=lifetime, now=now)
        name = entry.name
        if self._book is not None:
            sandbox.on_program_end = partial(self._book.process, user, name)
        entry.calls += 1  # the request that waits for the opening
        try:
            if mounts is not None:
                self._reserve.watch(name, user, mounts)
            # One process more than the client's limit: the runner's first one, which no client has started.
            held.seat = (pool or self._pool).open_seat(
                replace(facts.limits, processes=facts.limits.processes + 1), user, partial(self._opened, entry),
                sandbox.lost, partial(self.drained, name), patience)
        except LeewardError as error:
            held.on_open = held.mounts = None
            self._end(name, Reason.UNOPENED, str(error))
            raise
        if sandbox.state is State.OVER:  # its runner was lost at once
            held.seat.close()
            held.seat = None
        self._look_at(entry)
        return name

    def _opened(self, entry: SandboxEntry, what: Any) -> None:
        held = entry.sandbox
        if isinstance(what, Refused):
            self._end(entry.name, Reason.UNOPENED, what.message, what)
            return
        self.seated(what.number, entry.name, held.sandbox.facts.egress)
        if held.mounts is not None and held.mounting is None:
            if held.sandbox.state is State.OPENING:
                view = held.sandbox.terms.view  # all of an image's root can have a mount point
                held.mounting = Mounting(self.opener, what, held.mounts, ("/",) if view.root else view.scratch.targets,
                                         partial(self._mounted, entry, what))
            return
        self._begin(entry, what)
        # Later, so that the caller has the return value of `open` by then.
        self._reactor.soon(partial(self._report_opened, entry, entry.name))

    def _mounted(self, entry: SandboxEntry, place: Any, error: LeewardError | None) -> None:
        if entry.sandbox.sandbox.state is not State.OPENING:
            return
        if error is not None:
            why: Refused = error if isinstance(error, Refused) else RequestRejected(str(error))
            self._end(entry.name, Reason.UNOPENED, str(error), why)
            return
        self._begin(entry, place)
        self._reactor.soon(partial(self._report_opened, entry, entry.name))

    def _begin(self, entry: SandboxEntry, place: Any) -> None:
        sandbox = entry.sandbox.sandbox
        sandbox.begin(place)
        root = sandbox.terms.view.root
        if root is not None and root.disk:
            try:
                self._reserve.watch_root(entry.name, entry.user, root.disk, sandbox.facts.limits.files, sandbox.weigh)
            except (LeewardError, OSError) as error:
                self._end(entry.name, Reason.UNOPENED, f"its root can't be watched: {error}")

    def _report_opened(self, entry: SandboxEntry, what: str | Refused) -> None:
        on_open, entry.sandbox.on_open = entry.sandbox.on_open, None
        if on_open is not None:
            self.free(entry)
            on_open(what)

    # --- sleeping -------------------------------------------------------------------

    def pause(self, entry: SandboxEntry, answered: Callable[[Refused | None], None]) -> None:
        """
        Let the sandbox sleep; *answered* is called once, with None or why it can't. RequestRejected, Busy if it has what
        can't sleep. To wake it waits for a worker as at the opening.
        """
        held = entry.sandbox
        if held.mounts is not None or held.sandbox.facts.key.image:
            raise RequestRejected("a sandbox that shows folders of the host, has a home or an image can't sleep")
        if held.sleep is not None and held.sleep.stage is SleepStage.ASLEEP:
            answered(None)
            return
        if held.sleep is not None:
            raise Busy(f"it is {held.sleep.stage.value}")
        self.busy(entry)  # it isn't idle while it sleeps
        try:
            sleep = Sleep(self._reactor, held.sandbox, Bed(self, entry), answered)
            held.sleep = None if sleep.stage is SleepStage.OVER else sleep  # it can have failed already, and said so
        except BaseException:
            self.free(entry)
            raise

    def record(self, entry: SandboxEntry) -> Mapping[str, Any]:
        """What a later daemon has to know of a sandbox that sleeps."""
        held, now, wall = entry.sandbox, self._reactor.now(), self._wall()
        return {**held.sandbox.record(), "made_on": dict(importing.key()), "user": entry.user, "idle": entry.idle,
                "sleeps": held.sleeps, "until": wall + entry.until - now, "opened": wall + held.sandbox.opened - now}

    def restore(self, name: str, record: Mapping[str, Any], facts: SandboxFacts, place: Callable[[LiveSandbox], Pool],
                patience: float) -> None:
        """Have the sandbox *name* again, which an earlier daemon has put to sleep on disk; the rest is as in `open`."""
        now, wall = self._reactor.now(), self._wall()
        sandbox = LiveSandbox(self._reactor, facts, self._terms(), lambda reason, why: self._end(name, reason, why))
        sandbox.restore(record, wall - record["opened"])
        held = Held(sandbox, pool=partial(place, sandbox), patience=patience, sleeps=record["sleeps"])
        entry = self._registry.restore(name, record["user"], held, idle=record["idle"], lifetime=record["until"] - wall,
                                       now=now)
        if self._book is not None:
            sandbox.on_program_end = partial(self._book.process, entry.user, name)
        self.busy(entry)
        held.sleep = Sleep.left(self._reactor, sandbox, Bed(self, entry))
        self._look_at(entry)

    def retire(self, seconds: float, done: Callable[[], None]) -> None:
        """
        The daemon ends: put the sandboxes to sleep on disk, which the next one wakes; end those that can't. *done* is called
        when that is over. Kernels have *seconds* to end what they run.
        """
        self._ends, self._retiring = True, Retiring(self._reactor, self, seconds, done)
        self._retiring.begin()

    def hurry(self) -> None:
        """End the sandboxes that don't sleep yet."""
        if self._retiring is not None:
            self._retiring.stop()

    @property
    def retiring(self) -> bool:
        return self._retiring is not None

    def all(self) -> list[SandboxEntry]:
        """The open sandboxes of all users."""
        return [entry for entry in self._registry.all() if entry.sandbox.sandbox.state is State.OPEN]

    def _falls_asleep(self, entry: SandboxEntry) -> bool:
        """Whether the sandbox, which was idle for too long, sleeps in place of its end, or tries to."""
        if not entry.sandbox.sleeps:
            return False

        def answered(why: LeewardError | None) -> None:
            if why is not None:
                self._end(entry.name, Reason.IDLE, str(why), recorded=_NO_SLEEP)

        try:
            self.pause(entry, answered)
        except LeewardError as error:
            answered(error)
        return True

    # --- finding --------------------------------------------------------------------

    def get(self, name: str, user: int) -> SandboxEntry:
        """The sandbox *name* of *user*, used now; SandboxOver if there is none that can be used."""
        entry = self._registry.get(name, user)
        if entry.sandbox.sandbox.state is State.OPENING:  # its id isn't known to any client yet
            raise SandboxOver(f"sandbox {name} is not open yet", "unknown")
        entry.used = self._reactor.now()
        return entry

    def of(self, user: int) -> list[SandboxEntry]:
        """The open sandboxes of *user*, the oldest first."""
        return [entry for entry in self._registry.of(user) if entry.sandbox.sandbox.state is State.OPEN]

    def admit_terminal(self, user: int) -> None:
        """Check that *user* may open one more terminal; Busy if not."""
        taken = sum(entry.sandbox.sandbox.terminals for entry in self.of(user))
        if taken >= MOST_TERMINALS_OF_USER:
            raise Busy(f"your sandboxes have {taken} terminals open, all that a user may have")

    def hold_input(self, user: int, size: int) -> Callable[[int], None]:
        """
        Count *size* bytes of unread input of *user*'s processes, Busy if these are too many, until the returned
        function is called: once, when the process has read them or never will.
        """
        held = self._input.get(user, 0)
        if held and held + size > MOST_INPUT_OF_USER:
            raise Busy(f"processes of your sandboxes have {held} bytes of their input unread, and may have"
                       f" {MOST_INPUT_OF_USER}")
        self._input[user] = held + size

        def over(_count: int) -> None:
            self._input[user] -= size
            if not self._input[user]:
                del self._input[user]

        return over

    def busy(self, entry: SandboxEntry) -> None:
        """Count a request that waits for the sandbox, which isn't idle until `free` is called."""
        entry.calls += 1

    def free(self, entry: SandboxEntry) -> None:
        """End the count of a request that was passed to `busy`: it was answered."""
        entry.calls -= 1
        entry.used = self._reactor.now()
        if entry.calls < 0:
            raise Bug(f"sandbox {entry.name} has answered more requests than it had")
        self._look_at(entry)

    def _tell_end(self, entry: SandboxEntry, reason: str, detail: str) -> None:
        if self._book is not None:
            sandbox = entry.sandbox.sandbox
            self._book.sandbox(entry.user, entry.name, reason, detail,
                               {"profile": sandbox.facts.key.profile, **_used(sandbox)})

    def info(self, entry: SandboxEntry) -> Mapping[str, Any]:
        """What a client is told about the sandbox, as a map."""
        now, sandbox = self._reactor.now(), entry.sandbox.sandbox
        root = sandbox.terms.view.root
        return {
            "sandbox": entry.name, "profile": sandbox.facts.key.profile,
            "environment": sandbox.facts.key.environment, "egress": sandbox.facts.key.egress,
            "image": sandbox.facts.key.image, "age": now - sandbox.opened,
            "idle": entry.idle, "unused": 0.0 if entry.calls else now - entry.used, "left": max(0.0, entry.until - now),
            "held": entry.sandbox.held,
            "processes": sandbox.running, "calls": entry.calls - (entry.sandbox.sleep is not None),
            "memory_limit": sandbox.facts.limits.memory,
            "memory": sandbox.memory, "metadata": dict(sandbox.facts.metadata), **_used(sandbox),
            "asleep": entry.sandbox.sleep is not None and entry.sandbox.sleep.stage is SleepStage.ASLEEP,
            **({} if entry.sandbox.mounts is None else {"mounts": entry.sandbox.mounts.info()}),
            **({} if root is None else {
                "layers": [os.path.basename(path) for path in root.layers],
                "checkpoints": list(() if entry.sandbox.mounts is None else entry.sandbox.mounts.kept.get("/", ()))}),
        }

    # --- its time -------------------------------------------------------------------

    def extend(self, entry: SandboxEntry, idle: float, lifetime: float) -> None:
        """Set how many seconds the sandbox may be idle, and how many it may live from now on; 0 leaves a value as it is."""
        if idle:
            entry.idle = idle
        if lifetime:
            entry.until = self._reactor.now() + lifetime
        self._look_at(entry)

    def change(self, entry: SandboxEntry, metadata: Mapping[str, str],
               narrowed: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
        """
        Give the sandbox other *metadata* unless they are empty, and, unless they are None, other policies, as for
        `seated`. RequestRejected if it sleeps: a later daemon would wake it with what it had.
        """
        held = entry.sandbox
        if held.sleep is not None:
            raise RequestRejected(f"it is {held.sleep.stage.value}, and keeps its metadata and policies until it is awake")
        lease = held.sandbox.lease
        held.sandbox.facts.metadata = metadata or held.sandbox.facts.metadata
        if narrowed is not None:
            held.sandbox.facts.egress = narrowed
            self.seated(lease, entry.name, narrowed)

    def _look_at(self, entry: SandboxEntry) -> None:
        """Set the timer so that it fires no later than *entry* may have to end."""
        when = entry.next_look()
        if not self._timer.is_set or when < self._timer.when:
            self._timer.cancel()
            self._timer = self._reactor.at(when, self._look)

    def _look(self) -> None:
        now = self._reactor.now()
        for entry in self._registry.all():
            reason = entry.due(now)
            if reason is not None and entry.sandbox.sandbox.state is State.OPEN:
                try:
                    if reason is not Reason.IDLE or not self._falls_asleep(entry):
                        self._end(entry.name, reason)
                except Exception as error:
                    self._reactor.barrier.note(self._look, error)
        left = self._registry.all()
        if left:
            # A sandbox that is due and can't end yet must not make the timer fire at once again.
            when = max(now + 0.001, min(entry.next_look() for entry in left))
            self._timer = self._reactor.at(when, self._look)

    def broken(self, _error: Exception) -> None:
        """Called by the barrier: a callback has failed. Checks again, a second later, which sandboxes have to end."""
        if not self._timer.is_set and len(self._registry):
            self._timer = self._reactor.after(1.0, self._look)

    # --- the end --------------------------------------------------------------------

    def kill(self, entry: SandboxEntry, gone: Callable[[], None]) -> None:
        """End the sandbox. *gone* is called once when none of its processes is left, perhaps before this returns."""
        self._end(entry.name, Reason.KILLED, gone=gone)

    def part(self, name: str) -> None:
        """End the sandbox *name*, whose connection is closed; where its copies have changes, its processes for now."""
        entry = self._registry.find(name)
        held = None if entry is None else entry.sandbox
        if entry is not None and held is not None and self._retiring is not None:
            held.held = False  # its program may come back
            entry.idle = min(entry.idle, KEPT_S)
            return
        if entry is None or held is None or held.mounts is None or not held.mounts.layers or (
                held.sandbox.state is not State.OPEN):
            self._end(name, Reason.PARTED)
            return
        held.held = False
        self.busy(entry)
        Parting(self._reactor, held.sandbox, held.mounts, partial(self._parted, entry))

    def _parted(self, entry: SandboxEntry, has_changes: bool) -> None:
        if has_changes:
            entry.idle = min(entry.idle, KEPT_S)
            self.free(entry)
        else:
            self._end(entry.name, Reason.PARTED)

    def give_up(self, name: str, user: int) -> None:
        """Cancel the opening of the sandbox *name*. Does nothing if *user* has no such sandbox any more."""
        try:
            entry = self._registry.get(name, user)
        except SandboxOver:
            return
        entry.sandbox.on_open = None
        self._end(name, Reason.UNOPENED, "nobody waited for it")

    def drained(self, name: str) -> None:
        """Its pool takes no more jobs."""
        entry = self._registry.find(name)
        if self._retiring is None or (entry is not None and entry.sandbox.sandbox.state is not State.OPEN):
            self._end(name, Reason.SHUTDOWN)

    def cannot_sleep(self, entry: SandboxEntry, why: str) -> None:
        """End a sandbox that can't be there when the next daemon is."""
        self._end(entry.name, Reason.SHUTDOWN, why, recorded=_NO_SLEEP)

    def _end(self, name: str, reason: Reason, detail: str = "", why: Refused | None = None,
             gone: Callable[[], None] | None = None, recorded: str | None = None) -> None:
        """*recorded* is in the record in place of *detail*, which may be a text of the sandbox's own."""
        entry = self._registry.find(name)
        if entry is None:
            return
        held = entry.sandbox
        self._registry.end(name, reason, self._wall(), detail)
        book = [partial(self._tell_end, entry, str(reason), detail if recorded is None else recorded)]
        on_open, held.on_open = held.on_open, None
        refusal = why or SandboxOver(f"the sandbox is over before it was open: {reason}", str(reason), self._wall())
        seat, held.seat = held.seat, None
        mounts, held.mounts = held.mounts, None
        mounting, held.mounting = held.mounting, None
        in_any_case(partial(held.sandbox.end, reason, detail), *([mounting.cancel] if mounting is not None else []),
                    partial(self._reserve.forget, name), *([mounts.close] if mounts is not None else []),
                    *([partial(seat.close, gone)] if seat is not None else []),
                    *([gone] if seat is None and gone is not None else []),
                    *([partial(held.sleep.close, kept=self._ends and reason is Reason.SHUTDOWN)]
                      if held.sleep is not None else []),
                    *([partial(on_open, refusal)] if on_open is not None else []), *book)

    def close(self) -> None:
        self._ends = True  # perhaps without `retire`: its start has failed, or its loop
        self._timer.cancel()
        in_any_case(*(partial(self._end, entry.name, Reason.SHUTDOWN) for entry in self._registry.all()),
                    self._reserve.close, self.opener.close, self.snapshots.close,
                    *([] if self.sleepers is None else [self.sleepers.close]), self.last_uses.close)


def _silent(_event: str, **_fields: object) -> None:
    pass


class Bed:
    """The desk's part of a sandbox's sleep."""

    def __init__(self, desk: LiveSandboxes, entry: SandboxEntry) -> None:
        self._desk, self._entry = desk, entry

    def enter_turn(self, later: Callable[[], None]) -> bool:
        return self._desk.falling.enter(self._entry.user, later)

    def leave_turn(self, later: Callable[[], None]) -> None:
        self._desk.falling.leave(self._entry.user, later)

    def new_file(self, size: int) -> int:
        return self._desk.snapshots.new_file(self._entry.user, size)

    def resize(self, fd: int, size: int) -> None:
        self._desk.snapshots.resize(self._entry.user, fd, size)

    def count(self, states: Sequence[KernelState]) -> None:
        """Count what a waking sandbox maps, on disk or in memory, until nobody has it. Busy if that can't be told."""
        user, desk = self._entry.user, self._desk
        for state in states:
            if state.memory is not None and state.memory.is_counted:
                desk.snapshots.count(user, state.memory.fd, state.memory.size)
            if os.fstat(state.fd).st_nlink and desk.sleepers is not None:
                desk.sleepers.count(user, state.fd, state.size)
            else:
                desk.snapshots.count(user, state.fd, state.size)

    def leave(self) -> None:
        held = self._entry.sandbox
        seat, held.seat = held.seat, None
        in_any_case(held.sandbox.leave, *([] if seat is None else [seat.close]))

    def put(self, what: Asleep, done: Callable[[Exception | None], None]) -> bool:
        sleepers = self._desk.sleepers
        if sleepers is not None:
            sleepers.put(self._entry.name, self._entry.user, self._desk.record(self._entry), what, done)
        return sleepers is not None

    def get(self, done: Callable[[Asleep | Exception], None]) -> None:
        assert self._desk.sleepers is not None
        self._desk.sleepers.get(self._entry.name, done)

    def remove(self) -> None:
        assert self._desk.sleepers is not None
        self._desk.sleepers.remove(self._entry.name)

    def warn(self, error: Exception) -> None:
        self._desk.warns("a sandbox sleeps in memory: it can't be written", sandbox=self._entry.name, error=told(error))

    def enter(self, opened: Callable[[Any], None]) -> None:
        held, entry = self._entry.sandbox, self._entry
        assert held.pool is not None
        pool = held.pool()
        limits = held.sandbox.facts.limits

        def seated(what: Any) -> None:
            if not isinstance(what, Refused):
                self._desk.seated(what.number, entry.name, held.sandbox.facts.egress)
            opened(what)

        held.seat = pool.open_seat(
            replace(limits, processes=limits.processes + 1), entry.user, seated, held.sandbox.lost,
            partial(self._desk.drained, entry.name), held.patience)
        if held.sleep is None or held.sleep.stage is not SleepStage.WAKING:  # it was refused, or its runner lost, at once
            held.seat.close()
            held.seat = None

    def woken(self) -> None:
        self._entry.sandbox.sleep = None
        self._desk.free(self._entry)


def _used(sandbox: LiveSandbox) -> dict[str, Any]:
    """What a sandbox has used, the limits that it reached, and the calls that it was refused, so far or up to its end."""
    usage = sandbox.usage()
    return {"memory_peak": usage.memory_peak, "cpu_time": usage.cpu_time, "oom_kills": usage.oom_kills,
            "forks_refused": usage.forks_refused, "denied": dict(sandbox.denied())}

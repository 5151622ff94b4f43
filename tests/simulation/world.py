"""
One run: a daemon, its host and its clients, from start to start state.

Theory of operation. The reactor turns, and time passes where it waits. Operations are on the kernel's agenda; those of
the operator ring a bell that wakes the reactor, as a signal would. When all is done, faults end and clients either wait
for their answers or go; after that everything has to be as it was before the first of them came (`invariants`).
"""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from leeward.base.dataclass import replace
from leeward.daemon.config import Config
from leeward.daemon.pool.begin import Beyond, Patience
from leeward.daemon.pool.pool import Pool
from leeward.daemon.pool.quotas import Quota, Quotas
from leeward.daemon.pool.sessions import SessionState
from leeward.daemon.pool.workforce import Workforce
from leeward.daemon.sandboxes.registry import Registry
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.daemon.worker.terms import WorkerSettings
from leeward.daemon.worker.worker import Worker, WorkerState
from leeward.errors import Busy
from leeward.spec.limits import MIB, Limits
from leeward.wire import control

from . import invariants
from .clients import Box, Client, Connection
from .host import FAULTS, Group, Host, some_faults
from .install import installed
from .invariants import Wrong
from .kernel import IN, Endpoint, File, Kernel
from .loop import ShimReactor, VirtualReactor
from .operations import CLIENTS, OWNER, USERS, Operation, Setting, operations, setting
from .processes import Keeper
from .sandboxes import open_place
from .sockets import GROUP, Near

#: As in main.py: seconds that running jobs, and last replies, have.
DRAIN_S, FLUSH_S = 4.0, 2.0
#: By then every timer of a worker has gone off.
QUIET_S = 45.0
#: A keeper's deadlines, one after the other: that a runner's end is told, and that one is armed.
_WORKER_S = 22.0
#: A job that lost its runner is given to another so often, and waits so long for each.
_LOSSES, _AGAIN_S = 4, 5.0


class Ordered(dict[Any, None]):
    """A set that is gone through in order: by address, no run would be like the one before."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class Bell(File):
    """What wakes the reactor."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def events(self) -> int:
        return IN if self.calls else 0


class World:
    """
    Args:
        seed: of the dice that say how quick everything is, and what fails.
    """

    def __init__(self, seed: int, what: Setting) -> None:
        self.kernel = Kernel(random.Random(f"{seed} dice"))
        self.setting = what
        self.faults = some_faults(self.kernel) if what.faulty else {}
        self.host = Host(self.kernel, {}, needs_ticks=what.needs_ticks)
        self.numbers = itertools.count(1)
        self.connections: list[Connection] = []
        self.boxes: list[Box] = []
        self.clients = [Client(self, number, USERS[number % len(USERS)]) for number in range(CLIENTS)]
        self.stopping = self.drained = False
        self.stands = True  # the zygote
        self.reaches_out = False
        self.zygotes = self
        self._waiting: list[Worker] = []  # for its order
        self.bound = (what.queue_timeout + _LOSSES * _AGAIN_S + (_LOSSES + 1) * 1.0 + what.seconds + _WORKER_S)

    def build(self) -> None:
        """The daemon; inside `installed`."""
        what, kernel = self.setting, self.kernel
        self.reactor = (VirtualReactor(kernel) if what.reactor == "reference"
                        else ShimReactor(kernel, ring=what.reactor == "ring", fast_path=what.fast_path))
        # No exception ends here: each is a find.
        self.reactor.barrier.caught = self.reactor.barrier.note = raised  # type: ignore[method-assign]  # of this one
        if self.reactor.fast_path is not None:
            self.reactor.fast_path.enable(())
        self._bell = Bell()
        self.reactor.watch(kernel.open(self._bell), IN, self._rung)
        self.limits = Limits(time=what.seconds, memory=256 * MIB, output=100_000)
        config = Config(
            limits=self.limits, queue_size=what.queue_size, queue_timeout=what.queue_timeout, max_connections=5,
            connection_requests=8, connection_sessions=3,
            session_idle=what.session_idle, session_lifetime=what.session_lifetime, idle_timeout=what.idle_timeout,
            results=what.results, sandbox_idle=4.0, sandbox_lifetime=10.0)
        quotas = self._quotas(what.quota)
        self.pool = Pool(self.reactor, self, size=what.workers, queue_size=what.queue_size, quotas=quotas,
                         max_sessions=what.max_sessions, queue_delay=what.queue_delay, room=what.room,
                         beyond=Beyond(what.jobs, 100, 2, 1))
        self.pool.capacity._memory = self.host.memory_left
        self.pool.capacity._processors = 2
        self.pool._running, self.pool._sessions = Ordered(), Ordered()  # type: ignore[assignment]
        self.pool._seats = Ordered()  # type: ignore[assignment]
        self.pool.workforce._processors = 2
        self.server = Server(self.reactor, self.pool, config, status=self.pool.counts, shut_down=lambda _: None,
                             users=ServedUsers(OWNER, GROUP, quotas))
        self.server.most_lent = 0  # a file that is open twice isn't simulated
        self.server.desk._registry = Registry(kernel.dice.randbytes)
        self.server.desk._wall = lambda: kernel.time
        self.base = len(kernel.files)
        self.pool.open()

    def _quotas(self, quota: Quota) -> Quotas:
        return Quotas(others=quota, exempt=(OWNER, 0), reserve=min(1, self.setting.workers - 1))

    # --- the maker of workers -------------------------------------------------

    def make_worker(self, slot: int, workforce: Workforce, *, lean: bool) -> Worker:
        spares = 0 if lean else self.setting.spares
        terms = WorkerSettings(self.limits, (65534, 65534), spares, self.setting.recycle_after, (), Patience(),
                               self.host.denials, self.setting.results, self.setting.grace)  # type: ignore[arg-type]
        made = Worker(self.reactor, slot, (1, 1), Group(self.host), terms, workforce)  # type: ignore[arg-type]
        made.lean = lean
        made.leasing.open = partial(open_place, self, made)  # type: ignore[method-assign, assignment]  # of this one
        self.reactor.soon(lambda: self._order(made))
        return made

    def _order(self, worker: Worker) -> None:
        if worker.state is not WorkerState.MAKING:
            return
        if not self.stands:
            self._waiting.append(worker)
            return
        _, fds = worker.order()
        files = [self.kernel.hold(fd) for fd in fds]
        worker.ordered()
        self.kernel.soon(0.02, lambda: self._clone(worker, files))

    def _clone(self, worker: Worker, files: list[File]) -> None:
        if self.host.fails("zygote fails"):
            for file in files:
                self.kernel.drop(file)
            self.ring(lambda: self._not_made(worker))
            return
        end, = files
        assert isinstance(end, Endpoint)
        keeper = Keeper(self.host, worker.group, end)  # type: ignore[arg-type]  # one of ours
        self.ring(lambda: self._made(worker, keeper))

    def _made(self, worker: Worker, keeper: Any) -> None:
        if worker in self.pool.workforce.workers and worker.keeper.pid < 0:
            worker.made(control.Made(worker.slot, keeper.pid), keeper.pidfd())

    def _not_made(self, worker: Worker) -> None:
        if worker in self.pool.workforce.workers and worker.keeper.pid < 0:
            self.pool.workforce.worker_failed(worker, "", "no")
            worker.retire("no")

    def overrun(self) -> None:
        self.kernel.note("workers go on past their number of jobs")

    def _fall(self, seconds: float) -> None:
        """The zygote is gone for so long."""
        self.stands = False
        self.kernel.after(seconds, lambda: self.ring(self._rise))

    def _rise(self) -> None:
        self.stands = True
        waiting, self._waiting = self._waiting, []
        for worker in waiting:
            self._order(worker)
        self.pool.workforce.renew()

    def making_failed(self, slot: int, message: str) -> None:
        return

    def worker_failed(self, worker: Worker, layer: str, message: str) -> None:
        self.kernel.note(f"worker {worker.slot} failed: {layer} {message}")

    def runner_made(self) -> None:
        return

    def job_again(self, ticket: Any, result: Any) -> None:
        self.kernel.note(f"job {ticket.number} is run again")

    def job_ended(self, ticket: Any, report: Any) -> None:
        return

    # --- the operator ---------------------------------------------------------

    def ring(self, call: Callable[[], None]) -> None:
        """Have the reactor do this."""
        self._bell.calls.append(call)

    def _rung(self, _events: int) -> None:
        calls, self._bell.calls = self._bell.calls, []
        for call in calls:
            call()

    def meet(self, near: Near) -> None:
        if self.stopping:
            near.close()
        else:
            self.server._meet(near)  # type: ignore[arg-type]  # as far as it is used

    def _do(self, operation: Operation) -> None:
        kind = operation.kind
        if kind == "govern":
            self.kernel.note(f"operator governs: {operation.what}")
            self.ring(lambda: self._govern(*operation.what))
        elif kind == "reload":
            self.kernel.note(f"operator reloads: time={operation.what}")
            self.ring(lambda: self._reload(operation.what))
        elif kind == "zygote":
            self.kernel.note(f"the zygote is gone for {operation.what:.3f} s")
            self.ring(lambda: self._fall(operation.what))
        elif kind == "renew":
            self.kernel.note("another zygote takes over")
            self.ring(self.pool.workforce.outdate)
        elif kind == "stop":
            if not self.stopping:
                self.stopping = True
                self.kernel.note(f"operator stops: {operation.what}")
                self.ring(lambda: self._stop(parts=operation.what == "parts"))
        elif kind != "sleep":
            self.clients[operation.client].do(operation)

    def _govern(self, quota: Quota, queue_size: int, max_sessions: int) -> None:
        self.server.govern(self._quotas(quota))
        self.pool.govern(self.server.quotas, queue_size, self.setting.queue_delay, max_sessions)
        if self.reactor.fast_path is not None:  # as in an overload, which few histories are long enough to reach
            self.reactor.fast_path.refuse_with(Busy("shed"))
            for fd in self.server.connections:
                self.reactor.fast_path.shed(fd, queue_size % 2 == 0)

    def _reload(self, seconds: float) -> None:
        self.server.config = replace(self.server.config, limits=replace(self.limits, time=seconds))
        self.server.govern(self.server.quotas)
        self.pool.govern(self.server.quotas, self.server.config.queue_size, self.setting.queue_delay,
                         self.setting.max_sessions)

    def _stop(self, *, parts: bool) -> None:
        if parts:
            self.server.part()
        self._stopped_at = self.kernel.time
        self.pool.drain(DRAIN_S, self._on_drained)
        if any(SessionState.IDLE is session.state for session in self.pool._sessions):
            raise Wrong("a session without a job keeps its worker while the daemon ends")

    def _on_drained(self) -> None:
        if self.drained:
            self.kernel.violate("drained twice")
        if self.pool._running and self.kernel.time < self._stopped_at + DRAIN_S:
            self.kernel.violate("drained, and jobs run")
        self.drained = True

    def alive(self) -> int:
        """The processes of the host that haven't ended."""
        return sum(not process.dead for pid, process in self.kernel.processes.items() if pid < 1 << 32)

    # --- a run ----------------------------------------------------------------

    def turn_until(self, condition: Callable[[], bool], seconds: float, what: str = "") -> None:
        """
        Raises:
            Wrong: something doesn't hold; or *what*, if it is given and the condition doesn't hold in time.
        """
        until = self.kernel.time + seconds
        look = self.kernel.time
        while not condition() and self.kernel.time < until:
            self.reactor.turn(min(5.0, until - self.kernel.time))
            if self.kernel.violations:
                raise Wrong(self.kernel.violations[0])
            if self.kernel.time >= look:
                look = self.kernel.time + 0.1
                invariants.at_all_times(self)
        if what and not condition():
            raise Wrong(what)

    def run(self, plan: tuple[Operation, ...]) -> None:
        """
        Raises:
            Wrong: something didn't hold.
        """
        self.turn_until(self._all_armed, 30.0, "the workers are never ready")
        self.host.faults = {name: chance for name, chance in self.faults.items() if name in FAULTS}
        left = iter(plan)
        over = False

        def go_on() -> None:
            nonlocal over
            operation = next(left, None)
            if operation is None:
                over = True
                return

            def act() -> None:
                self._do(operation)
                go_on()
            self.kernel.after(operation.after, act)

        go_on()
        self.turn_until(lambda: over, 1e6)
        self.host.faults = {}
        self.kernel.note("the end begins")
        if self.stopping:
            self._end_of_daemon()
        else:
            self._end_of_clients()

    def _all_armed(self) -> bool:
        return all(worker.free and not worker.arming.count for worker in self.pool.workforce.workers) \
            and len(self.pool.workforce.workers) == self.setting.workers

    def _end_of_clients(self) -> None:
        kernel = self.kernel
        for one in self.connections:
            if kernel.dice.random() < 0.3 or one.halfway:
                one.close()
            else:
                one.hear()
        self.turn_until(lambda: all(one.over or not one.pending for one in self.connections), 4 * self.bound,
                        "some requests are never answered")
        for one in self.connections:
            one.close()
        self.turn_until(lambda: False, QUIET_S)
        invariants.at_all_times(self)
        invariants.at_the_start(self)
        self.stopping = True
        self._stop(parts=kernel.dice.random() < 0.5)
        self._end_of_daemon()

    def _end_of_daemon(self) -> None:
        """As main.py does it."""
        for one in self.connections:
            if one.reading:
                one.hear()
        self.turn_until(lambda: self.drained, DRAIN_S + 1.2, "it never drains")
        self.turn_until(lambda: self.server.flushed, FLUSH_S)
        self.server.close()
        self.pool.drain(0.0, lambda: None)
        self.pool.workforce.retire_all()
        self.turn_until(lambda: not self.pool.workforce.workers, 30.0, "workers never go")
        self.turn_until(lambda: False, QUIET_S)
        for one in self.connections:
            one.close()
        invariants.at_the_end(self)


def history(seed: int, count: int = 30) -> tuple[Setting, tuple[Operation, ...]]:
    """What a seed stands for."""
    dice = random.Random(seed)
    what = setting(dice)
    return what, operations(dice, count)


def raised(_callback: Callable[..., object], error: Exception) -> NoReturn:
    """In place of the barrier."""
    raise error


def failure(seed: int, what: Setting, plan: tuple[Operation, ...], *, look: bool = False) -> tuple[str, World] | None:
    """
    Why this run fails, if it does.

    Args:
        look: the world is wanted in any case.
    """
    world = World(seed, what)
    with installed(world.host):
        try:
            world.build()
            world.run(plan)
        except Wrong as wrong:
            return str(wrong), world
        except Exception:
            return traceback.format_exc(), world
    return ("", world) if look else None

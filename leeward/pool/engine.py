"""
The engine: decides the plan, starts zygote and supervisor, fills the pool. Fails closed.

Runs in:   the daemon, and `leeward run`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from leeward.errors import LeewardError, Unsupported
from leeward.isolation import landlock, rlimits
from leeward.isolation.cgroup.entry import Driver
from leeward.isolation.plan import WorkerPlan
from leeward.isolation.seccomp import filters
from leeward.outcome import Outcome
from leeward.pool.begin import Begun, Settings, begin
from leeward.pool.pool import Pool
from leeward.pool.ticket import Ticket
from leeward.spec.sandbox import SandboxSpec
from leeward.supervisor import Denied, Supervisor
from leeward.wire import control
from leeward.worker.hatch import Hatched
from leeward.worker.idmaps import first_worker_id
from leeward.worker.orphans import reap_inits
from leeward.worker.reactor import READ, Reactor, Timer
from leeward.worker.report import Report
from leeward.worker.states import WorkerState
from leeward.worker.worker import Terms, Worker
from leeward.worker.zygote import Zygote

_START_DEADLINE_S = 30.0
#: A zygote that has a keeper on order says something within this, or is replaced. It takes milliseconds.
_ZYGOTE_DEADLINE_S = 10.0
_ZYGOTE_BACKOFF_S = 0.2

#: How most jobs end. At hundreds a second a line for each would cost more than it tells.
_ORDINARY = frozenset({Outcome.FINISHED, Outcome.RAISED})


class Log(Protocol):
    """
    Where an engine tells what happens.
    """

    def debug(self, event: str, /, **fields: object) -> object: ...
    def info(self, event: str, /, **fields: object) -> object: ...
    def warning(self, event: str, /, **fields: object) -> object: ...


class Watcher(Protocol):
    """
    Who counts and records what happens to jobs.
    """

    def job_ended(self, ticket: Ticket, report: Report) -> None: ...
    def denied(self, denied: Denied, worker: int | None, ticket: Ticket | None) -> None: ...
    def worker_failed(self, worker: int) -> None: ...


class Engine:
    """
    Everything between a submitted job and its report.

    Args:
        watcher: is told of every job's end and of every denied call, after the client.
        begun: what `begin` has made of these *settings*; if `start` fails before it takes over, it is closed.
    """

    def __init__(self, reactor: Reactor, settings: Settings, log: Log, watcher: Watcher | None = None,
                 begun: Begun | None = None) -> None:
        self._reactor = reactor
        self._settings = settings
        self._log = log
        self._watcher = watcher
        self._begun = begun
        self._closing = False
        self._zygote: Zygote | None = None
        self._zygote_ready = False
        self._zygotes_lost = 0
        self._zygote_due: Timer | None = None  # when the zygote has kept us waiting for too long
        self._waiting: list[Worker] = []
        self._problem: tuple[str, str] | None = None
        self.driver: Driver
        self.supervisor: Supervisor
        self.pool: Pool
        self.spec: SandboxSpec
        self.plan: WorkerPlan
        self.layers: dict[str, dict[str, object]] = {}
        self.degraded: tuple[str, ...] = ()

    # --- start ----------------------------------------------------------------

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """
        Bring up the first worker; the others follow while the reactor runs.

        Args:
            meanwhile: is called while there is nothing to do but to wait for the zygote.

        Raises:
            Unsupported: a layer can't be set, with the feature that is missing and its cure.
            LeewardError: anything else that keeps the first worker from being ready.
        """
        begun = self._begun or begin(self._settings)
        self.driver, self.spec, self._zygote_plan = begun.driver, begun.spec, begun.zygote_plan
        try:
            self._decide()  # while it warms up
        except BaseException:
            begun.close()  # nothing else was made yet
            raise
        self.supervisor = Supervisor()
        self._reactor.watch(self.supervisor.fileno(), READ, self._on_denials)
        self.pool = Pool(self._reactor, self, size=self._settings.pool_size, queue_size=self._settings.queue_size,
                         quotas=self._settings.quotas, max_sessions=self._settings.max_sessions)
        if self._reactor.express is not None:
            self._reactor.express.agree(self.degraded)
        self._adopt_zygote(begun.take())
        self.pool.open()
        meanwhile()
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self.pool.any_free and self._problem is None and time.monotonic() < deadline:
            self._reactor.turn(1.0)
        if self._problem is not None or not self.pool.any_free:
            layer, message = self._problem or ("", f"no worker was ready within {_START_DEADLINE_S:g} s")
            self.close()
            raise LeewardError(f"{layer}: {message}" if layer else message)
        self._note_layers()

    def _decide(self) -> None:
        """
        What confines them: the rest that can be decided without a process.
        """
        settings, spec = self._settings, self.spec
        if 0 == os.geteuid():
            with open("/proc/self/uid_map") as users, open("/proc/self/gid_map") as groups:
                self._first_id = first_worker_id([users.read(), groups.read()], settings.pool_size)
        rules = landlock.plan(spec.view, landlock.probe(), allow_missing="landlock" in settings.allow_degraded)
        arch = os.uname().machine
        program = filters.program(memory_counted=self.driver.memory_counted, affinity_fixed=self.driver.affinity_fixed,
                                  arch=arch)
        self.degraded = (*(("landlock",) if not rules.abi else ()), *(("cgroup",) if self.driver.degraded else ()))
        self.plan = WorkerPlan(
            uid=spec.uid, hostname=spec.hostname, view=spec.view, scratch_bytes=settings.limits.files,
            rlimits=rlimits.plan(settings.limits), landlock=rules, seccomp=program.insns,
            init_seccomp=filters.init_program(arch), watched=not self.driver.memory_counted,
            rehearse=settings.rehearse,
        )
        self.layers = {
            "namespaces": {"state": "active", "namespaces": ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"]},
            "mounts": {"state": "active", "root": "tmpfs, read-only", "binds": len(spec.view.binds)},
            "landlock": {"state": "active" if rules.abi else "missing", "abi": rules.abi, "rules": len(rules.rules)},
            "seccomp": {"state": "active", "rules": program.rules, "instructions": program.instructions},
            "cgroup": {"state": "degraded" if self.driver.degraded else "active", "driver": self.driver.name,
                       **self.driver.detail, "passed_over": dict(self.driver.passed_over)},
        }

    def _note_layers(self) -> None:
        seen = next((worker.report for worker in self.pool.workers if worker.report), {})
        for layer, text in seen.items():
            if layer in self.layers:
                self.layers[layer]["self_check"] = text

    def _adopt_zygote(self, hatched: Hatched) -> None:
        self._zygote_ready = False
        self._zygote = Zygote(self._reactor, hatched, ready=self._on_zygote_ready, made=self._on_made,
                              failed=self._on_zygote_failed, said=self._on_zygote_words, gone=self._on_zygote_gone)
        with contextlib.suppress(OSError):  # gone: its last words are on their way, or the end of its channel
            self._zygote.give(self.plan)
        self._expect_word(_START_DEADLINE_S)

    # --- the zygote -----------------------------------------------------------

    def make_worker(self, slot: int, pool: Pool) -> Worker:
        """
        For the pool: a worker whose keeper is on order.
        """
        settings = self._settings
        root = 0 == os.geteuid()
        uid = self._first_id + slot if root else os.geteuid()
        gid = self._first_id + slot if root else os.getegid()
        group = self.driver.worker(slot, uid, settings.limits)
        terms = Terms(settings.limits, self.spec.uid, settings.spares, settings.recycle_after, self.degraded,
                      settings.results)
        try:
            worker = Worker(self._reactor, slot, uid, gid, group, terms, self.supervisor, pool)
        except OSError:
            group.remove()
            raise
        self._waiting.append(worker)
        if self._zygote_ready:
            self._reactor.soon(self._order)
        return worker

    def _order(self) -> None:
        """
        Order what the zygote takes. At the start the first worker has the processors to itself until it can take a job.
        """
        while self._waiting and self._zygote is not None and self._zygote_ready:
            if not self.pool.runners_made and len(self._waiting) < len(self.pool.workers):
                return
            worker = self._waiting[0]
            message, fds = worker.order()
            if self._zygote_due is None:
                self._expect_word(_ZYGOTE_DEADLINE_S)
            try:
                self._zygote.make_keeper(message, fds)
            except LeewardError as error:
                self._log.warning("zygote takes no orders", error=str(error))
                return
            self._waiting.pop(0)
            worker.ordered()

    def _on_order(self) -> list[Worker]:
        """
        The workers whose keepers the zygote owes us.
        """
        return [worker for worker in self.pool.workers
                if worker.state is WorkerState.MAKING and worker.pid < 0 and worker not in self._waiting]

    def _expect_word(self, seconds: float) -> None:
        self._expect_nothing()
        self._zygote_due = self._reactor.after(seconds, lambda: self._on_silence(seconds))

    def _expect_nothing(self) -> None:
        if self._zygote_due is not None:
            self._zygote_due.cancel()
            self._zygote_due = None

    def _heard(self) -> None:
        """
        The zygote said something; for what it still owes it has as long again.
        """
        self._expect_nothing()
        if self._on_order():
            self._expect_word(_ZYGOTE_DEADLINE_S)

    def _on_silence(self, seconds: float) -> None:
        """
        A zygote that is stopped, or stuck, would keep its workers from ever being made.
        """
        self._expect_nothing()
        if self._zygote is not None and (self._on_order() or self._waiting or not self._zygote_ready):
            self._log.warning("zygote doesn't answer", pid=self._zygote.pid, seconds=seconds)
            self._zygote.process.kill()  # the end of its channel brings the next one
            self._expect_word(seconds)

    def _on_zygote_ready(self) -> None:
        self._zygote_ready = True
        self._zygotes_lost = 0
        self._heard()
        self._order()

    def _on_made(self, message: control.Made, pidfd: int) -> None:
        for worker in self.pool.workers:
            if worker.slot == message.slot and worker.pid < 0:
                worker.made(message, pidfd)
                break
        else:
            os.close(pidfd)  # its worker retired meanwhile; the keeper reads end of file and goes
        self._heard()
        self._order()  # what did not fit into its queue before may now

    def _on_zygote_failed(self, message: control.Failed) -> None:
        self._problem = self._problem or (message.layer, message.message)
        self._log.warning("zygote failed", layer=message.layer, error=message.message)
        for worker in self.pool.workers:
            if worker.slot == message.number and worker.pid < 0:
                self.pool.worker_failed(worker, message.layer, message.message)
                worker.retire(message.message)
        self._heard()

    def _on_zygote_words(self, text: str) -> None:
        self._problem = self._problem or ("", text)
        self._log.warning("zygote says", text=text)

    def _on_zygote_gone(self) -> None:
        """
        Keepers live on without it; those on order don't.
        """
        on_order = self._on_order()
        zygote, self._zygote, self._zygote_ready = self._zygote, None, False
        self._expect_nothing()
        if zygote is not None:
            zygote.process.wait()
        if self._closing:
            return
        self._zygotes_lost += 1
        self._log.warning("zygote is gone", lost=self._zygotes_lost)
        for worker in on_order:
            worker.retire("the zygote is gone")
        if self._zygotes_lost == 1:
            self._restart_zygote()
        else:
            self._problem = self._problem or ("", "the zygote ends as soon as it starts")
            self._restart_zygote_later()

    def _restart_zygote_later(self) -> None:
        self._reactor.after(min(5.0, _ZYGOTE_BACKOFF_S * 2 ** min(self._zygotes_lost, 8)), self._restart_zygote)

    def _restart_zygote(self) -> None:
        if self._closing or self._zygote is not None:
            return
        try:
            self._adopt_zygote(Hatched(self._zygote_plan))
        except OSError as error:  # no descriptors left, say
            self._zygotes_lost += 1
            self._problem = self._problem or ("", f"zygote: {error}")
            self._log.warning("zygote can't be started", error=str(error))
            self._restart_zygote_later()

    # --- what happens ---------------------------------------------------------

    def making_failed(self, slot: int, message: str) -> None:
        """
        For the pool: there isn't even an order for a worker.
        """
        self._problem = self._problem or ("", message)
        self._log.warning("no worker can be made", worker=slot, error=message)

    def worker_failed(self, worker: Worker, layer: str, message: str) -> None:
        """
        For the pool: a worker could not do its duty.
        """
        self._problem = self._problem or (layer, message)
        self._log.warning("worker failed", worker=worker.slot, layer=layer, error=message)
        if self._watcher is not None:
            self._watcher.worker_failed(worker.slot)

    def runner_made(self) -> None:
        """
        For the pool: a runner is armed.
        """
        self._problem = None
        if self._waiting:
            self._order()
        self._on_denials(0)  # what its self-check was refused is no job's yet

    def job_ended(self, ticket: Ticket, report: Report) -> None:
        """
        For the pool: a report was given.
        """
        result = report.result
        if result is not None:
            level = (self._log.warning if result.outcome is Outcome.INTERNAL
                     else self._log.debug if result.outcome in _ORDINARY and result.limit is None
                     else self._log.info)
            level("job ended", outcome=result.outcome.value, exit_code=result.exit_code,
                  limit=result.limit and result.limit.value, seconds=round(result.duration, 6))
        if self._watcher is not None:
            if result is not None and result.denied:
                self._on_denials(0, ticket)
            self._watcher.job_ended(ticket, report)

    def _on_denials(self, _events: int, ended: Ticket | None = None) -> None:
        """
        Args:
            ended: a job that has just ended, and is the pool's no longer.
        """
        workers = {worker.running: worker.slot for worker in self.pool.workers}
        tickets: dict[int, Ticket] | None = None
        for denied in self.supervisor.drain():
            worker = workers.get(denied.job)
            if self._watcher is not None:
                if tickets is None:
                    tickets = self.pool.running
                    if ended is not None:
                        tickets[ended.runner] = ended
                self._watcher.denied(denied, worker, tickets.get(denied.job))
            elif worker is not None:  # else a runner's self-check, or a job that has ended: its result has the counts
                self._log.warning("system call denied", syscall=denied.syscall, pid=denied.pid, runner=denied.job,
                                  worker=worker, count=denied.count)

    def status(self) -> Mapping[str, object]:
        """
        `leeward status`, but for transport and uptime.
        """
        return {**self.pool.counts(), "layers": self.layers, "degraded": list(self.degraded)}

    # --- the end --------------------------------------------------------------

    def drain(self, seconds: float, done: Callable[[], None]) -> None:
        """
        Take no more jobs; call *done* when none runs, at the latest after *seconds*.
        """
        self._closing = True
        self.pool.drain(seconds, done)

    def close(self) -> None:
        """
        End every process and give everything back. Takes at most some seconds.
        """
        self._closing = True
        if hasattr(self, "pool"):
            self.pool.drain(0.0, lambda: None)
            self.pool.retire_all()
            deadline = time.monotonic() + 3.0
            while not self.pool.empty and time.monotonic() < deadline:
                self._reactor.turn(0.1)
        if self._zygote is not None:
            self._zygote.end()
            self._zygote = None
        if hasattr(self, "supervisor"):
            self._reactor.forget(self.supervisor.fileno())
            self.supervisor.close()
        reap_inits()
        with contextlib.suppress(Unsupported, OSError):
            self.driver.close()

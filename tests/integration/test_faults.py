"""
A daemon that no exception ends: each callback of a whole daemon raises, before its body and after it, once and
again and again; every request is answered or its connection closed, the next jobs are served, and nothing is left.

The daemon runs in this process, by a loop with the fault layer in it (fault_layer.py). What a run of it calls back is
found out by a first run without faults.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import features, reactors
from kit.box import MISSING, PATIENCE_S
from kit.fault_layer import AFTER, ALWAYS, BEFORE, Layer
from leeward.base.dataclass import replace
from leeward.daemon import early, ending, main
from leeward.daemon.config import Config
from leeward.daemon.loop import reactor as reactor_module
from leeward.daemon.pool import branches as branches_module
from leeward.daemon.pool import capacity as capacity_module
from leeward.daemon.pool import pool as pool_module
from leeward.daemon.pool import workforce as workforce_module
from leeward.daemon.pool import zygotes as zygotes_module
from leeward.daemon.pool.begin import Patience
from leeward.daemon.pool.watchdog import Watchdog
from leeward.daemon.serving import server as server_module
from leeward.daemon.systemd import Manager
from leeward.daemon.telling import exporter as exporter_module
from leeward.daemon.telling.log import log
from leeward.daemon.worker import worker as worker_module
from leeward.wire.frames import FrameReader, decode, encode

pytestmark = pytest.mark.faults("they are what this is about")

WORKERS = 2
#: Jobs at once: one more than there are workers in any case.
MOST_JOBS = WORKERS + 1
#: How often the scenes are played to find out what they call.
ROUNDS = 3
#: What a scene waits for one answer while a callback fails; most come within milliseconds.
SCENE_S = 0.25 * features.SLOWER

#: Held while the watchdog's thread acts on a loop that stands still, and while the test counts what is open.
WATCHES = threading.Lock()
_hold_limits = Watchdog._hold_limits


def held(*args: Any) -> None:
    with WATCHES:
        _hold_limits(*args)


#: The daemon's own patience, which would make an hour of it: nothing here depends on how long it is. And the watchdog's way.
QUICK = [
    (reactor_module, "_PAUSE_S", 0.005), (reactor_module, "_PAUSE_MOST_S", 0.05),
    (pool_module, "_MEND_S", 0.01), (pool_module, "_AGAIN_S", 0.1), (workforce_module, "_BACKOFF_S", 0.005),
    (workforce_module, "_BACKOFF_MOST_S", 0.1), (workforce_module, "_LINGER_S", 0.02), (capacity_module, "_GUARD_S", 0.01),
    (worker_module, "_MEND_S", 0.01), (branches_module, "_MEND_S", 0.01), (zygotes_module, "_BACKOFF_S", 0.01),
    (server_module, "_PAUSE_S", 0.01), (server_module, "SWEEP_S", 0.05), (exporter_module, "LIFE_S", 0.5),
    (ending, "FLUSH_S", 0.1), (ending, "SETTLE_S", 0.1), (ending, "DRAIN_S", 0.5), (Watchdog, "_hold_limits", held),
]


class Peer:
    """One client's connection: what it asked, and what became of it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(stage.daemon._config.socket)
        self._sock.setblocking(False)
        self._reader = FrameReader()
        self._last = 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.outstanding: set[int] = set()
        self.closed = False
        stage.peers.append(self)

    def send(self, op: str, **fields: Any) -> int:
        self._last += 1
        self.outstanding.add(self._last)
        with contextlib.suppress(OSError):
            self._sock.sendall(encode({"v": 1, "id": self._last, "op": op, **fields}))
        return self._last

    def look(self) -> None:
        """Take what has come."""
        while not self.closed:
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 1 << 16, 16)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            for fd in fds:
                os.close(fd)
            self.closed = not data
            for payload in self._reader.feed(data):
                reply = decode(payload)
                if reply["id"]:
                    self.outstanding.remove(reply["id"])  # KeyError: answered twice, or never asked
                    self.answers[reply["id"]] = reply

    @property
    def served(self) -> bool:
        """Is every request answered, or the connection closed?"""
        self.look()
        return self.closed or not self.outstanding

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer, or {} where none comes soon."""
        number = self.send(op, **fields)
        self._stage.wait(lambda: self.served or number in self.answers)
        reply = self.answers.get(number, {})
        answer: dict[str, Any] = reply.get("ok", reply.get("error", {}))
        return answer

    def close(self) -> None:
        self._sock.close()


class Stage:
    """A daemon at work, and what is played on it."""

    def __init__(self, daemon: main.Daemon, layer: Layer) -> None:
        self.daemon, self.layer = daemon, layer
        self.reactor = daemon._reactor
        self.peers: list[Peer] = []
        self.patience = PATIENCE_S

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        until = time.monotonic() + (self.patience if seconds is None else seconds)
        while not condition():
            if time.monotonic() > until:
                return False
            self.reactor.turn(0.005)
        return True

    # --- scenes ---------------------------------------------------------------

    def short_jobs(self) -> None:
        peer = Peer(self)
        for code in (b"print(1)", b"1/0", b"import os; os._exit(3)", b"print(2)"):
            peer.ask("execute", code=code)

    def long_jobs(self) -> None:
        peer = Peer(self)
        peer.ask("execute", code=b"open('x', 'w').write('x')", collect=["x"])
        peer.ask("execute", code=b"print('x' * 300_000)")
        peer.ask("execute", code=b"import time; time.sleep(0.03); print('y')", stdin=b"z" * 100_000)
        peer.ask("execute", code=b"#" * 100_000)

    def limits(self) -> None:
        peer = Peer(self)
        peer.ask("execute", code=b"while True: pass", limits={"time": 0.03})
        peer.ask("execute", code=b"while True: print('x' * 10_000)", limits={"output": 50_000})
        peer.ask("execute", code=b"import os\ntry: os.chroot('/')\nexcept OSError: pass\nprint(1)")

    def queue(self) -> None:
        peer = Peer(self)
        running = [peer.send("execute", code=b"import time; time.sleep(0.1)") for _ in range(3 * MOST_JOBS)]
        peer.send("cancel", target=running[0])
        self.wait(lambda: peer.served)

    def session(self) -> None:
        peer = Peer(self)
        number = peer.ask("session_open").get("session")
        if number is None:
            return
        for code in (b"x = 1", b"print(x)", b"print(x)", b"1/0"):
            peer.ask("execute", session=number, code=code)
        running = peer.send("execute", session=number, code=b"import time; time.sleep(10)")
        self.wait(lambda: False, 0.03)
        peer.ask("interrupt", session=number)
        self.wait(lambda: peer.served or running in peer.answers)
        peer.ask("session_reset", session=number)
        peer.ask("execute", session=number, code=b"print(2)")
        peer.ask("session_close", session=number)

    def scrape(self) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(self.daemon._config.metrics)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: leeward\r\n\r\n")
            sock.setblocking(False)

            def over() -> bool:
                try:
                    return not sock.recv(1 << 16)
                except BlockingIOError:
                    return False
                except ConnectionResetError:
                    return True
            self.wait(over)

    def misfortunes(self) -> None:
        """A keeper and a zygote are killed, jobs vanish with their client, a signal comes."""
        peer, gone = Peer(self), Peer(self)
        gone.send("execute", code=b"import time; time.sleep(10)")
        gone.send("session_open")
        self.wait(lambda: False, 0.02)
        gone.close()
        gone.closed = True
        for worker in self.daemon._engine.main.pool.workforce.workers[:1]:
            if worker.keeper._pidfd >= 0:
                signal.pidfd_send_signal(worker.keeper._pidfd, signal.SIGKILL)
        zygote = self.daemon._engine.main.zygotes.current
        if zygote is not None:
            zygote.process.kill()
        signal.raise_signal(signal.SIGHUP)
        self.wait(lambda: False, 0.03)
        peer.ask("execute", code=b"print(1)")
        peer.ask("status")

    SCENES = (short_jobs, long_jobs, limits, queue, session, scrape, misfortunes)

    # --- what must hold -------------------------------------------------------

    def settle(self) -> None:
        """Every request is answered or its connection closed; the next jobs are served; then nothing is left."""
        assert self.wait(lambda: all(peer.served for peer in self.peers), PATIENCE_S), \
            [(peer.outstanding, peer.answers) for peer in self.peers if not peer.served]
        for peer in self.peers:
            peer.close()
        self.peers.clear()
        pool, server = self.daemon._engine.main.pool, self.daemon._server
        assert self.wait(lambda: not (pool.sessions or pool._running or len(pool.queue) or server.connections
                                      or server.shares), PATIENCE_S), vars(pool)
        assert self.wait(lambda: WORKERS == len(pool.workforce.workers) and all(
            worker.free and not worker.arming.count and not worker.arming.wanted() and not worker.removal
            and len(worker.arming.runners) == worker.armed for worker in pool.workforce.workers), PATIENCE_S), \
            [vars(worker) for worker in pool.workforce.workers]
        peer = Peer(self)
        assert b"2\n" == peer.ask("execute", code=b"print(1 + 1)").get("stdout"), peer.answers
        assert self.wait(lambda: pool.any_free, PATIENCE_S)  # else, on a busy host, it waits for longer than it may
        assert b"x" == peer.ask("execute", code=b"open('x', 'w').write('x')", collect=["x"])["files"]["x"]
        assert self.wait(lambda: pool.any_free, PATIENCE_S)
        number = peer.ask("session_open").get("session")
        assert number is not None, peer.answers
        assert b"3\n" == peer.ask("execute", session=number, code=b"print(3)").get("stdout"), peer.answers
        peer.close()
        self.peers.clear()
        assert self.wait(lambda: WORKERS == len(pool.workforce.workers) and not (server.connections or pool.sessions) and all(
            worker.free and not worker.arming.count and not worker.arming.wanted() and not worker.removal
            and len(worker.arming.runners) == worker.armed for worker in pool.workforce.workers)
            and self.daemon._engine.main.zygotes.stands, PATIENCE_S)
        assert not any(account.jobs or account.memory for account in pool.ledger._accounts.values())
        assert not server.held
        assert not server.arenas

    def open_files(self) -> Counter[str]:
        """
        What is open, but for cgroups, of which a worker keeps more or fewer, and zygotes' memory: there is one file for each
        zygote of which a worker is. The watchdog opens nothing meanwhile, though nothing turns the loop.
        """
        found: Counter[str] = Counter()
        with WATCHES:
            gc.collect()
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(FileNotFoundError):
                    found[re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{fd}"))] += 1
        assert sum(count for name, count in found.items() if "leeward_zygote" in name) <= WORKERS + 1, found
        return Counter({name: count for name, count in found.items() if not re.search("/cgroup|leeward_zygote", name)})


@contextlib.contextmanager
def played(folder: Path, which: str, play: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Layer]:
    """A daemon from its start to its end; *play* is called once it serves."""
    for module, name, value in QUICK:
        monkeypatch.setattr(module, name, value)
    usual = early.settings
    patience = Patience(start=30.0 * features.SLOWER, zygote=30.0 * features.SLOWER, keeper=30.0 * features.SLOWER)
    monkeypatch.setattr(early, "settings", lambda config: replace(usual(config), patience=patience))
    layer = Layer()
    reactor = layer.reactor(which)
    monkeypatch.setattr(main, "NativeReactor", lambda io, fast_path: reactor)
    config = Config(socket=f"{folder}/s", metrics=f"{folder}/m", pool_size=WORKERS, max_jobs=MOST_JOBS, spares=0,
                    max_sessions=1, allow_degraded=MISSING, queue_timeout=0.15, recycle_after=12,
                    security_log=f"{folder}/security")
    daemon = main.Daemon(config, lambda: config, Manager({"WATCHDOG_USEC": "100000"}, os.getpid()), None)
    run = reactor.run

    def perform(until: Callable[[], bool] | None = None) -> None:
        monkeypatch.setattr(reactor, "run", run)
        # Not before: a first runner that a busy machine makes later than that is the end of the daemon's start.
        patience.zygote, patience.keeper = 2.0 * features.SLOWER, 1.0 * features.SLOWER
        play(Stage(daemon, layer))
        signal.raise_signal(signal.SIGTERM)
        reactor.run(until)

    monkeypatch.setattr(reactor, "run", perform)
    with open(folder / "log", "wb") as file:
        log.set_up(fd=file.fileno())
        try:
            daemon.run(lambda: None)
        finally:
            log.set_up()
            gc.unfreeze()
    yield layer


def callbacks(folder: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Every callback of a run without faults, and in how many of the rounds each scene called it."""
    seen: dict[str, Counter[str]] = {}

    def play(stage: Stage) -> None:
        stage.settle()
        for _ in range(ROUNDS):
            for scene in Stage.SCENES:
                stage.layer.seen.clear()
                scene(stage)
                for name in stage.layer.seen:
                    seen.setdefault(name, Counter())[scene.__name__] += 1
                stage.settle()
        assert not stage.reactor.barrier.faults

    with played(folder, which, play, monkeypatch):
        os.unlink(folder / "log")
    return seen


def raise_in(stage: Stage, name: str, scenes: list[str], when: str, times: int) -> int:
    """Play until the callback has raised; how often it did."""
    for scene in (*scenes, *scenes):
        faults = stage.reactor.barrier.faults
        with stage.layer.raising(name, when, times):
            stage.patience = SCENE_S
            getattr(stage, scene)()
            stage.patience = PATIENCE_S
        raised = stage.layer.raised
        try:
            stage.settle()
        except BaseException as error:
            error.add_note(f"{name} raised {when} its body, {raised} times, in {scene}")
            raise
        assert stage.reactor.barrier.faults - faults >= raised
        if raised:
            return raised
    return 0


#: Some are reached by luck: how the kernel's and the processes' doings fall into turns decides.
BY_LUCK = {"Zygotes._place_orders", "reap_orphans", "Orphans._look", "Worker._look_again", "Arming._check_armed",
           "Leasing._check_ended", "Leasing._hurry_end", "Removal.again", "Refill._lose_patience", "Connection.room",
           "Connection.sent", "Connection.ran", "Turn.completed", "Turn.handed_over", "Lease._signal",
           "Lease._interrupt", "Signals._reap"}

#: What the epoll loop of the shim doesn't call back in the same way; all else is tried with that one alone.
ONLY = {
    reactors.REFERENCE: {"ReferenceStream._ready", "_Door.ready", "Server._meet"},
    reactors.URING: {"Server._meet", "Connection.received", "Connection.sent", "Connection.job_started",
                     "Connection.ran", "Execution.completed"},
}


@pytest.mark.timeout(600)  # it computes for half a minute
@pytest.mark.parametrize("which", reactors.ALL)
def test_the_daemon_serves_on_after_any_exception(tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each callback, before its body and after it, and at each call for as long as a scene lasts."""
    found = callbacks(tmp_path, which, monkeypatch)
    assert {"Worker._on_message", "Zygote._on_message", "Admission._expire", "Server._meet", "Signals._ready",
            "_Client._ready", "BirthListener.hear", "Turn._keep_time"} <= set(found)
    raised: Counter[str] = Counter()
    wanted = ONLY.get(which, set(found))
    surely = {name for name, scenes in found.items() if ROUNDS == max(scenes.values())}

    def play(stage: Stage) -> None:
        stage.settle()
        for name, scenes in found.items():
            if name not in wanted:
                continue
            before = stage.open_files()
            for when, times in ((BEFORE, 1), (AFTER, 1), (BEFORE, ALWAYS)):
                raised[name] += raise_in(stage, name, [scene for scene, _ in scenes.most_common()], when, times)
            after = stage.open_files()
            assert before == after, (name, before - after, after - before)
        for name in {name for name in raised if not raised[name]} & surely - BY_LUCK:
            stage.layer.seen.clear()  # by luck it may have been in each round, on a host that was slower then
            for scene in found[name]:
                getattr(stage, scene)()
            stage.settle()
            assert name not in stage.layer.seen, f"{name} was never tried"

    with played(tmp_path, which, play, monkeypatch):
        told = (tmp_path / "log").read_text()
    for name, times in raised.items():
        assert not times or f"callback={name} " in told, name

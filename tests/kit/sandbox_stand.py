"""
A server with live sandboxes whose processes are ordinary ones of this host, for tests of everything above the locks.

Runs in:   the tests. `Stand` turns its reactor in a thread, so that blocking clients can talk to it.
Not for:   tests of locks; tests/integration has real sandboxes.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from kit.no_pool import NoPool
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.config import Config
from leeward.daemon.loop.reactor import READ, Reactor
from leeward.daemon.pool.sessions import Seat
from leeward.daemon.run.called_process import CallProcess
from leeward.daemon.run.launch import Command, Exit, Stdio
from leeward.daemon.run.verdict import Stop
from leeward.daemon.sandboxes.terms import Launch, SandboxTerms
from leeward.daemon.serving.listener import Listener
from leeward.daemon.serving.peers import ServedUsers
from leeward.daemon.serving.server import Server
from leeward.errors import Busy, LeewardError
from leeward.isolation import terminals
from leeward.isolation.cgroup import watch
from leeward.isolation.cgroup.entry import Usage
from leeward.spec.limits import Limits

#: Seconds to wait for output that a child of the process holds open, as in the product.
_DRAIN_S = 0.05


class HostChild:
    """One process, with the interface of `leeward.daemon.run.live_process.LiveProcess`."""

    ends = math.inf
    ended_by_watchdog: Stop | None = None  # there is none here

    def __init__(self, runner: HostRunner, number: int, what: Command, stdin: Any,
                 on_output: Callable[[int, bytes], None], on_exit: Callable[[Exit], None]) -> None:
        self._runner, self._reactor = runner, runner.reactor
        self._on_output, self._on_exit = on_output, on_exit
        self.number, self.pid, self.stdin = number, -1, -1
        self.terminal = what.size is not None
        self._pipes: dict[int, int] = {}
        self._paused: set[int] = set()
        self._status: int | None = None
        self._over = False
        cwd = runner.folder if what.cwd == b"/workspace" else os.fsdecode(what.cwd)
        try:
            if what.size is not None:
                self._open_terminal(what, cwd, what.size)
                return
            self._popen = subprocess.Popen(
                list(what.argv), env=dict(what.env), cwd=cwd, start_new_session=True,
                stdin=subprocess.PIPE if stdin is Stdio.PIPE else subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, bufsize=0)
        except OSError as error:
            how = Exit((126 if isinstance(error, PermissionError) else 127) << 8, error.errno or 1, "exec")
            self._reactor.soon(lambda: self._finish(how))
            return
        self.pid = self._popen.pid
        if self._popen.stdin is not None:
            self.stdin = os.dup(self._popen.stdin.fileno())
            self._popen.stdin.close()
            os.set_blocking(self.stdin, False)
        for stream, file in ((1, self._popen.stdout), (2, self._popen.stderr)):
            assert file is not None
            self._pipes[stream] = os.dup(file.fileno())
            file.close()
            os.set_blocking(self._pipes[stream], False)
            self._watch(stream)
        self._pidfd = os.pidfd_open(self.pid)
        self._reactor.watch(self._pidfd, READ, self._ended)

    def _open_terminal(self, what: Command, cwd: str, size: tuple[int, int]) -> None:
        master, slave = os.openpty()
        terminals.resize(master, *size)
        with open(slave, "rb", buffering=0):
            self._popen = subprocess.Popen(
                list(what.argv), env=dict(what.env), cwd=cwd, stdin=slave, stdout=slave, stderr=slave,
                start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.pid = self._popen.pid
        os.set_blocking(master, False)
        self.stdin, self._pipes[1] = os.dup(master), master
        self._watch(1)
        self._pidfd = os.pidfd_open(self.pid)
        self._reactor.watch(self._pidfd, READ, self._ended)

    def denied(self) -> dict[str, int]:
        return {}

    def spent(self) -> float:
        with watch.process(self.pid) as folder:
            return watch.times_of(watch.fields_of(folder))

    def resize(self, rows: int, columns: int) -> bool:
        if not self.terminal or self.stdin < 0:
            return False
        terminals.resize(self.stdin, rows, columns)
        return True

    def _watch(self, stream: int) -> None:
        self._reactor.watch(self._pipes[stream], READ, lambda events: self._read(stream))

    def _read(self, stream: int) -> None:
        try:
            data = os.read(self._pipes[stream], 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # EIO, of a terminal
            data = b""
        if data:
            self._on_output(stream, data)
        else:
            self._close(stream)
            if self._status is not None and not self._pipes:
                self._finish(Exit(self._status))

    def _close(self, stream: int) -> None:
        fd = self._pipes.pop(stream, -1)
        if fd >= 0:
            self._reactor.forget(fd)
            os.close(fd)

    def _ended(self, _events: int) -> None:
        self._reactor.forget(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait()
        self._status = code << 8 if code >= 0 else -code
        if self._pipes:
            self._reactor.after(_DRAIN_S, lambda: self._finish(Exit(self._status, left=bool(self._pipes))))
        else:
            self._finish(Exit(self._status))

    def _finish(self, how: Exit) -> None:
        if self._over:
            return
        for stream in list(self._pipes):
            with contextlib.suppress(OSError):
                while data := os.read(self._pipes[stream], 1 << 16):
                    self._on_output(stream, data)
            self._close(stream)
        self._over = True
        self.close_stdin()
        self._runner.processes.pop(self.number, None)
        self._on_exit(how)

    def close_stdin(self) -> None:
        fd, self.stdin = self.stdin, -1
        if fd >= 0:
            os.close(fd)

    def signal(self, n: int) -> bool:
        if self.pid < 0 or self._status is not None:
            return False
        os.kill(self.pid, n)
        return True

    def kill(self) -> None:
        if self.pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def pause(self, stream: int) -> None:
        if stream in self._pipes and stream not in self._paused:
            self._paused.add(stream)
            self._reactor.forget(self._pipes[stream])

    def gather(self) -> None: ...
    def slow(self) -> None: ...

    def resume(self, stream: int) -> None:
        if stream in self._paused:
            self._paused.discard(stream)
            if stream in self._pipes:
                self._watch(stream)


#: The process for file calls: the product's own, under no lock.
_CALLS = """
import os, sys
from leeward.inside import file_calls, main
job, reply = int(sys.argv[1]), int(sys.argv[2])
main._read(job, main._read(job, 4)[3])
file_calls.serve(main._read, job, reply)
"""


class HostCalls:
    """The process for file calls. It has the interface of a runner, and that of the runner's owner."""

    number = 0

    def __init__(self, runner: HostRunner) -> None:
        theirs_job, self.job = os.pipe2(os.O_CLOEXEC)
        self.reply, theirs_reply = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.job, False)
        os.set_blocking(self.reply, False)
        self.tenant: CallProcess | None = None
        self._runner, self._reactor = runner, runner.reactor
        self._popen = subprocess.Popen([sys.executable, "-P", "-c", _CALLS, str(theirs_job), str(theirs_reply)],
                                       pass_fds=(theirs_job, theirs_reply), cwd=runner.folder,
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        os.close(theirs_job)
        os.close(theirs_reply)
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._reactor.watch(self._pidfd, READ, self._ended)
        runner.calls_made.append(self)

    def kill(self) -> None:
        self._popen.kill()

    def _ended(self, _events: int) -> None:
        self._reactor.forget(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait()
        if self.tenant is not None:
            self.tenant.emptied(code << 8 if code >= 0 else -code, "")
        os.close(self.job)
        os.close(self.reply)
        self._runner.calls_made.remove(self)


class HostRunner:
    """With the interface of `leeward.daemon.run.live_runner.LiveRunner`."""

    def __init__(self, reactor: Reactor, lost: Callable[[str], None]) -> None:
        self.reactor, self._lost = reactor, lost
        self._folder = tempfile.TemporaryDirectory(prefix="leeward-stand-")
        self.folder = self._folder.name
        self.number = id(self)
        self.variables: dict[str, str] = {}
        self.processes: dict[int, HostChild] = {}
        self._last = 0
        self.calls_made: list[HostCalls] = []
        self.used = Usage()
        self.killed_unseen_from_now: Callable[[], Callable[[int], bool | None]] = lambda: lambda _most: None
        self._ended = False

    def start(self, what: Command, *, stdin: Any, on_output: Callable[[int, bytes], None],
              on_exit: Callable[[Exit], None]) -> HostChild:
        if self._ended:
            raise LeewardError("the runner is over")
        self._last += 1
        child = HostChild(self, self._last, what, stdin, on_output, on_exit)
        self.processes[self._last] = child
        return child

    def calls(self, begins: bytes, most: int, opened: Callable[[CallProcess], None],
              lost: Callable[[str], None]) -> HostCalls:
        made = HostCalls(self)

        def ready() -> None:
            made.tenant = CallProcess(self.reactor, made, made, begins, most, lost)  # type: ignore[arg-type]  # as far as it is used
            opened(made.tenant)
        self.reactor.soon(ready)
        return made

    def memory(self) -> int:
        return 1

    def withdraw(self) -> None:
        return

    def stir(self) -> None:
        return

    def usage(self) -> Usage:
        return self.used

    def end(self, why: str) -> None:
        """Kill every process, report each end, and then call *lost*, as the product does."""
        if self._ended:
            return
        self._ended = True
        children = list(self.processes.values())
        for child in children:
            child.kill()
        for calls in self.calls_made:
            calls.kill()

        def look() -> None:
            if self.processes or self.calls_made:
                self.reactor.after(0.005, look)
                return
            self._folder.cleanup()
            self._lost(why)
        look()


class HostWorker:
    def __init__(self, pool: HostPool) -> None:
        self._pool = pool
        self.leasing = self

    def open(self, limits: Limits, lost: Callable[[str], None]) -> HostRunner:
        runner = HostRunner(self._pool.reactor, lost)
        self._pool.runners.append(runner)
        return runner


class _Waits:
    def __init__(self, pool: HostPool, take: Callable[[Any], bool]) -> None:
        self._pool, self._take = pool, take

    def serve(self) -> None:
        self._pool.waiting.remove(self)
        self._take(HostWorker(self._pool))

    def cancel(self) -> None:
        if self in self._pool.waiting:
            self._pool.waiting.remove(self)


class HostPool(NoPool):
    """
    A pool that gives seats at once, or when the test lets it.

    Attributes:
        held: no seat gets a worker until `waiting[0].serve()`.
        seats: the number of seats that are taken or waited for.
        accounts: the number of leases that haven't ended.
    """

    def __init__(self, reactor: Reactor, most: int = 1000) -> None:
        self.reactor, self.most = reactor, most
        self.held = False
        self.waiting: list[_Waits] = []
        self.seats: set[Seat] = set()
        self.runners: list[HostRunner] = []
        self.accounts = 0

    def open_seat(self, limits: Limits, user: int, opened: Callable[[Any], None], lost: Callable[[str], None],
                  drained: Callable[[], None], seconds: float) -> Seat:
        if len(self.seats) >= self.most:
            raise Busy("there are as many as there may be")
        seat = Seat(cast("Any", self), limits, user, opened, lost, drained)
        self.seats.add(seat)
        seat.acquire(seconds)
        return seat

    def await_worker(self, limits: Limits, user: int, take: Callable[[Any], bool], refused: Callable[[Any], None],
                     seconds: float) -> _Waits | None:
        self.accounts += 1
        if self.held:
            self.waiting.append(_Waits(self, take))
            return self.waiting[-1]
        take(HostWorker(self))
        return None

    def lease_over(self, user: int, limits: Limits) -> None:
        self.accounts -= 1

    def forget_seat(self, seat: Seat) -> None:
        self.seats.discard(seat)

    def drain(self) -> None:
        for seat in list(self.seats):
            seat.drain()


ENVIRONMENT = (("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8"))


class Stand:
    """
    A server on a socket of its own, in a thread.

    Args:
        config: keys of the daemon's configuration.
    """

    def __init__(self, **config: Any) -> None:
        self.reactor = ReferenceReactor()
        self.pool = HostPool(self.reactor)
        self._folder = tempfile.TemporaryDirectory(prefix="leeward-stand-")
        os.chmod(self._folder.name, 0o700)
        self.socket = str(Path(self._folder.name) / "leeward.sock")
        self._listener = Listener(self.socket, own_folder=True)
        self.server = Server(self.reactor, self.pool, Config(**config), status=dict, shut_down=lambda now: None,  # type: ignore[arg-type]  # as far as sandboxes need a pool
                             users=ServedUsers(os.geteuid()), terms=lambda: SandboxTerms(Launch(), ENVIRONMENT))
        self.server.listen(self._listener.socket)
        self._orders: list[tuple[Callable[[], Any], list[Any], threading.Event]] = []
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.reactor.watch(self._wake_r, READ, self._on_order)
        self._thread = threading.Thread(target=self.reactor.run)

    def _on_order(self, _events: int) -> None:
        os.read(self._wake_r, 100)
        while self._orders:
            order, got, done = self._orders.pop(0)
            got.append(order())
            done.set()

    def do(self, order: Callable[[], Any]) -> Any:
        """Call *order* on the reactor's thread, and return its result."""
        got: list[Any] = []
        done = threading.Event()
        self._orders.append((order, got, done))
        os.write(self._wake_w, b"x")
        assert done.wait(10)
        return got[0]

    def left(self) -> Mapping[str, int]:
        """What there is of sandboxes at the moment."""
        found: dict[str, int] = self.do(lambda: {
            "sandboxes": len(self.server.desk), "seats": len(self.pool.seats), "accounts": self.pool.accounts,
            "processes": sum(len(runner.processes) for runner in self.pool.runners),
            "faults": self.reactor.barrier.faults})
        return found

    def __enter__(self) -> Stand:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.do(self.server.close)
        self.do(self.reactor.stop)
        self._thread.join(10)
        for runner in self.pool.runners:
            for child in list(runner.processes.values()):
                child.kill()
        give_up = self.reactor.now() + 5
        while self.pool.accounts and self.reactor.now() < give_up:
            self.reactor.turn(0.05)
        self._listener.close()
        self.reactor.close()
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._folder.cleanup()
        assert not self.reactor.barrier.faults

"""
One process of a live runner, seen from the daemon.

Owns: its pidfd, the daemon's ends of its pipes, its group below the leaf.

Theory of operation. The keeper makes the process on an order (control.Start), and reports Started or Unstarted, then
Exited. The process sends the listener of its filter on its own birth channel. When the direct child
has ended, its pipes are read to the end, or for DRAIN_S if a descendant still holds them. Then its end is reported,
once. Descendants that are left are found by their group; without groups, by the session that the child led. A child
that was killed and doesn't end within STUCK_S is reported as ended, too, and is then left like a descendant. So is one
that is killed before the keeper has reported it, which waits until it has entered its folder and become its program.
"""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leeward.base.dataclass import replace
from leeward.daemon.loop.barrier import in_any_case
from leeward.daemon.loop.reactor import NO_TIMER, READ, Reactor
from leeward.daemon.run.launch import Exit, unstarted
from leeward.daemon.run.output import pause
from leeward.daemon.run.runner import Denials, Runner
from leeward.daemon.run.runner_states import PROCESS, ProcessEvent, ProcessState, after
from leeward.daemon.run.verdict import Stop, bug
from leeward.errors import SHORT, KernelRefusal, LeewardError, PeerError
from leeward.isolation.cgroup import descent
from leeward.isolation.cgroup.watch import Key
from leeward.isolation.channel import Channel
from leeward.isolation.terminals import resize
from leeward.wire import control

if TYPE_CHECKING:
    from leeward.daemon.run.live_runner import LiveRunner
    from leeward.isolation.cgroup.nest import GroupNest


#: Bytes that are read at once: as many as a pipe holds.
CHUNK = 64 << 10
#: Reads that `take` makes at most: a terminal holds some 64 KiB, and a read returns at most 4 KiB of them.
_READS = 32
#: Seconds for a chunk of a background process's output after its command's end: else it blocks, or gets SIGPIPE.
_IDLY_S = 0.01
#: Fewer bytes than these are few, and the seconds after which more are read.
_FEW, _GATHER_S = CHUNK // 2, 0.002


class Spill:
    """
    Reads the output pipe, or the terminal, of a process while it writes: one chunk in a turn of the loop, and the
    writer of a pipe that isn't read blocks. Owns *fd*, which doesn't block. *wrote* gets each chunk, until the
    process's end is reported; *ended* is called when no writer is left. If it *gathers*, a short pause follows a read
    of few bytes, so that many small writes take few reads; if *slow*, one follows each read, because most of the output
    isn't kept.
    """

    costs = "job"

    def __init__(self, reactor: Reactor, fd: int, wrote: Callable[[bytes], None] | None, ended: Callable[[], None],
                 broken: Callable[[Exception], None]) -> None:
        self._reactor, self._fd, self._wrote, self._ended = reactor, fd, wrote, ended
        self.broken = broken
        self.over = self.paused = self.gathers = self.slow = False
        self._idly = False
        self._late = 0.0
        self._timer = NO_TIMER
        reactor.watch(fd, READ, self._ready)

    def _ready(self, _events: int) -> None:
        data = self._read()
        if data is None:
            return
        if not data:
            self.close()
            self._ended()
            return
        if self._wrote is not None:
            self._wrote(data)
        if self.over or self.paused:
            return
        if self._idly or self.slow:
            self._rest(_IDLY_S if self._idly else pause(self._late))
        elif self.gathers and len(data) < _FEW:
            self._rest(_GATHER_S)

    def _rest(self, seconds: float) -> None:
        self._reactor.forget(self._fd)
        when = self._reactor.now() + seconds
        self._timer = self._reactor.at(when, partial(self._again, when))

    def _read(self) -> bytes | None:
        try:
            return os.read(self._fd, CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # the last slave of a terminal was closed

    def take(self) -> None:
        """Read the whole present content, because the process has ended. `ended` isn't called."""
        for _ in range(_READS):
            data = None if self.over or self.paused or self._idly else self._read()
            if data and self._wrote is not None:
                self._wrote(data)
            if not data or len(data) == CHUNK:
                break
        if data == b"":
            self.close()

    def pause(self) -> None:
        if not self.over and not self.paused and not self._idly:
            self.paused = True
            self._stop_watching()

    def resume(self) -> None:
        if not self.over and self.paused:
            self.paused = False
            self._reactor.watch(self._fd, READ, self._ready)

    def idle(self) -> None:
        """Read slowly from now on and discard the bytes, because the process's end was reported."""
        if self.over or self._idly:
            return
        self._idly, self._wrote = True, None
        if self.paused:
            self.paused = False
            self._reactor.watch(self._fd, READ, self._ready)

    def _again(self, when: float) -> None:
        self._late = self._reactor.now() - when
        self._reactor.watch(self._fd, READ, self._ready)

    def _stop_watching(self) -> None:
        self._timer.cancel()
        self._reactor.forget(self._fd)

    def close(self) -> None:
        if self.over:
            return
        self.over = True
        self._stop_watching()
        os.close(self._fd)


#: Seconds for which output is taken after the direct child's end, while a descendant holds the pipe.
DRAIN_S = 0.05
#: Seconds between looks at the descendants of a process that has ended, doubled up to the second figure.
_LEFT_S, _LEFT_MOST_S = 0.05, 5.0
#: Seconds until another attempt of what found no descriptor, though some are kept for it (`isolation.cgroup.reserve`).
_AGAIN_S = 0.1
#: Seconds after which a process that was killed and hasn't ended is reported as ended: it may wait in the kernel for a
#: file system that never answers, such as FUSE or NFS in a folder that the sandbox shows.
STUCK_S = 10.0


class LiveProcess:
    """
    *birth* is the channel on which a program sends its listener; None for an interpreter, whose runner listens. *ends*
    are the daemon's ends of stdin, stdout and stderr, or -1; it owns them, the first two the master of a *terminal* if
    it has one, which may stay open until no descendant is left. *on_output* gets 1 or 2, and a chunk; *on_exit* is
    called once. *ended_by_watchdog* is why the watchdog's thread has ended it. If it *ends_children*, what is left after
    its end is killed, and the end is reported when nothing is left, or after STUCK_S. *spare* returns pids below it that
    aren't its descendants: run/branches.py. If it *is_porter*, it has an order of the daemon's, and a time for it.
    """

    costs = "job"
    _joins = True  # the process is the keeper's child, so a walk from the sandbox's init doesn't find it

    def __init__(self, reactor: Reactor, number: int, live: LiveRunner, runner: Runner, nest: GroupNest | None,
                 denials: Denials, birth: Channel | None, ends: tuple[int, int, int], *,
                 on_output: Callable[[int, bytes], None] | None, on_exit: Callable[[Exit], None],
                 terminal: bool = False) -> None:
        self.number = number  # unique in this daemon's life
        self.state = ProcessState.STARTING
        self.pid = -1  # in the process's own pid namespace; -1 before it runs, and for an interpreter
        self.exit: Exit | None = None  # how the direct child ended, once that is known
        self.ends = math.inf  # the deadline by the reactor's clock; set by the code that has the deadline
        self.ended_by_watchdog: Stop | None = None
        self.ends_children = self.is_porter = False
        self.spare: Callable[[], Collection[int]] = tuple
        self._reactor, self._live, self.runner, self.group = reactor, live, runner, nest
        self.stdin, self.terminal = ends[0], terminal
        self._on_exit: Callable[[Exit], None] | None = on_exit
        self._pidfd = self.host_pid = -1
        self._root: Key | None = None
        self._killed = self._late = False
        self._pending: dict[int, None] = {}  # signals, each once, as the kernel has them
        self._started = reactor.now()
        self._timer = NO_TIMER
        self._patience = NO_TIMER  # since it was killed
        self._unborn = False  # it is reported as stuck, and the keeper hasn't told of it yet
        self._hunt: descent.Hunt | None = None
        self._pause = _LEFT_S
        self._spills: dict[int, Spill] = {}
        for stream, fd in ((1, ends[1]), (2, ends[2])):
            if fd >= 0:
                wrote = None if on_output is None else partial(on_output, stream)
                self._spills[stream] = Spill(reactor, fd, wrote, self._drained, self.broken)
        self._denials, self._birth, self._listening = denials, birth, False
        if birth is not None:
            reactor.watch(birth.fileno(), READ, self._born)

    # --- messages of the keeper and of the process ----------------------------

    def _born(self, _events: int) -> None:
        """The listener of its filter has arrived, or it was executed, after which none can arrive."""
        if self._birth is None:
            return
        try:
            received = self._birth.receive()
        except BlockingIOError:
            return
        except (PeerError, OSError):
            received = None
        self._close_birth()
        if received is None:
            return
        message, fds = received
        kept = isinstance(message, control.Locked) and 1 <= len(fds) <= 2 and not message.entrances
        for fd in fds[kept:]:
            os.close(fd)  # the runner's first process has sent the second one, too
        if kept:
            try:
                self._denials.add(fds[0], self.number, of=self.runner.number)
                self._listening = True
                return
            except (LeewardError, OSError):
                os.close(fds[0])
        self.kill()  # its refused calls would be neither counted nor answered

    def _close_birth(self) -> None:
        birth, self._birth = self._birth, None
        if birth is not None:
            self._reactor.forget(birth.fileno())
            birth.close()

    def _stop_listening(self) -> None:
        listening, self._listening = self._listening, False
        if listening:
            self._denials.remove(self.number)

    def started(self, message: control.Started, pidfd: int) -> None:
        """The process exists. This object owns *pidfd* from now on, which is -1 if the descriptor was lost."""
        late, self._unborn = self.state is not ProcessState.STARTING, False  # it was reported before, as stuck
        if not late:
            self._happen(ProcessEvent.STARTED)
        self.pid, self.host_pid, self._pidfd = message.inside or -1, message.pid, pidfd
        if self.group is None and self._joins and pidfd >= 0:
            self.runner.leaf.joined(message.pid)
            if descent.has_ended(pidfd):  # the pid may be another process's by now
                self.runner.leaf.parted(message.pid, 0.0)
        if late:
            self._close_pidfd()
            self.kill()
            return
        for number in self._pending:
            self.signal(number)
        if self._killed or pidfd < 0:
            self._killed = False
            self.kill()

    def unstarted(self, message: control.Unstarted) -> None:
        self._unborn = False
        stage, number = message.stage, -message.result
        if stage is control.Stage.FOLDER:
            end = unstarted(number, "cwd")
        elif stage is control.Stage.EXEC:
            end = unstarted(number, "exec")
        else:
            layer = message.layer or stage.name.lower()
            end = Exit(None, reason=f"{layer}: {KernelRefusal('start', f'process {self.number}', number)}", layer=layer)
        self._ended(end)

    def exited(self, message: control.Exited) -> None:
        self._unborn = False
        if self.group is None and self._joins and self.host_pid >= 0:
            self.runner.leaf.parted(self.host_pid, message.spent)
        self._ended(Exit(message.status, reason="" if message.status is not None else "its status was lost",
                         cpu_time=message.spent, memory_peak=message.peak))

    # --- the end of the process -----------------------------------------------

    def _ended(self, end: Exit) -> None:
        if self.state not in (ProcessState.STARTING, ProcessState.RUNNING):
            return  # it was reported before, as stuck
        self._patience.cancel()
        self._happen(ProcessEvent.EXITED)
        self.exit = replace(end, duration=self._reactor.now() - self._started)
        self._timer = self._reactor.after(DRAIN_S, self._drain_over)
        self._take()
        self._drained()

    @property
    def root(self) -> Key:
        """The process as `isolation.cgroup.descent` has it; of one that had ended before it was asked, only its session."""
        if self._root is None and self.exit is None:
            self._root = descent.living(self.host_pid, self._pidfd)
        return self._root or (self.host_pid, -1)

    def _stuck(self) -> None:
        try:
            self._root = self._root or descent.living(self.host_pid, self._pidfd)  # which will be closed
        except OSError as error:
            if error.errno not in SHORT:
                raise
            self._patience = self._reactor.after(_AGAIN_S, self._stuck)
            return
        self._killed = False
        self._unborn = self.state is ProcessState.STARTING
        self._ended(Exit(None, stuck=True, reason=f"it was killed and hasn't ended for {STUCK_S:g} s: it waits in the"
                                                  " kernel, perhaps for a file system that doesn't answer"))
        self.kill()

    def _drain_over(self) -> None:
        self._late = True
        self._drained()

    def _take(self) -> None:
        for spill in tuple(self._spills.values()):
            spill.take()

    def _drained(self) -> None:
        """Whether all output was read. A paused stream waits for its reader."""
        if self.state is not ProcessState.DRAINING:
            return
        if self._late and not any(spill.paused for spill in self._spills.values()):
            self._take()
            if not (self.terminal and any(spill.paused for spill in self._spills.values())):  # a pipe is empty by now
                self._complete()
        elif all(spill.over for spill in self._spills.values()):
            self._complete()

    def _complete(self) -> None:
        left = not all(spill.over for spill in self._spills.values())
        self._happen(ProcessEvent.DRAINED)
        self._timer.cancel()
        for spill in self._spills.values():
            # A terminal hangs up: processes that still use it get SIGHUP, or EIO.
            (spill.close if self.terminal else spill.idle)()
        assert self.exit is not None
        self.exit = replace(self.exit, left=left, denied=self.denied())
        waits = self.ends_children and not self.exit.stuck
        end = (self._look_for_rest,) if waits else (self._say_end, partial(self._later, self._look_for_rest))
        in_any_case(self.close_stdin, self._close_pidfd, *end)

    def _later(self, what: Callable[[], None]) -> None:
        """Do *what* in the turn after this one: the client is answered first."""
        self._reactor.soon(partial(self._reactor.soon, what))

    def _say_end(self) -> None:
        assert self.exit is not None
        self._say(self.exit)

    def _say(self, end: Exit) -> None:
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit(end)

    def _look_for_rest(self) -> None:
        """Check whether a descendant lives on."""
        if self.state is not ProcessState.LEFT:
            return
        if self._has_rest():
            if self.ends_children:
                self.ends_children = False  # once is enough: nothing escapes from a kill by forking
                if not self._patience.is_set:
                    self._patience = self._reactor.after(STUCK_S, self._say_end)
                self.kill()
                return
            self._timer = self._reactor.after(self._pause, self._look_for_rest)
            self._pause = min(2 * self._pause, _LEFT_MOST_S)
        elif self._hunt is None:
            self._happen(ProcessEvent.EMPTY)
            in_any_case(self._say_end, self._dispose)

    def _has_rest(self) -> bool:
        if self._unborn:
            return True
        try:
            if self.group is not None:
                return not self.group.remove()
            return self.host_pid >= 0 and descent.is_left(self.runner.pid, self.root, self.spare())
        except (KernelRefusal, OSError) as error:
            if error.errno not in SHORT:
                raise
            return True  # not known now

    def lost(self, reason: str) -> None:
        """End the process for *reason*: its runner has ended, so the keeper will not report the process's end."""
        if self.state is ProcessState.GONE:
            return
        end = self.exit or Exit(None, reason=reason, duration=self._reactor.now() - self._started)
        if self.state is not ProcessState.LEFT:
            self.exit = replace(end, denied=self.denied())
            self._take()
        self._happen(ProcessEvent.LOST)
        in_any_case(partial(self._say, self.exit or end), self._dispose)

    # --- for the holder of the process ----------------------------------------------

    def denied(self) -> Mapping[str, int]:
        """The number of refused calls of the process and its descendants so far, by name."""
        return self._denials.counts(self.number) if self._listening else {}

    def close_stdin(self) -> None:
        fd, self.stdin = self.stdin, -1
        if fd >= 0:
            os.close(fd)

    def resize(self, rows: int, columns: int) -> bool:
        """Give the process's terminal another size; False if it has none, or the process has ended."""
        if not self.terminal or self.stdin < 0:
            return False
        resize(self.stdin, rows, columns)
        return True

    def pause(self, stream: int) -> None:
        """Read nothing from stream 1 or 2 until `resume`; the process waits when the pipe is full."""
        if stream in self._spills:
            self._spills[stream].pause()

    def resume(self, stream: int) -> None:
        if stream in self._spills:
            self._spills[stream].resume()
            self._drained()

    def gather(self) -> None:
        """Read few bytes after a short pause only, because nobody waits for them before the end."""
        for spill in self._spills.values():
            spill.gathers = True

    def slow(self) -> None:
        """Read with pauses from now on, because the output is more than is kept."""
        for spill in self._spills.values():
            spill.slow = True

    def signal(self, number: int) -> bool:
        """Signal the direct child, once the keeper has reported it; False if it has ended. OSError (EINVAL)."""
        if self.state is ProcessState.STARTING:
            if not 0 <= number < signal.NSIG:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self._pending[number] = None
            return True
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def is_ready(self) -> bool:
        """Whether it lives, once it has been told what it has written so far: for one that waits, before it is used."""
        self._take()
        return self.exit is None and not (self._pidfd >= 0 and descent.has_ended(self._pidfd))

    def leave_group(self) -> GroupNest | None:
        nest, self.group = self.group, None
        return nest

    def have_group(self, nest: GroupNest | None) -> None:
        """Use *nest* as the process's own group, because no other process is in it any more."""
        self.group = nest
        if nest is not None and self.exit is not None:
            self.kill()

    def spent(self) -> float:
        """Processor seconds of the process and descendants; without groups of living ones and reaped children only."""
        if self.group is not None:
            return self.group.time()
        return 0.0 if self.host_pid < 0 else descent.time_of(self.runner.pid, self.root, self.spare())

    def kill(self) -> None:
        """Kill the process and all its descendants. May be called repeatedly."""
        if self.state is ProcessState.GONE or self._killed:
            return
        if not self._patience.is_set and self.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self._patience = self._reactor.after(STUCK_S, self._stuck)
        if self.state is ProcessState.STARTING:
            self._killed = True  # the process is killed as soon as it runs
            return
        try:
            if self.group is not None:
                self.group.kill()
            elif self._hunt is None:
                self._hunt = descent.Hunt(self.runner.pid, self.root, self.spare)
                self._later(self._hunting)
        except (KernelRefusal, OSError) as error:
            if error.errno not in SHORT:
                raise
            self._reactor.after(_AGAIN_S, self.kill)
            return
        if self.group is not None and self.state is ProcessState.LEFT:
            self._pause = _LEFT_S
            self._timer.cancel()
            self._reactor.soon(self._look_for_rest)

    def _hunting(self) -> None:
        if self._hunt is None or self.state is ProcessState.GONE:
            return
        try:
            over = self._hunt.step()
        except (KernelRefusal, OSError) as error:
            if error.errno not in SHORT:
                raise
            self._reactor.after(_AGAIN_S, self._hunting)
            return
        if over:
            self._hunt = None
            if self.state is ProcessState.LEFT:
                self._look_for_rest()
        elif self._hunt.hopeless:
            self._hunt = None
            self._live.escaped(self)
        else:
            self._reactor.after(self._hunt.pause, self._hunting)

    def orphaned(self) -> None:
        """Reap the process when it ends, because its keeper is dead."""
        if self._pidfd >= 0:
            self._reactor.watch(self._pidfd, READ, self._reap)

    def _reap(self, _events: int) -> None:
        self._reactor.forget(self._pidfd)
        try:
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return

    def broken(self, error: Exception) -> None:
        """For the barrier: a callback of ours has raised *error*. Ends the process, and reports its end."""
        if self.exit is None or self.exit.status is not None:
            self.exit = replace(self.exit or Exit(None), status=None, reason=bug(error))
        if self.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self.kill()
        elif self.state is ProcessState.DRAINING:
            for spill in self._spills.values():
                spill.idle()
            self._complete()
        elif self.state is ProcessState.LEFT:
            self._say_end()

    def _happen(self, event: ProcessEvent) -> None:
        self.state = after("process", PROCESS, self.state, event)

    def _close_pidfd(self) -> None:
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            self._reactor.forget(pidfd)
            os.close(pidfd)

    def _dispose(self) -> None:
        spills, self._spills = tuple(self._spills.values()), {}
        in_any_case(self._patience.cancel, self._timer.cancel,
                    self._close_birth, self.close_stdin, self._close_pidfd, self._stop_listening,
                    *(spill.close for spill in spills), partial(self._live.process_gone, self))

"""
What keepers, inits and jobs do, and all that may go wrong with them.

They act by the kernel's agenda, between the reactor's turns, and are heard of by channels, pipes and pidfds alone.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from leeward.wire import control
from leeward.wire import job_frames as wire

from .host import Behaviour, Group, Host, Leaf, behaviour_of
from .kernel import Endpoint, File, Pidfd, Plain, WriteEnd


class Keeper:
    """
    Attributes:
        stopped: it does nothing any more, and lives.
    """

    def __init__(self, host: Host, group: Group, end: Endpoint) -> None:
        self._host, self._kernel, self._group, self._end = host, host.kernel, group, end
        self.pid = self._kernel.pid()
        self.dead = self.stopped = False
        self.jobs: dict[int, JobProcess] = {}
        end.heard = self._heard
        self._kernel.processes[self.pid] = self
        self._heard()  # it may have been hung up on before

    def pidfd(self) -> int:
        return self._kernel.open(Pidfd(lambda: self.dead, self.signalled))

    def signalled(self, number: int) -> None:
        if signal.SIGKILL == number:
            self._kernel.soon(0.002, self.die)

    def _heard(self) -> None:
        self._kernel.soon(0.001, self._listen)

    def _listen(self) -> None:
        if self.dead or self.stopped:
            return
        if self._end.peer.over:
            self.die()
        elif self._end.queue:
            message, files = self._end.queue.popleft()
            self._obey(message, files)

    def _obey(self, message: control.Message, files: list[File]) -> None:
        host = self._host
        if isinstance(message, control.Mapped):
            if host.fails("keeper dies early"):
                self._kernel.soon(0.01, self.die)
            elif host.fails("keeper fails"):
                self.say(control.Failed(0, "mounts", "no"))
            else:
                self._kernel.soon(0.01, lambda: self.say(control.Ready({})))
            return
        assert isinstance(message, control.Arm)
        birth, = files
        assert isinstance(birth, Endpoint)
        if host.fails("keeper dies"):
            self._kernel.drop(birth)
            self.die()
        elif host.fails("keeper stops"):
            self.stopped = True
            self._kernel.drop(birth)
        elif host.fails("arming fails"):
            self._kernel.drop(birth)
            self.say(control.Failed(message.runner, "namespaces", "no"))
        else:
            leaf = self._group.leaves[message.runner]
            self.jobs[message.runner] = JobProcess(host, self, message.runner, leaf, birth)

    def say(self, message: control.Message, files: list[File] | None = None) -> None:
        """The files' references go along."""
        try:
            if self.dead or self.stopped:
                raise BrokenPipeError
            self._end.send(message, files or [])
        except BrokenPipeError:
            if self.dead or self.stopped:
                for file in files or []:
                    self._kernel.drop(file)

    def ended(self, job: JobProcess, status: int | None) -> None:
        """For a job: it is gone."""
        self.jobs.pop(job.number, None)
        self._kernel.soon(0.001, lambda: self.say(control.Ended(job.number, status)))

    def die(self) -> None:
        if self.dead:
            return
        self._kernel.note(f"keeper {self.pid} dies")
        self.dead = True
        self._kernel.drop(self._end)
        for job in list(self.jobs.values()):
            self._kernel.soon(0.002, job.killed)


class JobProcess:
    """A runner: init and job. Its pipes are its ends."""

    def __init__(self, host: Host, keeper: Keeper, number: int, leaf: Leaf, birth: Endpoint) -> None:
        self.number, self.leaf, self.denied = number, leaf, 0
        self.dead = self._closed = False
        self._host, self._kernel, self._keeper, self._birth = host, host.kernel, keeper, birth
        self.pid = self._kernel.pid()
        processes = self._kernel.processes
        processes[self.pid] = self             # the init
        processes[self.pid + 1] = _Job(self)   # the job
        processes[number << 32] = self         # for the simulation
        self._frames = bytearray()
        self._told = bytearray()               # what it hasn't been able to write yet, of its reply
        self._outputs: list[tuple[WriteEnd, int]] = []
        self._doing: Behaviour | None = None
        self._turn = 0
        self._session = False
        self._open_pipes()
        self._kernel.soon(0.25 if host.fails("arming is slow") else 0.01, self._armed)

    def _open_pipes(self) -> None:
        kernel = self._kernel
        self._job, job = kernel.pipe()
        reply, self._reply = kernel.pipe()
        out, self._out = kernel.pipe()
        err, self._err = kernel.pipe()
        self._given: list[File] = [Pidfd(lambda: self.dead, self.signalled), job, reply, out, err]
        for file in (self._job, self._reply, self._out, self._err, *self._given):
            file.references += 1
        self._job.pipe.filled = lambda: kernel.soon(0.0002, self._read)
        for end in (self._reply, self._out, self._err):
            end.pipe.drained = lambda: kernel.soon(0.0002, self._write)

    def _armed(self) -> None:
        """Say so by both channels, in any order."""
        if self.dead:
            return
        kernel, host = self._kernel, self._host
        says: list[Callable[[], None]] = [self._lock, self._ready]
        if host.fails("birth fails"):
            says = [self._lock, lambda: self._tell(control.Failed(self.number, "landlock", "no"))]
        elif host.fails("birth babbles"):
            says = [lambda: self._tell(control.Mapped())]
        elif host.fails("dies while it is armed"):
            kernel.soon(0.002, lambda: self.die(signal.SIGSEGV))
        when = 0.0
        for say in says:
            when += 0.001 * kernel.dice.random()
            kernel.after(when, say)
        kernel.soon(0.002, self._introduce)

    def _introduce(self) -> None:
        given, self._given = self._given, []
        if given:
            self._keeper.say(control.Armed(self.number, self.pid), given)

    def _lock(self) -> None:
        listener, scratch = Plain(), Plain()
        listener.references = scratch.references = 1
        self._tell(control.Locked(), [listener, scratch])

    def _ready(self) -> None:
        self._tell(control.Ready({"seccomp": "seen"}))
        if self._host.fails("dies in store"):
            self._kernel.soon(0.05, lambda: self.die(signal.SIGKILL))

    def _tell(self, message: control.Message, files: list[File] | None = None) -> None:
        if self.dead or self._birth.over:
            for file in files or []:
                self._kernel.drop(file)
            return
        try:
            self._birth.send(message, files or [])
        except BrokenPipeError:
            return

    # --- jobs -----------------------------------------------------------------

    def _read(self) -> None:
        pipe = self._job.pipe
        if self.dead or not pipe.held:
            return
        if self._host.fails("dies before it reads"):
            self.die(signal.SIGKILL)
            return
        # At most what one read takes: large frames come in pieces.
        self._frames += self._job.read(40 << 10)
        size = 4 + int.from_bytes(self._frames[:4], "big")
        if len(self._frames) >= size:
            frame = bytes(self._frames[4:size])
            del self._frames[:size]
            self._start(frame)
        if pipe.held or self._frames:
            self._kernel.soon(0.0002, self._read)

    def _start(self, frame: bytes) -> None:
        if frame.startswith(wire.SESSION):
            self._session = True
            if frame == wire.SESSION:
                return
        if self._doing is not None:
            self._kernel.violate(f"runner {self.number} got a job while it had one")
        if not self._session and self._turn:
            self._kernel.violate(f"runner {self.number} got a second job")
        self._turn += 1
        turn = self._turn
        does = self._doing = behaviour_of(frame)
        self.denied += does.denied
        self.leaf.forks += does.forks
        self._outputs = [(end, size) for end, size in ((self._out, does.out), (self._err, does.err)) if size]
        self._kernel.after(does.seconds, lambda: self._end(turn))
        self._write()

    def _write(self) -> None:
        """As much of what it has to say as the pipes take."""
        if self.dead:
            return
        left: list[tuple[WriteEnd, int]] = []
        for end, size in self._outputs:
            try:
                size -= end.write(bytes(size))
            except BlockingIOError:
                pass
            except BrokenPipeError:
                size = 0
            if size:
                left.append((end, size))
        self._outputs = left
        if self._told:
            try:
                del self._told[:self._reply.write(bytes(self._told))]
            except (BlockingIOError, BrokenPipeError):
                pass

    def _end(self, turn: int, end: str = "") -> None:
        does = self._doing
        if self.dead or does is None or turn != self._turn:
            return
        if self._outputs and not end:  # it waits for somebody to read
            self._kernel.after(0.001, lambda: self._end(turn))
            return
        end = end or does.end
        if end in ("hang", "closes"):
            if end == "closes":
                self._close_reply()
            return
        self._doing = None
        if end == "exit":
            self.die(3 << 8)
        elif end == "signal":
            self.die(signal.SIGSEGV)
        elif end == "oom":
            self.leaf.oom += 1
            self.die(signal.SIGKILL)
        else:
            self._say(end, does)

    def _say(self, end: str, does: Behaviour) -> None:
        frame = {
            "reply": wire.NOTHING_FRAME, "raise": wire.reply_pieces(1, ("ValueError", "no", ""), None, {})[0],
            "interrupted": wire.reply_pieces(1, ("KeyboardInterrupt", "", ""), None, {})[0],
            "garbage": b"\0\0\0\5hello", "huge": b"\x7f\xff\xff\xff", "half": wire.NOTHING_FRAME[:7],
        }[end]
        if self._kernel.dice.random() < 0.1:  # in two writes
            self._told += frame[:3]
            self._write()
            self._kernel.after(0.0001, lambda: self._rest(frame[3:]))
        else:
            self._rest(frame)
        if end == "half":
            self._kernel.soon(0.002, lambda: self.die(0))
        if does.late:
            self._kernel.soon(0.01, lambda: self._rest(bytes(does.late)))

    def _rest(self, data: bytes) -> None:
        self._told += data
        self._write()

    def interrupted(self) -> None:
        if self._doing is not None and not self._doing.deaf:
            self._kernel.soon(0.001, lambda turn=self._turn: self._end(turn, "interrupted"))  # type: ignore[misc]  # a bound default

    # --- the end --------------------------------------------------------------

    def signalled(self, number: int) -> None:
        if signal.SIGKILL == number:
            self._kernel.soon(0.001, self.killed)

    def killed(self) -> None:
        self.die(None)

    def _close_reply(self) -> None:
        if not self._closed:
            self._closed = True
            self._kernel.drop(self._reply)

    def die(self, status: int | None) -> None:
        if self.dead:
            return
        self.dead = True
        self._doing = None
        self._close_reply()
        for file in (self._job, self._out, self._err, self._birth, *self._given):
            self._kernel.drop(file)
        self._given = []
        self._keeper.ended(self, status)


class _Job:
    """The job's process, beside its init."""

    def __init__(self, runner: JobProcess) -> None:
        self._runner = runner

    @property
    def dead(self) -> bool:
        return self._runner.dead

    def signalled(self, number: int) -> None:
        if signal.SIGINT == number:
            self._runner.interrupted()

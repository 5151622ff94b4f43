"""
The start of a zygote: a process backstage and its channel, before the daemon waits for it. Imports little: the daemon
imports its other modules while the zygote warms up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO

import _cffi_backend
import msgpack

import leeward
from leeward._native import start
from leeward._native.steps import Call, Cell, Gives, Step
from leeward.base.points import point
from leeward.daemon.worker.idmaps import write_maps
from leeward.daemon.worker.orphans import STARTED
from leeward.isolation import backstage, descriptors
from leeward.isolation.channel import Channel
from leeward.isolation.plan import ZygotePlan
from leeward.spec.sandbox import Bind, View
from leeward.wire import records


class BackstageProcess:
    """
    A process that is started backstage (isolation/backstage.py), with *control* under the number CONTROL, and *modules*
    beside the files that jobs see. Owns the ends of its streams, and its pidfd until it is reaped. *returncode* as in
    subprocess. Raises KernelRefusal; Unsupported if the host lacks what *view* binds; OSError.
    """

    #: The number of *control* in the process; 0 to 2 are pipes.
    CONTROL = 3

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], control: int, view: View,
                 modules: Sequence[Bind]) -> None:
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        made = backstage.here()

        def steps(ends: Sequence[Cell]) -> list[Step]:
            # A session of its own, so that a Ctrl-C at the daemon's terminal reaches only the daemon.
            return [Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
                    *descriptors.steps((ends[0], ends[1], ends[1], ends[2], ends[-1], *ends[3:-1]), self.CONTROL + 1),
                    *backstage.steps(made, view, modules, self.CONTROL + 2 if nobody >= 0 else -1),
                    start.execve_step(argv[0], argv, environment)]

        def map_ids(pid: int) -> None:
            if made.uid_map:
                write_maps(pid, made.uid_map, made.gid_map, setgroups=made.setgroups)

        # Pipes, all three: sys.stdin, stdout and stderr of every job are made here, at the start
        # of the interpreter, and one made on /dev/null would take a job's pipes for seekable.
        ends: list[int] = []
        nobody = backstage.proc_of_nobody()
        try:
            ends += os.pipe2(os.O_CLOEXEC)
            ends += os.pipe2(os.O_CLOEXEC)
            self.pid, self._pidfd = start.start(steps, (ends[0], ends[3], control, *([nobody] if nobody >= 0 else [])),
                                                made.namespaces, begin=map_ids)
            STARTED.add(self.pid)
            self.stdin, ends[1] = os.fdopen(ends[1], "wb"), -1
            self.stdout, ends[2] = os.fdopen(ends[2], "rb"), -1
        finally:
            for end in (*ends, nobody):
                if end >= 0:
                    os.close(end)

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        status = self._reap(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Send SIGKILL, unless the process was reaped."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is not None:
            return self.returncode
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # the process was reaped elsewhere; its status is lost
            pid, status = self.pid, 0
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._pidfd)
            self._pidfd = -1
        return self.returncode


#: The program of the zygote's interpreter. Its source comes by standard input, so
#: that no path of the host stands in the command line that every job can read.
_BOOTSTRAP = "import os;exec(os.read(0,65536))"


@point("zygote.entry")
def entry(control: int) -> str:
    """Return the end of the bootstrap's source, which runs the zygote, whose channel is the descriptor *control*."""
    return ("from leeward._native.snapshot import gather_arenas\ngather_arenas()\n"
            f"from leeward.crossing import zygote\nzygote.main({control})\n")


def _needed(backing: Sequence[str]) -> list[str]:
    """Return the folders of leeward and msgpack, and cffi's file; *backing* has the last two of another interpreter."""
    own = [os.path.dirname(os.path.realpath(str(module.__file__))) for module in (leeward, msgpack)]
    return [own[0], *(backing or [own[1], os.path.realpath(_cffi_backend.__file__)])]


def import_path(backing: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders from which the zygote imports leeward, msgpack and cffi's backend."""
    return tuple(dict.fromkeys(map(os.path.dirname, _needed(backing))))


def modules(backing: Sequence[str] = ()) -> tuple[Bind, ...]:
    """Return the folders and the file of these modules, which a zygote with its own root needs there."""
    *folders, backend = _needed(backing)
    return *(Bind(folder, folder) for folder in dict.fromkeys(folders)), Bind(backend, backend, file=True)


class StartedZygote:
    """A zygote that was started and warms up by its plan, and our end of its channel; LeewardError, OSError."""

    __slots__ = ("channel", "preload", "process")

    def __init__(self, plan: ZygotePlan) -> None:
        self.preload = plan.preload
        self.channel, there = Channel.pair()
        self.process: BackstageProcess
        try:
            self.process, number = begin(plan, there.fileno())
        except BaseException:
            self.channel.close()
            there.close()
            raise
        try:
            _feed(self.process, plan, number)
            self.channel.send_raw(records.pack(plan))
        except BaseException:
            self.end()
            raise
        finally:
            there.close()

    def end(self) -> None:
        """Kill and reap the zygote, which isn't needed any more."""
        self.process.kill()
        self.channel.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait()


@point("zygote.begin")
def begin(plan: ZygotePlan, control_fd: int) -> tuple[BackstageProcess, int]:
    """Start the interpreter that becomes a zygote. Returns it, and the number that *control_fd* has in it."""
    flags = ["-S"] if plan.bare else []
    # Jobs get it as a variable for their programs. Their own streams write each line at once, which costs a job that
    # prints much less than a write for each piece.
    environment = {**{name: value for name, value in plan.environment if name != "PYTHONUNBUFFERED"},
                   **dict(plan.alone)}
    return BackstageProcess([plan.executable, *flags, "-c", _BOOTSTRAP], environment, control_fd,
                   plan.view, plan.modules), BackstageProcess.CONTROL


def _feed(process: BackstageProcess, plan: ZygotePlan, control_fd: int) -> None:
    source = (
        "import sys\n"
        f"sys.path[:0] = {list(plan.import_path)!r}\n"
        "os.dup2(os.open('/dev/null', os.O_RDONLY), 0)\n"
    ) + entry(control_fd)
    assert process.stdin is not None
    try:
        with process.stdin as stdin:
            stdin.write(source.encode(sys.getfilesystemencoding()))
    except BrokenPipeError:
        pass  # the process has ended already; its channel gives the reason
    process.stdin = None

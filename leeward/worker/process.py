"""
The process of a zygote: a program that is started backstage, and the operations of its parent on it.

Runs in:   the daemon.
Owns:      the ends of its streams, and its pidfd until it is reaped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import IO

from leeward._native import start
from leeward._native.steps import Call, Cell, Gives, Step
from leeward.isolation import backstage, descriptors
from leeward.spec.sandbox import Bind, View
from leeward.worker.idmaps import write_maps
from leeward.worker.orphans import STARTED


class BackstageProcess:
    """
    A process that is started backstage (isolation/backstage.py).

    Args:
        argv: the program and its arguments.
        environment: all of its environment variables.
        control: a descriptor that the process gets under the number CONTROL.
        view: the files that jobs see.
        modules: files and folders that the process needs beside these.

    Attributes:
        returncode: as in subprocess: the exit status, the negative number of a signal, or None while it runs.

    Raises:
        KernelRefusal: a step failed.
        Unsupported: the host lacks what *view* binds.
        OSError: no descriptors, or no such program.
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
                    *descriptors.steps((ends[0], ends[1], ends[1], ends[2], ends[3]), self.CONTROL + 1),
                    *backstage.steps(made, view, modules),
                    start.execve_step(argv[0], argv, environment)]

        def map_ids(pid: int) -> None:
            if made.uid_map:
                write_maps(pid, made.uid_map, made.gid_map, setgroups=made.setgroups)

        # Pipes, all three: sys.stdin, stdout and stderr of every job are made here, at the start
        # of the interpreter, and one made on /dev/null would take a job's pipes for seekable.
        ends: list[int] = []
        try:
            ends += os.pipe2(os.O_CLOEXEC)
            ends += os.pipe2(os.O_CLOEXEC)
            self.pid, self._pidfd = start.start(steps, (ends[0], ends[3], control), made.namespaces, begin=map_ids)
            STARTED.add(self.pid)
            self.stdin, ends[1] = os.fdopen(ends[1], "wb"), -1
            self.stdout, ends[2] = os.fdopen(ends[2], "rb"), -1
        finally:
            for end in ends:
                if end >= 0:
                    os.close(end)

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
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

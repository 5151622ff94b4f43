"""
A process under the job's syscall filter and nothing else, answered by a supervisor.

Runs in:   the tests. What the filter decides is seen here without the help of other layers.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leeward.daemon.supervisor import Supervisor
from leeward.isolation.seccomp import filters
from leeward.isolation.seccomp.compiler.plan import plan
from leeward.isolation.seccomp.syscalls import NUMBERS

HERE = plan(memory_counted=True, affinity_fixed=False, arch=platform.machine())
PROGRAM = filters.program(memory_counted=True, affinity_fixed=False, arch=platform.machine()).insns
NUMBER = NUMBERS[platform.machine()]

#: Locks itself, hands its listener over, waits for the word, runs the code; `call` gives a result or -errno.
CHILD = """
import ctypes, errno, json, os, signal, socket, sys, threading, time
from leeward._native import privileges
from leeward._native.steps import Cell, Table
from leeward.isolation import seccomp
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    got = libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, args))
    return -ctypes.get_errno() if -1 == got else got
def tell(value):
    print(json.dumps(value), flush=True)
def listen(program):
    table = Table(seccomp.steps(program, cell := Cell("listener")))
    table.run()
    return table.value(cell)
parent = socket.socket(fileno=int(sys.argv[1]))
program, code = bytes.fromhex(sys.argv[2]), sys.argv[3]
privileges.no_new_privs()
listener = listen(program)
socket.send_fds(parent, [b"l"], [listener])
os.close(listener)
parent.recv(1)
exec(code)
"""


@dataclass
class Confined:
    """The process, and the number of its job at the supervisor."""

    process: subprocess.Popen[str]
    parent: socket.socket
    job: int

    def go(self) -> None:
        """Let the process run its code."""
        self.parent.send(b"g")

    def told(self) -> Any:
        """Return the next value that the process's code has sent."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self, seconds: float = 60) -> int:
        """Wait for the process's end, and return its exit status."""
        return self.process.wait(seconds)


def start(code: str, *, program: bytes | None = None, stdin: int = subprocess.DEVNULL) -> tuple[Confined, int]:
    """Start a process that waits under the filter. Returns it and its listener, which the caller owns."""
    filter_ = PROGRAM if program is None else program
    ours, its = socket.socketpair()
    ours.settimeout(60)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(its.fileno()), filter_.hex(), code], pass_fds=[its.fileno()],
            stdin=stdin, stdout=subprocess.PIPE, text=True)
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    return Confined(process, ours, process.pid), listener


@contextlib.contextmanager
def confined(code: str, supervisor: Supervisor, *, program: bytes | None = None,
             stdin: int = subprocess.DEVNULL, checking: bool = False) -> Iterator[Confined]:
    """
    The process, answered by *supervisor* under its pid as the job's number; killed at the end.

    Args:
        checking: as of `Supervisor.add`.
    """
    child, listener = start(code, program=program, stdin=stdin)
    supervisor.add(listener, child.job, checking=checking)
    try:
        child.go()
        yield child
    finally:
        stop(child)
        supervisor.remove(child.job)


def stop(child: Confined) -> None:
    """Kill the process, reap it and close what belongs to it."""
    child.process.kill()
    with child.process, child.parent:
        pass

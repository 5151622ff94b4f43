"""A program that is started backstage: it is there, or nothing is left of it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence

import pytest

from kit.unclosed import close_garbage
from leeward._native import start
from leeward._native.steps import Call, Cell, Step, returns
from leeward.daemon.worker.zygote_start import BackstageProcess
from leeward.errors import KernelRefusal
from leeward.isolation import backstage, interpreter
from leeward.spec import profiles
from leeward.spec.limits import Limits
from leeward.spec.sandbox import View

PROGRAM = "import os; print(set(os.listdir('/proc/self/fd')) - {{'4'}}, os.getcwd(), flush=True); os.read({0}, 1)"


@pytest.fixture
def view() -> View:
    return profiles.python(interpreter.find(), interpreter.root_links(), limits=Limits()).view


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def descriptors() -> list[str]:
    return sorted(fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))


def children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read()


def started(argv: Sequence[str], view: View, control: int) -> BackstageProcess:
    return BackstageProcess(argv, {"PATH": "/usr/bin"}, control, view, ())


def test_a_program_has_its_streams_its_channel_and_the_covered_tree(view: View,
                                                            control: tuple[socket.socket, socket.socket]) -> None:
    """And nothing else; its end is told as of any other process."""
    close_garbage()
    before = descriptors()
    executable = interpreter.find().executable
    process = started([executable, "-I", "-S", "-c", PROGRAM.format(BackstageProcess.CONTROL)], view,
                      control[1].fileno())
    assert process.stdout is not None
    assert process.stdin is not None
    said = process.stdout.readline().decode().split()
    # 4 is the folder's own.
    assert {"0", "1", "2", "3", str(backstage.HOST)} == {each.strip("{},'") for each in said[:-1]}
    assert "/" == said[-1]
    assert process.poll() is None
    control[0].send(b"1")
    assert 0 == process.wait() == process.poll() == process.returncode
    process.kill()  # harmless
    process.stdout.close()
    process.stdin.close()

    assert before == descriptors()


def test_the_end_of_a_killed_program_is_reported(view: View, control: tuple[socket.socket, socket.socket]) -> None:
    process = started([interpreter.find().executable, "-I", "-S", "-c", "import signal; signal.pause()"], view,
                      control[1].fileno())
    process.kill()
    assert -signal.SIGKILL == process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def test_a_missing_program_leaves_no_process_or_descriptor(view: View,
                                                           control: tuple[socket.socket, socket.socket]) -> None:
    close_garbage()
    before, others = descriptors(), children()
    with pytest.raises(KernelRefusal, match=r"execve.*ENOENT"):
        started(["/nowhere/python"], view, control[1].fileno())

    assert (before, others) == (descriptors(), children())


def test_a_failed_step_or_parent_leaves_no_process_or_descriptor() -> None:
    """A call that is refused; and a parent that can't do its part while the child waits."""
    def refused(cells: Sequence[Cell]) -> list[Step]:
        return [returns(Call.FCNTL, cells[0], fcntl.F_SETFD, fcntl.FD_CLOEXEC), returns(Call.CHDIR, "/nowhere"),
                start.execve_step(sys.executable, [sys.executable], {})]

    def fail(_pid: int) -> None:
        raise PermissionError("no map")

    close_garbage()
    before, others = descriptors(), children()
    with pytest.raises(KernelRefusal, match=r"chdir.*ENOENT"):
        start.start(refused, ())
    with pytest.raises(PermissionError, match="no map"):
        start.start(refused, (), begin=fail)

    assert (before, others) == (descriptors(), children())

"""
The start of a zygote: a process and its channel, before the daemon waits for it.

Runs in:   the daemon. Imports little: the daemon imports its other modules while the zygote warms up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import _cffi_backend
import msgpack

import leeward
from leeward.isolation.channel import Channel
from leeward.isolation.plan import ZygotePlan
from leeward.points import point
from leeward.spec.sandbox import Bind
from leeward.wire import records
from leeward.worker.process import BackstageProcess

#: The program of the zygote's interpreter. Its source comes by standard input, so
#: that no path of the host stands in the command line that every job can read.
_BOOTSTRAP = "import os;exec(os.read(0,65536))"


@point("zygote.entry")
def entry(control: int) -> str:
    """
    Return the end of the bootstrap's source: it runs the zygote.

    Args:
        control: the descriptor's number of the channel in the zygote.
    """
    return ("from leeward._native.snapshot import gather_arenas\ngather_arenas()\n"
            f"from leeward.crossing import zygote\nzygote.main({control})\n")


def _needed(backing: Sequence[str]) -> list[str]:
    """
    Return the folders of leeward and msgpack, and the file of cffi's backend.

    Args:
        backing: msgpack's folder and cffi's file for an interpreter of another version; empty for our own.
    """
    own = [os.path.dirname(os.path.realpath(str(module.__file__))) for module in (leeward, msgpack)]
    return [own[0], *(backing or [own[1], os.path.realpath(_cffi_backend.__file__)])]


def import_path(backing: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the folders from which the zygote imports leeward, msgpack and cffi's backend."""
    return tuple(dict.fromkeys(map(os.path.dirname, _needed(backing))))


def modules(backing: Sequence[str] = ()) -> tuple[Bind, ...]:
    """Return the folders and the file of these modules, which a zygote with its own root needs there."""
    *folders, backend = _needed(backing)
    return *(Bind(folder, folder) for folder in dict.fromkeys(folders)), Bind(backend, backend, file=True)


class Hatched:
    """
    A zygote that has been started and warms up by its plan, and the daemon's end of its channel.

    Raises:
        LeewardError, OSError: the zygote can't be started.
    """

    __slots__ = ("channel", "process")

    def __init__(self, plan: ZygotePlan) -> None:
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
        self.channel.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.kill()
        self.process.wait()


@point("zygote.begin")
def begin(plan: ZygotePlan, control_fd: int) -> tuple[BackstageProcess, int]:
    """
    Start the interpreter that becomes a zygote.

    Returns:
        The process, and the number that *control_fd* has in it.
    """
    flags = ["-S"] if plan.bare else []
    # Jobs get it as a variable for their programs. Their own streams write each line at once, which costs a job that
    # prints much less than a write for each piece.
    environment = {name: value for name, value in plan.environment if name != "PYTHONUNBUFFERED"}
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

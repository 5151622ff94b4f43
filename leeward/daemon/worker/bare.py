"""
Processes that the daemon starts for itself by exec: an interpreter without site-packages and environment, which finds
leeward where this one does.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from leeward.daemon.worker.orphans import STARTED
from leeward.daemon.worker.zygote_start import import_path

if TYPE_CHECKING:
    import subprocess

#: Seconds for a process of `is_refused`. It takes a tenth of one, and a hundred times as long on an emulated machine.
_LONG_S = 30.0
#: The exit status that says "refused".
REFUSED = 3


def _command(statements: str, places: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"import sys\nsys.path[:0] = {[*import_path(), *places]!r}\n{statements}"]


def is_refused(module: str, call: str) -> bool:
    """Whether *call* returns true in a process of its own, which may enter namespaces; False also if that fails."""
    import subprocess  # most daemons never need it

    statements = f"from {module} import {call.partition('(')[0]}\nsys.exit({REFUSED} if {call} else 0)\n"
    try:
        tried = subprocess.run(_command(statements), cwd="/", env={}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_LONG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == REFUSED


def start(entry: Callable[[int], str], places: Sequence[str] = (),
          environment: Mapping[str, str] | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """
    Start a process that serves on a channel. *entry* returns the statements that it runs, given the number of its end
    of the channel; it imports from *places*, too, and has only this *environment*. Returns the process, and our end of
    its channel, which doesn't block; OSError.
    """
    import subprocess  # imported once the daemon is ready: it would take 2 ms of the start

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        try:
            process = subprocess.Popen(_command(entry(there.fileno()), places), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, cwd="/", env=environment or {},
                                       pass_fds=[there.fileno()],
                                       start_new_session=True)
            STARTED.add(process.pid)
        except BaseException:
            here.close()
            raise
    here.setblocking(False)
    return process, here

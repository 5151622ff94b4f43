"""
The last step of a daemon that `leeward daemon start` has started.

Runs in:   the daemon, once it is ready; `log_file` in the CLI as well.
"""

from __future__ import annotations

import os


def log_file(socket: str) -> str:
    """The path of the log of the background daemon of *socket*: beside the socket, in the same private folder."""
    return f"{socket.removesuffix('.sock')}.log"


def detach(ready_fd: int, socket: str) -> None:
    """Redirect the daemon's output to its log, and report that it is ready. Called in the daemon."""
    log = os.open(log_file(socket), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.ftruncate(log, 0)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    os.write(ready_fd, b"+")
    os.close(ready_fd)

"""
The last step of a daemon that `leeward daemon start` has started.

Runs in:   the daemon, once it is ready; `log_file` in the CLI as well.
"""

from __future__ import annotations

import os


def log_file(socket: str) -> str:
    """
    Where the background daemon of *socket* logs: beside it, in the same private folder.
    """
    return f"{socket.removesuffix('.sock')}.log"


def detach(ready_fd: int, socket: str) -> None:
    """
    In the daemon: detach from the terminal, and report that it is ready.
    """
    log = os.open(log_file(socket), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.ftruncate(log, 0)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    os.write(ready_fd, b"+")
    os.close(ready_fd)

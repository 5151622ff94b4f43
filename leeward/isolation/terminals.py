"""
Terminals for clients: each worker has a devpts, where the daemon opens pseudo-terminals.

Runs in:   `devpts_steps` in the keeper, at its setup; `pseudo_terminal` and `resize` in the daemon.
Trust:     none in the process at the other end. It may change the mode and owner of the terminal's file, but the file
           system is mounted nowhere, so no process can open the file by a path, on the host or in a sandbox.
Bound:     the mount option `max=` limits the terminals of one devpts, and so of the one sandbox that has the worker.
           The kernel reserves `kernel.pty.reserve` of the host's pseudo-terminals for file systems that were made
           outside of user namespaces.
Source:    pts(4), ioctl_tty(2), Documentation/filesystems/devpts.rst
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.steps import Cell, Step

#: Terminals of one sandbox at once. A terminal counts for as long as any process has it open.
MOST_TERMINALS = 16

#: ioctl requests that `termios` lacks.
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441

#: IUTF8: input is UTF-8, so that the kernel's line editor deletes whole characters.
_UTF8 = 0o40000


def devpts_steps(devpts: Cell) -> list[Step]:
    """
    Make a devpts that is mounted nowhere. Needs CAP_SYS_ADMIN. Linux 5.2.

    Args:
        devpts: a cell that gets the mount's descriptor, which `pseudo_terminal` needs.
    """
    options = {"newinstance": "", "ptmxmode": "0666", "mode": "0600", "max": str(MOST_TERMINALS)}
    return native.filesystem_steps(devpts, "devpts", options, MountAttr.NOSUID | MountAttr.NOEXEC)


def pseudo_terminal(devpts: int, rows: int, columns: int) -> tuple[int, int]:
    """
    Open a new pseudo-terminal of the file system *devpts*. TIOCGPTPEER, Linux 4.13.

    Returns:
        Descriptors of the master, which doesn't block, and of the slave. Both are close-on-exec, and the caller owns
        them. Reading the master fails with EIO when the last slave is closed.

    Raises:
        OSError: ENOSPC if MOST_TERMINALS are open, or as many as the host allows.
    """
    master = os.open("ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=devpts)
    try:
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            modes = termios.tcgetattr(slave)
            modes[0] |= _UTF8
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            resize(master, rows, columns)
        except BaseException:
            os.close(slave)
            raise
    except BaseException:
        os.close(master)
        raise
    return master, slave


def resize(master: int, rows: int, columns: int) -> None:
    """Set the size of a terminal, in characters. If it changes, the foreground process group gets SIGWINCH."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

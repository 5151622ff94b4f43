"""
Terminals for clients: each worker has a devpts, where the daemon opens pseudo-terminals.

Runs in:   `devpts_steps` in the keeper, at its setup; `pseudo_terminal` and `resize` in the daemon.
Trust:     none in the process at the other end. It sees its terminal's file at /dev/pts, so that ttyname(3) has a name,
           but Landlock lets no process open it by that path: /dev/tty is the way, to one's own terminal alone. The
           mount is read-only, so nobody changes the modes or owners of its files, which the next sandbox would find.
Bound:     the mount option `max=` limits the terminals of one devpts, and so of the one sandbox that has the worker.
           The kernel reserves `kernel.pty.reserve` of the host's pseudo-terminals for file systems that were made
           outside of user namespaces.
Source:    pts(4), ioctl_tty(2), Documentation/filesystems/devpts.rst
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

from leeward._native import mounts as native
from leeward._native.mounts import MountAttr
from leeward._native.steps import Call, Cell, Step, gives
from leeward.base.points import point
from leeward.isolation.mounts import DEVPTS, devpts_options

#: Terminals of one sandbox at once. A terminal counts for as long as any process has it open.
MOST_TERMINALS = 16

#: ioctl requests that `termios` lacks.
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441

#: IUTF8: input is UTF-8, so that the kernel's line editor deletes whole characters.
_UTF8 = 0o40000


@point("mounts.devpts")
def devpts_steps(ptmx: Cell) -> list[Step]:
    """
    Mount a devpts at /dev/pts, and /dev/null over its ptmx, by which programs would make terminals; the cell *ptmx* gets
    a descriptor of that file (O_PATH). Needs CAP_SYS_ADMIN.
    """
    return [native.mount_step("devpts", "/dev/pts", devpts_options(MOST_TERMINALS), DEVPTS | MountAttr.RDONLY),
            gives(ptmx, Call.OPENAT, native.AT_FDCWD, "/dev/pts/ptmx", os.O_PATH | os.O_CLOEXEC, 0),
            native.bind_step("/dev/null", "/dev/pts/ptmx")]


def pseudo_terminal(ptmx: int, rows: int, columns: int) -> tuple[int, int]:
    """
    Open a pseudo-terminal of the file system of *ptmx*. TIOCGPTPEER, Linux 4.13. ENOSPC if too many are open. The
    caller owns both descriptors, of the master, which doesn't block, and of the slave. Both are close-on-exec. Reading
    the master fails with EIO when the last slave is closed.
    """
    with contextlib.ExitStack() as opened:
        master = os.open(f"/proc/self/fd/{ptmx}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        opened.callback(os.close, master)
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        opened.callback(os.close, slave)
        modes = termios.tcgetattr(slave)
        modes[0] |= _UTF8
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        resize(master, rows, columns)
        opened.pop_all()
    return master, slave


def resize(master: int, rows: int, columns: int) -> None:
    """Set the size of a terminal, in characters. If it changes, the foreground process group gets SIGWINCH."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

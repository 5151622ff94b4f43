"""
Namespaces: the setup that follows the clone which made them.

Runs in:   the steps are made in the zygote; taken in the runner, those of the loopback in the keeper.
Source:    namespaces(7), cgroup_namespaces(7), setsid(2), sethostname(2)

User and network namespace are the keeper's; pid, mount, ipc and uts came with the runner's clone.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import termios
from collections.abc import Sequence

from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Gives, Step, gives, returns
from leeward.dataclass import replace
from leeward.points import point

#: A new uts namespace starts with the host's NIS domain, which uname(2) shows. This is the kernel's default.
_NO_DOMAIN = "(none)"

_AT_FDCWD = -100

_NO_SYSCTL = dict.fromkeys((errno.EROFS, errno.EACCES, errno.ENOENT),
                           "`loopback` without cgroup controllers has to bound the queues of TCP: it needs a writable"
                           " /proc/sys/net")

#: <linux/sockios.h>, <net/if.h>
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


@point("namespaces.loopback")
def loopback_steps() -> list[Step]:
    """
    Bring `lo` up in this network namespace, by ioctl; netdevice(7). Importing a netlink library takes 8 ms.

    Needs CAP_NET_ADMIN over the user namespace.
    """
    fd = Cell("socket")
    up = Block(struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))  # struct ifreq
    return [
        gives(fd, Call.SOCKET, socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0),
        returns(Call.IOCTL, fd, _SIOCSIFFLAGS, up),
        returns(Call.CLOSE, fd),
    ]


#: Bytes that a connection over TCP may queue, in each direction: half of what the watch charges for a socket.
#: cgroup/none.py
_QUEUE = 104 << 10
_TCP_QUEUES = ("tcp_rmem", "tcp_wmem")


@point("namespaces.small-queues")
def small_queues_steps() -> list[Step]:
    """
    Bound the queues of TCP in this network namespace, where no cgroup counts their memory. By default a connection's
    grow up to 10 MiB, and no resident set shows it. tcp(7); by network namespace since Linux 4.15.

    Needs CAP_NET_ADMIN over the user namespace, and the host's /proc, writable.
    """
    text = f"4096 {_QUEUE // 2} {_QUEUE}".encode()
    made = []
    for name in _TCP_QUEUES:
        fd, path = Cell(name), f"/proc/sys/net/ipv4/{name}"
        made += [
            replace(gives(fd, Call.OPENAT, _AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0), hints=_NO_SYSCTL),
            returns(Call.WRITE, fd, Block(text), len(text), value=len(text)),
            returns(Call.CLOSE, fd),
        ]
    return made


def steps(hostname: str) -> list[Step]:
    """
    Start a session, unshare the cgroup namespace, and set names that reveal nothing of the host.

    Needs CAP_SYS_ADMIN over the user namespace.
    """
    return [
        # Leave the keeper's process group: kill(0, ...) reaches a group's members in any namespace.
        Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
        # Not in the clone, as the others: its root is the caller's cgroup, and the leaf may be joined after the clone.
        returns(Call.UNSHARE, Clone.NEWCGROUP),
        returns(Call.SETHOSTNAME, hostname, len(hostname.encode())),
        returns(Call.SETDOMAINNAME, _NO_DOMAIN, len(_NO_DOMAIN)),
    ]


#: The namespaces of a sandbox that a further process of it has to enter; the keeper has the others itself.
ENTERED = ("pid", "mnt", "ipc", "uts")


def entrance_steps(cells: Sequence[Cell]) -> list[Step]:
    """
    Open this process's own namespaces, in the order of ENTERED, by the sandbox's /proc.

    Nobody else can: a process that isn't dumpable shows them to itself alone.
    """
    return [gives(cell, Call.OPENAT, _AT_FDCWD, f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC, 0)
            for cell, name in zip(cells, ENTERED, strict=True)]


def beside_steps(*, terminal: bool = False) -> list[Step]:
    """
    The steps of a further process of a sandbox in its namespaces: as `steps`, except for the names, which are set.

    Args:
        terminal: descriptor 0 is a pty's slave, and becomes the controlling terminal.
    """
    return [
        Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
        *([returns(Call.IOCTL, 0, termios.TIOCSCTTY, 0)] if terminal else []),
        returns(Call.UNSHARE, Clone.NEWCGROUP),
    ]

"""
The setup of namespaces after the clone that made them. namespaces(7), cgroup_namespaces(7), setsid(2)

The user and network namespaces are the keeper's; the runner's clone makes the pid, mount, ipc and uts namespaces.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import termios
from collections.abc import Sequence

from leeward._native.spawn import Clone
from leeward._native.steps import AT_FDCWD, Block, Call, Cell, Gives, Step, gives, returns
from leeward.base.dataclass import replace
from leeward.base.points import point

#: A new uts namespace starts with the host's NIS domain, which uname(2) shows. This is the kernel's default.
_NO_DOMAIN = "(none)"

_NO_SYSCTL = dict.fromkeys((errno.EROFS, errno.EACCES, errno.ENOENT),
                           "`loopback` without cgroup controllers, and in an image as root, has to set numbers of TCP: it"
                           " needs a writable /proc/sys/net")

#: <linux/sockios.h>, <net/if.h>
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


@point("namespaces.loopback")
def loopback_steps() -> list[Step]:
    """Bring `lo` up in this network namespace, by ioctl; netdevice(7). Importing a netlink library takes 8 ms."""
    fd = Cell("socket")
    up = Block(struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))  # struct ifreq
    return [
        gives(fd, Call.SOCKET, socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0),
        returns(Call.IOCTL, fd, _SIOCSIFFLAGS, up),
        returns(Call.CLOSE, fd),
    ]


#: Bytes that a TCP connection may queue in each direction: half of the charge for a socket in cgroup/none.py.
_QUEUE = 104 << 10
_TCP_QUEUES = ("tcp_rmem", "tcp_wmem")


@point("namespaces.small-queues")
def small_queues_steps() -> list[Step]:
    """
    Bound the queues of TCP here, for hosts where no cgroup counts their memory: by default a connection's grow up to 10
    MiB, which no resident set shows. tcp(7), Linux 4.15. Needs a writable /proc of the host.
    """
    return [step for name in _TCP_QUEUES for step in _sysctl(name, f"4096 {_QUEUE // 2} {_QUEUE}")]


def low_ports_steps() -> list[Step]:
    """Let servers listen on ports below 1024 here, as root does in an image. ip(7), Linux 4.11. Needs a writable /proc."""
    return _sysctl("ip_unprivileged_port_start", "0")


def _sysctl(name: str, value: str) -> list[Step]:
    fd, path, text = Cell(name), f"/proc/sys/net/ipv4/{name}", value.encode()
    return [
        replace(gives(fd, Call.OPENAT, AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0), hints=_NO_SYSCTL),
        returns(Call.WRITE, fd, Block(text), len(text), value=len(text)),
        returns(Call.CLOSE, fd),
    ]


def steps(hostname: str) -> list[Step]:
    """Start a session, unshare the cgroup namespace, and set names that reveal nothing of the host."""
    return [
        # Leave the keeper's process group: kill(0, ...) reaches a group's members in any namespace.
        Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
        # The clone doesn't make this namespace: its root is the caller's cgroup, and the leaf may be joined afterwards.
        returns(Call.UNSHARE, Clone.NEWCGROUP),
        returns(Call.SETHOSTNAME, hostname, len(hostname.encode())),
        returns(Call.SETDOMAINNAME, _NO_DOMAIN, len(_NO_DOMAIN)),
    ]


#: The namespaces that a further process of a sandbox has to enter; the keeper, which clones it, is in the others.
ENTERED = ("pid", "mnt", "ipc", "uts")


def entrance_steps(cells: Sequence[Cell]) -> list[Step]:
    """Open this process's namespaces, in the order of ENTERED: no other process can, since this one isn't dumpable."""
    return [gives(cell, Call.OPENAT, AT_FDCWD, f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC, 0)
            for cell, name in zip(cells, ENTERED, strict=True)]


def beside_steps(*, terminal: bool = False) -> list[Step]:
    """
    The steps of a further process of a sandbox, in its namespaces, where the names of `steps` are set already. With
    *terminal*, descriptor 0 is a pty's slave, and becomes the controlling terminal.
    """
    return [
        Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
        *([returns(Call.IOCTL, 0, termios.TIOCSCTTY, 0)] if terminal else []),
        returns(Call.UNSHARE, Clone.NEWCGROUP),
    ]

"""
Namespaces: what comes after the clone that made them.

Runs in:   the steps are made in the zygote; taken in the runner, those of the loopback in the keeper.
Source:    namespaces(7), cgroup_namespaces(7), setsid(2), sethostname(2)

User and network namespace are the keeper's; pid, mount, ipc and uts came with the runner's clone.
"""

from __future__ import annotations

import socket
import struct

from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Gives, Step, gives, returns

#: A new uts namespace starts with the host's NIS domain, which uname(2) tells. This is the kernel's own.
_NO_DOMAIN = "(none)"

#: <linux/sockios.h>, <net/if.h>
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def loopback_steps() -> list[Step]:
    """
    Set `lo` up in this network namespace; netdevice(7). A netlink library takes 8 ms to be imported.

    Needs CAP_NET_ADMIN over the user namespace.
    """
    fd = Cell("socket")
    up = Block(struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))  # struct ifreq
    return [
        gives(fd, Call.SOCKET, socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0),
        returns(Call.IOCTL, fd, _SIOCSIFFLAGS, up),
        returns(Call.CLOSE, fd),
    ]


def steps(hostname: str) -> list[Step]:
    """
    A session and a cgroup namespace of its own, and names that tell nothing of the host.

    Needs CAP_SYS_ADMIN over the user namespace.
    """
    return [
        # kill(0, ...) reaches a process group wherever its members are: out of the keeper's.
        Step(Call.SETSID, (), (), gives=Gives.SOMETHING),
        # Not with the others in the clone: its root is the cgroup that the caller is in, and the leaf is joined later.
        returns(Call.UNSHARE, Clone.NEWCGROUP),
        returns(Call.SETHOSTNAME, hostname, len(hostname.encode())),
        returns(Call.SETDOMAINNAME, _NO_DOMAIN, len(_NO_DOMAIN)),
    ]

"""
Namespaces: what comes after the clone that made them.

Runs in:   the steps are made in the keeper and taken in the runner.
Source:    namespaces(7), cgroup_namespaces(7), setsid(2), sethostname(2)

User and network namespace are the keeper's; pid, mount, ipc and uts came with the runner's clone.
"""

from __future__ import annotations

from leeward._native.spawn import Clone
from leeward._native.steps import Call, Step, returns

#: A new uts namespace starts with the host's NIS domain, which uname(2) tells. This is the kernel's own.
_NO_DOMAIN = "(none)"


def steps(hostname: str) -> list[Step]:
    """
    A session and a cgroup namespace of its own, and names that tell nothing of the host.

    Needs CAP_SYS_ADMIN over the user namespace.
    """
    return [
        # kill(0, ...) reaches a process group wherever its members are: out of the keeper's.
        Step(Call.SETSID, (), ()),
        # Not with the others in the clone: its root is the cgroup that the caller is in, and the leaf is joined later.
        returns(Call.UNSHARE, Clone.NEWCGROUP),
        returns(Call.SETHOSTNAME, hostname, len(hostname.encode())),
        returns(Call.SETDOMAINNAME, _NO_DOMAIN, len(_NO_DOMAIN)),
    ]
